"""One execution of a DP step: reserve, run, classify, settle.

This is the engine behind `dp_task`, `guarded` and `spend`; it knows no Prefect.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NoReturn

from dpflow.accounting.costs.base import Cost, Settling
from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.exceptions import (
    BudgetRefused,
    DpflowError,
    PublicError,
    ReleaseError,
    public_name,
)
from dpflow.guard.call_frames import suspends
from dpflow.guard.functions import check_output
from dpflow.guard.late_settlements import Settlement
from dpflow.guard.project import Project
from dpflow.guard.redaction import is_public, shown
from dpflow.guard.request import Place, ask
from dpflow.guard.reserving import (
    Blocking,
    Home,
    OnEventLoop,
    at_once,
    home,
    inherited,
    owed,
    reserve,
    running,
)
from dpflow.guard.step import CellLike, Step
from dpflow.ledger.codec import decode, encode
from dpflow.ledger.records import Granted, Replayed, Request
from dpflow.noise import draws as mechanism
from dpflow.noise.refining import Until, refinement
from dpflow.noise.sources import OWN, SELF_DECLARED, OneDraw, drawing, stream_for
from dpflow.rounding import Number

logger = logging.getLogger("dpflow")


@dataclass(slots=True, kw_only=True)
class Execution:
    """A granted execution of a step's body.

    Attributes:
        cost: The worst case that is reserved.
        redact: Whether the text of the body's errors is withheld.
        error: What the outside may see of the error that ended the body, if one did.
        error_type: Name of that error's type.
        ended: Whether the body has ended.
        reported: The sub-steps that ran, or the cell of the output; None: all of it.
        place: Where the step runs.
        home: The thread and the task that run the body.
    """

    project: Project
    request: Request
    redact: bool
    error: BaseException | None = None
    error_type: str = ""
    ended: bool = False
    reported: int | str | None = None
    place: Place = field(default_factory=Place)
    home: Home | None = None
    _draw: OneDraw = field(default_factory=OneDraw, repr=False)
    _process: int = field(default_factory=os.getpid, repr=False)

    @property
    def cost(self) -> Cost:
        """The worst case that is reserved."""
        return self.request.cost

    @property
    def noise(self) -> str:
        """Who drew the noise, for the journal."""
        return self._draw.by

    def release(
        self,
        value: Any,
        *,
        within: Number | None = None,
        until: Until | None = None,
        confidence: Number = "95%",
    ) -> Any:
        """Draw the declared noise and return the noisy value; as `dpflow.release`.

        Raises:
            InvalidCost: If `within` or `confidence` is out of range.
            ReleaseError: If the cost names no mechanism, the value cannot carry its
                noise, or the step released already: its charge pays for one draw.
        """
        if within is None and until is None:
            with self._draw.lock, self.drawing():
                self.check_may_draw("release()")
                self._check_undrawn("release()")
                noisy = mechanism.draw(self.cost, value)
                self._draw.take()
            return noisy
        draw = refinement(
            self.cost, value, within=within, until=until, confidence=confidence
        )
        self.claim_draw("release()")
        with self.drawing():
            draws, noisy = draw()
        self.report(draws)
        return noisy

    def claim_draw(self, asked_by: str, by: str = "") -> None:
        """Take the one draw that the cost pays for; `by` says who draws, if not OpenDP.

        Raises:
            ReleaseError: If the step has ended, has drawn its noise already, or
                declared that its body draws it.
        """
        with self._draw.lock:
            self.check_may_draw(asked_by)
            self._check_undrawn(asked_by)
            self._draw.take(by)

    def claim_loop(self, asked_by: str, *, noise: str) -> None:
        """Take the one loop that the cost pays for; its sub-steps draw, or the body.

        Raises:
            ReleaseError: If the step has ended, or has run its loop already.
        """
        with self._draw.lock:
            self._check_undrawn(asked_by)
            self._draw.take(noise)

    def drawing(self) -> contextlib.AbstractContextManager[None]:
        """Draw this step's noise within a block: by OpenDP, or as its test says."""
        return drawing(self._draw.stream)

    def check_may_draw(self, asked_by: str) -> None:
        """Refuse a draw in a step whose author said that its body draws.

        Raises:
            ReleaseError: If so.
        """
        if self.noise == OWN:
            msg = (
                f"{asked_by} draws the noise of step {self.request.step!r}, which says "
                'noise="own": that its body draws it. Take one of the two away.'
            )
            raise PublicError(msg)

    def check_process(self, asked_by: str) -> None:
        """Refuse what a forked child's copy of this would do a second time.

        Raises:
            ReleaseError: In another process than the one that reserved.
        """
        if self._process != os.getpid():
            msg = (
                f"{asked_by} was called in a process that the body of step "
                f"{self.request.step!r} forked, and its charge pays once. Send the "
                "numbers back, and release them in the body."
            )
            raise PublicError(msg)

    def _check_undrawn(self, asked_by: str) -> None:
        self.check_process(asked_by)
        step = self.request.step
        if self.ended:
            msg = (
                f"{asked_by} was called after step {step!r} had ended and its charge "
                "was posted. Call it inside the body or block."
            )
            raise PublicError(msg)
        if self._draw.taken:
            msg = (
                f"step {step!r} drew noise twice (now by {asked_by}), but its cost "
                "covers one draw. Release one vector, or make two steps of it."
            )
            raise PublicError(msg)

    def report(self, outcome: int | str) -> None:
        """Say how the step came out, so that only this is charged.

        Args:
            outcome: The number of sub-steps that ran, or the cell of the mechanism's
                own output, before any post-processing.

        Raises:
            ReleaseError: If the step has ended, reported before, or declared a cost
                that is the same whatever comes out.
            InvalidCost: If its cost knows no such outcome.
        """
        self.check_process("report()")
        step = self.request.step
        if self.ended or self.reported is not None:
            when = "had ended" if self.ended else "had reported its outcome"
            msg = f"report() was called after step {step!r} {when}"
            raise PublicError(msg)
        if not isinstance(self.cost, Settling):
            msg = (
                f"step {step!r} declared {self.cost!r}, which costs the same whatever "
                "comes out; declare EarlyStopping, SparseVector or OutputDP"
            )
            raise PublicError(msg)
        self.cost.realised(outcome)
        self.reported = outcome

    def _report_cell(self, cell: CellLike, value: Any) -> str | None:
        """Report the cell of what the body returned, or say why there is none.

        Without one, or if the body reported another one, the charge is in full.
        """
        reported, self.reported = self.reported, None
        try:
            outcome = cell(value)
            known = isinstance(self.cost, OutcomeCost) and self.cost.cell(outcome)
        # Its text may quote the output, which need not be released yet.
        except Exception as error:  # noqa: BLE001
            why = f"gave no cell of its cost ({public_name(type(error))})"
        else:
            if known and reported in (None, outcome):
                self.reported = outcome
                return None
            why = "contradicts its cost or what its body reported"
        return f"its cell function {why}; it is charged in full"

    @contextmanager
    def charged(self, frame: FrameType | None) -> Iterator[None]:
        """Run the body in this block; what ends it is kept in `error`, not raised.

        Raised here it would carry the original, private text along as its context.
        Call `settle` after the block, or `fail` if there is an error.

        Args:
            frame: Whose calls may draw this step's noise by `release`.
        """
        self.home = home()
        token = None
        try:
            if not suspends(frame):
                token = inherited.set((*inherited.get(), self))
            try:
                running.hold(frame, self)
                yield
            finally:
                running.drop(frame, self)
            self._check_drawn()
        # Timeouts, cancellation and termination are no Exceptions.
        except BaseException as error:  # noqa: BLE001 (an error is an output too)
            self.error_type = public_name(type(error))
            self.error = self._shown(error)
        finally:
            self.ended = True
            if token is not None:
                with suppress(ValueError):
                    inherited.reset(token)

    def _check_drawn(self) -> None:
        """Refuse the output of a body without the noise that its cost declares."""
        by_people = self.cost.paid_by_people
        drawn_here = by_people or mechanism.has_sampler(self.cost)
        if self.noise != SELF_DECLARED or not drawn_here:
            return
        call = "person_sum(people)" if by_people else "release(value)"
        msg = (
            f"step {self.request.step!r} ended without {call}, so the noise of its "
            f"{self.cost.mechanism} was not drawn. Its value is withheld and not "
            f'kept. Return {call}, or say noise="own" where the step is declared if '
            "its body draws that very noise by itself."
        )
        raise PublicError(msg)

    def fail(self) -> NoReturn:
        """Charge a body that raised in full and raise what the outside may see."""
        self._post("failed", None, {"error_type": self.error_type})
        error = self.error or RuntimeError("the body ended without value and error")
        behind = error.__context__
        try:
            raise error
        finally:
            # In `spend`, Python has just put the original there.
            if self.redact:
                error.__context__ = behind

    def settle(self, value: Any, cell: CellLike | None = None) -> Any:
        """Post the charge, by the cell that a function of the value names, if any.

        A value that cannot be stored is told and not replayed; a ledger that does not
        answer is told, and the charge stays held in full.

        Returns:
            The value as a replay gives it.
        """
        text: str | None = None
        refused, kept = None, value
        if self.request.release_key is not None:
            try:
                text = encode(value)
                kept = decode(text)
            except ReleaseError as error:
                text, refused = None, error
        no_cell = None if cell is None else self._report_cell(cell, value)
        self._post("completed", text, {"noise": self.noise})
        if no_cell is not None:
            self._warn(no_cell)
        if refused is not None:
            self._warn(f"its release cannot be replayed: {refused.message}")
        return kept

    def _shown(self, error: BaseException) -> BaseException:
        """Return what the outside may see of an error of the body."""
        if self.redact:
            datasets = ", ".join(policy.dataset for policy in self.request.policies)
            error = shown(error, step=self.request.step, dataset=datasets)
        if is_public(error) and _IN_FULL not in error.message:
            error.message = f"{error.message.rstrip('.')}. The step {_IN_FULL}."
            error.args = (error.message,)
        return error

    def _post(self, outcome: str, text: str | None, body: Mapping[str, Any]) -> None:
        self.check_process("the settlement")
        project, reservation = self.project, self.request.reservation
        # An error is an output of its own: it may have come from any sub-step.
        reported = self.reported if outcome == "completed" else None
        try:
            digest = project.ledger.settle(
                reservation, outcome=outcome, value=text, body=body, reported=reported
            )
        except BaseException as error:
            # Nobody else can: who asks for its key would wait for this process to end.
            late = Settlement(outcome=outcome, body=body, reported=reported, value=text)
            project.unsettled.add(reservation, late)
            if not isinstance(error, DpflowError):
                raise
            self._warn(f"it stays charged in full and unsettled: {error.message}")
        else:
            project.unsettled.ended(reservation)
            self.place.tell("settled", self.request, outcome=outcome, digest=digest)

    def _warn(self, text: str) -> None:
        message = f"DP step {self.request.step!r}: {text}"
        logger.warning(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


_IN_FULL = "was charged in full"


def current_execution(asked_by: str) -> Execution:
    """Return the innermost execution whose body or block has made this call.

    Args:
        asked_by: What needs it, for the message.

    Raises:
        ReleaseError: Outside the body of a DP step.
    """
    execution = running.nearest()
    if isinstance(execution, Execution):
        return execution
    msg = (
        f"{asked_by} was called outside the body of a DP step, so nothing pays for "
        "it. Call it in a function under @dp_task or @guarded, in the same thread and "
        "task, or inside spend(...). What a block hands on to threads, tasks or the "
        "caller of a generator is `charge.release`, of `with spend(...) as charge`."
    )
    raise PublicError(msg)


def inherited_execution() -> Execution | None:
    """Return the execution that this context comes from, to check; not to draw."""
    execution = running.nearest() or next(reversed(inherited.get()), None)
    return execution if isinstance(execution, Execution) else None


async def admit(
    project: Project, request: Request, place: Place, wait: Blocking, *, own: bool
) -> Execution | Replayed:
    """Reserve a step's worst case, or find its release.

    Args:
        project: Where.
        request: What is asked of the ledger.
        place: Where the step runs.
        wait: How its caller waits.
        own: Whether its body draws the declared noise by itself.

    Raises:
        BudgetRefused: If a gate does not admit the step.
        DpflowError: If the request cannot be decided; the step may not run.
    """
    try:
        answer = await reserve(project, request, wait, own=own)
    except BudgetRefused as refusal:
        place.tell_refusal(refusal, request)
        raise
    return _admitted(project, request, answer, place, own=own)


def _admitted(
    project: Project,
    request: Request,
    answer: Granted | Replayed,
    place: Place,
    *,
    own: bool,
) -> Execution | Replayed:
    """Turn the ledger's positive answer into an execution or a replay."""
    if isinstance(answer, Replayed):
        logger.info("DP step %r is replayed from its release", request.step)
        place.tell("replayed", request, digest=answer.digest)
        return answer
    redact = any(policy.errors == "redact" for policy in request.policies)
    place.tell_granted(request, answer)
    ledger, key = project.ledger, request.key_text
    stream = stream_for(ledger.id, ledger.environment, request.step, key)
    draw = OneDraw(own=own, stream=stream)
    return Execution(
        project=project, request=request, redact=redact, place=place, _draw=draw
    )


def run(
    step: Step,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Place,
) -> Any:
    """Run a step's body under the guard, or replay its release."""
    project, request = ask(step, step.bind(args, kwargs), place)
    with owed(project, request):
        call = functools.partial(body, *args, **kwargs)
        admitted = admit(project, request, place, Blocking(), own=step.noise == OWN)
        return at_once(_executed(step, admitted, call))


async def arun(
    step: Step,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Place,
) -> Any:
    """Run an async step's body under the guard; as `run`.

    Waiting for the ledger's answer does not block the event loop. The settlement
    does, shortly: nothing can cancel it.
    """
    project, request = ask(step, step.bind(args, kwargs), place)
    call = functools.partial(body, *args, **kwargs)
    admitted = admit(project, request, place, OnEventLoop(), own=step.noise == OWN)
    return await _executed(step, admitted, call, awaited=True)


async def _executed(
    step: Step,
    asked: Awaitable[Execution | Replayed],
    body: Callable[[], Any],
    *,
    awaited: bool = False,
) -> Any:
    """Run a body once it is admitted and settle it, or replay its release.

    Where the body waits in here, it is settled in here: nothing behind this is run if
    it is closed.
    """
    admitted = await asked
    if isinstance(admitted, Replayed):
        return decode(admitted.value)
    value: Any = None
    with admitted.charged(inspect.currentframe()):
        value = await body() if awaited else body()
        check_output(step.name, value)
    if admitted.error is not None:
        # A traceback shows what a frame holds.
        value = None
        admitted.fail()
    return admitted.settle(value, step.cell)
