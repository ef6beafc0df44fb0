"""Basic composition: epsilons add up, deltas add up."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dpflow.accounting.costs import Cost
from dpflow.accounting.curves import approx_dp
from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import ThresholdFilter
from dpflow.rounding import (
    Number,
    exact_delta,
    exact_epsilon,
    number_text,
    units_down,
    units_up,
)


class BasicFilter(ThresholdFilter):
    """Admit while the epsilons sum to at most epsilon and the deltas to at most delta.

    Source: Rogers, Roth, Ullman, Vadhan 2016 (arXiv 1605.08294v1) Thm 3.6, with
    delta_g in place of its misprint delta'_g (THEOREMS.md R-3.6, E-4).

    Assumes: each step is (epsilon_i, delta_i)-DP given the outputs before it; costs
    may be chosen adaptively.

    Rounding: thresholds down to units of 1e-36, prices up; decimals are exact.

    Checked by: tests/accounting/test_basic.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in [0, 1).
    """

    theorem = "basic"
    components = ("epsilon", "delta")

    def __init__(self, *, epsilon: Number, delta: Number = 0) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = exact_delta(delta)
        self.thresholds = (units_down(self.epsilon), units_down(self.delta))

    def price(self, cost: Cost) -> Tally:
        """Return (epsilon, delta) of the step."""
        epsilon, delta = approx_dp(cost)
        return Tally((units_up(epsilon), units_up(delta)))

    def parameters(self) -> dict[str, Any]:
        """Return the numbers that the filter was made from."""
        return {
            "theorem": self.theorem,
            "epsilon": number_text(self.epsilon),
            "delta": number_text(self.delta),
        }
