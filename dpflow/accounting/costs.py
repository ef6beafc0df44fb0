"""What a step does: frozen, exact descriptions of mechanisms.

A cost is public information, known before any data is read. It describes the
mechanism; what that costs is the business of each theorem (`curves`). Classes here are
never removed and never change their meaning, for journals refer to them by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import wraps
from importlib import import_module
from typing import Any

from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    RATIO_HIGH,
    RATIO_LOW,
    RHO_HIGH,
    RHO_LOW,
    SCALE_HIGH,
    SCALE_LOW,
    Number,
    exact,
    exact_delta,
    exact_epsilon,
    number_from_text,
    number_text,
)

_KINDS: dict[str, type[Cost]] = {}

#: Modules with more costs; they load when a description names an unknown mechanism.
_MORE_KINDS = (
    "dpflow.accounting.composed_costs",
    "dpflow.accounting.individual",
    "dpflow.accounting.mechanism_curves",
    "dpflow.accounting.notion_costs",
    "dpflow.accounting.output_costs",
)


_Noisier = Callable[[Any, Any], "Cost"]


def _never_quieter(own: _Noisier) -> _Noisier:
    """Make a cost's `noisier` refuse a factor that would take noise away."""

    @wraps(own)
    def noisier(cost: Cost, factor: Any) -> Cost:
        number = exact(factor, name="factor")
        if number < 1:
            msg = (
                f"a step is made noisier by a factor of at least 1, got "
                f"{number_text(number)}. For less noise, declare another cost."
            )
            raise InvalidCost(msg, name="factor", value=number_text(number), low=1)
        return own(cost, number)

    return noisier


class Cost(ABC):
    """Base of all costs; use one of its subclasses.

    Subclasses are frozen dataclasses with keyword-only constructors; their numbers
    are exact fractions.
    """

    def __init_subclass__(cls) -> None:
        """Register the class under its name, which journals refer to.

        Raises:
            TypeError: If the name is one of dpflow's own: old journals mean that one.
        """
        known = _KINDS.get(cls.__name__)
        owner = "" if known is None else known.__module__
        if owner.startswith("dpflow.") and owner != cls.__module__:
            msg = f"dpflow has a cost named {cls.__name__!r} already; choose another"
            raise TypeError(msg)
        _KINDS[cls.__name__] = cls
        if "noisier" in vars(cls):
            setattr(cls, "noisier", _never_quieter(vars(cls)["noisier"]))  # noqa: B010

    @property
    def mechanism(self) -> str:
        """Name of the mechanism, as journals record it."""
        return type(self).__name__

    def describe(self) -> dict[str, Any]:
        """Return the cost as JSON-able data; `cost_from_description` reads it."""
        numbers = {
            field.name: number_text(getattr(self, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        }
        return {"mechanism": self.mechanism, **numbers}

    @classmethod
    def from_description(cls, numbers: Mapping[str, Any]) -> Cost:
        """Build the cost from what `describe` wrote, without `mechanism`."""
        return cls(**{name: number_from_text(text) for name, text in numbers.items()})

    @abstractmethod
    def noisier(self, factor: Fraction) -> Cost:
        """Return the same step with its noise made `factor` times larger.

        Raises:
            InvalidCost: If the factor is below 1, or the noise would be larger than a
                cost may say.
        """

    def _set(self, **values: Fraction) -> None:
        for name, value in values.items():
            # A product of two numbers may be longer than what `from_description` reads.
            object.__setattr__(self, name, exact(value, name=name))

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        numbers = {k: v for k, v in self.describe().items() if k != "mechanism"}
        return f"{self.mechanism}({', '.join(f'{k}={v}' for k, v in numbers.items())})"


def cost_kind(name: str) -> type[Cost]:
    """Return the class of a mechanism.

    Raises:
        InvalidCost: If there is none of this name.
    """
    if name not in _KINDS:
        for module in _MORE_KINDS:
            import_module(module)
    if name not in _KINDS:
        msg = f"unknown mechanism {name!r}; known: {', '.join(sorted(_KINDS))}"
        raise InvalidCost(msg, name="mechanism", value=name)
    return _KINDS[name]


def cost_from_description(description: Mapping[str, Any]) -> Cost:
    """Rebuild a cost from `Cost.describe`.

    Raises:
        InvalidCost: If the mechanism is unknown or a number is missing or extra.
    """
    name = description.get("mechanism")
    kind = cost_kind(str(name))
    numbers = {key: value for key, value in description.items() if key != "mechanism"}
    try:
        return kind.from_description(numbers)
    except (TypeError, ValueError, ArithmeticError) as error:
        msg = f"cannot read the cost {dict(description)!r}: {error}"
        raise InvalidCost(msg, name="mechanism", value=name) from error


def _one_of(first: tuple[str, object], second: tuple[str, object], cost: str) -> str:
    """Return the name of the one keyword that was given."""
    given = [name for name, value in (first, second) if value is not None]
    if len(given) != 1:
        msg = (
            f"{cost} takes exactly one of {first[0]}= and {second[0]}=, "
            f"got {' and '.join(given) or 'neither'}"
        )
        raise InvalidCost(msg, name=first[0], value=None)
    return given[0]


def _checked_ratio(scale: Fraction, sensitivity: Fraction, name: str) -> None:
    exact(
        scale / sensitivity,
        name=f"{name} divided by sensitivity",
        low=RATIO_LOW,
        high=RATIO_HIGH,
    )


def _scale(value: object, name: str) -> Fraction:
    return exact(value, name=name, low=SCALE_LOW, high=SCALE_HIGH)


def _spread(value: object, name: str) -> Fraction:
    """Read a spread of noise; every sensitivity times every ratio is in range."""
    low, high = SCALE_LOW * RATIO_LOW, SCALE_HIGH * RATIO_HIGH
    return exact(value, name=name, low=low, high=high)


@dataclass(frozen=True, init=False, repr=False)
class Gaussian(Cost):
    """The Gaussian mechanism: normal noise added to a number or a vector.

    Args:
        sensitivity: How much one privacy unit can change the value, in L2 norm.
        sigma: Standard deviation of the noise, in the units of the value.
        noise_multiplier: `sigma / sensitivity`; give this or `sigma`.

    Raises:
        InvalidCost: If a number is not finite, not positive or out of all proportion.

    Examples:
        >>> Gaussian(sensitivity=100, noise_multiplier=20)
        Gaussian(sensitivity=100, sigma=2000)
    """

    sensitivity: Fraction
    sigma: Fraction

    def __init__(
        self,
        *,
        sensitivity: Number,
        sigma: Number | None = None,
        noise_multiplier: Number | None = None,
    ) -> None:
        bound = _scale(sensitivity, "sensitivity")
        given = ("sigma", sigma), ("noise_multiplier", noise_multiplier)
        if _one_of(*given, "Gaussian") == "sigma":
            deviation = _spread(sigma, "sigma")
        else:
            deviation = _scale(noise_multiplier, "noise_multiplier") * bound
        _checked_ratio(deviation, bound, "sigma")
        self._set(sensitivity=bound, sigma=deviation)

    def noisier(self, factor: Fraction) -> Gaussian:
        """Return the mechanism with `factor` times the standard deviation."""
        return Gaussian(sensitivity=self.sensitivity, sigma=self.sigma * factor)


@dataclass(frozen=True, init=False, repr=False)
class Laplace(Cost):
    """The Laplace mechanism: double-exponential noise.

    Args:
        sensitivity: How much one privacy unit can change the value, in L1 norm.
        scale: Scale of the noise (its standard deviation is sqrt(2) times that).
        epsilon: `sensitivity / scale`; give this or `scale`.

    Raises:
        InvalidCost: If a number is not finite, not positive or out of all proportion.
    """

    sensitivity: Fraction
    scale: Fraction

    def __init__(
        self,
        *,
        sensitivity: Number,
        scale: Number | None = None,
        epsilon: Number | None = None,
    ) -> None:
        bound = _scale(sensitivity, "sensitivity")
        if _one_of(("scale", scale), ("epsilon", epsilon), "Laplace") == "scale":
            spread = _spread(scale, "scale")
        else:
            spread = bound / exact_epsilon(epsilon)
        _checked_ratio(spread, bound, "scale")
        self._set(sensitivity=bound, scale=spread)

    def noisier(self, factor: Fraction) -> Laplace:
        """Return the mechanism with `factor` times the scale."""
        return Laplace(sensitivity=self.sensitivity, scale=self.scale * factor)


@dataclass(frozen=True, init=False, repr=False)
class PureDP(Cost):
    """Any (epsilon, 0)-differentially private step.

    Args:
        epsilon: Its guarantee, for the dataset's neighbouring relation.

    Raises:
        InvalidCost: If epsilon is not a positive finite number of sane size.
    """

    epsilon: Fraction

    def __init__(self, *, epsilon: Number) -> None:
        self._set(epsilon=exact_epsilon(epsilon))

    def noisier(self, factor: Fraction) -> PureDP:
        """Return the step with epsilon divided by `factor`."""
        return PureDP(epsilon=self.epsilon / factor)


@dataclass(frozen=True, init=False, repr=False)
class ApproxDP(Cost):
    """Any (epsilon, delta)-differentially private step.

    Args:
        epsilon: Its epsilon.
        delta: Its delta; zero makes it a `PureDP` step.

    Raises:
        InvalidCost: If a number is out of range.
    """

    epsilon: Fraction
    delta: Fraction

    def __init__(self, *, epsilon: Number, delta: Number) -> None:
        self._set(epsilon=exact_epsilon(epsilon), delta=exact_delta(delta))

    def noisier(self, factor: Fraction) -> ApproxDP:
        """Return the step with epsilon divided by `factor` at the same delta."""
        return ApproxDP(epsilon=self.epsilon / factor, delta=self.delta)


@dataclass(frozen=True, init=False, repr=False)
class ZCDP(Cost):
    """Any rho-zero-concentrated differentially private step.

    Args:
        rho: Its guarantee: the Renyi divergence of each order a is at most a * rho.

    Raises:
        InvalidCost: If rho is out of range.
    """

    rho: Fraction

    def __init__(self, *, rho: Number) -> None:
        self._set(rho=exact(rho, name="rho", low=RHO_LOW, high=RHO_HIGH))

    def noisier(self, factor: Fraction) -> ZCDP:
        """Return the step with rho divided by the square of `factor`."""
        return ZCDP(rho=self.rho / factor**2)
