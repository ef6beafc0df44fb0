"""Iterative steps that may stop early, and are charged for the sub-steps that ran.

The loop counts its own sub-steps: noise of a sub-step is drawn through the sub-step
itself, which is over as soon as the next one begins. A body that leaves the loop
by an error, or that never enters it, is charged in full.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.exceptions import PublicError, require
from dpflow.guard.charge import Execution, current_execution
from dpflow.interrupts import contextmanager
from dpflow.noise.draws import add_noise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TOLD_SECONDS = 1.0


class SubStep:
    """One sub-step of an iterative step.

    Attributes:
        number: Which one it is, from 1.
        stops: Numbers of sub-steps after which the step may end.
        parts: What one sub-step does: the costs that were composed, or the one.
    """

    def __init__(self, number: int, cost: EarlyStopping, execution: Execution) -> None:
        self.number = number
        self.stops = cost.stops
        self._execution = execution
        sub_step = cost.step
        self.parts = sub_step.costs if isinstance(sub_step, Composed) else (sub_step,)
        self._unpaid = list(self.parts)
        self._claiming = threading.Lock()
        self.is_over = False

    @property
    def may_stop(self) -> bool:
        """Whether the step may end after this sub-step.

        Leaving the loop elsewhere is allowed, and counts as the next such number
        where the account knows stops only.
        """
        return self.number in self.stops

    @overload
    def release(self, value: float, *, cost: Cost | None = None) -> float: ...
    @overload
    def release(
        self, value: list[Any] | NDArray[Any], *, cost: Cost | None = None
    ) -> NDArray[np.float64]: ...
    def release(self, value: Any, *, cost: Cost | None = None) -> Any:
        """Draw the declared noise of this sub-step and return the noisy value.

        Args:
            value: A number, a list of numbers, or a numpy array of any shape, whose
                size is public.
            cost: Which part of the declared sub-step pays for it, if it has several.

        Returns:
            A float, or a float64 array of the same shape.

        Raises:
            ReleaseError: If the sub-step is over, or nothing in it pays for this.
        """
        paid = self.claim("release()", cost)
        with self._execution.drawing():
            return add_noise(paid, value)

    def test(self, value: float, *, at_least: float, cost: Cost) -> bool:
        """Test a private number against a threshold, with noise that is paid for.

        Whether to stop may depend on what was released, and on tests like this one;
        on nothing else that private data has touched.

        Args:
            value: The private number.
            at_least: The public threshold.
            cost: The part of the declared sub-step that pays for the test.

        Returns:
            Whether the noisy number reaches the threshold.

        Raises:
            ReleaseError: If the sub-step is over, or nothing in it pays for this.
        """
        return bool(self.release(float(value), cost=cost) >= at_least)

    def claim(self, what: str, cost: Cost | None = None) -> Cost:
        """Take a part of the sub-step, for a mechanism that draws its own noise.

        Args:
            what: What takes it, for the message.
            cost: Which part, if the sub-step has several.

        Returns:
            The part, which pays for this and nothing else.

        Raises:
            ReleaseError: If the sub-step is over, or nothing in it pays for this.
        """
        self._execution.check_draws(what)
        name = f"sub-step {self.number} of step {self._execution.request.step!r}"
        over = f"{what} was called after {name} was over; call it inside the loop"
        require(not self.is_over, over, PublicError)
        if cost is None and len(self.parts) == 1:
            cost = self.parts[0]
        # Threads of the body may race for the part.
        with self._claiming:
            if cost is not None and cost in self._unpaid:
                self._unpaid.remove(cost)
                return cost
            unpaid = ", ".join(map(repr, self._unpaid)) or "nothing"
        # The body may have computed its numbers.
        kind = "a part without a name" if cost is None else f"a {type(cost).__name__}"
        msg = (
            f"{what} in {name} draws {kind}, but of the declared sub-step {unpaid} "
            "remains. Declare every draw, as in EarlyStopping(Composed(Gaussian("
            "...), Laplace(...)), ...), and say cost= which one this is."
        )
        raise PublicError(msg)


def iterations() -> Iterator[SubStep]:
    """Run the sub-steps of the running step, which declared `EarlyStopping`.

    The loop ends after the last stop. Leave it earlier with `break`; only
    the sub-steps that started are charged, if the dataset's theorem allows that. A
    progress bar shows in terminals.

    Yields:
        Each sub-step, which draws its noise and says whether the step may end here.

    Raises:
        ReleaseError: Outside such a step, or at a second loop in it.

    Examples:
        >>> @guarded(dataset="adult", cost=EarlyStopping(
        ...     Gaussian(sensitivity=1, sigma=40), stops=(25, 50, 100)))
        ... def fit(path):
        ...     for step in iterations():
        ...         model.update(step.release(gradient(model)))
        ...         if step.may_stop and good_enough(model):
        ...             break
        ...     return model
    """
    execution = current_execution("iterations()")
    cost = execution.cost
    name = execution.request.step
    if not isinstance(cost, EarlyStopping):
        msg = (
            f"iterations() needs cost=EarlyStopping(...); step {name!r} declared "
            f"{cost!r}"
        )
        raise PublicError(msg)
    # One loop is paid for, also where threads of the body race for it.
    execution.claim_draw("iterations()", "by sub-step", draws=False)
    return _count_sub_steps(execution, cost)


def _count_sub_steps(execution: Execution, cost: EarlyStopping) -> Iterator[SubStep]:
    """Yield the sub-steps, and report how many started at the end of the loop.

    The loop shows in terminals and to listeners. Listeners hear of it once a second,
    and where the loop ended, if the step still runs then: a loop object that is thrown
    away later has nothing more to tell.
    """
    last, began, notified = cost.stops[-1], time.monotonic(), 0

    def tell(number: int, pause: float = _TOLD_SECONDS) -> None:
        nonlocal began, notified
        is_due = number == last or time.monotonic() - began > pause
        if number > notified and is_due:
            began, notified = time.monotonic(), number
            progress = {"done": number, "most": last}
            execution.context.tell("progress", execution.request, **progress)

    with _bar(execution.request.step, last) as show:
        try:
            for number in range(1, last + 1):
                msg = f"step {execution.request.step!r} has ended, and its loop with it"
                require(not execution.ended, msg, PublicError)
                step = SubStep(number, cost, execution)
                # Counted before the sub-step starts: a body that goes on without asking
                # for the next one cannot have run more than this.
                execution.reported = number
                try:
                    yield step
                finally:
                    step.is_over = True
                show(number)
                tell(number)
        finally:
            if isinstance(execution.reported, int) and not execution.ended:
                tell(execution.reported, pause=-1.0)


@contextmanager
def _bar(name: str, last: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 (only in terminals)
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=last)
        yield lambda number: progress.update(task, completed=number)
