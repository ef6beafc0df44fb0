"""How much noise lets so many runs fit: the factor of what was declared, rounded up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from dpflow.exceptions import InvalidCost
from dpflow.forecast.counts import Workload
from dpflow.forecast.noise import scaled_workload
from dpflow.rounding import number_from_text, short_up

#: Significant digits of the factor.
_DIGITS = 5
_CLOSE = 1 + Fraction(1, 10**_DIGITS)
_FARTHEST = Fraction(10**6)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnoughNoise:
    """The noise with which so many runs fit.

    Attributes:
        runs: How many runs were asked for.
        factor: Of the noise that was declared.
        workload: One run with that noise; it was tried.
    """

    runs: int
    factor: Fraction
    workload: Workload


def enough_noise(
    workload: Workload, runs: int, runs_left: Callable[[Workload], int | None]
) -> EnoughNoise:
    """Search the least noise with which so many runs fit.

    Args:
        workload: One run.
        runs: How many have to fit.
        runs_left: Counts the runs of a workload that fit; None: without end.

    Raises:
        InvalidCost: If no noise is enough, or nothing is known of steps with so much.
    """

    def fits(factor: Fraction) -> bool:
        left = runs_left(scaled_workload(workload, factor))
        return left is None or left >= runs

    low, high = Fraction(1), Fraction(1)
    while not fits(high):
        low, high = high, high * 4
        if high > _FARTHEST:
            msg = f"no amount of noise lets {runs} runs fit: the budget is used up."
            raise InvalidCost(msg, name="runs", value=runs)
    while low == high or (fits(low) and low > 1 / _FARTHEST):
        low, high = low / 4, low
    while high / low > _CLOSE:
        middle = _short((low + high) / 2, _DIGITS + 3)
        low, high = (low, middle) if fits(middle) else (middle, high)
    short = _short(high, _DIGITS)
    return EnoughNoise(
        runs=runs, factor=short, workload=scaled_workload(workload, short)
    )


def _short(number: Fraction, digits: int) -> Fraction:
    return number_from_text(short_up(number, digits))
