"""Width of the interval of a number whose own noise ended the refining."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, owens_t  # type: ignore[import-untyped]

Row = NDArray[np.float64]

#: True numbers are looked at in cells, each as bad as its worst number: this many
# spreads : wide where refining ends, and in the same proportion elsewhere.
_CELL = 0.07
_CLOSE = 0.003
#: Errors of the sums below, taken off the share that may lie outside.
_MARGIN = 1e-11


def _laplace_cdf(noise: Any) -> Any:
    tail = np.exp(-np.abs(noise)) / 2
    return np.where(noise < 0, tail, 1 - tail)


class _Law(NamedTuple):
    """A law of noise of spread 1: its distribution function, and where it ends."""

    cdf: Any
    far: float


_GAUSSIAN, _LAPLACE = _Law(ndtr, 8.5), _Law(_laplace_cdf, 50.0)


@lru_cache(maxsize=64)
def factor(
    spreads: tuple[float, ...],
    share: Fraction | None,
    outside: Fraction,
    step: float = 0.0,
) -> float:
    """Return how many spreads the half width of an interval is.

    Args:
        spreads: Of the noise after each draw, falling.
        share: Refining ends where the half width is at most this share of the number;
            None if it does not depend on the number.
        outside: The share of intervals that may miss the true number.
        step: Of the grid of Laplace noise, in units of the value; 0 for Gaussians.
    """
    missing = float(outside) - _MARGIN
    if share is None:
        return _quantile(missing, step)
    # Each draw alone: the interval of none of them misses.
    low, high = _quantile(missing, step), _quantile(missing / len(spreads), step)
    while high - low > _CLOSE:
        middle = (low + high) / 2
        if bound_misses(middle, float(share), spreads, step).max() > missing:
            low = middle
        else:
            high = middle
    return high


def _quantile(outside: float, step: float) -> float:
    return -math.log(outside) if step else -float(ndtri(outside / 2))


def bound_misses(
    factor: float, share: float, spreads: tuple[float, ...], step: float = 0.0
) -> Row:
    """Bound how often the last interval misses, for each cell of true numbers.

    Refining ends after the first draw whose number is at least factor / share of its
    spreads from zero. The interval misses at draw k if its noise is more than `factor`
    spreads, if it ended there, and not at the draw before. These are sums over k of
    probabilities of two noises; each cell takes the worst of its numbers for every
    event.

    Source: docs/derivations/accuracy.md#coverage-of-the-stopping-rule.

    Assumes: Gaussian noise after draw k is an average by precision of that after a
    later draw and more noise, independent. Laplace noise on a grid is that after the
    later draw, and with the chance of its law more noise; half widths have two steps
    of the grid more than this number of spreads.

    Rounding: events only grow with a cell, and for Laplace noise by the steps within
    which continuous noise stands for noise on the grid; two normal numbers by Owen's
    T, whose error `factor` leaves room for.

    Checked by: tests/noise/test_coverage.py.
    """
    ends = factor / share
    law = _LAPLACE if step else _GAUSSIAN
    lowest, highest = _cells(spreads, ends, law.far)
    slack = (2 + 2 / share) * step
    lowest, highest = lowest - slack, highest + slack
    total = np.zeros(len(lowest))
    for draw, spread in enumerate(spreads):
        is_last = draw == len(spreads) - 1
        near, far = lowest / spread, highest / spread
        events = _missing(factor, ends, near, far, is_last=is_last)
        if draw == 0:
            total += sum(_alone(law, event) for event in events)
            continue
        before = spreads[draw - 1]
        alive = -ends - highest / before, ends - lowest / before
        rho, stay = spread / before, 0.0
        if step:
            # The chance that the earlier draw has the noise of this one.
            ratios = (math.sinh(step / (2 * width)) for width in (before, spread))
            stay = (next(ratios) / next(ratios)) ** 2
        total += sum(_both(law, event, alive, rho, stay) for event in events)
    return total


def _cells(spreads: tuple[float, ...], ends: float, far: float) -> tuple[Row, Row]:
    """Return the ends of cells of true numbers; by symmetry none is negative."""
    least, most = 0.01 * spreads[-1], (ends + far) * spreads[0]
    count = math.ceil(math.log(most / least) / math.log1p(min(_CELL / ends, _CELL))) + 1
    edges = np.concatenate([[0.0], np.geomspace(least, most, count), [np.inf]])
    return edges[:-1], edges[1:]


def _missing(
    factor: float, ends: float, near: Row, far: Row, *, is_last: bool
) -> list[tuple[Row, Row]]:
    """Return ranges of noise that end the refining with an interval that misses."""
    every, limit = np.full_like(near, np.inf), np.full_like(near, factor)
    if is_last:
        return [(-every, -limit), (limit, every)]
    return [
        (np.maximum(limit, ends - far), every),
        (ends - far, -limit),
        (-every, np.minimum(-limit, -ends - near)),
    ]


def _alone(law: _Law, event: tuple[Row, Row]) -> Row:
    return np.asarray(np.maximum(law.cdf(event[1]) - law.cdf(event[0]), 0))


def _both(
    law: _Law, event: tuple[Row, Row], before: tuple[Row, Row], rho: float, stay: float
) -> Row:
    """Return the probability of a range now and of a range before, in its spreads.

    The noise before is rho times the noise now, and with the chance 1 - `stay` more of
    its own law; for Gaussians the law whose variance is 1, for Laplace noise of the
    spread before.
    """
    ends = [np.clip(end, -law.far, law.far) for end in (*event, *before)]
    rows = (ends[0] < ends[1]) & (ends[2] < ends[3])
    low, high, first, last = (end[rows] for end in ends)
    result = np.zeros(len(rows))
    if law is _GAUSSIAN:
        corners = _below(low, first, rho) + _below(high, last, rho)
        corners -= _below(low, last, rho) + _below(high, first, rho)
        result[rows] = np.maximum(corners, 0)
    else:
        window = first / rho, last / rho
        inside = np.maximum(low, window[0]), np.minimum(high, window[1])
        fresh = (1 - stay) * _laplace_integral(low, high, window, 1 / rho)
        result[rows] = fresh + stay * _alone(law, inside)
    return result


def _below(first: Row, second: Row, rho: float) -> Row:
    """Return the probability that two normal numbers are below, by Owen's T."""
    first, second = (np.where(end == 0, 1e-14, end) for end in (first, second))
    other = math.sqrt((1 - rho) * (1 + rho))
    total: Row = (ndtr(first) + ndtr(second)) / 2 - (first * second < 0) / 2
    total -= owens_t(first, (second / first - rho) / other)
    total -= owens_t(second, (first / second - rho) / other)
    return total


def _laplace_integral(
    low: Row, high: Row, window: tuple[Row, Row], width: float
) -> Row:
    """Return the probability that noise is in a range, and with more in a window.

    The integrand is a sum of exponentials between kinks at 0 and at the ends of the
    window.
    """
    total = np.zeros(len(low))
    farthest = _LAPLACE.far * (1 + width)
    for sign in (-1, 1):
        first, last = (sign * np.maximum(sign * end, 0) for end in (low, high))
        for end, weight in zip(window, (-1, 1), strict=True):
            near = np.clip(end, -farthest, farthest)
            kink = np.clip(near, first, last)
            up_to_kink = _laplace_cdf(kink) - _laplace_cdf(first)
            below = up_to_kink - _rest(1, (first, kink), near, sign, width)
            total += weight * (below + _rest(-1, (kink, last), near, sign, width))
    return total


def _rest(side: int, ends: tuple[Row, Row], near: Row, sign: int, width: float) -> Row:
    """Integrate the density times the tail on one side of an end of the window."""
    first, last = (np.exp(side * (z - near) / width - sign * z) for z in ends)
    return (last - first) / (4 * (side / width - sign))
