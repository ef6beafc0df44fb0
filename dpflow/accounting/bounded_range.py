"""Steps whose loss has a bounded range, composed adaptively: exponential mechanisms.

Between two neighbours an exponential mechanism of range eta has its losses in
[t - eta, t] for some t in [0, eta]. An analyst who sees earlier outputs chooses t anew
at every step, and gains by it: this is no composition of one pair of distributions
(Dong, Durfee, Rogers 2020). What it is, with D_k(x) the largest delta of k such steps
at epsilon x:

* D_0(x) = max(1 - e^x, 0). The first of k + 1 steps leaves D_k(x - loss), whatever its
  output was. As a supremum of hockey-stick divergences, D_k is convex in e^x; and
  e^-loss has mean one and lies between two numbers, so that two-point losses are worst:
  D_{k+1}(x) = max over t of p D_k(x - t) + (1 - p) D_k(x - t + eta), with p such that
  p e^-t + (1 - p) e^(eta - t) = 1. This is exact.
* D_k is the curve of some pair of distributions. Write T for the maximum over t, A_k
  for the mean over that pair. A convex f is a mixture of the curve's D_0 (scaled) and
  an affine function; a maximum of means is at most the mean of the maxima: so
  T A_k f <= A_{k+1} f. By induction over the next step taken, the pair and those of all
  other steps dominate any interleaving, in any order: ranges may differ, and a long
  run may be cut into blocks.
* One block is exact, in the worst order too: T changes places with the mean over
  another step at no gain, so steps of bounded range come last.

On a grid of x that contains eta, D_k(x - t) is known for t on the grid. Between, chords
in e^x lie above D_k. On chords, what the maximum is taken of is C - a u - b / u in u =
e^-t: above its own chord by at most b (u_1^-1/2 - u_0^-1/2)^2, where b is the
difference of the chords' values at e^x = 0 over e^eta - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpflow.accounting.loss_grid import UNIT, Array, Curve
from dpflow.rounding import float_up

#: Ranges above are better taken as (epsilon, 0)-DP.
LARGEST_RANGE = 50

_BITS = 26  # of the grid's step: multiples up to 2^27 are exact
_PARTS = 8  # a range is first looked at in so many parts
_FEWEST_CELLS, _MOST_CELLS = 32, 256
_MOST_WORK, _OVERHEAD = 4e9, 64  # steps times points times operations on each
_RAISE = 1 + 64 * UNIT
_MARGIN = 8.0  # in logs, below the floor


@dataclass(frozen=True)
class _Curve:
    """D_k at 0, 1, 2, ... times the grid's step; zero (or the last value) beyond."""

    values: Array
    steps: int


class Game:
    """The recursion for one range, from one number of steps to the next.

    Source: Dong, Durfee, Rogers 2020 (arXiv 1909.13830), the adaptive recursion; the
    module's text proves it and that its curve composes.

    Assumes: the ranges and the number of steps are fixed in advance; mechanisms, their
    order and whether they run may depend on earlier outputs.

    Rounding: up. Chords are above, a maximum between points is bounded from above, and
    every operation is on non-negative numbers, with a factor for its rounding.

    Checked by: tests/accounting/test_bounded_range.py.

    Args:
        eta: The range, positive.
        cells: Points of the grid in one range, a power of two and at least 16.
        high: Above it, D_k is taken to be what it is there.
    """

    def __init__(self, eta: Fraction, cells: int, high: float) -> None:
        self.step = _short_up(float_up(eta) / cells * (1 + 4 * UNIT))
        self.cells = cells
        self.points = max(math.ceil(high / self.step), cells) + 1
        places = np.arange(cells + 1) * self.step
        eta_up = cells * self.step
        # The probability of the loss t, rounded up: the larger loss weighs more.
        upper = np.expm1(places - eta_up) / math.expm1(-eta_up)
        self._upper = np.minimum(upper * (1 + 16 * UNIT), 1.0)
        below = -np.arange(cells, 0, -1) * self.step
        self._below = -np.expm1(below), np.exp(below)
        self._start = _Curve(np.zeros(self.points), 0)
        self._last = self._start

    def after(self, steps: int) -> Array:
        """Return D_k on the grid, rounded up; remembers the last k."""
        curve = self._last if self._last.steps <= steps else self._start
        for done in range(curve.steps, steps):
            curve = _Curve(self._next(self._around(curve), done + 1), done + 1)
        self._last = curve
        return curve.values

    def _around(self, curve: _Curve) -> Array:
        """Return a curve from one range below zero to one range above the grid.

        D(-x) = 1 - e^-x + e^-x D(x), for the two datasets may change places.
        """
        cells, values = self.cells, curve.values
        reached = curve.steps * cells < self.points
        above = np.full(cells, 0.0 if reached else values[-1])
        mirrored = self._below[0] + self._below[1] * values[cells:0:-1]
        return np.concatenate([mirrored * _RAISE, values, above])

    def _next(self, known: Array, steps: int) -> Array:
        """Return the maximum over t, on the grid."""
        cells, wide = self.cells, self.cells // _PARTS
        # D is zero from steps * eta on.
        size = min(self.points, steps * cells)
        falls = np.maximum(known[:-cells] - known[cells:], 0.0)

        def mean(place: int, first: int, last: int) -> Array:
            low, high = first + cells - place, last + cells - place
            value = falls[low:high] * self._upper[place]
            value += known[low + cells : high + cells]
            return np.asarray(value)

        knots = [mean(i * wide, 0, size) for i in range(_PARTS + 1)]
        best = np.maximum.reduce(knots)
        result = np.zeros(self.points)
        result[:size] = best
        rough, fine = self._bends(known, wide), self._bends(known, 1)
        for reach in (2**k for k in range(wide.bit_length() - 1)):
            fine[:-reach] = np.maximum(fine[:-reach], fine[reach:])
        for part in range(_PARTS):
            start = part * wide
            left = cells - start - wide
            above = np.maximum(knots[part], knots[part + 1])
            above += rough[left : left + size] * self._excess(start, wide)
            open_ = np.flatnonzero(above > best)
            if not open_.size:
                continue
            first, last = int(open_[0]), int(open_[-1]) + 1
            ends = knots[part][first:last], knots[part + 1][first:last]
            top, second = np.maximum(*ends), np.minimum(*ends)
            for place in range(start + 1, start + wide):
                value = mean(place, first, last)
                np.maximum(second, np.minimum(top, value), out=second)
                np.maximum(top, value, out=top)
            bend = fine[left + first : left + last] * self._excess(start + wide - 1, 1)
            top += _over(top - second, bend)
            np.maximum(result[first:last], top, out=result[first:last])
        return result * _RAISE

    def _bends(self, known: Array, width: int) -> Array:
        """Return how much chords drop at e^x = 0 from each cell to one range higher."""
        divisor = math.expm1(width * self.step)
        falls = (known[:-width] - known[width:]) / divisor
        heights = known[:-width] + falls
        noise = 16 * UNIT * (known[: -width - self.cells] * (1 + 1 / divisor))
        bends = heights[: -self.cells] - heights[self.cells :]
        return np.asarray(np.maximum(bends, 0.0) + noise)

    def _excess(self, place: int, width: int) -> float:
        """Return what a bend adds between two places that are `width` apart."""
        gap = math.expm1(width * self.step / 2)
        size = math.exp(place * self.step) * gap * gap
        return size / math.expm1(self.cells * self.step) * (1 + 64 * UNIT)


def _over(gap: Array, bend: Array) -> Array:
    """Return how far above its higher end an arc gets that bends so much.

    At s of its width it is at most s * gap below that end and 4 s (1 - s) bend above
    the chord. Of all arcs, those with the largest and the second largest end reach
    highest: others add `bend` to less than the second.
    """
    bend = np.maximum(bend, 1e-300)
    room = np.maximum(4 * bend - gap, 0.0)
    return np.asarray(room * room / (16 * bend) * (1 + 64 * UNIT))


def range_curves(eta: Fraction, count: int, floor: float) -> list[tuple[Curve, int]]:
    """Return hockey-stick curves whose composition dominates `count` steps of a range.

    One curve where the work allows it, which is the optimum of adaptive choices; else
    blocks, each of which costs about what one more step would.

    Source, assumes: as `Game`.

    Rounding: up.

    Checked by: tests/accounting/test_bounded_range.py.

    Args:
        eta: The range.
        count: How many steps there are.
        floor: Values below it need not be told apart.
    """
    block = count
    while block > 1 and _work(eta, block, _FEWEST_CELLS, floor) > _MOST_WORK:
        block = -(-block // 2)
    cells = _FEWEST_CELLS
    while cells < _MOST_CELLS and _work(eta, block, 2 * cells, floor) <= _MOST_WORK:
        cells *= 2
    whole, rest = divmod(count, block)
    curves = [(_curve(eta, block, cells, floor), whole)]
    return curves + ([(_curve(eta, rest, cells, floor), 1)] if rest else [])


def _work(eta: Fraction, count: int, cells: int, floor: float) -> float:
    """Return what the recursion costs; neighbouring counts share a grid."""
    points = _top(eta, _grown(count), floor) / float(eta) * cells
    return _grown(count) * points * (_OVERHEAD + cells)


def _grown(count: int) -> int:
    """Round up to three binary digits."""
    unit = 1 << max(count.bit_length() - 3, 0)
    return -(-count // unit) * unit


def _top(eta: Fraction, count: int, floor: float) -> float:
    """Return a loss above which there is next to nothing, by zCDP's tail."""
    rho = count * float(eta) ** 2 / 8
    log = _MARGIN - math.log(floor)
    return max(min(rho + 2 * math.sqrt(rho * log), count * float(eta)), float(eta))


@lru_cache(maxsize=8)
def _game(eta: Fraction, cells: int, high: float) -> Game:
    return Game(eta, cells, high)


@lru_cache(maxsize=64)
def _curve(eta: Fraction, count: int, cells: int, floor: float) -> Curve:
    game = _game(eta, cells, _top(eta, _grown(count), floor))
    values = np.maximum.accumulate(game.after(count)[::-1])[::-1]
    step, last, end = game.step, len(values) - 1, count * cells

    def above(loss: Array) -> Array:
        """Return D at losses that are not negative, by chords."""
        inside = np.minimum(loss, last * step)
        cell = np.minimum(np.floor(inside / step), last - 1).astype(np.int64)
        share = np.expm1(inside - cell * step) / math.expm1(step)
        share = share * (1 - 1e-12) - 16 * UNIT * (1 + inside / step)
        share = np.clip(share, 0.0, 1.0)
        value = values[cell] + (values[cell + 1] - values[cell]) * share
        return np.asarray(np.where(loss >= end * step, 0.0, value))

    def curve(loss: Array) -> Array:
        value = above(np.abs(loss))
        low = np.minimum(loss, 0.0)
        value = np.where(loss < 0, -np.expm1(low) + np.exp(low) * value, value)
        return np.asarray(np.minimum(value * _RAISE, 1.0))

    return curve


def _short_up(value: float) -> float:
    """Round up to a number of few digits, so that its multiples are exact."""
    scale = 2.0 ** (_BITS - math.floor(math.log2(value)))
    return math.ceil(value * scale) / scale
