"""A released number that says how far it may be from the true one."""

from __future__ import annotations

import math
from typing import Self

from dpflow.exceptions import InvalidCost


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
        """Say how pickle and copy make it again."""
        known = {"interval": self.interval, "confidence": self.confidence}
        return (float(self),), dict(known)

    def __repr__(self) -> str:
        """Write the number with its interval."""
        low, high = self.interval
        return f"{float(self):g} ({low:g} to {high:g} at {self.confidence:.4g})"

    def __str__(self) -> str:
        """Write the number alone, as a float does."""
        return float.__repr__(self)
