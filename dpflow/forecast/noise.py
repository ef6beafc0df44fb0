"""What a cost's noise does to a released number, and the cost with another noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import OfSteps
from dpflow.accounting.costs.refined import Refined
from dpflow.accounting.searches import least_noise
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counting import Workload, WorkloadStep
from dpflow.rounding import number_from_text, number_text, short_up

#: The factors of the noise that a forecast compares.
FACTORS = tuple(map(Fraction, ("0.5", "0.75", "1", "1.5", "2", "3", "4")))


def scale_noise(cost: Cost, factor: Fraction) -> Cost:
    """Return a step with `factor` times its noise, which may be less than before.

    Raises:
        InvalidCost: If the step has no cost with that noise.
    """
    if factor >= 1:
        return cost.noisier(factor)
    if isinstance(cost, OfSteps):
        return cost.with_steps(lambda step: scale_noise(step, factor))
    if isinstance(cost, Refined):
        spreads = [spread * factor for spread in cost.spreads[:-1]]
        return cost.but(finest=scale_noise(cost.finest, factor), spreads=spreads)
    if not cost.noise_powers:
        msg = f"{cost!r} cannot be scaled to {float(factor):g} times its noise"
        raise InvalidCost(msg, name="factor", value=number_text(factor))
    return cost.but(**{n: getattr(cost, n) * factor**p for n, p in cost.noise_powers})


def scale_workload(workload: Workload, factor: Fraction) -> Workload:
    """Return a workload whose steps have `factor` times their noise."""
    return tuple(
        WorkloadStep(scale_noise(step.cost, factor), step.times, step.outcome)
        for step in workload
    )


#: Significant digits of the factor.
_DIGITS = 5
_CLOSE = 1 + Fraction(1, 10**_DIGITS)
_FARTHEST = Fraction(10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnoughNoise:
    """The noise with which a number of runs fits.

    Attributes:
        runs: The wanted number of runs.
        factor: Of the noise that was declared.
        workload: One run with that noise; it was tried.
    """

    runs: int
    factor: Fraction
    workload: Workload


def enough_noise(
    workload: Workload, runs: int, runs_left: Callable[[Workload], int | None]
) -> EnoughNoise:
    """Search the least noise with which a number of runs fits.

    Args:
        workload: One run.
        runs: How many have to fit.
        runs_left: Counts the runs of a workload that fit; None: without end.

    Raises:
        InvalidCost: If no noise is enough, or a step has no cost with that noise.
    """

    def fits(factor: Fraction) -> bool:
        left = runs_left(scale_workload(workload, factor))
        return left is None or left >= runs

    least = least_noise(fits, low=1 / _FARTHEST, high=1, most=_FARTHEST, close=_CLOSE)
    if least is None:
        msg = f"no amount of noise lets {runs} runs fit: the budget is used up."
        raise InvalidCost(msg, name="runs", value=runs)
    factor = number_from_text(short_up(least, _DIGITS))
    return EnoughNoise(
        runs=runs, factor=factor, workload=scale_workload(workload, factor)
    )
