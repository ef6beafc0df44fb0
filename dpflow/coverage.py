"""How wide an interval must be when the noise itself said when to stop."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]

Row = NDArray[np.float64]

#: True numbers are looked at in cells, each as bad as its worst number: so many spreads
#: wide where refining ends, and in the same proportion elsewhere.
_CELL = 0.07
#: Windows of a kernel this narrow, in spreads, need segments of their own.
_NARROW = 0.3
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_CLOSE = 0.003
#: Errors of the sums below, taken off the share that may lie outside.
_MARGIN = 1e-6


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
    missing = float(outside) * (1 - _MARGIN)
    if share is None:
        return _quantile(missing, step)
    # Each draw by itself: the interval of none of them misses.
    low, high = _quantile(missing, step), _quantile(missing / len(spreads), step)
    while high - low > _CLOSE:
        middle = (low + high) / 2
        if missed(middle, float(share), spreads, step).max() > missing:
            low = middle
        else:
            high = middle
    return high


def _quantile(outside: float, step: float) -> float:
    return -math.log(outside) if step else -float(ndtri(outside / 2))


def missed(
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
    of the grid more than so many spreads.

    Rounding: events only grow with a cell, and for Laplace noise by the steps within
    which continuous noise stands for noise on the grid; integrals by Gauss's rule,
    whose error `factor` leaves room for.

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
        rho, stay = spread / before, _chance_to_stay(spread, before, step)
        total += sum(_both(law, event, alive, rho, stay) for event in events)
    return total


def _chance_to_stay(fine: float, coarse: float, step: float) -> float:
    """Return with which chance a later draw's noise is the earlier one's."""
    if not step:
        return 0.0
    return (math.sinh(step / (2 * coarse)) / math.sinh(step / (2 * fine))) ** 2


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
    none, every = np.full_like(near, -np.inf), np.full_like(near, np.inf)
    below, above = np.full_like(near, -factor), np.full_like(near, factor)
    if is_last:
        return [(none, below), (above, every)]
    return [
        (np.maximum(above, ends - far), every),
        (ends - far, below),
        (none, np.minimum(below, -ends - near)),
    ]


def _alone(law: _Law, event: tuple[Row, Row]) -> Row:
    found: Row = np.maximum(law.cdf(event[1]) - law.cdf(event[0]), 0)
    return found


def _both(
    law: _Law, event: tuple[Row, Row], before: tuple[Row, Row], rho: float, stay: float
) -> Row:
    """Return the probability of a range now and of a range before, in its spreads.

    The noise before is rho times the noise now, and with the chance 1 - `stay` more of
    its own law; that is as large as makes its variance 1 for Gaussians, and of the
    spread before for Laplace noise.
    """
    low, high = np.maximum(event[0], -law.far), np.minimum(event[1], law.far)
    spread = 1.0 if stay else math.sqrt((1 - rho) * (1 + rho))
    # What cannot come about is not summed up.
    possible = (high > low) & (before[0] < rho * high + law.far * spread)
    possible &= before[1] > rho * low - law.far * spread
    found = np.zeros(len(low))
    if possible.any():
        low, high = low[possible], high[possible]
        window = before[0][possible] / rho, before[1][possible] / rho
        integral = _laplace_integral if law is _LAPLACE else _gaussian_integral
        moved = (1 - stay) * integral(low, high, window, spread / rho)
        inside = np.maximum(low, window[0]), np.minimum(high, window[1])
        found[possible] = moved + stay * _alone(law, inside)
    return found


def _gaussian_integral(
    low: Row, high: Row, window: tuple[Row, Row], width: float
) -> Row:
    """Return the probability that noise is in a range, and with more in a window."""
    # Where the density is: twenty points do for a few standard deviations.
    far = _GAUSSIAN.far
    edges: list[Any] = [*np.linspace(-far, far, 7)]
    if width < _NARROW:
        edges += [end + far * width * at for end in window for at in (-1, 0, 1)]
    ends = np.sort([np.clip(edge + 0 * low, low, high) for edge in edges], axis=0)
    total = np.zeros(len(low))
    for first, last in pairwise(ends):
        half = (last - first) / 2
        noise: Any = ((first + last) / 2)[:, None] + half[:, None] * _POINTS
        upper = ndtr((window[1][:, None] - noise) / width)
        lower = ndtr((window[0][:, None] - noise) / width)
        density = np.exp(-noise * noise / 2) / math.sqrt(2 * math.pi)
        total += (density * (upper - lower)) @ _WEIGHTS * half
    return total


def _laplace_integral(
    low: Row, high: Row, window: tuple[Row, Row], width: float
) -> Row:
    """Return the same of Laplace noise: between kinks it is made of exponentials."""
    total = np.zeros(len(low))
    farthest = _LAPLACE.far * (1 + width)
    for sign, first, last in (
        (-1, np.minimum(low, 0), np.minimum(high, 0)),
        (1, np.maximum(low, 0), np.maximum(high, 0)),
    ):
        for end, weight in zip(window, (-1, 1), strict=True):
            near = np.clip(end, -farthest, farthest)
            kink = np.clip(near, first, last)
            rising, falling = (
                np.exp(side * (at - near) / width - sign * at)
                for side, at in ((1, first), (-1, last))
            )
            at_kink = [
                np.exp(side * (kink - near) / width - sign * kink) for side in (1, -1)
            ]
            below = _laplace_cdf(kink) - _laplace_cdf(first)
            below -= (at_kink[0] - rising) / (4 * (1 / width - sign))
            above = (at_kink[1] - falling) / (4 * (1 / width + sign))
            total += weight * (below + above)
    return total
