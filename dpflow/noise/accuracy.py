"""Noise as it is drawn: its scale, half widths, estimates and targets of accuracy."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self, cast

from dpflow.accounting.costs.base import Cost, Outcome
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
)
from dpflow.accounting.costs.refined import GaussianDraws, LaplaceDraws
from dpflow.exceptions import InvalidCost
from dpflow.noise.grid import ADDED, GRID
from dpflow.rounding import Number, bound_above, exact, float_down, float_up, to_real

_LARGEST = Fraction(10**15)
_LEAST = Fraction(1, 10**6)
#: Part of the sensitivity by which doubles may be farther apart than the numbers, and
#: by which continuous noise is wider than declared.
ADDED_SHARE = Fraction(1, 2**20)
#: Relative rounding of doubles and of sums of some.
ROUNDING = Fraction(1, 2**48)
#: Up to it, a discrete Gaussian is summed up.
_MOST_SCALE = 200
_FEWEST_TERMS = 4000


def widen(scale: Fraction) -> Fraction:
    """Return the scale of continuous noise as it is drawn, above the declared one.

    The nearest doubles of numbers are farther apart than the numbers by at most
    `ADDED_SHARE` of the sensitivity, so that this noise has at most the declared price
    (docs/derivations/accuracy.md#doubles-of-numbers).
    """
    return scale * (1 + ADDED_SHARE)


class Noise(NamedTuple):
    """Law of the noise of one number, as it is drawn.

    Attributes:
        law: "gaussian", "laplace", "discrete gaussian" or "discrete laplace".
        spread: Its sigma or scale.
        slack: Most that rounding adds to it.
        unit: Factor of both, for a number in another unit.
    """

    law: str
    spread: Fraction
    slack: Fraction = Fraction(0)
    unit: Fraction = Fraction(1)

    def half_width(self, confidence: Fraction) -> Fraction:
        """Return half of the interval of that confidence, rounded up."""
        width: Fraction = _WIDTHS[self.law](self.spread, 1 - confidence)
        return self.unit * (width + self.slack)

    def rounding(self, value: float) -> Fraction:
        """Return the most that rounding moved a drawn, or then scaled, number."""
        is_exact = not self.slack and self.unit == 1
        return Fraction(0 if is_exact else math.ulp(float(value)))

    def scale(self, factor: Fraction, value: float) -> Noise:
        """Return the noise of a number times a factor, with the number's rounding."""
        slack = self.slack + (self.rounding(value) / self.unit if self.unit else 0)
        return self._replace(unit=self.unit * factor, slack=slack)


def noise_of(
    cost: Cost, draws: Outcome | None = None, *, as_int: bool = False
) -> Noise | None:
    """Return the noise of a number that `release` draws for a cost.

    Args:
        cost: The declared cost.
        draws: For refined noise: how many draws ran.
        as_int: Whether the number was rounded after the draw.

    Returns:
        None if the cost does not say it, as for a step of several draws.
    """
    rounded = Fraction(1, 2) if as_int else Fraction(0)
    if isinstance(cost, DiscreteGaussian):
        return Noise("discrete gaussian", Fraction(float_up(cost.sigma)))
    if isinstance(cost, DiscreteLaplace):
        return Noise("discrete laplace", Fraction(float_up(cost.scale)))
    if isinstance(cost, GaussianDraws) and draws is not None:
        cost = cost.realised(draws)
    if isinstance(cost, Gaussian | Laplace):
        law = "gaussian" if isinstance(cost, Gaussian) else "laplace"
        spread = cost.sigma if isinstance(cost, Gaussian) else cost.scale
        drawn = Fraction(float_up(widen(spread)))
        return Noise(law, drawn, drawn * ROUNDING + rounded)
    if isinstance(cost, LaplaceDraws) and draws is not None:
        # Drawn in steps of a grid, which its scale and slack cover.
        steps = Fraction(2 * ADDED, GRID)
        slack = cost.finest.sensitivity * steps + rounded
        return Noise("laplace", cost.draw(draws) * (1 + steps), slack)
    return None


def half_width(
    cost: Cost, outcome: Outcome | None = None, *, confidence: Number = "95%"
) -> Fraction | None:
    """Return half of an interval around each number of a release, rounded up.

    Args:
        cost: The declared cost; of a step of several draws it is that of each.
        outcome: For refined noise: how many draws ran. Default: all.
        confidence: Share of releases that are within it of the true number.

    Returns:
        None if the cost does not say its noise.

    Raises:
        InvalidCost: If the confidence is out of range.
    """
    share, noise = read_confidence(confidence), noise_of(cost, outcome)
    if noise is not None:
        return noise.half_width(share)
    step = getattr(cost, "substeps", None)
    return None if step is None else half_width(step[0], confidence=confidence)


@lru_cache(maxsize=256)
def quantile(outside: Fraction, *, is_normal: bool = True) -> Fraction:
    """Return the size that a share of standard numbers exceeds, rounded up.

    Args:
        outside: The share.
        is_normal: Of a Gaussian of sigma 1, or else of a Laplace of scale 1.
    """
    if is_normal:
        return bound_above(lambda mp: mp.sqrt(2) * mp.erfinv(1 - to_real(mp, outside)))
    return bound_above(lambda mp: -mp.log(to_real(mp, outside)))


@cache
def _discrete_normal(sigma: Fraction, outside: Fraction) -> Fraction:
    """Return the least whole number that covers a share of a discrete Gaussian."""
    scale = float(sigma)
    if scale > _MOST_SCALE:
        # Its sums are integrals between half numbers, to more digits than a float has.
        return Fraction(math.ceil(sigma * quantile(outside) - Fraction(1, 2)))
    terms = [math.exp(-((x / scale) ** 2) / 2) for x in range(_FEWEST_TERMS)]
    total = 2 * math.fsum(terms) - terms[0]
    covered, width = terms[0], 0
    while covered < (1 - float(outside)) * total:
        width += 1
        covered += 2 * terms[width]
    return Fraction(width)


def _geometric(scale: Fraction, outside: Fraction) -> Fraction:
    """Return the least whole number that covers a share of a discrete Laplace.

    With q = exp(-1 / scale), 2 q^(k + 1) / (1 + q) lies beyond k.
    """
    step = 1 / float(scale)
    beyond = math.log(float(outside) / 2) + math.log1p(math.exp(-step))
    return Fraction(max(math.ceil(-beyond / step - 1), 0))


_WIDTHS: dict[str, Any] = {
    "gaussian": lambda spread, outside: spread * quantile(outside),
    "laplace": lambda spread, outside: spread * quantile(outside, is_normal=False),
    "discrete gaussian": _discrete_normal,
    "discrete laplace": _geometric,
}


class _WithInterval:
    """A noisy number that has the interval of the true one."""

    interval: tuple[float, float]
    confidence: float
    noise: Noise | None

    def __new__(
        cls,
        value: float,
        *,
        interval: tuple[float, float],
        confidence: float,
        noise: Noise | None = None,
    ) -> Self:
        """Check the interval and make the number."""
        number: Any = super().__new__(cls, value)  # type: ignore[call-arg]
        low, high = map(float, interval)
        if not (math.isfinite(number) and low <= number <= high and 0 < confidence < 1):
            msg = f"an estimate lies in its interval, got {number!r} in {interval}"
            raise InvalidCost(msg, name="interval", value=str(interval))
        number.interval, number.confidence = (low, high), float(confidence)
        number.noise = noise
        return cast("Self", number)

    @classmethod
    def from_draw(cls, value: float, noise: Noise, confidence: Fraction) -> Self:
        """Return a drawn number with the interval of its noise."""
        half, number = noise.half_width(confidence), Fraction(value)
        half += noise.rounding(value)
        ends = _outward(number - half, number + half)
        return cls(value, interval=ends, confidence=float(confidence), noise=noise)

    def __getnewargs_ex__(self) -> tuple[tuple[Any], dict[str, object]]:
        """Return the arguments of a copy, for pickle."""
        number: Any = self
        plain = int(number) if isinstance(self, int) else float(number)
        options = {"interval": self.interval, "confidence": self.confidence}
        return (plain,), {**options, "noise": self.noise}

    @property
    def half_width(self) -> float:
        """Largest distance of the true number from this one, within the interval."""
        number: Any = self
        low, high = map(Fraction, self.interval)
        return float_up(max(high - Fraction(number), Fraction(number) - low))

    def at(self, confidence: Number) -> Self:
        """Return the number with the interval of another confidence, such as "99%".

        Raises:
            InvalidCost: If the noise was refined for one confidence, or this one is
                out of range.
        """
        if self.noise is None:
            msg = (
                "an estimate whose noise was refined, or which was derived from other "
                "numbers, has one confidence. Say it where the number is made."
            )
            raise InvalidCost(msg, name="confidence", value=str(confidence))
        (plain,), _ = self.__getnewargs_ex__()
        return self.from_draw(plain, self.noise, read_confidence(confidence))

    def scaled(self, factor: Number) -> Estimate:
        """Return the number times a factor, interval too: "0.01" for cents to dollars.

        Raises:
            InvalidCost: If the factor is no finite number.
        """
        number: Any = self
        farthest = max(abs(Fraction(end)) for end in self.interval)
        largest = Fraction(sys.float_info.max) / max(farthest, Fraction(1))
        times = exact(factor, name="factor", low=-largest, high=largest)
        value, noise = float(Fraction(number) * times), self.noise
        if noise is not None:
            noise = noise.scale(abs(times), number)
        low, high = sorted(Fraction(end) * times for end in self.interval)
        ends = _outward(min(low, Fraction(value)), max(high, Fraction(value)))
        confidence = self.confidence
        return Estimate(value, interval=ends, confidence=confidence, noise=noise)

    def describe(self) -> str:
        """Return the number and its interval in words."""
        number: Any = self
        return f"{number:.10g} ({describe_interval(self.interval, self.confidence)})"


def describe_interval(interval: tuple[float, float], confidence: float) -> str:
    """Return an interval in words."""
    low, high = interval
    return f"{low:.10g} to {high:.10g} at {100 * confidence:.4g} %"


def _outward(low: Fraction, high: Fraction) -> tuple[float, float]:
    """Return the ends of an interval as floats, rounded outward."""
    # Without a negative zero.
    return float_down(low) + 0.0, float_up(high) + 0.0


class Estimate(_WithInterval, float):
    """A number drawn with noise, and the interval that holds the true one.

    It is a float wherever a float is wanted. Sums and other results of arithmetic are
    plain floats, for the interval is that of this number alone.

    Args:
        value: The noisy number.
        interval: Lowest and highest true number that it speaks for.
        confidence: Share of releases whose interval holds the true number, at least,
            whatever that is.
        noise: The noise of the number, where it has intervals of any confidence.

    Raises:
        InvalidCost: If the interval does not hold the number.

    Examples:
        >>> Estimate(528.0, interval=(480.0, 576.0), confidence=0.95).interval
        (480.0, 576.0)
    """


class IntEstimate(_WithInterval, int):
    """A whole number drawn with noise, and the interval that holds the true one.

    It is an int wherever an int is wanted; otherwise as `Estimate`.
    """


def read_confidence(confidence: Number) -> Fraction:
    """Read "95%" or 0.95.

    Raises:
        InvalidCost: If it is no confidence from 50 % up.
    """
    low, high = Fraction(1, 2), 1 - Fraction(1, 10**9)
    return exact(_plain(confidence)[0], name="confidence", low=low, high=high)


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
        return cls(size, relative, read_confidence(confidence))


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

    def refine(
        self, numbers: Iterable[float], *, as_int: bool = False
    ) -> tuple[int, Estimate | IntEstimate]:
        """Take noisy numbers, each finer than the last, until the target is met.

        Args:
            numbers: One for each half width; the rule takes no number that it does not
                need.
            as_int: Whether the last number is rounded.

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
        kind: type[Estimate | IntEstimate] = Estimate
        if as_int:
            kind, number, low, high = IntEstimate, round(number), low - 0.5, high + 0.5
        share = float(self.target.confidence)
        return draw + 1, kind(number, interval=(low, high), confidence=share)


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
