"""Gaussian differential privacy: squared mus add up, exactly for Gaussians."""

from __future__ import annotations

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import gdp_budget
from dpflow.accounting.curves.prices import gdp_mu_squared
from dpflow.accounting.rules.delta_loss import SplitsDelta
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import Number, units_up


class GdpFilter(SplitsDelta):
    """Admit while the squared mus fit the mu**2 that (epsilon, delta) allows.

    Source: Smith, Thakurta 2022 (arXiv 2210.17520); proof:
    docs/derivations/composition.md#gdp-filter. No loss against composition of a
    fixed sequence of Gaussians.

    Assumes: each step is mu_i-GDP given the outputs before it. Not for subsampled
    Gaussians (the CLT value is optimistic). A step with a delta needs a part of the
    budget's (docs/derivations/composition.md#steps-with-a-delta).

    Rounding: the threshold down to 36 decimals, prices up.

    Checked by: tests/accounting/test_rule_laws.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        delta_loss: The part of delta for the mus; the rest is for the deltas of steps.
            Default: all of it.
    """

    theorem = "gdp"
    adds_up = True
    term_options = frozenset()
    made_from = ("epsilon", "delta", "delta_loss")
    loss = "mu_squared"

    def __init__(
        self, *, epsilon: Number, delta: Number, delta_loss: Number | None = None
    ) -> None:
        super().__init__(epsilon, delta, delta_loss)
        self._limit_to(gdp_budget(self.epsilon, self.delta_loss))

    def step_price(self, cost: Cost) -> Tally:
        """Return mu**2 of the step, and its delta if the filter keeps one."""
        without_delta, delta = self._apart(cost)
        return Tally((units_up(gdp_mu_squared(without_delta)), *delta))
