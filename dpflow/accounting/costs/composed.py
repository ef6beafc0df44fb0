"""Steps that consist of other steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.base import (
    RELATIONS,
    Cost,
    cost_from_description,
    relations_of,
    whole_number,
)
from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number

#: More of one step would be a typing error.
MOST_TIMES = 10**12


class OfSteps(Cost, named=False):
    """A cost that consists of the costs of other steps."""

    def with_steps(self, change: Callable[[Cost], Cost]) -> Cost:
        """Return the cost with each step changed."""
        steps = {n: change(v) for n, v in self._numbers() if isinstance(v, Cost)}
        return self.but(**steps)

    def noisier(self, factor: Fraction) -> Cost:
        """Return the cost with `factor` times the noise of each step."""
        return self.with_steps(lambda step: step.noisier(factor))

    def round_noise(self) -> Cost:
        """Return the cost with the noise of each step rounded up."""
        return self.with_steps(lambda step: step.round_noise())


@dataclass(frozen=True, init=False, repr=False)
class Composed(OfSteps):
    """Several mechanisms run in one step, each on the same data.

    Each may use the outputs of those before it, but their costs are fixed before the
    step starts. What depends on outputs belongs into steps of its own.

    Args:
        *costs: What the step does, at least one cost.

    Raises:
        InvalidCost: If the list is empty, or contains anything but costs.

    Examples:
        >>> from dpflow import Gaussian, Laplace
        >>> Composed(Gaussian(sensitivity=1, sigma=20), Laplace(sensitivity=1, scale=9))
        Composed(Gaussian(sensitivity=1, sigma=20), Laplace(sensitivity=1, scale=9))
    """

    costs: tuple[Cost, ...]

    def __init__(self, *costs: Cost) -> None:
        if not costs:
            msg = "Composed takes at least one cost, got none"
            raise InvalidCost(msg, name="costs", value=None)
        for cost in costs:
            _check_cost(cost, "Composed")
        object.__setattr__(self, "costs", tuple(costs))

    @property
    def relations(self) -> tuple[str, ...]:
        """The neighbouring relations that all parts allow."""
        allowed = [set(relations_of(cost)) for cost in self.costs]
        return tuple(r for r in RELATIONS if all(r in part for part in allowed))

    @classmethod
    def from_description(cls, numbers: Mapping[str, Any]) -> Composed:
        """Build the cost from the numbers of `describe`, without `mechanism`."""
        if set(numbers) != {"costs"}:
            msg = f"Composed is described by 'costs', got {sorted(numbers)}"
            raise InvalidCost(msg, name="mechanism", value="Composed")
        return cls(*map(cost_from_description, numbers["costs"]))

    def with_steps(self, change: Callable[[Cost], Cost]) -> Composed:
        """Return the cost with each part changed."""
        return Composed(*map(change, self.costs))

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        return f"Composed({', '.join(map(repr, self.costs))})"


@dataclass(frozen=True, init=False, repr=False)
class Repeated(OfSteps):
    """The same mechanism run several times in one step.

    Args:
        cost: What runs.
        times: How often, fixed before the step starts.

    Raises:
        InvalidCost: If `cost` is not a cost, or `times` not a positive whole number.

    Examples:
        >>> from dpflow import PureDP
        >>> Repeated(PureDP(epsilon="0.1"), 50)
        Repeated(PureDP(epsilon=0.1), 50)
    """

    cost: Cost
    times: int

    def __init__(self, cost: Cost, times: Number) -> None:
        _check_cost(cost, "Repeated")
        count = whole_number(times, name="times", low=1, high=MOST_TIMES)
        object.__setattr__(self, "cost", cost)
        object.__setattr__(self, "times", count)

    @property
    def substeps(self) -> tuple[Cost, int]:
        """The step and how often it runs: theorems price it as that many steps."""
        return self.cost, self.times

    @property
    def relations(self) -> tuple[str, ...]:
        """The neighbouring relations that the repeated cost allows."""
        return relations_of(self.cost)

    def __repr__(self) -> str:
        """Write the cost as it would be constructed."""
        return f"Repeated({self.cost!r}, {self.times})"


def _check_cost(cost: object, name: str) -> None:
    if not isinstance(cost, Cost):
        msg = f"{name} takes costs, got {cost!r} ({type(cost).__name__})"
        raise InvalidCost(msg, name="cost", value=repr(cost))
    check_one_step(cost)


def check_one_step(cost: Cost) -> None:
    """Refuse a part whose price is the remaining budget: a second one would be free.

    Raises:
        InvalidCost: If budgets per person pay for it.
    """
    if cost.paid_by_people:
        msg = f"{cost!r} cannot be a part of another cost; declare it as the whole step"
        raise InvalidCost(msg, name="cost", value=repr(cost))
