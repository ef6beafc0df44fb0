"""Decisions about sums of exponentials, in floats that err on the safe side.

The sum is F(x) = sum over j of w_j exp(s_j (g_j + x)), where the gaps g_j are exact
integers in tally units, the slopes s_j = order_j - 1 > 0 and the weights w_j in (0, 1]
are fixed, and x >= 0. Everything here bounds log F from below, which is the safe side
for a filter (F must be large enough) and an odometer (the reading falls with F).

Error of the floats, with u = 2**-53. A gap enters as the correctly rounded quotient of
two integers: off by u |g|. Slope, sum, product, log w and everything that is done with
an exponent log w + s (g + x) afterwards add at most 8 u (s |g + x| + |log w|). So an
exponent is off by less than `_GAP` s |g| + `_PART` (s |g + x| + |log w|). The
exponential of a term is off by 1e-15 relative, or so small that dropping it is on the
safe side. The sum of at most 256 positive terms and its logarithm add less than 1e-13;
`_WHOLE` is ten times that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from operator import mul

from dpflow.rounding import UNITS, bound_above, float_down, float_up, to_real

_GAP, _PART = 1.2e-16, 1e-15
_WHOLE = 1e-12
_FAR = 10**14 * UNITS  # a term so far below is dropped
_CLOSE = 1e-13
_STEPS = 100
_COUNTED = 60.0  # in logs: terms this far below the top change no slope by 1e-12
_WIDEST = 0.1


def log_of_inverse(value: Fraction) -> float:
    """Return log(1 / value), rounded up."""
    return float_up(bound_above(lambda mp: -mp.log(to_real(mp, value))))


class ExponentialSum:
    """The sum F with its slopes and weights fixed.

    Args:
        orders: Orders of the terms, all above 1; the slopes are one less.
        weights: Weights of the terms, in (0, 1].
    """

    def __init__(
        self, orders: tuple[Fraction, ...], weights: tuple[Fraction, ...]
    ) -> None:
        self._slopes = [float(order - 1) for order in orders]
        self._logs = [_log_down(weight) for weight in weights]

    def at(self, gaps: list[int]) -> Terms:
        """Return the sum at the gaps, one per order, in tally units."""
        return Terms(
            [
                (gap / UNITS, slope, log_weight)
                for gap, slope, log_weight in zip(
                    gaps, self._slopes, self._logs, strict=True
                )
                if gap > -_FAR
            ]
        )


def _log_down(weight: Fraction) -> float:
    above = bound_above(lambda mp: -mp.log(to_real(mp, weight)))
    return 0.0 if weight == 1 else float_down(-above)


@dataclass(slots=True)
class _Point:
    """Computed values of log F at one x.

    Attributes:
        x: Where.
        height: log F, off by at most `error`.
        mean: Its slope, off by at most 4 `error` relative.
        spread: Its second derivative; steers the search only.
        error: See above.
    """

    x: float
    height: float
    mean: float
    spread: float
    error: float

    def tangent(self, x: float) -> float:
        """Return the tangent at another x, less its error: below log F there."""
        gap = x - self.x
        wide = 4 * self.error
        slope = self.mean * (1 + wide if gap < 0 else 1 - wide)
        return self.height - self.error + slope * gap

    def newton(self, image: float) -> float:
        """Return Newton's next point for the root of x = image(x).

        The step gets a little longer, so that it ends up on the other side of the root
        and closes the bracket.
        """
        step = (image - self.x) / (1 + self.spread / (self.mean * (1 + self.mean)))
        return self.x + step + math.copysign(_CLOSE / 4 * self.x, step)


class Terms:
    """The sum F at certain gaps.

    Args:
        terms: Gap, slope and logarithm of the weight of each term.
    """

    def __init__(self, terms: list[tuple[float, float, float]]) -> None:
        self._all = terms
        self._slopes = [slope for _, slope, _ in terms]

    def log_below(self) -> float:
        """Return a lower bound of log F(0)."""
        lowered = [
            s * g + w - (_GAP + _PART) * s * abs(g) + _PART * w for g, s, w in self._all
        ]
        if not lowered:
            return -math.inf
        top = max(lowered)
        return top + math.log(sum([math.exp(z - top) for z in lowered])) - _WHOLE

    def _point(self, x: float) -> _Point:
        sizes = [s * (g + x) + w for g, s, w in self._all]
        top = max(sizes)
        parts = [math.exp(size - top) for size in sizes]
        total = sum(parts)
        weighted = list(map(mul, parts, self._slopes))
        mean = sum(weighted) / total
        spread = sum(map(mul, weighted, self._slopes)) / total - mean * mean
        least = top - _COUNTED
        worst = max(
            [
                s * (_GAP * abs(g) + _PART * abs(g + x)) - _PART * w
                for size, (g, s, w) in zip(sizes, self._all, strict=True)
                if size > least
            ]
        )
        return _Point(x, top + math.log(total), mean, max(spread, 0.0), worst + _WHOLE)

    def _near_top(self) -> Terms:
        """Return the sum without the terms that are negligible at x = 0."""
        sizes = [s * g + w for g, s, w in self._all]
        least = max(sizes) - _COUNTED
        return Terms([t for t, z in zip(self._all, sizes, strict=True) if z > least])

    def dominates(self, limit: float) -> bool:
        """Return whether 1 - exp(-x) <= F(x) exp(-limit) for all x > 0.

        h(x) = log(1 - exp(-x)) - log F(x) is concave. Its maximum is at the root of
        x = log(1 + 1/A(x)), where A is the slope of log F, which grows with x: so the
        root lies between any x and the right-hand side. The search keeps such a
        bracket [low, high] and bounds max h by log(1 - exp(-high)) - log F(low), for
        both parts grow with x; log F is convex, so at `low` it is above its tangent
        at x. Both ends are widened by more than the error of A.

        Returns:
            True only if it is certain.
        """
        if not self._all:
            return False
        low, high = 0.0, math.inf
        x = math.log1p(1 / max(self._slopes))
        last_below: _Point | None = None
        for _ in range(_STEPS):
            point = self._point(x)
            if math.log(-math.expm1(-x)) - point.height - point.error > -limit:
                return False  # exceeded at this x already
            wide = 4 * point.error
            if wide > _WIDEST:
                return False
            image = math.log1p(1 / point.mean)
            width = high - low
            low, high = max(low, min(x, image)), min(high, max(x, image))
            halved = high - low <= width / 2
            below, above = low * (1 - wide), high * (1 + wide)
            # Above the root the slope may be huge: the last point below it helps.
            last_below = point if image > x else last_below
            floor = max(p.tangent(below) for p in (point, last_below) if p is not None)
            if math.log(-math.expm1(-above)) + limit + _WHOLE <= floor:
                return True
            if high - low <= _CLOSE * high:
                return False
            guess = point.newton(image)
            # Newton's method alone may go round in circles.
            fine = halved and low < guess < high
            x = guess if fine else math.sqrt(low * high)
        return False

    def room_below(self, limit: float) -> float:
        """Return a y >= 0, close to the largest, such that F(-y) >= exp(limit).

        Newton's method on the convex, decreasing log F(-y) - limit from y = 0 never
        passes the root; rounding may, so only a y that was checked is returned. Zero
        if even F(0) is not certain to be large enough.
        """
        y, best = 0.0, 0.0
        if not self._all:
            return best
        near = self._near_top()
        for _ in range(_STEPS):
            point = near._point(-y)  # noqa: SLF001
            over = point.height - point.error - limit
            step = over / point.mean
            if over >= 0:
                best = max(best, y)
                if step <= _CLOSE * (y + 1 / point.mean):
                    break
            elif y == 0:
                break
            y = max(y + (step if over >= 0 else 2 * step), 0.0)
        return best
