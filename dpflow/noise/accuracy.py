"""Targets of accuracy, and the rule that stops at the first number that meets one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Self

from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number, exact, float_down, float_up

_LARGEST = Fraction(10**15)
_LEAST = Fraction(1, 10**6)


class Estimate(float):
    """A number drawn with noise, and the interval that holds the true one.

    It is a float wherever a float is wanted. Sums and other results of arithmetic are
    plain floats, for the interval is that of this number alone.

    Args:
        value: The noisy number.
        interval: Lowest and highest true number that it speaks for.
        confidence: Share of releases whose interval holds the true number, at least,
            whatever that is.

    Raises:
        InvalidCost: If the interval does not hold the number.

    Examples:
        >>> Estimate(528.0, interval=(480.0, 576.0), confidence=0.95).interval
        (480.0, 576.0)
    """

    __slots__ = ("confidence", "interval")

    confidence: float
    interval: tuple[float, float]

    def __new__(
        cls, value: float, *, interval: tuple[float, float], confidence: float
    ) -> Self:
        """Check and make it."""
        self = super().__new__(cls, value)
        low, high = map(float, interval)
        if not (math.isfinite(self) and low <= self <= high and 0 < confidence < 1):
            msg = f"an estimate lies in its interval, got {float(self)} in {interval}"
            raise InvalidCost(msg, name="interval", value=str(interval))
        self.interval = (low, high)
        self.confidence = float(confidence)
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, object]]:
        """Return the arguments of a copy, for pickle."""
        options = {"interval": self.interval, "confidence": self.confidence}
        return (float(self),), dict(options)

    def __repr__(self) -> str:
        """Write the number with its interval."""
        low, high = self.interval
        return f"{float(self):g} ({low:g} to {high:g} at {self.confidence:.4g})"

    def __str__(self) -> str:
        """Write the number alone, as a float does."""
        return float.__repr__(self)


@dataclass(frozen=True, slots=True)
class Target:
    """Largest distance of the released number from the true one, with a confidence.

    Attributes:
        size: The largest distance, in units of the value or as a share of the
            released number.
        relative: Whether it is a share.
        confidence: Share of releases whose interval contains the true number.
    """

    size: Fraction
    relative: bool
    confidence: Fraction

    @classmethod
    def read(cls, within: Number, confidence: Number = "95%") -> Target:
        """Read "10%" or 25, at "95%" or 0.95.

        Raises:
            InvalidCost: If one of them says no distance or no confidence.
        """
        distance, relative = _plain(within)
        size = exact(distance, name="within", low=_LEAST, high=_LARGEST)
        low, high = Fraction(1, 2), 1 - Fraction(1, 10**9)
        share = exact(_plain(confidence)[0], name="confidence", low=low, high=high)
        return cls(size, relative, share)


def _plain(number: Number) -> tuple[Number, bool]:
    """Return a number, or a percentage as a share; and whether it was one."""
    if isinstance(number, str) and number.strip().endswith("%"):
        return exact(number.strip()[:-1], name="a percentage") / 100, True
    return number, False


@dataclass(frozen=True, slots=True)
class StoppingRule:
    """Rule that ends refining at the first number that meets the target.

    Attributes:
        target: Requested accuracy.
        half_widths: Of the interval after each draw, falling.
    """

    target: Target
    half_widths: tuple[float, ...]

    def refine(self, numbers: Iterable[float]) -> tuple[int, Estimate]:
        """Take noisy numbers, each finer than the last, until the target is met.

        Args:
            numbers: One for each half width; the rule takes no number that it does not
                need.

        Returns:
            The number of draws, and the last number with its interval.
        """
        size, draw, number = float_down(self.target.size), -1, math.nan
        for draw, number in enumerate(numbers):
            far = size * abs(number) if self.target.relative else size
            if self.half_widths[draw] <= far:
                break
        half = self.half_widths[draw]
        low = math.nextafter(number - half, -math.inf)
        high = math.nextafter(number + half, math.inf)
        confidence = float(self.target.confidence)
        return draw + 1, Estimate(number, interval=(low, high), confidence=confidence)


@lru_cache(maxsize=64)
def stopping_rule(
    target: Target, spreads: tuple[Fraction, ...], step: Fraction = Fraction(0)
) -> StoppingRule:
    """Return the rule for noise of these spreads, each smaller than the last.

    The noise is Laplace noise on a grid of steps, or Gaussian where `step` is 0. A half
    width is a factor times the spread, and two steps. Where the target is a distance,
    the last draw is fixed in advance, and the factor is the law's own quantile. Where
    it is a share of the number, the noise decides the last draw, and too large numbers
    end early: the larger factor lets the last interval contain every true number with
    the confidence (docs/derivations/accuracy.md#coverage-of-the-stopping-rule).
    """
    # It loads numpy and scipy, which only refining needs.
    from dpflow.coverage import factor  # noqa: PLC0415

    share = target.size if target.relative else None
    grid, outside = float_up(step), 1 - target.confidence
    times = factor(tuple(map(float, spreads)), share, outside, grid)
    widths = (times * float_up(spread) + 2 * grid for spread in spreads)
    halves = tuple(math.nextafter(width, math.inf) for width in widths)
    if not all(math.isfinite(half) for half in halves):
        msg = f"within {target.size} has no finite interval at such noise"
        raise InvalidCost(msg, name="within", value=str(target.size))
    return StoppingRule(target, halves)
