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
from itertools import pairwise

import numpy as np

from dpflow.accounting.fixed.loss_grid import RAISE, UNIT, Array, Curve
from dpflow.rounding import float_up

#: Ranges above are better taken as (epsilon, 0)-DP.
LARGEST_RANGE = 50

_BITS = 26  # of the grid's step: multiples up to 2^27 are exact
_PARTS, _SHORT = 8, 4  # a range is first looked at in so many parts; the shortest
_CELLS = (32, 48, 64, 96, 128, 192, 256)
#: Steps times points, at first and for a close look: a second or two, and below ten.
_MOST_WORK, _CLOSE_WORK = 3e7, 9e7
_RAISE = 1 + 64 * UNIT
_MARGIN = 8.0  # in logs, below the floor


@dataclass(frozen=True)
class _Curve:
    """D_k at 0, 1, 2, ... times the grid's step; beyond, it is at most the last."""

    values: Array
    steps: int


@dataclass(frozen=True)
class _Part:
    """A part of [0, eta]: its start, the first x, the means at its ends from there."""

    start: int
    first: int
    low: Array
    high: Array

    @property
    def last(self) -> int:
        """The end of the x."""
        return self.first + len(self.low)

    def between(self, first: int, last: int) -> _Part:
        """Return the part for fewer x."""
        low, high = self.low[first:last], self.high[first:last]
        return _Part(self.start, self.first + first, low, high)

    def halves(self, width: int, middle: Array) -> list[_Part]:
        """Return both halves, each so wide."""
        return [
            _Part(self.start, self.first, self.low, middle),
            _Part(self.start + width, self.first, middle, self.high),
        ]


class Game:
    """The recursion for one range, from one number of steps to the next.

    Source: Dong, Durfee, Rogers 2020 (arXiv 1909.13830), the adaptive recursion; the
    module's text proves it and that its curve composes.

    Assumes: the ranges and the number of steps are fixed in advance; mechanisms, their
    order and whether they run may depend on earlier outputs.

    Rounding: up. Chords are above, a maximum between points is bounded from above, and
    every operation is on non-negative numbers, with a factor for its rounding.

    Checked by: tests/accounting/fixed/test_bounded_range.py.

    Args:
        eta: The range, positive.
        cells: Points of the grid in one range: 8 times a power of two, or 3 times that.
        high: Above it, D_k is taken to be what it is there.
        least: So is D_k above where it is no larger than this.
    """

    def __init__(
        self, eta: Fraction, cells: int, high: float, least: float = 0.0
    ) -> None:
        self.step = _short_up(float_up(eta) / cells * (1 + 4 * UNIT))
        self.cells, self.least = cells, least
        self.points = max(math.ceil(high / self.step), cells) + 1
        places = np.arange(cells + 1) * self.step
        eta_up = cells * self.step
        # The probability of the loss t, rounded up: the larger loss weighs more.
        upper = np.expm1(places - eta_up) / math.expm1(-eta_up)
        self._upper = np.minimum(upper * (1 + 16 * UNIT), 1.0)
        below = -np.arange(cells, 0, -1) * self.step
        self._below = -np.expm1(below), np.exp(below)
        self._start = _Curve(np.zeros(cells + 1), 0)
        self._last = self._start

    def after(self, steps: int) -> Array:
        """Return D_k on the grid, rounded up; remembers the last k."""
        curve = self._last if self._last.steps <= steps else self._start
        for done in range(curve.steps, steps):
            values = self._next(self._around(curve.values), done + 1)
            curve = _Curve(self._short(values, done + 1), done + 1)
        self._last = curve
        return np.pad(curve.values, (0, self.points - len(curve.values)), mode="edge")

    def _short(self, values: Array, steps: int) -> Array:
        """Leave out where D_k is next to nothing: it falls, so the last is above."""
        # What is left out rises by its rounding at every step.
        told = np.flatnonzero(values > self.least * (1 + steps * RAISE))
        return values[: max(int(told[-1]) + 2 if told.size else 0, self.cells + 1)]

    def _around(self, values: Array) -> Array:
        """Return a curve from one range below zero to two ranges above its end.

        D(-x) = 1 - e^-x + e^-x D(x), for the two datasets may change places.
        """
        above = np.full(2 * self.cells, values[-1])
        mirrored = self._below[0] + self._below[1] * values[self.cells : 0 : -1]
        return np.concatenate([mirrored * _RAISE, values, above])

    def _next(self, known: Array, steps: int) -> Array:
        """Return the maximum over t, on the grid.

        Parts of [0, eta] in which something may lie above the best so far are halved
        until they are short enough to look at every point.
        """
        cells, width = self.cells, self.cells // _PARTS
        # D is zero from steps * eta on, and constant one range above its known end.
        zero = steps * cells
        size = min(self.points, zero, len(known) - 2 * cells)
        falls = np.maximum(known[:-cells] - known[cells:], 0.0)

        def mean(place: int, first: int, last: int) -> Array:
            low, high = first + cells - place, last + cells - place
            value = falls[low:high] * self._upper[place]
            value += known[low + cells : high + cells]
            return np.asarray(value)

        knots = [mean(i * width, 0, size) for i in range(_PARTS + 1)]
        best = np.maximum.reduce(knots)
        parts = [
            _Part(i * width, 0, low, high)
            for i, (low, high) in enumerate(pairwise(knots))
        ]
        parts = self._open(parts, width, known, best)
        while width > _SHORT:
            width //= 2
            halves = []
            for part in parts:
                middle = mean(part.start + width, part.first, part.last)
                found = best[part.first : part.last]
                np.maximum(found, middle, out=found)
                halves += part.halves(width, middle)
            parts = self._open(halves, width, known, best)
        result = best
        fine = _highest(self._bends(known, 1), width)
        for part in parts:
            first, last = part.first, part.last
            top, second = (
                np.maximum(part.low, part.high),
                np.minimum(part.low, part.high),
            )
            for place in range(part.start + 1, part.start + width):
                value = mean(place, first, last)
                np.maximum(second, np.minimum(top, value), out=second)
                np.maximum(top, value, out=top)
            left = cells - part.start - width
            bend = fine[left + first : left + last]
            top += _over(top - second, bend * self._excess(part.start + width - 1, 1))
            np.maximum(result[first:last], top, out=result[first:last])
        result = result * _RAISE
        return np.append(result, 0.0) if size == zero else result

    def _open(
        self, parts: list[_Part], width: int, known: Array, best: Array
    ) -> list[_Part]:
        """Return where parts of [0, eta] may have something above the best."""
        rough, found = self._bends(known, width), []
        for part in parts:
            left = self.cells - part.start - width
            above = rough[left + part.first : left + part.last]
            above = above * self._excess(part.start, width)
            above += np.maximum(part.low, part.high)
            open_ = np.flatnonzero(above > best[part.first : part.last])
            if open_.size:
                found.append(part.between(int(open_[0]), int(open_[-1]) + 1))
        return found

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


def _highest(values: Array, width: int) -> Array:
    """Return the largest of each value and the width - 1 after it."""
    values = values.copy()
    for _ in range(width - 1):
        values[:-1] = np.maximum(values[:-1], values[1:])
    return values


def _over(gap: Array, bend: Array) -> Array:
    """Return how far above its higher end an arc gets that bends so much.

    At s of its width it is at most s * gap below that end and 4 s (1 - s) bend above
    the chord. Of all arcs, those with the largest and the second largest end reach
    highest: others add `bend` to less than the second.
    """
    bend = np.maximum(bend, 1e-300)
    room = np.maximum(4 * bend - gap, 0.0)
    return np.asarray(room * room / (16 * bend) * (1 + 64 * UNIT))


def range_curves(
    eta: Fraction, count: int, floor: float, *, close: bool = False
) -> list[tuple[Curve, int]]:
    """Return hockey-stick curves whose composition dominates `count` steps of a range.

    One curve where the work allows it, which is the optimum of adaptive choices; else
    blocks, each of which costs about what one more step would.

    Source, assumes: as `Game`.

    Rounding: up.

    Checked by: tests/accounting/fixed/test_bounded_range.py.

    Args:
        eta: The range.
        count: How many steps there are.
        floor: Values below it need not be told apart.
        close: Whether a finer grid is worth several seconds.
    """
    most = _CLOSE_WORK if close else _MOST_WORK
    block = count
    while block > 1 and _work(eta, block, _CELLS[0], floor) > most:
        block = -(-block // 2)
    fitting = [c for c in _CELLS if _work(eta, block, c, floor) <= most]
    cells = max(fitting, default=_CELLS[0])
    whole, rest = divmod(count, block)
    curves = [(_curve(eta, block, cells, floor), whole)]
    return curves + ([(_curve(eta, rest, cells, floor), 1)] if rest else [])


def _work(eta: Fraction, count: int, cells: int, floor: float) -> float:
    """Return what the recursion costs; neighbouring counts share a grid."""
    points = _top(eta, _grown(count), floor) / float(eta) * cells
    return _grown(count) * points


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
def _game(eta: Fraction, cells: int, high: float, least: float) -> Game:
    return Game(eta, cells, high, least)


@lru_cache(maxsize=64)
def _curve(eta: Fraction, count: int, cells: int, floor: float) -> Curve:
    least = floor * math.exp(-_MARGIN)
    game = _game(eta, cells, _top(eta, _grown(count), floor), least)
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
