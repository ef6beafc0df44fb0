"""Asking the ledger for a step until it answers, and whose bodies ask.

Another execution may be making the same release: it is waited for, and then replayed.
A step that the body of another one asks for is made by code that has read private data:
what it says of itself, and what it is told, may be that data.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerUnavailable,
    PublicError,
    public_name,
)
from dpflow.guard.call_frames import Held
from dpflow.guard.project import Project
from dpflow.ledger.records import Answer, Busy, Granted, Replayed, Request
from dpflow.noise import draws as mechanism
from dpflow.noise.sources import is_replaced

logger = logging.getLogger("dpflow")

#: A thread, and the task of its event loop if there is one.
Home = tuple[threading.Thread, object]
_CLAIM_SECONDS = 3600.0
_POLL_SECONDS = 0.1


#: The executions whose bodies run, held by the frames that run them.
running: Held[Any] = Held()
#: Those that this context comes from, outermost first: threads and tasks that a body
#: starts inherit it. In the body's own, its frame tells.
inherited: ContextVar[tuple[Any, ...]] = ContextVar("dpflow_around", default=())


def home() -> Home:
    """Return the thread and the task that make this call."""
    try:
        task: object = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.current_thread(), task


def _bodies_around() -> Iterator[Any]:
    """Yield the bodies that this call comes from, innermost first."""
    yield from running.around()
    if before := inherited.get():
        here = home()
        yield from (body for body in reversed(before) if body.home != here)


def current_body() -> Request | None:
    """Return the request of the nearest body that this call comes from, if any.

    Threads and tasks that copied the body's context count; plain threads and other
    processes do not.
    """
    return next((body.request for body in _bodies_around()), None)


def refuse_inside() -> None:
    """Refuse a step inside the body of another one.

    Raises:
        PublicError: In the body of a step. The error names the outer step only, for
            the inner step's name could be made of private data.
    """
    if (outer := current_body()) is not None:
        msg = (
            f"the body of DP step {outer.step!r} called another DP step, which was "
            "refused and not charged. A body has read private data, and a second step "
            "would show it by its name, cost or error. Call the two steps one after "
            "another, and pass the released value from one to the other."
        )
        raise PublicError(msg)


def check_outside(what: str) -> None:
    """Refuse what is to be declared where no private data has been read.

    Args:
        what: The declaration, for the message.

    Raises:
        ConfigurationError: Within the body of a step.
    """
    if (outer := current_body()) is not None:
        msg = (
            f"{what} was called inside the body of DP step {outer.step!r}, where names "
            "could be made of private data, and the ledger and Prefect would show "
            "them. Define it outside, such as at the top of a module, and call it there"
        )
        raise ConfigurationError(msg)


@contextmanager
def owed(project: Project, request: Request) -> Iterator[None]:
    """Let this process ask again if it is stopped between its question and its end.

    A timeout or Ctrl-C can hit a sync step anywhere: before its body, or while its
    output is stored. The charge stays, and nobody would settle it: the next to ask
    settles it in full, instead of waiting for this process to end.
    """
    unsettled = project.unsettled
    try:
        unsettled.running.add(request.reservation)
        yield
    except BaseException as stopped:
        # A refusal is no charge, and what a body raised was posted.
        is_running = request.reservation in unsettled.running
        if is_running and not isinstance(stopped, DpflowError):
            _owe(project, request, stopped)
        raise
    finally:
        unsettled.running.discard(request.reservation)


def _owe(project: Project, request: Request, error: BaseException) -> None:
    """Have a charge settled in full that nobody else would settle, if it was made."""
    facts = {"error_type": public_name(type(error))}
    project.unsettled.add(request.reservation, outcome="failed", body=facts)


def _prepare(project: Project, request: Request) -> None:
    """Have what `release` needs, so that no charged body fails for the lack of it.

    A release that is kept is replayed without: to load it takes long.

    Raises:
        ReleaseError: If it is not installed, or cannot draw what the cost declares.
    """
    ledger = project.ledger
    mechanism.sampler_for(request.cost)
    if is_replaced(ledger.id, ledger.environment):
        return
    if mechanism.is_imported() or isinstance(
        ledger.would_answer(request), Granted | Busy
    ):
        mechanism.load()


def reserve(project: Project, request: Request, *, own: bool) -> Granted | Replayed:
    """Reserve a step's worst case, or return its release.

    Args:
        project: The project that is charged.
        request: The question to the ledger.
        own: Whether the step's body draws the declared noise.

    Raises:
        BudgetRefused: If a gate does not admit the step.
        DpflowError: If the request cannot be decided; the step may not run.
    """
    if not own and mechanism.has_sampler(request.cost):
        _prepare(project, request)
    since = time.monotonic()
    project.unsettled.soon()
    while isinstance(answer := _answer(project, request), Busy):
        if not project.unsettled.settle(answer.reservation):
            _check_patience(request, since)
            time.sleep(_POLL_SECONDS)
    return _warned(request, answer)


async def areserve(
    project: Project, request: Request, *, own: bool
) -> Granted | Replayed:
    """Reserve as `reserve` does, in a task, while others of its event loop go on."""
    if not own and mechanism.has_sampler(request.cost):
        if mechanism.is_imported():
            _prepare(project, request)
        else:
            await asyncio.to_thread(_prepare, project, request)
    since = time.monotonic()
    project.unsettled.soon()
    while isinstance(answer := await _answer_in_thread(project, request), Busy):
        late = project.unsettled.settle
        if not await asyncio.to_thread(late, answer.reservation):
            _check_patience(request, since)
            await asyncio.sleep(_POLL_SECONDS)
    return _warned(request, answer)


def _answer(project: Project, request: Request) -> Answer:
    """Ask the ledger once; a charge whose answer is lost is settled later."""
    try:
        return project.ledger.reserve(request)
    except Exception as error:
        # Who waited for a lock in vain has sent nothing.
        if isinstance(error, LedgerUnavailable) and "waited" not in error.details:
            _owe(project, request, error)
        raise


async def _answer_in_thread(project: Project, request: Request) -> Answer:
    """Ask in a thread, whose answer is given back if this task is cancelled."""
    lock, answers, left = threading.Lock(), list[Answer](), threading.Event()

    def put() -> Answer:
        answer = _answer(project, request)
        with lock:
            answers.append(answer)
            is_late = left.is_set()
        if is_late:
            _give_back(project, request, answer)
        return answer

    try:
        return await asyncio.to_thread(put)
    except BaseException:
        # The thread goes on and may be granted the step.
        with lock:
            left.set()
            early = list(answers)
        for answer in early:
            _give_back(project, request, answer)
        raise


def _give_back(project: Project, request: Request, answer: Answer) -> None:
    """Void a grant whose body will not run."""
    if not isinstance(answer, Granted):
        return
    reason = "the step was cancelled before its body started"
    try:
        project.ledger.void(answer.reservation, reason=reason)
    except DpflowError as error:
        logger.warning("DP step %r stays charged: %s", request.step, error.message)
        _owe(project, request, error)


def _warned(request: Request, answer: Granted | Replayed) -> Granted | Replayed:
    """Say that its run's reservation did not hold a step, or that its cost changed."""
    if isinstance(answer, Replayed) and answer.made_at is not None:
        logger.warning(
            "release %r of DP step %r was made at %s and is replayed as it is; the "
            "step declares %r now, for releases that are not kept yet",
            request.key_text,
            request.step,
            answer.made_at,
            request.cost,
        )
    if isinstance(answer, Granted) and answer.beyond:
        logger.warning(
            "DP step %r is beyond what the reservation of its run has left; it was "
            "reserved by itself. Declare it in reserve_run=.",
            request.step,
        )
    return answer


def _check_patience(request: Request, since: float) -> None:
    """Refuse to wait for too long for the release of another run."""
    if time.monotonic() - since > _CLAIM_SECONDS:
        msg = (
            f"another run has been making the release of step {request.step!r} for "
            f"{_CLAIM_SECONDS:g} s. Try again when it has ended."
        )
        raise LedgerUnavailable(msg)
