"""Refined noise: coarse draws first, then finer draws of the same number.

Gaussian draws are independent of each other and averaged by precision; each is a
separate step, and earlier draws decide whether `release` takes it.

Laplace draws go from the finest to the coarsest: a coarser draw is the finer one, or
with some chance the finer one with more noise. So the first k released draws reveal no
more than the k-th. That holds exactly, because the noise is in whole steps of a grid
and the chance is compared bit by bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from math import ceil
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import DiscreteLaplace, Gaussian
from dpflow.accounting.costs.refined import GaussianDraws, Refined
from dpflow.exceptions import PublicError
from dpflow.noise import draws
from dpflow.noise.accuracy import StoppingRule, Target, stopping_rule, widen
from dpflow.noise.containers import take_apart
from dpflow.noise.grid import ADDED, GRID, in_steps
from dpflow.noise.numbers import numbers_for
from dpflow.noise.shape import Shape
from dpflow.noise.sources import random_bytes
from dpflow.rounding import arithmetic, to_fraction, to_real

#: Adds the noise of a Gaussian to numbers.
Noisy = Callable[[Gaussian, Sequence[float]], list[float]]
#: Draws one number of integer noise of a scale.
Whole = Callable[[Fraction], int]
#: Noisy whole numbers, as many as true ones.
Answer = tuple[int, ...]
#: Says of the answers so far, the finest last, whether the last one is good enough.
Until = Callable[[tuple[Answer, ...]], bool]

_LARGEST = Fraction(sys.float_info.max)
_FIRST_BITS = 128
_DIGITS_PER_BIT = 0.302
_MORE_DIGITS = 60
#: Error of a chance, in units of its last bit: far above the error of the digits.
_ERROR = Fraction(1, 2**32)


def refinement(
    cost: Cost,
    value: Any,
    shape: Shape,
    target: Target | None,
    until: Until | None,
    *,
    as_int: bool = False,
) -> Callable[[], tuple[int, Any]]:
    """Check the options of refined noise, and return the function that draws it.

    Args:
        cost: What the step declared: `Refined`.
        value: A number; with `until` ints without labels.
        shape: With `until` the declared length.
        target: How far the number may be from the true one; None with `until`.
        until: Ends the refining, by the answers so far.
        as_int: Whether the number is rounded after the draw.

    Returns:
        A function that returns how many draws were taken, which settles the cost, and
        the number, or all answers.

    Raises:
        ReleaseError: If the cost cannot be refined, or the value is no number that
            noise can be added to.
    """
    if until is not None:
        return partial(draw_until, answers(cost, value, shape), until)
    assert target is not None
    rule = rule_for(cost, target)
    if shape != draws.NO_SHAPE or isinstance(value, list | tuple | dict):
        msg = (
            "release(within=...) refines one number, of a step without length=, "
            "groups= and columns=. Release each number in its own step."
        )
        raise PublicError(msg)
    (number,) = numbers_for(cost, value, [value])
    numbers = laplace_numbers(_check_refined(cost), number, draws.whole_laplace)
    if isinstance(cost, GaussianDraws):
        drawn = gaussian_numbers(cost, [number], _by_opendp)
        numbers = (numbers[0] for numbers in drawn)
    return partial(rule.refine, numbers, as_int=as_int)


def draw_until(drawn: Iterator[Answer], until: Until) -> tuple[int, tuple[Answer, ...]]:
    """Return how many answers were drawn until the last was good enough, and all."""
    released: tuple[Answer, ...] = ()
    for answer in drawn:
        released = (*released, answer)
        # Of the last draw it is called, too, and changes nothing.
        if until(released):
            break
    return len(released), released


def answers(cost: Cost, values: Any, shape: Shape) -> Iterator[Answer]:
    """Return whole numbers with the declared noise, the coarsest first.

    Everything is checked here, and nothing is drawn before the first is taken.

    Source: Ligett, Neel, Roth, Waggoner, Wu 2017 (arXiv 1705.10829) Alg. 1, on a grid;
    docs/derivations/output-dp.md#noise-reduction.

    Assumes: a privacy unit moves the numbers together by at most the sensitivity, in L1
    norm for a Laplace and in L2 norm for a Gaussian; how many there are is public.

    Checked by: tests/accounting/costs/test_outcomes.py, tests/guard/test_refined.py.

    Raises:
        ReleaseError: If the cost cannot be refined, or the values are no whole numbers.
    """
    cost = _check_refined(cost)
    if cost.finest.sensitivity < 1:
        msg = (
            f"{cost!r} has a sensitivity below 1, and a privacy unit that moves whole "
            "numbers moves them by 1 or more. Declare that sensitivity."
        )
        raise PublicError(msg)
    # Its ints are those of integer noise, by type.
    integers = DiscreteLaplace(sensitivity=1, scale=1)
    numbers, _ = take_apart(integers, values, shape)
    if isinstance(cost, GaussianDraws):
        drawn = gaussian_numbers(cost, list(map(float, numbers)), _by_opendp)
        return (tuple(map(draws.round_to_int64, averages)) for averages in drawn)
    return whole_answers(cost, numbers, draws.whole_laplace)


def _check_refined(cost: Cost) -> Refined:
    if isinstance(cost, Refined):
        return cost
    msg = (
        f"release(within=...) and release(until=...) refine noise, and {cost!r} has "
        "one. Declare cost=Refined(Gaussian(...), coarsest=...), or leave both out."
    )
    raise PublicError(msg)


def rule_for(cost: Cost, target: Target) -> StoppingRule:
    """Return when refining a cost's noise ends.

    Raises:
        ReleaseError: If it cannot be refined.
    """
    cost = _check_refined(cost)
    if isinstance(cost, GaussianDraws):
        return stopping_rule(target, tuple(map(widen, cost.spreads)))
    # The noise that is drawn, which is a little more than the declared one.
    step = cost.finest.sensitivity / GRID
    return stopping_rule(target, tuple(s * step for s in _steps_of(cost)), step)


def gaussian_numbers(
    cost: GaussianDraws, numbers: Sequence[float], noisy: Noisy
) -> Iterator[list[float]]:
    """Yield the averages of the draws so far, by precision, after each draw."""
    totals, precision = [0.0] * len(numbers), 0.0
    for part in cost.refinements():
        weight = float(part.sigma) ** -2
        drawn = zip(totals, noisy(part, numbers), strict=True)
        totals = [total + weight * number for total, number in drawn]
        precision += weight
        yield [total / precision for total in totals]


def _by_opendp(part: Gaussian, numbers: Sequence[float]) -> list[float]:
    return draws.sampler_for(part)(numbers)


def laplace_numbers(cost: Refined, number: float, noise: Whole) -> Iterator[float]:
    """Yield the number after each draw, the coarsest first."""
    sensitivity = cost.finest.sensitivity
    steps = in_steps(number, sensitivity)
    for (noisy,) in laplace_answers([steps], _steps_of(cost), noise):
        value = noisy * sensitivity / GRID
        # The true number is a float, so the largest one is no farther from it.
        yield float(max(-_LARGEST, min(value, _LARGEST)))


def whole_answers(
    cost: Refined, values: Sequence[int], noise: Whole
) -> Iterator[Answer]:
    """Return the whole numbers next to ones with Laplace noise, the coarsest first.

    The noise is in small steps of a whole number. Noise in steps of 1 would lose more
    than the price of continuous noise (docs/derivations/accuracy.md#on-a-grid).
    """
    steps = max(GRID // ceil(cost.finest.sensitivity), 1)
    factor = steps * (1 + Fraction(ADDED, GRID))
    scales = [Fraction(draws.whole_scale(scale * factor)) for scale in cost.spreads]
    drawn = laplace_answers([value * steps for value in values], scales, noise)
    return (tuple(round(Fraction(n, steps)) for n in answer) for answer in drawn)


def laplace_answers(
    values: Sequence[int], scales: Sequence[Fraction], noise: Whole
) -> Iterator[Answer]:
    """Yield whole numbers with noise of each scale, the coarsest first.

    All are drawn before the first is released; draws after the last released one are
    discarded.
    """
    finest = [value + noise(scales[-1]) for value in values]
    drawn = [coarsen(number, scales[::-1], noise) for number in finest]
    yield from reversed(list(zip(*drawn, strict=True)))


def _steps_of(cost: Refined) -> list[Fraction]:
    """Return the scales of the draws in steps, rounded up to floats.

    One more step is for the price, which is that of continuous noise.
    """
    factor = Fraction(GRID + ADDED + 1) / cost.finest.sensitivity
    return [Fraction(draws.whole_scale(scale * factor)) for scale in cost.spreads]


def coarsen(finest: int, scales: Sequence[Fraction], noise: Whole) -> list[int]:
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
    """Return the chance that coarsening adds nothing, to more than `bits` bits.

    With q = exp(-1 / scale) it is q' (1 - q)^2 / (q (1 - q')^2), the finer one's with a
    dash (docs/derivations/accuracy.md#refined-laplace).
    """

    def weight(mp: Any, scale: Fraction) -> Any:
        exponent = -1 / to_real(mp, scale)
        return mp.exp(exponent) / mp.expm1(exponent) ** 2

    with arithmetic(int(bits * _DIGITS_PER_BIT) + _MORE_DIGITS) as mp:
        return to_fraction(weight(mp, fine) / weight(mp, coarse))


def happens(chance: Callable[[int], Fraction]) -> bool:
    """Draw an event of a chance that is computed to as many bits as necessary."""
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


@draws.sampler_for.register
def _(cost: Refined) -> draws.Sampler:
    """Return a function that refuses to draw without a target, as it has no end."""
    if isinstance(cost, GaussianDraws):
        draws.sampler_for(cost.finest)
    else:
        _steps_of(cost)

    def sample(_: object) -> list[float]:
        msg = (
            "Refined is drawn until it is good enough. Say when, as in "
            'release(value, within="10%") or release(values, until=...).'
        )
        raise PublicError(msg, mechanism=cost.mechanism)

    return sample
