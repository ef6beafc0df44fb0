"""Basic composition: epsilons add up, deltas add up."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.prices import approx_dp, probabilistic_dp
from dpflow.accounting.rules.delta_loss import no_share
from dpflow.accounting.rules.rule import Odometer, ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import (
    Number,
    exact_delta,
    exact_epsilon,
    float_of_units,
    units_down,
    units_up,
)


class BasicFilter(ThresholdFilter):
    """Admit while the epsilons sum to at most epsilon and the deltas to at most delta.

    Source: Rogers, Roth, Ullman, Vadhan 2016 (arXiv 1605.08294v1) Thm 3.6, with
    delta_g in place of a misprint: docs/derivations/composition.md#basic-filter.

    Assumes: each step is (epsilon_i, delta_i)-DP given the outputs before it; costs
    may be chosen adaptively.

    Rounding: thresholds down to 36 decimals, prices up; decimals are exact.

    Checked by: tests/accounting/rules/test_basic.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in [0, 1).
    """

    theorem = "basic"
    adds_up = True
    components = ("epsilon", "delta")

    def __init__(self, *, epsilon: Number, delta: Number = 0) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = exact_delta(delta)
        self.thresholds = (units_down(self.epsilon), units_down(self.delta))

    def step_price(self, cost: Cost) -> Tally:
        """Return (epsilon, delta) of the step."""
        epsilon, delta = approx_dp(cost)
        if delta and not self.delta:
            raise no_share(cost, self.theorem, "Raise delta above 0.")
        return Tally((units_up(epsilon), units_up(delta)))


class BasicOdometer(Odometer):
    """Read the sum of the epsilons; undefined once the deltas exceed delta.

    Source: Rogers, Roth, Ullman, Vadhan 2016 (arXiv 1605.08294v1) Thm 3.6, at
    delta_g = 0: without deltas the bound holds on every path. Proof:
    docs/derivations/composition.md#basic-odometer.

    Assumes: the loss of each step exceeds epsilon_i with probability at most delta_i,
    given the outputs before it. That is probabilistic DP; (epsilon, delta)-DP is not
    enough. One-sided; two-sided where no step has a delta.

    Rounding: prices and readings up; decimals are exact.

    Checked by: tests/accounting/published/test_formulas.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in [0, 1): all of it is for
            the deltas of steps. Zero for steps without.
        halt_at_epsilon: Accepted as by all odometers; there is nothing to tune.
    """

    theorem = "basic"
    components = ("epsilon", "delta", "uncovered")

    def __init__(self, *, delta: Number, halt_at_epsilon: Number | None = None) -> None:
        del halt_at_epsilon
        self.delta: Fraction = exact_delta(delta)
        self._room = units_down(self.delta)

    def step_price(self, cost: Cost) -> Tally:
        """Return (epsilon, delta) of the step."""
        epsilon, delta = probabilistic_dp(cost)
        return Tally((units_up(epsilon), units_up(delta), 0))

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss so far."""
        epsilon, spent, uncovered = tally.amounts
        if uncovered or spent > self._room:
            return float("inf")
        return float_of_units(epsilon)
