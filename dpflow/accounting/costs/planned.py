"""A mechanism without noise yet, which a policy's plan sets.

It is not a cost: no theorem has a price for it, until the guard has inserted the noise
that the term pins.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Self, cast

from dpflow.accounting.costs.base import Cost, cost_kind
from dpflow.exceptions import InvalidCost
from dpflow.rounding import SCALE_HIGH, SCALE_LOW, exact, number_text

#: Placeholder of a cost's noise.
PLANNED = "planned"
#: Mechanisms with planned noise, and the field of the noise in units of the value. A
#: price depends on the ratio to the sensitivity alone, so one plan holds for each.
SPREADS = {"Gaussian": "sigma", "Laplace": "scale"}


@dataclass(frozen=True, slots=True)
class PlannedNoise:
    """A mechanism that declares its sensitivity alone.

    Attributes:
        mechanism: Its name, as policies and journals say it.
        sensitivity: How much one privacy unit can change the value.
    """

    mechanism: str
    sensitivity: Fraction

    @classmethod
    def of_unit(cls, mechanism: str) -> Self:
        """Return it for sensitivity 1: a price depends on the ratio alone."""
        return cls(mechanism, Fraction(1))

    def at(self, multiplier: Fraction) -> Cost:
        """Return the cost with `multiplier` times the sensitivity as its noise."""
        kind: Any = cost_kind(self.mechanism)
        spread = {SPREADS[self.mechanism]: self.sensitivity * multiplier}
        return cast("Cost", kind(sensitivity=self.sensitivity, **spread))

    def __repr__(self) -> str:
        """Write it as it is declared."""
        bound = number_text(self.sensitivity)
        return f'{self.mechanism}(sensitivity={bound}, noise="{PLANNED}")'


class Plannable:
    """A mechanism that may leave its noise to a policy's plan."""

    def __new__(
        cls, *, noise: Literal["planned"] | None = None, **numbers: Any
    ) -> Self:
        """Make a cost, or a `PlannedNoise` where the noise is "planned"."""
        texts = [number for number in numbers.values() if isinstance(number, str)]
        if noise is None and PLANNED not in texts:
            return super().__new__(cls)
        noise_parameters = [name for name in numbers if name != "sensitivity"]
        if noise != PLANNED or noise_parameters or "sensitivity" not in numbers:
            msg = (
                f'noise="{PLANNED}" needs a sensitivity and nothing else, got noise='
                f"{noise!r} with {', '.join(numbers) or 'nothing'}. The policy then "
                "says how much; else give the noise as a number"
            )
            raise InvalidCost(msg, name="noise", value=str(noise))
        low, high = SCALE_LOW, SCALE_HIGH
        bound = exact(numbers["sensitivity"], name="sensitivity", low=low, high=high)
        return cast("Self", PlannedNoise(cls.__name__, bound))
