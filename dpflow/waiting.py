"""Asking the ledger for a step until it answers.

Another execution may be making the same release: it is waited for, and then replayed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from dpflow.exceptions import DpflowError, LedgerUnavailable, ReleaseError
from dpflow.ledger.records import Answer, Busy, Granted, Replayed, Request
from dpflow.mechanisms import noise as mechanism
from dpflow.mechanisms.sources import is_replaced
from dpflow.project import Project, Unsettled

logger = logging.getLogger("dpflow")

_CLAIM_SECONDS = 3600.0
_POLL_SECONDS = 0.1

#: The charges whose bodies run around this context, outermost first.
_around: ContextVar[tuple[str, ...]] = ContextVar("dpflow_around", default=())


@contextmanager
def inside(reservation: str) -> Iterator[None]:
    """Know, within this block, that the body of this charge runs around it."""
    token = _around.set((*_around.get(), reservation))
    try:
        yield
    finally:
        # Where a generator is closed in another context, this one has none to forget.
        with suppress(ValueError):
            _around.reset(token)


@contextmanager
def owed(project: Project, request: Request) -> Iterator[None]:
    """Let this process ask again if it is stopped between its question and its end.

    A timeout or Ctrl-C can hit a sync step anywhere: before its body, or while its
    output is stored. The charge stays, and nobody would settle it: the next to ask
    settles it in full, instead of waiting for this process to end.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as stopped:
        late = Unsettled(outcome="failed", body={"error_type": type(stopped).__name__})
        project.unsettled.setdefault(request.reservation, late)
        raise


def prepare(project: Project, request: Request) -> None:
    """Have what `release` needs, so that no charged body fails for the lack of it.

    A release that is kept is replayed without: to load it takes long.

    Raises:
        ReleaseError: If it is not installed, or cannot draw what the cost declares.
    """
    ledger = project.ledger
    if not mechanism.has_sampler(request.cost):
        return
    mechanism.sampler_for(request.cost)
    if is_replaced(ledger.id, ledger.environment):
        return
    if mechanism.is_imported() or isinstance(
        ledger.would_answer(request), Granted | Busy
    ):
        mechanism.load()


async def aprepare(project: Project, request: Request) -> None:
    """Have what `release` needs as `prepare` does, without blocking the event loop."""
    if mechanism.is_imported() or not mechanism.has_sampler(request.cost):
        prepare(project, request)
    else:
        await asyncio.to_thread(prepare, project, request)


def reserve(project: Project, request: Request) -> Granted | Replayed:
    """Reserve a step's worst case, or find its release.

    Raises:
        BudgetRefused: If a gate does not admit the step.
        DpflowError: If the request cannot be decided; the step may not run.
    """
    since = time.monotonic()
    while isinstance(answer := project.ledger.reserve(request), Busy):
        if not _settled_late(project, answer):
            _check_patience(request, answer, since)
            time.sleep(_POLL_SECONDS)
    return _told(request, answer)


async def areserve(project: Project, request: Request) -> Granted | Replayed:
    """Reserve as `reserve` does, without blocking the event loop."""
    since = time.monotonic()
    while isinstance(answer := await _asked(project, request), Busy):
        if not await asyncio.to_thread(_settled_late, project, answer):
            _check_patience(request, answer, since)
            await asyncio.sleep(_POLL_SECONDS)
    return _told(request, answer)


def _told(request: Request, answer: Granted | Replayed) -> Granted | Replayed:
    """Say of a step that its run's preflight did not hold it."""
    if isinstance(answer, Granted) and answer.beyond:
        logger.warning(
            "DP step %r is beyond what the preflight of its run has left; it was "
            "reserved by itself. Declare it in preflight=.",
            request.step,
        )
    return answer


async def _asked(project: Project, request: Request) -> Answer:
    question = _Question(project, request)
    try:
        return await asyncio.to_thread(question.put)
    except BaseException:
        # Cancelled, perhaps: the thread goes on and may be granted the step.
        question.leave()
        raise


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
        answer = self._project.ledger.reserve(self._request)
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


def _settled_late(project: Project, answer: Busy) -> bool:
    """Settle a charge of this process whose settlement failed, and free its key.

    Its body has ended, so to wait for it would be to wait until this process ends.
    """
    told = project.unsettled.get(answer.reservation)
    if told is None:
        return False
    project.ledger.settle(
        answer.reservation,
        outcome=told.outcome,
        body=told.body,
        reported=told.reported,
    )
    project.unsettled.pop(answer.reservation, None)
    return True


def _check_patience(request: Request, answer: Busy, since: float) -> None:
    if answer.reservation in _around.get():
        msg = (
            f"step {request.step!r} was called inside the body that is making the same "
            "release, and would wait for itself. Call a plain function there, or name "
            "what tells the two apart in release_key="
        )
        raise ReleaseError(msg)
    if time.monotonic() - since > _CLAIM_SECONDS:
        msg = (
            f"another run has been making the release of step {request.step!r} for "
            f"{_CLAIM_SECONDS:g} s. Try again when it has ended."
        )
        raise LedgerUnavailable(msg)
