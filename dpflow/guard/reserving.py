"""Asking the ledger for a step until it answers, and whose bodies ask.

Another execution may be making the same release: it is waited for, and then replayed.
A step that the body of another one asks for is made by code that has read private data:
what it says of itself, and what it is told, may be that data.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, cast

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerUnavailable,
    PublicError,
    public_name,
)
from dpflow.guard.call_frames import Held
from dpflow.guard.late_settlements import Settlement
from dpflow.guard.project import Project
from dpflow.ledger.records import Answer, Busy, Granted, Replayed, Request
from dpflow.noise import draws as mechanism
from dpflow.noise.sources import is_replaced

logger = logging.getLogger("dpflow")

R = TypeVar("R")

#: A thread, and the task of its event loop if there is one.
Home = tuple[threading.Thread, object]
_CLAIM_SECONDS = 3600.0
_POLL_SECONDS = 0.1


class Body(Protocol):
    """A body that runs.

    Attributes:
        request: What its step asked of the ledger.
        redact: Whether the texts that it makes are withheld.
        home: The thread and the task that run it.
    """

    request: Request
    redact: bool
    home: Home | None


#: The bodies that run, held by the frames that run them.
running: Held[Body] = Held()
#: Those that this context comes from, outermost first: threads and tasks that a body
#: starts inherit it. In the body's own, its frame tells.
inherited: ContextVar[tuple[Body, ...]] = ContextVar("dpflow_around", default=())


def home() -> Home:
    """Return the thread and the task that make this call."""
    try:
        task: object = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.current_thread(), task


def _bodies_around() -> Iterator[Body]:
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
    if not running and not inherited.get():
        return None
    return next((body.request for body in _bodies_around()), None)


def refuse_inside() -> None:
    """Refuse a step inside the body of another one.

    Raises:
        PublicError: In the body of a step. The error names the outer step only, for
            the inner step's name could be made of private data.
    """
    outer = current_body()
    if outer is not None:
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
    outer = current_body()
    if outer is not None:
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
        unsettled.begin(request.reservation)
        yield
    except BaseException as stopped:
        # A refusal is no charge, and what a body raised was posted.
        told = isinstance(stopped, DpflowError)
        if unsettled.is_running(request.reservation) and not told:
            _owe(project, request, stopped)
        raise
    finally:
        unsettled.ended(request.reservation)


def _owe(project: Project, request: Request, error: BaseException) -> None:
    """Have a charge settled in full that nobody else would settle, if it was made."""
    facts = {"error_type": public_name(type(error))}
    late = Settlement(outcome="failed", body=facts)
    project.unsettled.add(request.reservation, late)


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


async def reserve(
    project: Project, request: Request, wait: Blocking, *, own: bool
) -> Granted | Replayed:
    """Reserve a step's worst case, or find its release.

    Args:
        project: Where.
        request: What is asked of the ledger.
        wait: How its caller waits.
        own: Whether its body draws the declared noise by itself.

    Raises:
        BudgetRefused: If a gate does not admit the step.
        DpflowError: If the request cannot be decided; the step may not run.
    """
    if not own and mechanism.has_sampler(request.cost):
        await wait.prepare(project, request)
    since = time.monotonic()
    project.unsettled.soon()
    while isinstance(answer := await wait.ask(project, request), Busy):
        late = functools.partial(project.unsettled.settle, answer.reservation)
        if not await wait.call(late):
            _check_patience(request, since)
            await wait.pause(_POLL_SECONDS)
    return _told(request, answer)


class Blocking:
    """Waits with its whole thread; what awaits this alone never suspends."""

    async def call(self, function: Callable[[], R]) -> R:
        """Call it here."""
        return function()

    async def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)  # noqa: ASYNC251 (there is no loop to block)

    async def prepare(self, project: Project, request: Request) -> None:
        """Load it here."""
        _prepare(project, request)

    async def ask(self, project: Project, request: Request) -> Answer:
        """Ask here."""
        return _answer(project, request)


class OnEventLoop(Blocking):
    """Waits in a task, while others of its event loop go on."""

    async def call(self, function: Callable[[], R]) -> R:
        """Call it in a thread."""
        return await asyncio.to_thread(function)

    async def pause(self, seconds: float) -> None:
        """Let others go on."""
        await asyncio.sleep(seconds)

    async def prepare(self, project: Project, request: Request) -> None:
        """Load it in a thread, once."""
        if mechanism.is_imported():
            _prepare(project, request)
        else:
            await asyncio.to_thread(_prepare, project, request)

    async def ask(self, project: Project, request: Request) -> Answer:
        """Ask in a thread, which gives back what it gets if this is cancelled."""
        question = _Question(project, request)
        try:
            return await asyncio.to_thread(question.put)
        except BaseException:
            # The thread goes on and may be granted the step.
            question.leave()
            raise


def at_once(body: Coroutine[Any, Any, R]) -> R:
    """Run what only `Blocking` waits for, in this thread and without an event loop."""
    try:
        body.send(None)
    except StopIteration as ended:
        return cast("R", ended.value)
    except RuntimeError as error:
        # A coroutine may not raise what ends one, such as a body's `next(nothing)`.
        if error.args != ("coroutine raised StopIteration",) or not error.__cause__:
            raise
        raise error.__cause__ from None
    finally:
        body.close()
    msg = "a step of plain code waited for an event loop, which it has not"
    raise TypeError(msg)


def _answer(project: Project, request: Request) -> Answer:
    """Ask the ledger once; a charge whose answer is lost is settled later."""
    try:
        return project.ledger.reserve(request)
    except Exception as error:
        # Who waited for a lock in vain has sent nothing.
        if isinstance(error, LedgerUnavailable) and "waited" not in error.details:
            _owe(project, request, error)
        raise


def _told(request: Request, answer: Granted | Replayed) -> Granted | Replayed:
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


class _Question:
    """One question to the ledger, put in a thread that its asker may leave."""

    def __init__(self, project: Project, request: Request) -> None:
        self._project = project
        self._request = request
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._left = False

    def put(self) -> Answer:
        """Ask; nobody runs the body for an asker that has left."""
        answer = _answer(self._project, self._request)
        with self._lock:
            self._answer = answer
            left = self._left
        if left:
            self._give_back(answer)
        return answer

    def leave(self) -> None:
        """Say that the asker will not run the body, whatever the answer is."""
        with self._lock:
            self._left = True
            answer = self._answer
        if answer is not None:
            self._give_back(answer)

    def _give_back(self, answer: Answer) -> None:
        if not isinstance(answer, Granted):
            return
        reason = "the step was cancelled before its body started"
        try:
            self._project.ledger.void(answer.reservation, reason=reason)
        except DpflowError as error:
            step = self._request.step
            logger.warning("DP step %r stays charged: %s", step, error.message)
            _owe(self._project, self._request, error)


def _check_patience(request: Request, since: float) -> None:
    """Refuse to wait for too long for the release of another run."""
    if time.monotonic() - since > _CLAIM_SECONDS:
        msg = (
            f"another run has been making the release of step {request.step!r} for "
            f"{_CLAIM_SECONDS:g} s. Try again when it has ended."
        )
        raise LedgerUnavailable(msg)
