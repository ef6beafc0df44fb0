"""Fully adaptive advanced composition: squared epsilons add up."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import zcdp_budget
from dpflow.accounting.curves.prices import approx_dp, approx_zcdp
from dpflow.accounting.rules.delta_loss import SplitsDelta
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.zcdp import one_of
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import Number, units_up

DRIFTS = ("classic", "tanh")


class WhitehouseFilter(SplitsDelta):
    """Admit while V/2 + sqrt(2 V log(1 / delta_loss)) is at most epsilon.

    Source: Whitehouse, Ramdas, Rogers, Wu 2023 (arXiv 2203.05481v3) Thm 2, with a halt
    on strict excess only: docs/derivations/composition.md#whitehouse-filter. V sums
    epsilon_i**2. With `drift: tanh`, V is 2 R and R sums epsilon_i tanh(epsilon_i / 2):
    the same proof with the exact zCDP rate of an (epsilon_i, 0)-DP step. A step
    with a zCDP bound only (a Gaussian) enters by Thm 1 of the paper, at
    V = 2 rho.

    Assumes: each step is (epsilon_i, delta_i)-DP given the outputs before it, or
    delta_i-approximately rho_i-zCDP; the split of delta is fixed in advance.

    Rounding: thresholds down to 36 decimals, prices up.

    Checked by: tests/accounting/published/test_formulas.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        delta_loss: The part of delta for the loss (delta' of the paper); the rest is
            for the deltas of steps. Default: all of it.
        drift: "classic" (default, the paper) or "tanh" (admits more).
    """

    theorem = "whitehouse"
    made_from = ("epsilon", "delta", "delta_loss", "drift")

    def __init__(
        self,
        *,
        epsilon: Number,
        delta: Number,
        delta_loss: Number | None = None,
        drift: str = "classic",
    ) -> None:
        super().__init__(epsilon, delta, delta_loss)
        self.drift = one_of("drift", drift, DRIFTS)
        self._classic = self.drift == "classic"
        self.components = ("epsilon_squared" if self._classic else "rho", "delta")
        # (sqrt(epsilon + log) - sqrt(log))**2, where log = log(1 / delta_loss).
        rho = zcdp_budget(self.epsilon, self.delta_loss, tight=False)
        self._limit_both(2 * rho if self._classic else rho)

    def step_price(self, cost: Cost) -> Tally:
        """Return (epsilon**2, delta) of the step, or (rho, delta) with `tanh`."""
        amount, delta = _square_epsilon(cost) if self._classic else approx_zcdp(cost)
        return self._both(cost, units_up(amount), delta)


def _square_epsilon(cost: Cost) -> tuple[Fraction, Fraction]:
    try:
        epsilon, delta = approx_dp(cost)
    except UnsupportedCost:
        rho, delta = approx_zcdp(cost)
        return 2 * rho, delta
    return epsilon**2, delta
