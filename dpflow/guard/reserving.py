"""Asking the ledger for a step until it answers, and the load that comes before.

Another execution may be making the same release: its end is awaited, and the release
replayed. The ledger would grant the step when its load runs, so that a failed load is
free. What a load reads is private, so that it may call no DP step, and its error is
shown by its class at most.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpflow.exceptions import (
    BudgetRefused,
    DpflowError,
    LedgerUnavailable,
    LoadFailed,
    public_name,
    require,
)
from dpflow.guard.bodies import Home, home, running
from dpflow.guard.functions import check_reusable, count_receivers
from dpflow.guard.project import Project
from dpflow.guard.redaction import StoredError, redact_load_error
from dpflow.guard.request import StepContext, ask
from dpflow.guard.step import Step, failed_loads
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.ledger.requests import Answer, Busy, Granted, Replayed, Request
from dpflow.noise import draws as mechanism
from dpflow.noise.sources import OWN, is_replaced

logger = logging.getLogger("dpflow")

_CLAIM_SECONDS = 3600.0
_POLL_SECONDS = 0.1

Around = Callable[[], AbstractContextManager[None]]


@dataclass(slots=True, repr=False, eq=False)
class Call:
    """One call of a step: its request, and its load, which runs once at most.

    Attributes:
        step: The step.
        args: The positional arguments of the call.
        kwargs: The other arguments.
        context: The context of the call.
        around: Makes the context in which private data is read.
        project: The project that is charged.
        request: The request to its ledger.
        home: The thread and the task of the call.
        is_due: Whether the step has a load that did not run.

    Raises:
        DpflowError: If anything declared is wrong; nothing was charged.
    """

    step: Step
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    context: StepContext
    around: Around = nullcontext
    project: Project = field(init=False)
    request: Request = field(init=False)
    home: Home = field(init=False)
    is_due: bool = field(init=False)
    _value: Any = field(init=False, default=None)
    _error: BaseException | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.home, self.is_due = home(), self.step.load is not None
        request = ask(self.step, self.args, self.kwargs, self.context)
        self.project, self.request = request

    def run(self, answer: object) -> None:
        """Read the input of the body where the ledger grants the step, once.

        Args:
            answer: What the ledger answers, or would answer.

        Raises:
            LoadFailed: If the load raises.
            ConfigurationError: If it returns an iterator.
        """
        if self.is_due and isinstance(answer, Granted):
            read, frame = self._bound(), inspect.currentframe()
            with running(frame, self), StoredError(self._store_error), self.around():
                self._value = read()
            self._end()

    async def arun(self, answer: object) -> None:
        """Read as `run`; a load that is not async runs in a thread."""
        if self.is_due and isinstance(answer, Granted):
            read, frame = self._bound(), inspect.currentframe()
            if not inspect.iscoroutinefunction(self.step.load):
                read = partial(asyncio.to_thread, read)
            with running(frame, self), StoredError(self._store_error), self.around():
                self._value = await read()
            self._end()

    def pass_on(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of the body, whose reservation is made."""
        if self.step.load is None:
            return self.args, self.kwargs
        failed_loads.pop(self.step.body, None)
        count = count_receivers(self.step.body)
        first, others = self.args[:count], self.args[count:]
        if len(inspect.signature(self.step.body).parameters) == count + 1:
            return (*first, self._value), {}
        return (*first, self._value, *others), self.kwargs

    def _bound(self) -> Callable[[], Any]:
        """Return the load with those arguments of the call that it names."""
        function: Any = self.step.load
        call = self.step.signature.bind(*self.args, **self.kwargs)
        call.apply_defaults()
        signature = inspect.signature(function)
        named = {name: call.arguments[name] for name in signature.parameters}
        own = inspect.BoundArguments(signature, named)
        return partial(function, *own.args, **own.kwargs)

    def _store_error(self, error: BaseException) -> None:
        self._error = redact_load_error(error, self.request)

    def _end(self) -> None:
        """Raise the error of the load, or note that the input is read."""
        if isinstance(self._error, LoadFailed):
            failed_loads[self.step.body] = failed_loads.get(self.step.body, 0) + 1
        if self._error is not None:
            raise self._error
        check_reusable(self.step.name, "load= returned", self._value)
        self.is_due = False


@contextmanager
def owe_if_stopped(call: Call) -> Iterator[None]:
    """Let this process ask again if it is stopped between its question and its end.

    A timeout or Ctrl-C can hit a sync step anywhere: before its body, or while its
    output is stored. The charge stays, and no process would settle it: the next to ask
    settles it in full, instead of waiting for this process to end.
    """
    unsettled, reservation = call.project.unsettled, call.request.reservation
    try:
        unsettled.running.add(reservation)
        yield
    except BaseException as stopped:
        # A refusal is no charge, and what a body raised was posted.
        is_running = reservation in unsettled.running
        if is_running and not isinstance(stopped, DpflowError):
            _owe(call, stopped)
        raise
    finally:
        unsettled.running.discard(reservation)


def _owe(call: Call, error: BaseException) -> None:
    """Have a charge settled in full that no other process settles, if any."""
    body = {"error_type": public_name(type(error))}
    call.project.unsettled.add(call.request.reservation, outcome="failed", body=body)


def _prepare(call: Call) -> None:
    """Load the library of `release`, so that no charged body fails without it.

    A stored release is replayed without: loading takes long.

    Raises:
        ReleaseError: If it is not installed, or cannot draw what the cost declares.
    """
    ledger, request = call.project.ledger, call.request
    if call.step.noise == OWN or not mechanism.has_sampler(request.cost):
        return
    mechanism.sampler_for(request.cost)
    if not is_replaced(ledger.id, ledger.environment) and (
        mechanism.is_imported()
        or isinstance(ledger.would_answer(request), Granted | Busy)
    ):
        mechanism.load()


def reserve(call: Call) -> Granted | Replayed:
    """Reserve a step's worst case, or return its release.

    Args:
        call: The request, and the load that runs once the ledger would grant it. The
            listener of its context hears of a refusal.

    Raises:
        LoadFailed: If the load raises; nothing was charged.
        BudgetRefused: If a gate does not admit the step.
        DpflowError: If the request cannot be decided; the step may not run.
    """
    with _reserving(call) as check_patience:
        if call.context.before_charge is not None:
            call.context.before_charge(call.project, call.request)
        _prepare(call)
        while isinstance(answer := _load_and_answer(call), Busy):
            if not call.project.unsettled.settle(answer.reservation):
                check_patience()
                time.sleep(_POLL_SECONDS)
        with _void_on_error(call, answer):
            call.run(answer)
        return _warn_of_other_cost(call.request, answer)


async def areserve(call: Call) -> Granted | Replayed:
    """Reserve as `reserve` does, in a task, while others of its event loop go on.

    Raises:
        ConfigurationError: If no event loop of asyncio runs it.
    """
    request, project = call.request, call.project
    require(
        call.home[1] is not None,
        f"async step {request.step!r} runs under asyncio only, not under trio. The "
        "step did not run. Call it in an event loop of asyncio, or make it sync.",
    )
    with _reserving(call) as check_patience:
        if call.context.before_charge is not None:
            await asyncio.to_thread(call.context.before_charge, project, request)
        await asyncio.to_thread(_prepare, call)
        while True:
            answer = await asyncio.to_thread(_preview, call)
            await call.arun(answer)
            if not isinstance(answer, Busy):
                answer = await _answer_in_thread(call)
            if not isinstance(answer, Busy):
                break
            late = project.unsettled.settle
            if not await asyncio.to_thread(late, answer.reservation):
                check_patience()
                await asyncio.sleep(_POLL_SECONDS)
        with _void_on_error(call, answer):
            await call.arun(answer)
        return _warn_of_other_cost(request, answer)


@contextmanager
def _reserving(call: Call) -> Iterator[Callable[[], None]]:
    """Tell a refusal of this block to the listener, and bound its wait for a release.

    Yields:
        A function that raises once another run has held the release key for too long.
    """
    since, request = time.monotonic(), call.request

    def check_patience() -> None:
        if time.monotonic() - since > _CLAIM_SECONDS:
            msg = (
                f"another run has been making the release of step {request.step!r} for "
                f"{_CLAIM_SECONDS:g} s. Try again when it has ended."
            )
            raise LedgerUnavailable(msg)

    call.project.unsettled.soon()
    try:
        yield check_patience
    except BudgetRefused as refusal:
        call.context.tell_refusal(refusal, request)
        raise


def _load_and_answer(call: Call) -> Answer:
    """Ask the ledger once, after the load if it would grant the step."""
    answer = _preview(call)
    call.run(answer)
    return answer if isinstance(answer, Busy) else _answer(call)


def _preview(call: Call) -> object:
    """Return what the ledger would answer, if a load waits for it.

    What is replayed or refused is not loaded; the refusal is journaled by the request.
    """
    return call.project.ledger.would_answer(call.request) if call.is_due else None


@contextmanager
def _void_on_error(call: Call, answer: Answer) -> Iterator[None]:
    """Void a grant that the ledger would not have given before, if its load fails."""
    try:
        yield
    except BaseException:
        _give_back(call, answer)
        raise


def _answer(call: Call) -> Answer:
    """Ask the ledger once; a charge whose answer is lost is settled later."""
    try:
        return call.project.ledger.reserve(call.request)
    except without_interrupts(Exception) as error:
        # Who waited for a lock in vain has sent nothing.
        if isinstance(error, LedgerUnavailable) and "waited" not in error.details:
            _owe(call, error)
        raise


async def _answer_in_thread(call: Call) -> Answer:
    """Ask in a thread; a grant that comes after this task was cancelled is voided."""
    future: Future[Answer] = Future()

    def put() -> None:
        answer = _answer(call)
        if future.set_running_or_notify_cancel():
            future.set_result(answer)
        else:
            _give_back(call, answer)

    try:
        await asyncio.to_thread(put)
    except BaseException:
        # The thread goes on and may be granted the step.
        if not future.cancel():
            _give_back(call, future.result())
        raise
    return future.result()


def _give_back(call: Call, answer: Answer) -> None:
    """Void a grant whose body will not run."""
    if not isinstance(answer, Granted):
        return
    reason = "the step ended before its body started"
    try:
        call.project.ledger.void(answer.reservation, reason=reason)
    except DpflowError as error:
        step = call.request.step
        logger.warning("DP step %r stays charged: %s", step, error.message)
        _owe(call, error)


def _warn_of_other_cost(
    request: Request, answer: Granted | Replayed
) -> Granted | Replayed:
    """Log that a release of another cost is replayed."""
    if isinstance(answer, Replayed) and answer.made_at is not None:
        logger.warning(
            "release %r of DP step %r is replayed with its own cost, %s; the cost that "
            "the step declares now, %r, is for new releases",
            *(request.key_text, request.step, answer.made_at, request.cost),
        )
    return answer
