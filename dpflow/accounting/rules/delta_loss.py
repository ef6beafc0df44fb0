"""Splitting delta: a part for the loss, the rest for the deltas of steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, ClassVar, Self

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.composed import apart
from dpflow.accounting.rules.rule import ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import (
    Number,
    exact_delta,
    exact_epsilon,
    number_text,
    units_down,
    units_up,
)


def loss_share(delta: Fraction, delta_loss: Number | None) -> Fraction:
    """Return the part of delta that pays for the loss; default: all of it.

    Raises:
        InvalidCost: If it is no delta, zero, or more than there is.
    """
    if delta_loss is None:
        return delta
    loss = exact_delta(delta_loss, name="delta_loss", zero=False)
    if loss > delta:
        msg = (
            f"delta_loss {number_text(loss)} exceeds delta {number_text(delta)}; "
            "give at most that."
        )
        raise InvalidCost(msg, name="delta_loss", value=number_text(loss), high=delta)
    return loss


def no_share(
    cost: Cost, theorem: str, hint: str = "Set delta_loss below delta."
) -> UnsupportedCost:
    """Return the error for a step with a delta if no delta is reserved for steps."""
    return UnsupportedCost(
        f"{cost!r} has a delta of its own, and this {theorem} rule keeps no delta for "
        f"steps. {hint}",
        theorem=theorem,
        mechanism=cost.mechanism,
    )


class SplitsDelta(ThresholdFilter):
    """A filter of one kind of loss that can reserve a part of delta for its steps.

    Some have a component `delta` only if a part is reserved, others always.

    Source: docs/derivations/composition.md#steps-with-a-delta.

    Assumes: the split is fixed in advance.

    Rounding: thresholds down, prices up.

    Checked by: tests/accounting/rules/test_basic.py, tests/adversaries.

    Attributes:
        loss: Name of the loss's component; `delta` follows if a part is reserved.
        delta_loss: The part of delta for the loss.
    """

    loss: ClassVar[str] = ""
    delta_loss: Fraction

    def __init__(
        self, epsilon: Number, delta: Number, delta_loss: Number | None
    ) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = exact_delta(delta, zero=False)
        self.delta_loss = loss_share(self.delta, delta_loss)

    @property
    def keeps_delta(self) -> bool:
        """Whether there is a delta for steps."""
        return self.delta_loss < self.delta

    @property
    def split(self) -> Fraction:
        """The part of delta for the loss, as a fraction of delta."""
        return self.delta_loss / self.delta

    def with_budget(self, epsilon: Fraction, delta: Fraction) -> Self:
        """Return the filter with equal constants and delta split in proportion.

        Raises:
            InvalidCost: If the constants allow nothing at this budget.
        """
        values = {name: getattr(self, name) for name in self.made_from}
        budget = {"epsilon": epsilon, "delta": delta}
        return type(self)(**values | budget | {"delta_loss": self.split * delta})

    def _limit_both(self, loss: Fraction) -> None:
        """Set the thresholds of the loss and of the deltas, which may be zero."""
        self.thresholds = (units_down(loss), units_down(self.delta - self.delta_loss))

    def _both(self, cost: Cost, loss: int, delta: Fraction) -> Tally:
        """Return a tally of the loss, in units, and the delta.

        Raises:
            UnsupportedCost: If there is a delta and none is reserved for steps.
        """
        if delta and not self.keeps_delta:
            raise no_share(cost, self.theorem)
        return Tally((loss, units_up(delta)))

    def _limit_to(self, loss: Fraction) -> None:
        """Set the thresholds: of the loss, and of the deltas if a part is reserved."""
        self.components, self.thresholds = (self.loss,), (units_down(loss),)
        if self.keeps_delta:
            self.components += ("delta",)
            self.thresholds += (units_down(self.delta - self.delta_loss),)

    def _apart(self, cost: Cost) -> tuple[Cost, tuple[int, ...]]:
        """Return a step without its delta, and the delta if a part is reserved."""
        if not self.keeps_delta:
            return cost, ()  # whose price refuses a delta
        without_delta, delta = apart(cost)
        return without_delta, (units_up(delta),)

    def parameters(self) -> dict[str, Any]:
        """Return the numbers that determine the filter, including any split."""
        parameters = super().parameters()
        if "delta" not in self.components:
            del parameters["delta_loss"]
        return parameters
