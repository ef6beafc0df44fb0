"""One execution of a DP step: reserve, run, classify, settle.

This is the engine behind `dp_task`, `guarded` and `spend`; it knows no Prefect.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from types import FrameType
from typing import Any, cast

from dpflow.accounting.costs.base import Cost, Settling
from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.exceptions import (
    DpflowError,
    PublicError,
    ReleaseError,
    public_name,
    rebuild,
    require,
)
from dpflow.guard.bodies import Home, calling_bodies, home, running
from dpflow.guard.functions import check_output
from dpflow.guard.project import Project
from dpflow.guard.redaction import StoredError, describe_failure, redact_error
from dpflow.guard.request import StepContext, warn
from dpflow.guard.reserving import Call, areserve, owe_if_stopped, reserve
from dpflow.guard.step import CellLike
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.ledger.codec import decode, encode
from dpflow.ledger.requests import Granted, Replayed, Request
from dpflow.noise import draws as mechanism
from dpflow.noise.accuracy import Target, read_confidence
from dpflow.noise.refining import Until, refinement
from dpflow.noise.release_types import type_as_release
from dpflow.noise.returned import DrawnNumbers
from dpflow.noise.shape import Shape, read_shape
from dpflow.noise.sources import OWN, SELF_DECLARED, OneDraw, drawing, stream_for
from dpflow.rounding import Number

logger = logging.getLogger("dpflow")

#: Refuses a call of a body by an error whose text is public.
_require = partial(require, kind=PublicError)
_IN_FULL = "was charged in full"
_NOT_DRAWN = (
    "its output is not the object that release() returned, nor its numbers unchanged "
    "and in order, so that no answer of measures= uses it. Return that object"
)
#: Steps without a release key that were warned of a missing `return`.
_warned_steps: set[str] = set()


@dataclass(slots=True, kw_only=True)
class Execution:
    """A granted execution of a step's body.

    Attributes:
        value: Output of the body.
        error: Public form of the error that ended the body, if one did.
        error_type: Name of that error's type.
        ended: Whether the body has ended.
        reported: The sub-steps that ran, or the cell of the output; None: all of it.
        context: Where the step runs.
        home: The thread and the task that run the body.
        is_function: Whether the body is a function, not a block.
    """

    project: Project
    request: Request
    context: StepContext = field(default_factory=StepContext)
    value: Any = field(default=None, repr=False)
    error: BaseException | None = None
    error_type: str = ""
    ended: bool = False
    reported: int | str | None = None
    home: Home | None = None
    is_function: bool = True
    _draw: OneDraw = field(default_factory=OneDraw, repr=False)
    _drawn: DrawnNumbers | None = field(default=None, repr=False)
    _process: int = field(default_factory=os.getpid, repr=False)

    @property
    def name(self) -> str:
        """The name of the step."""
        return self.request.step

    @property
    def cost(self) -> Cost:
        """The worst case that is reserved."""
        return self.request.cost

    # Noise

    @type_as_release
    def release(
        self,
        value: Any,
        *,
        as_int: bool = False,
        within: Number | None = None,
        until: Until | None = None,
        confidence: Number = "95%",
        length: Any = None,
        groups: Any = None,
        columns: Any = None,
    ) -> Any:
        """Draw the declared noise and return the noisy value; as `dpflow.release`.

        Raises:
            InvalidCost: If `within` or `confidence` is out of range.
            ReleaseError: If the cost names no mechanism, the value is not of the
                declared shape or cannot carry its noise, or the step released already:
                its charge pays for one draw.
        """
        self._check_undrawn("release()")
        shape = self._shape(length, groups, columns)
        _require(type(as_int) is bool, "as_int= takes True or False")
        _require(
            within is None or until is None,
            "release() got within= and until=, and each says when the noise is fine "
            "enough. Give one of them.",
        )
        if within is None and until is None:
            share = read_confidence(confidence)
            with self._draw.lock, self.drawing():
                self._check_undrawn("release()")
                noisy = mechanism.draw(
                    self.cost, value, shape, as_int=as_int, confidence=share
                )
                self._draw.take()
        else:
            target = None if within is None else Target.read(within, confidence)
            draw = refinement(self.cost, value, shape, target, until, as_int=as_int)
            share = Fraction(0)
            self.claim_draw("release()")
            with self.drawing():
                draws, noisy = draw()
            self.report(draws)
        self._drawn = DrawnNumbers(noisy, shape, self.cost, share, as_int=as_int)
        return noisy

    def _shape(self, length: Any, groups: Any, columns: Any) -> Shape:
        """Return the shape that the step declares, or in a block `release`."""
        if length is None and groups is None and columns is None:
            return self.request.shape
        _require(
            not self.is_function,
            f"step {self.name!r} is a function: declare length=, groups= and "
            "columns= in its decorator, before its data is read, not in release()",
        )
        return read_shape(length, groups, columns, kind=PublicError)

    def claim_draw(self, caller: str, by: str = "", *, draws: bool = True) -> None:
        """Take the one draw, or the one loop, that the cost pays for.

        Args:
            caller: The call that takes it, for the message.
            by: Who draws, if not OpenDP.
            draws: Whether the call draws; the sub-steps of a loop do.

        Raises:
            ReleaseError: If the step has ended, has drawn its noise already, or
                declared that its body draws it.
        """
        with self._draw.lock:
            self._check_undrawn(caller, draws=draws)
            self._draw.take(by)

    def drawing(self) -> AbstractContextManager[None]:
        """Draw this step's noise within a block: by OpenDP, or as its test says."""
        return drawing(self._draw.stream)

    def check_draws(self, caller: str, *, draws: bool = True) -> None:
        """Refuse a draw in a forked child, after the end, or where the body draws.

        Raises:
            ReleaseError: If so.
        """
        self._check_process(caller)
        problem, step = "", self.name
        if draws and self._draw.by == OWN:
            problem = (
                f"{caller} draws the noise of step {step!r}, which says "
                'noise="own": that its body draws it. Take one of the two away.'
            )
        elif self.ended:
            problem = (
                f"{caller} was called after step {step!r} had ended and its charge "
                "was posted. Call it inside the body or block."
            )
        _require(not problem, problem)

    def _check_process(self, caller: str) -> None:
        """Refuse what a forked child's copy of this would do a second time."""
        _require(
            self._process == os.getpid(),
            f"{caller} was called in a process that the body of step "
            f"{self.name!r} forked, and its charge pays once. Send the "
            "numbers back, and release them in the body.",
        )

    def _check_undrawn(self, caller: str, *, draws: bool = True) -> None:
        self.check_draws(caller, draws=draws)
        _require(
            not self._draw.taken,
            f"step {self.name!r} drew noise twice (now by {caller}), but its "
            "cost covers one draw. Release one vector, or make two steps of it.",
        )

    # Outcome

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
        step, cost = self.name, self.cost
        when = "had ended" if self.ended else "had reported its outcome"
        late = f"report() was called after step {step!r} {when}"
        _require(not self.ended and self.reported is None, late)
        if not isinstance(cost, Settling):
            msg = (
                f"step {step!r} declared {cost!r}, which costs the same whatever "
                "comes out; declare EarlyStopping, SparseVector or OutputDP"
            )
            raise PublicError(msg)
        cost.realised(outcome)
        self.reported = outcome

    def _report_cell(self, cell: CellLike) -> list[str]:
        """Report the cell of the output, or return why it has no cell.

        Without one, or if the body reported another one, the charge is in full.
        """
        reported, self.reported = self.reported, None
        why = "contradicts its cost or what its body reported"
        try:
            outcome = cell(self.value)
            is_cell = isinstance(self.cost, OutcomeCost) and self.cost.cell(outcome)
            if is_cell and reported in (None, outcome):
                self.reported = outcome
                return []
        # Its text may quote the output, which need not be released yet.
        except without_interrupts(Exception) as error:
            why = f"gave no cell of its cost ({public_name(type(error))})"
        return [f"its cell function {why}; it is charged in full"]

    # Body and end

    @contextmanager
    def run_body(self, frame: FrameType | None) -> Iterator[None]:
        """Run the body in this block; its error is stored in `error`, not raised.

        Raised here it would carry the original, private text along as its context.
        Call `end` after the block.

        Args:
            frame: Whose calls may draw this step's noise by `release`.
        """
        self.home = home()
        try:
            # An interrupt before the body passes on.
            with running(frame, self), StoredError(self.store_error, around_yield=True):
                yield
                check_output(self.name, self.value)
                self._check_drawn()
        finally:
            self.ended = True

    def store_error(self, error: BaseException) -> None:
        """Store an error as an output; timeouts and cancellations are no Exceptions."""
        # A traceback shows the values of a frame.
        self.value = None
        self.error_type = public_name(type(error))
        self.error = self._redact(error)

    def _check_drawn(self) -> None:
        """Refuse the output of a body without the noise that its cost declares."""
        by_people = self.cost.paid_by_people
        call = "person_sum(people)" if by_people else "release(value)"
        drawn_here = by_people or mechanism.has_sampler(self.cost)
        _require(
            self._draw.by != SELF_DECLARED or not drawn_here,
            f"step {self.name!r} ended without {call}, so the noise of its "
            f"{self.cost.mechanism} was not drawn. Its value is withheld and not "
            f'stored. Return {call}, or say noise="own" where the step is declared if '
            "its body draws that very noise with its own code.",
        )
        by_cell = isinstance(self.cost, OutcomeCost) and self._drawn is None
        forgot = self.is_function and self._draw.taken and not by_cell
        _require(
            self.value is not None or not forgot or not self.request.key_text,
            f"step {self.name!r} drew its noise and returned None, which its "
            "release key would keep. Return what release(value) returned.",
        )
        if self.value is None and forgot and self.name not in _warned_steps:
            _warned_steps.add(self.name)
            text = "it drew its noise and returned None; is a `return` missing?"
            warn(self.name, text)

    def _redact(self, error: BaseException) -> BaseException:
        """Return the public form of an error of the body."""
        if any(policy.errors == "redact" for policy in self.request.policies):
            datasets = ", ".join(self.request.datasets)
            error = redact_error(error, step=self.name, dataset=datasets)
        public: Any = rebuild(error)
        if public is None or _IN_FULL in public.message:
            return error
        text = f"{public.message.rstrip('.')}. The step {_IN_FULL}."
        return cast("BaseException", type(public)(text, **public.details))

    def end(self, cell: CellLike | None = None) -> Any:
        """Post the charge, in full where the body raised, and return the output.

        A value that cannot be stored is not replayed, with a warning. If the ledger
        does not answer, the charge stays held in full, with a warning.

        Args:
            cell: Names the cell of the output.

        Returns:
            The value as a replay gives it.
        """
        if (error := self.error) is not None:
            failure = describe_failure(error, self.error_type, self.name)
            self._post("failed", None, failure)
            if not issubclass(type(error), Exception):
                message = "DP step %r was stopped and stays charged in full"
                logger.warning(message, self.name)
            behind = error.__context__
            try:
                raise error
            finally:
                # In `spend`, Python has just put the original there.
                error.__context__ = behind
        text, output, warned = None, self.value, list[str]()
        if self.request.release_key is not None:
            try:
                # Of labels the order is declared, too.
                ordered = self.request.shape.groups is not None
                output = decode(text := encode(self.value, ordered=ordered))
            except ReleaseError as unstorable:
                text, why = None, unstorable.message
                warned.append(
                    f"its release cannot be replayed: {why} Later runs of this key "
                    "will be refused."
                )
        if cell is not None:
            warned += self._report_cell(cell)
        drawn = self._drawn.describe(self.value) if self._drawn else {"as_drawn": False}
        if "measures" in self.request.body and not drawn["as_drawn"]:
            warned.append(_NOT_DRAWN)
        self._post("completed", text, {"noise": self._draw.by, **drawn})
        for warning in warned:
            warn(self.name, warning)
        return output

    def _post(self, outcome: str, text: str | None, body: Mapping[str, Any]) -> None:
        self._check_process("the settlement")
        unsettled, reservation = self.project.unsettled, self.request.reservation
        # An error is an output of its own: it may have come from any sub-step.
        settlement: dict[str, Any] = {
            "outcome": outcome,
            "body": body,
            "reported": self.reported if outcome == "completed" else None,
            "value": text,
        }
        try:
            settled = self.project.ledger.settle(reservation, **settlement)
        except BaseException as error:
            # Otherwise requests of its key would wait for the end of this process.
            unsettled.add(reservation, **settlement)
            if not isinstance(error, DpflowError):
                raise
            warn(self.name, f"it stays charged in full and unsettled: {error.message}")
        else:
            unsettled.running.discard(reservation)
            self.context.tell_settled(self.request, settled, outcome)


def current_execution(caller: str) -> Execution:
    """Return the innermost execution around this call.

    Args:
        caller: The call that needs it, for the message.

    Raises:
        ReleaseError: Outside the body of a DP step.
    """
    execution = next(calling_bodies(), None)
    if isinstance(execution, Execution):
        return execution
    msg = (
        f"{caller} was called outside the body of a DP step, so nothing pays for "
        "it. Call it in a function under @dp_task or @guarded, in the same thread and "
        "task, or inside spend(...). What a block hands on to threads, tasks or the "
        "caller of a generator is `charge.release`, of `with spend(...) as charge`."
    )
    raise PublicError(msg)


def run(call: Call) -> Any:
    """Run load and body of a step in a context under the guard, or replay it."""
    with owe_if_stopped(call):
        answer = reserve(call)
        if isinstance(answer, Replayed):
            return _replay(call, answer)
        args, kwargs = call.pass_on()
        execution = begin_execution(call, answer)
        with execution.run_body(inspect.currentframe()), call.around():
            execution.value = call.step.body(*args, **kwargs)
        return execution.end(call.step.cell)


async def arun(call: Call) -> Any:
    """Run an async step's body under the guard; as `run`.

    Waiting for the ledger's answer does not block the event loop. The settlement
    does, shortly: nothing can cancel it, and it happens even if this is closed.
    """
    answer = await areserve(call)
    if isinstance(answer, Replayed):
        return _replay(call, answer)
    args, kwargs = call.pass_on()
    execution = begin_execution(call, answer)
    with execution.run_body(inspect.currentframe()), call.around():
        execution.value = await call.step.body(*args, **kwargs)
    return execution.end(call.step.cell)


def begin_execution(
    call: Call, answer: Granted, *, is_function: bool = True
) -> Execution:
    """Return the execution that a grant of the ledger allows."""
    project, request, context = call.project, call.request, call.context
    context.tell_granted(request, answer)
    ledger, key = project.ledger, request.key_text
    stream = stream_for(ledger.id, ledger.environment, request.step, key)
    draw = OneDraw(own=call.step.noise == OWN, stream=stream)
    options: dict[str, Any] = {"is_function": is_function, "_draw": draw}
    return Execution(project=project, request=request, context=context, **options)


def _replay(call: Call, answer: Replayed) -> Any:
    """Return the value of a release."""
    logger.info("DP step %r is replayed from its release", call.request.step)
    made_by = {"digest": answer.digest, "reservation": answer.reservation}
    call.context.tell("replayed", call.request, **made_by)
    return decode(answer.value)
