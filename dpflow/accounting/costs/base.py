"""What a step does: frozen, exact descriptions of mechanisms.

A cost is public information, fixed before any data is read. It describes the
mechanism; each theorem has its own price for it (`curves`). Classes here are never
removed and never change their meaning, because journals refer to them by name.
"""

from __future__ import annotations

import re
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from fractions import Fraction
from functools import wraps
from importlib import import_module
from inspect import Signature, signature
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

from dpflow.exceptions import InvalidCost
from dpflow.interrupts import without_interrupts
from dpflow.rounding import Number, exact, float_up, number_text, short_down, short_up

#: The neighbouring relations of policies.
RELATIONS = ("add-or-remove", "replace-one")

#: What a step reports when it is settled: the name or number of the cell that its
#: output fell into, or the number of sub-steps that ran.
Outcome = str | int

T = TypeVar("T")

_KINDS: dict[str, type[Cost]] = {}

#: Modules with more costs; they load when a description names an unknown mechanism.
_MORE_KINDS = (
    "dpflow.accounting.costs.composed",
    "dpflow.accounting.costs.early_stopping",
    "dpflow.accounting.costs.noise",
    "dpflow.accounting.costs.notions",
    "dpflow.accounting.costs.outcomes",
    "dpflow.accounting.costs.refined",
    "dpflow.accounting.costs.sparse_vector",
    "dpflow.accounting.costs.top_k",
    "dpflow.accounting.rules.individual",
)

#: Module that knows the noise as it is drawn; it loads when a half width is asked for.
_ACCURACY = "dpflow.noise.accuracy"

_Noisier = Callable[[Any, Any], "Cost"]


def _never_quieter(own: _Noisier) -> _Noisier:
    """Make a cost's `noisier` refuse a factor that would take noise away."""

    @wraps(own)
    def noisier(cost: Cost, factor: Any) -> Cost:
        number = exact(factor, name="factor")
        if number < 1:
            msg = (
                f"noise grows by a factor of at least 1, got "
                f"{number_text(number)}. For less noise, declare another cost."
            )
            raise InvalidCost(msg, name="factor", value=number_text(number), low=1)
        return own(cost, number)

    return noisier


class _CostType(ABCMeta):
    """Type of cost classes: a wrong call is answered with the form of a right one."""

    @property
    def __signature__(cls) -> Signature:
        """Signature for `help` and notebooks: that of the constructor."""
        _, *parameters = signature(cls.__init__).parameters.values()  # type: ignore[misc]
        return Signature(parameters)

    # The type variable lets type checkers look at the constructors of costs.
    def __call__(cls: type[T], *places: Any, **named: Any) -> T:
        try:
            created: T = super().__call__(*places, **named)  # type: ignore[misc]
        except without_interrupts(TypeError):
            form = signature(cls)
            try:
                form.bind(*places, **named)
            except without_interrupts(TypeError) as error:
                words = ", ".join(
                    f"{p.name}=..." if p.kind is p.KEYWORD_ONLY else p.name
                    for p in form.parameters.values()
                )
                name, example = cls.__name__, ""
                if line := re.search(rf">>> ({name}\(.*\))", cls.__doc__ or ""):
                    example = f", such as {line[1]}"
                # Since Python 3.12 it says which kind of argument is missing.
                wrong = str(error).replace("keyword-only ", "")
                msg = f"invalid {name}: {wrong}. Write {name}({words}){example}."
                raise InvalidCost(msg, name="cost", value=cls.__name__) from None
            raise
        return created


class Cost(metaclass=_CostType):
    """Base of all costs; use one of its subclasses.

    Subclasses are frozen dataclasses with keyword-only constructors; their numbers
    are exact fractions.

    Attributes:
        noise_powers: The numbers that change with the noise, each with the power of the
            factor by which it does; or a cost has a `noisier` of its own.
    """

    #: Whether people pay for the step, each from a budget that is not in the ledger.
    paid_by_people: ClassVar[bool] = False
    noise_powers: ClassVar[tuple[tuple[str, int], ...]] = ()

    def __init_subclass__(cls, *, named: bool = True) -> None:
        """Register the class under its name, which journals refer to.

        Args:
            named: Whether it is a mechanism; else a base of some.

        Raises:
            TypeError: If the name is one of dpflow's own: old journals mean that one.
        """
        present = _KINDS.get(cls.__name__)
        owner = "" if present is None else present.__module__
        if owner.startswith("dpflow.") and owner != cls.__module__:
            msg = f"dpflow has a cost named {cls.__name__!r} already; choose another"
            raise TypeError(msg)
        if named:
            _KINDS[cls.__name__] = cls
        if "noisier" in vars(cls):
            setattr(cls, "noisier", _never_quieter(vars(cls)["noisier"]))  # noqa: B010

    @property
    def mechanism(self) -> str:
        """Name of the mechanism, as journals record it."""
        return type(self).__name__

    def half_width(self, confidence: Number = "95%") -> float:
        """Return half of an interval around each number that `release` draws.

        Args:
            confidence: Share of releases that are within it of the true number.

        Returns:
            The half width, rounded up; of a step of several draws that of each.

        Raises:
            InvalidCost: If the confidence is out of range, or the cost says no noise.
        """
        accuracy: Any = import_module(_ACCURACY)
        width = accuracy.half_width(self, confidence=confidence)
        if width is None:
            msg = f"{self!r} declares no noise of each number, so that it has no error."
            raise InvalidCost(msg, name="cost", value=self.mechanism)
        return float_up(width)

    def describe(self) -> dict[str, Any]:
        """Return the cost as JSON-able data; `cost_from_description` reads it."""
        numbers = {n: _describe_value(v) for n, v in self._numbers() if v is not None}
        return {"mechanism": self.mechanism, **numbers}

    @classmethod
    def from_description(cls, numbers: Mapping[str, Any]) -> Cost:
        """Build the cost from the numbers of `describe`, without `mechanism`."""
        return cls(**{name: _read(value) for name, value in numbers.items()})

    @_never_quieter
    def noisier(self, factor: Fraction) -> Cost:
        """Return the same step with `factor` times its noise.

        Raises:
            InvalidCost: If the factor is below 1, or the noise would be larger than a
                cost may say.
        """
        if not self.noise_powers:
            msg = f"{self!r} does not say which of its numbers are its noise"
            raise InvalidCost(msg, name="cost", value=self.mechanism)
        numbers = dict(self._numbers())
        return self.but(**{n: numbers[n] * factor**p for n, p in self.noise_powers})

    def round_noise(self) -> Cost:
        """Return the step with its noise rounded up to numbers that a person can type.

        Four significant digits: numbers that grow with the noise up, all others down.
        """
        shorter = {
            name: (short_up if power > 0 else short_down)(getattr(self, name))
            for name, power in self.noise_powers
        }
        return self.but(**shorter) if shorter else self

    def but(self, **changed: Any) -> Self:
        """Return the same step with some of its numbers changed."""
        return type(self)(**{**dict(self._numbers()), **changed})

    def _numbers(self) -> Iterator[tuple[str, Any]]:
        for field in fields(self):  # type: ignore[arg-type]
            yield field.name, getattr(self, field.name)

    def _set(self, **values: Fraction) -> None:
        for name, value in values.items():
            # A product of two numbers may be longer than what `from_description` reads.
            object.__setattr__(self, name, exact(value, name=name))

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        numbers = {k: v for k, v in self.describe().items() if k != "mechanism"}
        if "relation" in numbers:
            numbers["relation"] = repr(numbers["relation"])
        return f"{self.mechanism}({', '.join(f'{k}={v}' for k, v in numbers.items())})"


def _describe_value(value: Any) -> Any:
    """Return a value of a cost as JSON-able data."""
    if isinstance(value, Cost):
        return value.describe()
    if isinstance(value, Mapping):
        return {name: _describe_value(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [_describe_value(part) for part in value]
    return value if isinstance(value, bool | str) else number_text(value)


def _read(value: Any) -> Any:
    """Return an argument of a constructor: numbers may be texts, and costs may not."""
    is_cost = isinstance(value, Mapping) and "mechanism" in value
    return cost_from_description(value) if is_cost else value


def cost_kind(name: str) -> type[Cost]:
    """Return the class of a mechanism.

    Raises:
        InvalidCost: If no mechanism has this name.
    """
    if name not in _KINDS:
        for module in _MORE_KINDS:
            import_module(module)
    if name not in _KINDS:
        msg = f"unknown mechanism {name!r}; choose one of: {', '.join(sorted(_KINDS))}"
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
        cost = kind.from_description(numbers)
    except without_interrupts(TypeError, ValueError, ArithmeticError) as error:
        msg = f"cannot read the cost {dict(description)!r}: {error}"
        raise InvalidCost(msg, name="mechanism", value=name) from error
    if not isinstance(cost, Cost):  # its noise is planned
        msg = f"the cost {dict(description)!r} has no noise"
        raise InvalidCost(msg, name="noise", value=name)
    return cost


def whole_number(value: object, *, name: str, low: int, high: int) -> int:
    """Read a whole number.

    Raises:
        InvalidCost: If it is not a number, or outside the limits.
    """
    number = exact(value, name=name, low=Fraction(low), high=Fraction(high))
    if number.denominator != 1:
        msg = f"{name} must be a whole number, got {number_text(number)}"
        raise InvalidCost(msg, name=name, value=number_text(number))
    return int(number)


def relations_of(cost: Cost) -> tuple[str, ...]:
    """Return the neighbouring relations under which a cost may be declared.

    Most costs hold for the dataset's own relation, whichever it is.
    """
    own: Any = getattr(cost, "relations", RELATIONS)
    return tuple(relation for relation in RELATIONS if relation in own)


@runtime_checkable
class Settling(Protocol):
    """A cost that may turn out cheaper than its worst case.

    Attributes:
        settlement: "steps" if it stops after fewer sub-steps, "outcome" if its output
            falls into a cheaper cell. A rule refunds only the kinds in its own list.
    """

    settlement: ClassVar[str]

    def realised(self, outcome: Outcome) -> Cost:
        """Return the cost of the actual outcome.

        Raises:
            InvalidCost: If the cost has no such outcome.
        """
        ...
