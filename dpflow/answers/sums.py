"""Sums of noisy numbers: the combination with the least noise, and intervals.

Intervals are rounded outward. `docs/derivations/answers.md` derives all of it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from dpflow.exceptions import ReleaseError, require
from dpflow.noise.accuracy import quantile
from dpflow.rounding import bound_above, float_down, to_real

#: Share of intervals that may miss the true number.
OUTSIDE, ZERO = Fraction(1, 20), Fraction(0)
#: Part of a share for each error of an inverted characteristic function, and its
#: rounding in float64.
_ERROR, _ROUNDING = 1e-6, 1e-9


class Noisy(NamedTuple):
    """A released number and its noise.

    Attributes:
        number: Its exact value.
        spread: Sigma of a Gaussian, or scale of a Laplace, as it was drawn.
        is_normal: Whether it is a Gaussian.
        draws: How many draws the cost allows: more than 1 where it is refined.
        slack: Most that rounding added to the noise.
    """

    number: Fraction
    spread: Fraction
    is_normal: bool
    draws: int
    slack: Fraction

    @property
    def variance(self) -> Fraction:
        """Variance of the noise."""
        return self.spread**2 * (1 if self.is_normal else 2)


#: Coefficients of a linear combination, each with its number.
Terms = Sequence[tuple[Fraction, Noisy]]


def combination(
    rows: Sequence[Collection[Hashable]],
    released: Sequence[Noisy],
    target: Collection[Hashable],
) -> list[Fraction] | None:
    """Return the coefficients with which released sums add up to a target.

    Of all such combinations it is the one with the least variance. It depends on parts
    and variances alone, and never on a released value.

    Source: theorem of Gauss and Markov; docs/derivations/answers.md#least-noise.

    Args:
        rows: The parts that each release sums, each part once.
        released: The number of each release.
        target: The parts of the wanted sum, each once.

    Returns:
        A coefficient for each release; None if no combination is the target.
    """
    # Under None stands the right side.
    equations: Any = defaultdict(Counter)
    pairs = [*zip(rows, released, strict=True)]
    for row, noisy in pairs:
        for part, other in product(row, row):
            equations[part][other] += 1 / noisy.variance
    for part in target:
        equations[part][None] = Fraction(1)
    solved: dict[Hashable, Any] = {}
    for equation in equations.values():
        for part in solved.keys() & equation.keys():
            _eliminate(part, solved[part], equation)
        unknown = next((p for p in equation if p is not None and equation[p]), None)
        if unknown is not None:
            divisor = equation.pop(unknown)
            solution = {part: n / divisor for part, n in equation.items() if n}
            for other in solved.values():
                _eliminate(unknown, solution, other)
            solved[unknown] = Counter(solution)
        elif equation[None]:
            return None
    weights: Any = Counter({part: terms[None] for part, terms in solved.items()})
    return [sum(weights[part] for part in row) / n.variance for row, n in pairs]


def _eliminate(part: Hashable, solved: Mapping[Hashable, Any], equation: Any) -> None:
    """Insert what a part equals into an equation that may have it."""
    if times := equation.pop(part, 0):
        equation.subtract({other: times * n for other, n in solved.items()})


def _root(square: Fraction) -> Fraction:
    return bound_above(lambda mp: mp.sqrt(to_real(mp, square)))


def _value(terms: Terms) -> Fraction:
    return sum((times * noisy.number for times, noisy in terms), ZERO)


def _slack(terms: Terms) -> Fraction:
    return sum((abs(times) * noisy.slack for times, noisy in terms), ZERO)


def interval(terms: Terms) -> tuple[Fraction, Fraction, Fraction]:
    """Return the value of a linear combination and its 95 % interval.

    Independent noise is added by its law. Refined noise decides about its last draw:
    its interval holds for all draws of all refined terms simultaneously.

    Source: docs/derivations/answers.md#sums.

    Args:
        terms: Of all releases that other noise could have chosen, too, with 0.
    """
    refined = [term for term in terms if term[1].draws > 1]
    plain = [(times, n) for times, n in terms if n.draws == 1 and times]
    share = OUTSIDE / max(len(refined) + bool(plain), 1)
    variance = sum((t**2 * n.variance for t, n in plain if n.is_normal), ZERO)
    scales = Counter(abs(t) * n.spread for t, n in plain if not n.is_normal)
    half = _slack(terms) + _solve_quantile(scales, variance, share)
    for times, noisy in refined:
        factor = quantile(share / noisy.draws, is_normal=noisy.is_normal)
        half += abs(times) * noisy.spread * factor
    return _value(terms), _value(terms) - half, _value(terms) + half


def _solve_quantile(
    scales: Counter[Fraction], variance: Fraction, outside: Fraction
) -> Fraction:
    """Return the size that a sum of Laplace and normal numbers exceeds, rounded up.

    Inverts the characteristic function by a sum. Its three errors (step, end, float64)
    are bounded and added to the share outside.

    Source: docs/derivations/answers.md#laplace-noise.

    Checked by: tests/answers/test_sums.py.

    Args:
        scales: How often each scale occurs.
        variance: Of the normal number.
        outside: Share of sums that may exceed the result.
    """
    import numpy as np  # noqa: PLC0415

    if not scales:
        return quantile(outside) * _root(variance)
    unit, allowed = max(scales), float_down(outside)
    b, n = np.array([float(s / unit) for s in scales]), np.array([*scales.values()])
    spread, error = float(variance / unit**2), allowed * _ERROR + _ROUNDING
    tilt = min(0.5, 6 / math.sqrt(spread + 2 * n @ b**2))
    moment = spread * tilt**2 / 2 - float(n @ np.log1p(-((tilt * b) ** 2)))
    far = (moment + math.log(2 / error)) / tilt
    step, count = math.pi / far, 32
    while True:
        count *= 2
        halves = np.arange(count + 1) + 0.5
        points = step * halves
        logs = -spread * points**2 / 2 - n @ np.log1p(np.outer(b, points) ** 2)
        last = math.exp(logs[-1]) * (1 + points[-1] ** 2)
        if last / math.pi / (step * count) ** 2 <= error:
            break
    weights, low, high = 2 * np.exp(logs) / (math.pi * halves), 0.0, far
    while high - low > high * _ERROR:
        middle = (low + high) / 2
        inside = float(weights[:-1] @ np.sin(points[:-1] * middle)) - 4 * error
        low, high = (low, middle) if inside >= 1 - allowed else (middle, high)
    return Fraction(high) * unit * (1 + Fraction(1, 2**40))


def ratio(over: Terms, under: Terms) -> tuple[Fraction, Fraction, Fraction]:
    """Return a ratio of sums of the same releases and its 95 % interval.

    Source: Fieller 1954; docs/derivations/answers.md#ratios.

    Raises:
        ReleaseError: If the interval of the denominator holds 0, or if noise is refined
            or no Gaussian.
    """

    def covariance(first: Terms, other: Terms) -> Fraction:
        pairs = zip(first, other, strict=True)
        return square * sum(
            (a * b * noisy.variance for (a, noisy), (b, _) in pairs), ZERO
        )

    square, ends = quantile(OUTSIDE) ** 2, list[Fraction]()
    tops, bottoms = (
        [_value(terms) + side * _slack(terms) for side in (-1, 1)]
        for terms in (over, under)
    )
    wide, shared, narrow = map(covariance, (over, over, under), (over, under, under))
    least = min(map(abs, bottoms)) ** 2 if math.prod(bottoms) > 0 else 0
    require(
        least > narrow and all(n.is_normal and n.draws == 1 for _, n in over),
        "The ratio has no interval. That of its denominator must not hold 0, and all "
        "noise must be Gaussian and unrefined. Request both numbers instead.",
        ReleaseError,
    )
    for top, bottom in product(tops, bottoms):
        first, middle = bottom**2 - narrow, top * bottom - shared
        root = _root(middle**2 - first * (top**2 - wide))
        ends += [(middle - root) / first, (middle + root) / first]
    return _value(over) / _value(under), min(ends), max(ends)
