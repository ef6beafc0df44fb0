"""Noise that is refined: coarse draws first, and finer ones of the same number.

Gaussian draws are independent of each other and averaged by precision; each is a step
of its own, which `release` may take or leave by what the ones before it showed.

Laplace draws are made from the finest to the coarsest: a coarser one is the finer one,
or with some chance that one with more noise. So whoever sees the first k of them knows
no more than the k-th tells. That holds exactly, for the noise is in whole steps of a
grid and the chance is compared bit by bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

from mpmath.ctx_mp import MPContext

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.refined import Refined, RefinedLaplace
from dpflow.accuracy.estimate import Estimate
from dpflow.accuracy.target import StoppingRule, Target, stopping_rule
from dpflow.exceptions import PublicError
from dpflow.noise.containers import one_number
from dpflow.noise.draws import (
    LARGEST_STEPS,
    Sampler,
    sampler_for,
    whole_laplace,
)
from dpflow.noise.grid import ADDED, GRID, in_steps
from dpflow.noise.sources import random_bytes
from dpflow.rounding import float_up, to_fraction, to_real

#: Adds the noise of a Gaussian to a number.
Noisy = Callable[[Gaussian, float], float]
#: Draws one number of integer noise of a scale.
Whole = Callable[[Fraction], int]

_LARGEST = Fraction(sys.float_info.max)
_FIRST_BITS = 128
_DIGITS_PER_BIT = 0.302
_MORE_DIGITS = 60
#: Of a chance, in units of its last bit: far more than so many digits leave.
_ERROR = Fraction(1, 2**32)


def refined(cost: Cost, value: Any, target: Target) -> tuple[int, Estimate]:
    """Draw a number with the declared noise until it shows that the target is met.

    Args:
        cost: What the step declared: `Refined` or `RefinedLaplace`.
        value: An int or a float.
        target: The error that is asked for.

    Returns:
        How many draws were taken, which settles the cost, and the number.

    Raises:
        ReleaseError: If the cost cannot be refined, the value is no number that noise
            can be added to, or OpenDP is missing or fails.
    """
    rule = rule_for(cost, target)
    number = one_number(value)
    if isinstance(cost, Refined):
        return rule.refine(gaussian_numbers(cost, number, _by_opendp))
    assert isinstance(cost, RefinedLaplace)
    return rule.refine(laplace_numbers(cost, number, whole_laplace))


def rule_for(cost: Cost, target: Target) -> StoppingRule:
    """Return when refining a cost's noise ends.

    Raises:
        ReleaseError: If it cannot be refined.
    """
    if not isinstance(cost, Refined | RefinedLaplace):
        msg = (
            f"release(within=...) refines noise, and {cost!r} has one. Declare "
            "cost=Refined(Gaussian(...), coarsest=...), or leave within= out."
        )
        raise PublicError(msg)
    if isinstance(cost, Refined):
        return stopping_rule(target, cost.spreads)
    # The noise that is drawn, which is a little more than the declared one.
    step = cost.sensitivity / GRID
    return stopping_rule(target, tuple(s * step for s in _steps_of(cost)), step)


def gaussian_numbers(cost: Refined, number: float, noisy: Noisy) -> Iterator[float]:
    """Yield the average of the draws so far, by precision, after each draw."""
    total = precision = 0.0
    for part in _parts(cost):
        weight = float(part.sigma) ** -2
        total += weight * noisy(part, number)
        precision += weight
        yield total / precision


@lru_cache(maxsize=256)
def _parts(cost: Refined) -> tuple[Gaussian, ...]:
    return cost.refinements()


def _by_opendp(part: Gaussian, number: float) -> float:
    return sampler_for(part)([number])[0]


def laplace_numbers(
    cost: RefinedLaplace, number: float, noise: Whole
) -> Iterator[float]:
    """Yield the number after each draw, the coarsest first.

    All are drawn before the first is shown; those behind the last that is asked for
    are thrown away.
    """
    steps, scales = in_steps(number, cost.sensitivity), _steps_of(cost)
    drawn = coarsened(steps + noise(scales[-1]), scales[::-1], noise)
    for each in reversed(drawn):
        value = each * cost.sensitivity / GRID
        # The true number is a float, so the largest one is no farther from it.
        yield float(max(-_LARGEST, min(value, _LARGEST)))


def _steps_of(cost: RefinedLaplace) -> list[Fraction]:
    """Return the scales of the draws in steps, rounded up to floats."""
    widened = Fraction(GRID + ADDED) / cost.sensitivity
    scales = [Fraction(float_up(scale * widened)) for scale in cost.scales]
    if scales[0] > LARGEST_STEPS:
        most = f"{float(LARGEST_STEPS / widened):g}"
        msg = f"{cost!r} draws too much noise; its largest scale is {most}"
        raise PublicError(msg, mechanism=cost.mechanism)
    return scales


def coarsened(finest: int, scales: list[Fraction], noise: Whole) -> list[int]:
    """Add noise to a number with noise, so that each sum has the next, larger scale.

    Args:
        finest: A number with discrete Laplace noise of the first scale.
        scales: Rising.
        noise: Draws integer noise.

    Returns:
        As many numbers as scales, the given one first.
    """
    numbers = [finest]
    for fine, coarse in pairwise(scales):
        stays = happens(partial(chance_to_stay, fine, coarse))
        numbers.append(numbers[-1] + (0 if stays else noise(coarse)))
    return numbers


@lru_cache(maxsize=4096)
def chance_to_stay(fine: Fraction, coarse: Fraction, bits: int) -> Fraction:
    """Return the chance with which coarsening adds nothing, to more than so many bits.

    With q = exp(-1 / scale) it is q' (1 - q)^2 / (q (1 - q')^2), the finer one's with a
    dash (docs/derivations/accuracy.md#refined-laplace).
    """
    mp: Any = MPContext()
    mp.dps = int(bits * _DIGITS_PER_BIT) + _MORE_DIGITS
    ratios = []
    for scale in (fine, coarse):
        each = -1 / to_real(mp, scale)
        ratios.append(mp.exp(each) / mp.expm1(each) ** 2)
    return to_fraction(ratios[0] / ratios[1])


def happens(chance: Callable[[int], Fraction]) -> bool:
    """Draw an event of a chance that is known to as many bits as it takes."""
    bits, drawn = 0, 0
    while True:
        bits += _FIRST_BITS
        more = int.from_bytes(random_bytes(_FIRST_BITS // 8), "big")
        drawn = (drawn << _FIRST_BITS) | more
        middle = chance(bits) * 2**bits
        if drawn + 1 + _ERROR <= middle:
            return True
        if drawn - _ERROR >= middle:
            return False


@sampler_for.register
def _(cost: Refined) -> Sampler:
    sampler_for(cost.finest)
    return _undecided(cost)


@sampler_for.register
def _(cost: RefinedLaplace) -> Sampler:
    _steps_of(cost)
    return _undecided(cost)


def _undecided(cost: Cost) -> Sampler:
    """Return what refuses to draw without a target: nobody said when to end."""

    def sample(_: object) -> list[float]:
        msg = (
            f"{cost.mechanism} is drawn until it is good enough: say when, as in "
            'release(value, within="10%") or release(value, within=25)'
        )
        raise PublicError(msg, mechanism=cost.mechanism)

    return sample
