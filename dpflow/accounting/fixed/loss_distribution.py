"""Composition of a fixed sequence of any mechanisms, through their loss distributions.

For mechanisms whose losses are neither few nor Gaussian: Laplace, sampled and discrete
noise. Everything that `optimal` composes exactly is collapsed
first; see `loss_grid` for how the rest is rounded outward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, singledispatch

import numpy as np
from scipy.special import log_ndtr, ndtr  # type: ignore[import-untyped]

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Laplace, PoissonSampledGaussian
from dpflow.accounting.costs.refined import LaplaceDraws
from dpflow.accounting.curves.conversions import falling_root
from dpflow.accounting.curves.prices import refuse
from dpflow.accounting.fixed.loss_grid import (
    RAISE,
    UNIT,
    Array,
    ComposedMasses,
    Curve,
    curve_masses,
    response_masses,
)
from dpflow.accounting.fixed.optimal import FixedSequence, Parts, without_substeps
from dpflow.exceptions import InvalidCost
from dpflow.rounding import float_down, float_up, short_up

_RELATIVE, _ACCURACY = 1e-5, 3e-6  # of epsilon or of log delta, lost to the grid
_FEWEST_CELLS, _MOST_POINTS, _MOST_CELLS = 512, 2.0**17, 2.0**20
_REFINEMENTS = 5
_ROOT_AGREES = 1e-7
_SMALLEST_DELTA = 1e-32
_LARGEST_LOSS = 600.0
_LEAST = 1e-300


@singledispatch
def curves(cost: Cost) -> tuple[Curve, ...]:
    """Return the hockey-stick curves of a step, one per direction if they differ.

    Raises:
        UnsupportedCost: For a mechanism without a curve.
    """
    hint = "Use the accountant rdp, or kov if it is (epsilon, delta)-DP."
    raise refuse(cost, "a privacy loss distribution", hint)


def has_curve(cost: Cost) -> bool:
    """Return whether a step has a curve; `optimal` is looser then, or has no price."""
    return curves.dispatch(type(cost)) is not curves.dispatch(Cost)


@curves.register
def _(cost: Laplace) -> tuple[Curve, ...]:
    """Return the curve of one number moved by the whole sensitivity.

    No vector of the same L1 sensitivity is worse: for shifts a >= b of two numbers and
    epsilon >= 0, condition on the second loss, which is b with probability 1/2,
    b - 2s with density e^-s / 2 and -b otherwise. With 1 minus the delta of the first
    number written as min(1, e^((x - a) / 2)) and c = e^((epsilon - a - b) / 2), the
    product's is at least c (1 + s / 2), s = min(b, -log c): above c, that of a + b.
    """
    bound = float_up(cost.sensitivity / cost.scale)

    def curve(loss: Array) -> Array:
        inside = np.clip((loss - bound) / 2, -bound, 0.0)
        outside = -np.expm1(np.minimum(loss, 0.0))
        value = np.where(loss < -bound, outside, -np.expm1(inside))
        above = np.where(loss < -bound, 1.0, 1 - np.exp(inside) / 2)
        return np.where(loss < bound, value + RAISE * above, 0.0)

    return (curve,)


@curves.register
def _(cost: LaplaceDraws) -> tuple[Curve, ...]:
    """Return the curve of the finest draw."""
    return curves(cost.finest)


@curves.register
def _(cost: PoissonSampledGaussian) -> tuple[Curve, ...]:
    """Return the curves of one person fewer and of one person more, rounded up.

    Both are the Gaussian's, at a changed loss (docs/derivations/fixed.md#sampling).
    """
    rate = float_up(cost.sampling_rate)
    gaussian = _gaussian_curve(1 / cost.noise_multiplier**2)
    if rate >= 1:
        return (gaussian,)

    def fewer(loss: Array) -> Array:
        odds, error = _invert_sampling(loss, rate)
        low = odds - error
        value = rate * gaussian(np.log(np.where(low > 0, low, 1.0)))
        return np.where(low > 0, value, RAISE - np.expm1(loss))

    def more(loss: Array) -> Array:
        odds, error = _invert_sampling(-loss, rate)
        high = odds + error
        value = rate * np.exp(loss) * high * gaussian(-np.log(np.maximum(high, _LEAST)))
        return np.where(high > 0, value, 0.0)

    return fewer, more


def _invert_sampling(loss: Array, rate: float) -> tuple[Array, Array]:
    """Return 1 + (e^loss - 1) / rate, and a bound on its rounding error."""
    part = np.expm1(loss) / rate
    return 1 + part, 32 * UNIT * (1 + np.abs(part))


def _gaussian_curve(mu_squared: Fraction) -> Curve:
    mu = math.sqrt(float_up(mu_squared)) * (1 + 4 * UNIT)

    def curve(loss: Array) -> Array:
        above = ndtr(mu / 2 - loss / mu)
        below = np.exp(loss + log_ndtr(-mu / 2 - loss / mu))
        return np.asarray(np.maximum(above - below, 0.0) + RAISE * above + _LEAST)

    return curve


@lru_cache(maxsize=1024)
def grid_epsilon(parts: Parts, delta: Fraction) -> Fraction:
    """Return an epsilon of a fixed sequence at delta, rounded up.

    Source: composition of dominating pairs, Zhu, Dong, Wang 2022 (arXiv 2106.08567)
    Thm 10; hockey-stick curves joined by chords, `loss_grid`.

    Assumes: the costs are fixed in advance; mechanisms and order may adapt. Sampled
    steps: the neighbouring relation is add-or-remove.

    Rounding: up. The grid loses about 1e-5 of epsilon or 3e-6 of log delta.

    Checked by: tests/accounting/fixed/test_optimal.py.

    Args:
        parts: The costs and how often each runs.
        delta: The delta.

    Raises:
        UnsupportedCost: If a step has neither a curve nor (epsilon, delta).
        InvalidCost: If delta is too small or the grid too fine.
    """
    target = float_down(delta)
    epsilon = 0.0
    for direction in range(_directions(parts)):
        composition, lost = _compose(parts, target, direction)
        room = (target - lost) / (1 - lost) * (1 - 1e-12)
        if room <= composition.infinite or target < _SMALLEST_DELTA:
            floor = lost + composition.infinite + _SMALLEST_DELTA
            msg = (
                f"delta {short_up(delta)} does not cover the steps: they lose "
                f"{short_up(Fraction(floor))} whatever epsilon is. Give more delta or "
                "use fewer steps."
            )
            raise InvalidCost(msg, name="delta", value=delta)
        if composition.delta(epsilon) > room:
            epsilon = _inverse(composition, room, epsilon)
    return Fraction(epsilon)


def _inverse(composition: ComposedMasses, room: float, least: float) -> float:
    """Return an epsilon at which delta is in the room; at `least` it is not."""

    def excess(epsilon: float) -> float:
        return math.log(max(composition.delta(epsilon), 1e-300)) - math.log(room)

    high = max(_rough(composition, room), least + composition.step)
    starts = (x for x in (0.9 * high, high / 2) if x > least and excess(x) > 0)
    return float(falling_root(excess, next(starts, least), high, _ROOT_AGREES))


def _directions(parts: Parts) -> int:
    return max(
        [len(curves(cost)) for cost, _ in without_substeps(parts) if has_curve(cost)],
        default=1,
    )


def _compose(
    parts: Parts, target: float, direction: int
) -> tuple[ComposedMasses, float]:
    """Choose a grid; return the composition on it and the mass of the deltas."""
    steps = without_substeps(parts)
    sequence = FixedSequence.of(tuple((c, n) for c, n in steps if not has_curve(c)))
    named = [
        (curves(cost)[direction % len(curves(cost))], count)
        for cost, count in steps
        if has_curve(cost)
    ]
    if sequence.mu_squared:
        named.append((_gaussian_curve(sequence.mu_squared), 1))
    responses = sequence.responses
    runs = sum(count for _, count in named) + len(responses)
    tiny = target * 1e-9 / max(runs, 1)
    reaches = [_reach(curve, tiny, runs) for curve, _ in named]
    sizes = [min(reach) for reach in reaches] or [float(e) for e, _ in responses]
    spans = [high for _, high in reaches] + [float(e) * n for e, n in responses]
    step = _power(max(min(sizes) / _FEWEST_CELLS, max(spans) / _MOST_POINTS))
    # The tilt says how fine a grid has to be, and a fine grid what the tilt is.
    composition = _on_grid(named, reaches, responses, step, tiny)
    for _ in range(_REFINEMENTS - 1):
        finer = _choose_step(composition, target, runs)
        finer = max(finer, _power(max([*spans, *map(sum, reaches)]) / _MOST_CELLS))
        if finer >= step:
            break
        step = finer
        composition = _on_grid(named, reaches, responses, step, tiny)
    lost = -math.expm1(sum(n * math.log1p(-float_up(d)) for d, n in sequence.lost))
    return composition, lost * (1 + 1e-9)


def _choose_step(composition: ComposedMasses, target: float, runs: int) -> float:
    """Return a grid step that loses little.

    Of log delta a run loses (1 + tilt)^2 step^2 / 8, of the largest loss one step.
    """
    at = _rough(composition, target)
    if at >= composition.top:
        largest = composition.top
        return _power(max(largest * _RELATIVE / runs, largest / _MOST_POINTS))
    tilt = composition.best_tilt(at)
    lost = max(_ACCURACY, _RELATIVE * at * tilt)
    needed = math.sqrt(8 * lost / runs) / (1 + tilt)
    spread = max(at, composition.spread(at))
    return _power(max(needed, spread / _MOST_POINTS))


def _power(step: float) -> float:
    return float(2.0 ** math.floor(math.log2(step)))


def _reach(curve: Curve, tiny: float, runs: int) -> tuple[float, float]:
    """Return losses below and above which a step has next to no mass."""
    high = low = 2.0**-40
    while high < _LARGEST_LOSS and curve(np.array([high * 0.75, high]))[-1] > tiny:
        high = min(2 * high, _LARGEST_LOSS)
    small = _ACCURACY * 0.1 / runs + 4 * RAISE
    while low < _LARGEST_LOSS:
        if curve(np.array([-low * 1.25, -low]))[-1] + math.expm1(-low) <= small:
            break
        low = min(2 * low, _LARGEST_LOSS)
    return low, high


def _rough(composition: ComposedMasses, target: float) -> float:
    """Return roughly the epsilon at delta, by Chernoff's bound."""
    low, high = 0.0, composition.top
    while high - low > max(high / 64, composition.step):
        middle = (low + high) / 2
        above = composition.least_exponent(middle) > math.log(target)
        low, high = (middle, high) if above else (low, middle)
    return high


def _on_grid(
    named: Sequence[tuple[Curve, int]],
    reaches: Sequence[tuple[float, float]],
    responses: Sequence[tuple[Fraction, int]],
    step: float,
    tiny: float,
) -> ComposedMasses:
    groups = [
        curve_masses(
            curve, step, -math.ceil(low / step), math.ceil(high / step) + 1, count
        )
        for (curve, count), (low, high) in zip(named, reaches, strict=True)
    ]
    groups += [response_masses(eps, count, step, tiny) for eps, count in responses]
    return ComposedMasses(groups, step)
