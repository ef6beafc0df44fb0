"""How wide an interval must be when the noise itself said when to stop."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]

Row = NDArray[np.float64]

#: True numbers are looked at in cells, each as bad as its worst number: so many spreads
#: wide where refining ends, and in the same proportion elsewhere.
_CELL = 0.07
#: Beyond so many standard deviations a normal number does not come.
_FAR = 8.5
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_CLOSE = 0.003
#: Errors of the sums below, taken off the share that may lie outside.
_MARGIN = 1e-6


@lru_cache(maxsize=64)
def factor(
    spreads: tuple[float, ...], share: Fraction | None, outside: Fraction, law: str
) -> float:
    """Return how many spreads the half width of an interval is.

    Args:
        spreads: Of the noise after each draw, falling.
        share: Refining ends where the half width is at most this share of the number;
            None if it does not depend on the number.
        outside: The share of intervals that may miss the true number.
        law: "gaussian" or "laplace".
    """
    missing = float(outside) * (1 - _MARGIN)
    if share is None:
        return _quantile(missing, law)
    # Each draw by itself: the interval of none of them misses.
    all_draws = _quantile(missing / len(spreads), law)
    if law == "laplace":
        return all_draws
    low, high = _quantile(missing, law), all_draws
    while high - low > _CLOSE:
        middle = (low + high) / 2
        if missed(middle, float(share), spreads).max() > missing:
            low = middle
        else:
            high = middle
    return high


def _quantile(outside: float, law: str) -> float:
    return -math.log(outside) if law == "laplace" else -float(ndtri(outside / 2))


def missed(factor: float, share: float, spreads: tuple[float, ...]) -> Row:
    """Bound how often the last interval misses, for each cell of true numbers.

    Refining ends after the first draw whose number is at least factor / share of its
    spreads from zero. The interval misses at draw k if its noise is more than `factor`
    spreads, if it ended there, and not at the draw before. These are sums over k of
    probabilities of two normal numbers; each cell takes the worst of its numbers for
    every event.

    Source: docs/derivations/accuracy.md#coverage-of-the-stopping-rule.

    Assumes: the noise after draw k is normal, and that after a later draw is an
    average by precision of it and more noise, independent.

    Rounding: events only grow with a cell; integrals by Gauss's rule, whose error
    `factor` leaves room for.

    Checked by: tests/accuracy/test_critical.py.
    """
    ends = factor / share
    lowest, highest = _cells(spreads, ends)
    total = np.zeros(len(lowest))
    for draw, spread in enumerate(spreads):
        is_last = draw == len(spreads) - 1
        near, far = lowest / spread, highest / spread
        events = _missing(factor, ends, near, far, is_last=is_last)
        if draw == 0:
            total += sum(_alone(event) for event in events)
            continue
        before = spreads[draw - 1]
        alive = -ends - highest / before, ends - lowest / before
        rho = spread / before
        total += sum(_both(event, alive, rho) for event in events)
    return total


def _cells(spreads: tuple[float, ...], ends: float) -> tuple[Row, Row]:
    """Return the ends of cells of true numbers; by symmetry none is negative."""
    least, most = 0.01 * spreads[-1], (ends + _FAR) * spreads[0]
    count = math.ceil(math.log(most / least) / math.log1p(min(_CELL / ends, _CELL))) + 1
    edges = np.concatenate([[0.0], np.geomspace(least, most, count), [np.inf]])
    return edges[:-1], edges[1:]


def _missing(
    factor: float, ends: float, near: Row, far: Row, *, is_last: bool
) -> list[tuple[Row, Row]]:
    """Return ranges of noise that end the refining with an interval that misses."""
    none, every = np.full_like(near, -np.inf), np.full_like(near, np.inf)
    below, above = np.full_like(near, -factor), np.full_like(near, factor)
    if is_last:
        return [(none, below), (above, every)]
    return [
        (np.maximum(above, ends - far), every),
        (ends - far, below),
        (none, np.minimum(below, -ends - near)),
    ]


def _alone(event: tuple[Row, Row]) -> Row:
    found: Row = np.maximum(ndtr(event[1]) - ndtr(event[0]), 0)
    return found


def _both(event: tuple[Row, Row], before: tuple[Row, Row], rho: float) -> Row:
    """Return the probability of a range now and a range before, of correlation rho."""
    low, high = np.maximum(event[0], -_FAR), np.minimum(event[1], _FAR)
    spread = math.sqrt(1 - rho * rho)
    # What cannot come about is not summed up.
    possible = (high > low) & (before[0] < rho * high + _FAR * spread)
    possible &= before[1] > rho * low - _FAR * spread
    found = np.zeros(len(low))
    if possible.any():
        ends = before[0][possible], before[1][possible]
        found[possible] = _integral(low[possible], high[possible], ends, rho)
    return found


def _integral(low: Row, high: Row, before: tuple[Row, Row], rho: float) -> Row:
    # Where the density is: twenty points do for a few standard deviations.
    total = np.zeros(len(low))
    for left, right in pairwise(np.linspace(-_FAR, _FAR, 7)):
        first, last = np.clip(low, left, right), np.clip(high, left, right)
        half = (last - first) / 2
        noise: Any = ((first + last) / 2)[:, None] + half[:, None] * _POINTS
        spread = math.sqrt(1 - rho * rho)
        upper = ndtr((before[1][:, None] - rho * noise) / spread)
        lower = ndtr((before[0][:, None] - rho * noise) / spread)
        density = np.exp(-noise * noise / 2) / math.sqrt(2 * math.pi)
        total += (density * (upper - lower)) @ _WEIGHTS * half
    return total
