"""What a cost's noise does to a released number, and the cost with another noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from dpflow.accounting.costs.base import Cost, Outcome
from dpflow.accounting.costs.composed import OfSteps
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
)
from dpflow.accounting.costs.refined import GaussianDraws, Refined
from dpflow.accounting.searches import least_noise
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counting import Workload, WorkloadStep
from dpflow.rounding import (
    bound_above,
    number_from_text,
    number_text,
    short_up,
    to_real,
)

#: The factors of the noise that a forecast compares.
FACTORS = tuple(map(Fraction, ("0.5", "0.75", "1", "1.5", "2", "3", "4")))
_OUTSIDE = Fraction(1, 20)
#: Up to it, a discrete Gaussian is summed up.
_MOST_SCALE = 200


def half_width(cost: Cost, outcome: Outcome | None = None) -> Fraction | None:
    """Return half of a 95 % interval, rounded up; None where a cost does not tell.

    The released number is within it of the true one in 95 of 100 releases. Of a step
    that is repeated, it is that of each time.

    Args:
        cost: The cost that was declared.
        outcome: Of refined noise: how many draws ran. Default: all.
    """
    if outcome is not None and isinstance(cost, Refined):
        normal = isinstance(cost, GaussianDraws)
        return cost.draw(outcome) * (_normal() if normal else _exponential())
    if isinstance(cost, Gaussian):
        return cost.sigma * _normal()
    if isinstance(cost, Laplace):
        return cost.scale * _exponential()
    if isinstance(cost, DiscreteGaussian):
        return Fraction(_discrete_normal(cost.sigma))
    if isinstance(cost, DiscreteLaplace):
        return Fraction(_geometric(cost.scale))
    step = getattr(cost, "substeps", None)
    return None if step is None else half_width(step[0])


@cache
def _normal() -> Fraction:
    return bound_above(lambda mp: mp.sqrt(2) * mp.erfinv(1 - to_real(mp, _OUTSIDE)))


@cache
def _exponential() -> Fraction:
    return bound_above(lambda mp: -mp.log(to_real(mp, _OUTSIDE)))


def _discrete_normal(sigma: Fraction) -> int:
    """Return the least whole number that covers 95 % of a discrete Gaussian."""
    scale = float(sigma)
    if scale > _MOST_SCALE:
        # Its sums are integrals between half numbers, to more digits than a float has.
        return math.ceil(sigma * _normal() - Fraction(1, 2))
    terms = [math.exp(-((x / scale) ** 2) / 2) for x in range(20 * _MOST_SCALE)]
    total = 2 * math.fsum(terms) - terms[0]
    covered, width = terms[0], 0
    while covered < (1 - float(_OUTSIDE)) * total:
        width += 1
        covered += 2 * terms[width]
    return width


def _geometric(scale: Fraction) -> int:
    """Return the least whole number that covers 95 % of a discrete Laplace.

    With q = exp(-1 / scale), 2 q^(k + 1) / (1 + q) lies beyond k.
    """
    step = 1 / float(scale)
    beyond = math.log(float(_OUTSIDE) / 2) + math.log1p(math.exp(-step))
    return max(math.ceil(-beyond / step - 1), 0)


def scaled(cost: Cost, factor: Fraction) -> Cost:
    """Return a step with `factor` times its noise, which may be less than before.

    Raises:
        InvalidCost: If the step has no cost with that noise.
    """
    if factor >= 1:
        return cost.noisier(factor)
    if isinstance(cost, OfSteps):
        return cost.with_steps(lambda step: scaled(step, factor))
    if isinstance(cost, Refined):
        spreads = [spread * factor for spread in cost.spreads[:-1]]
        return cost.but(finest=scaled(cost.finest, factor), spreads=spreads)
    if not cost.noise_powers:
        msg = f"{cost!r} cannot be scaled to {float(factor):g} times its noise"
        raise InvalidCost(msg, name="factor", value=number_text(factor))
    return cost.but(**{n: getattr(cost, n) * factor**p for n, p in cost.noise_powers})


def scaled_workload(workload: Workload, factor: Fraction) -> Workload:
    """Return a workload whose steps have `factor` times their noise."""
    return tuple(
        WorkloadStep(scaled(step.cost, factor), step.times, step.outcome)
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
        left = runs_left(scaled_workload(workload, factor))
        return left is None or left >= runs

    least = least_noise(fits, low=1 / _FARTHEST, high=1, most=_FARTHEST, close=_CLOSE)
    if least is None:
        msg = f"no amount of noise lets {runs} runs fit: the budget is used up."
        raise InvalidCost(msg, name="runs", value=runs)
    factor = number_from_text(short_up(least, _DIGITS))
    return EnoughNoise(
        runs=runs, factor=factor, workload=scaled_workload(workload, factor)
    )
