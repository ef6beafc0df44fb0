"""Concentrated differential privacy: rhos add up, with a tight conversion."""

from __future__ import annotations

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import zcdp_budget
from dpflow.accounting.curves.prices import approx_zcdp
from dpflow.accounting.rules.delta_loss import SplitsDelta
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number, units_up

CONVERSIONS = ("tight", "classic")


class ZcdpFilter(SplitsDelta):
    """Admit while the rhos fit the rho that (epsilon, delta_loss) allows.

    Source: Whitehouse, Ramdas, Rogers, Wu 2023 (arXiv 2203.05481v3) Thm 1, for
    approximate zCDP; conversions as in `conversions.zcdp_budget`. Proof:
    docs/derivations/composition.md#zcdp-filter.

    Assumes: each step is delta_i-approximately rho_i-zCDP given the outputs before
    it; the split of delta is fixed in advance.

    Rounding: thresholds down to 36 decimals, prices up.

    Checked by: tests/accounting/test_rule_laws.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        delta_loss: The part of delta for the conversion; the rest is for the deltas
            of steps. Default: all of it.
        conversion: "tight" (default) or "classic".
    """

    theorem = "zcdp"
    adds_up = True
    term_options = frozenset()
    made_from = ("epsilon", "delta", "delta_loss", "conversion")
    components = ("rho", "delta")

    def __init__(
        self,
        *,
        epsilon: Number,
        delta: Number,
        delta_loss: Number | None = None,
        conversion: str = "tight",
    ) -> None:
        super().__init__(epsilon, delta, delta_loss)
        self.conversion = one_of("conversion", conversion, CONVERSIONS)
        rho = zcdp_budget(self.epsilon, self.delta_loss, tight=conversion == "tight")
        self._limit_both(rho)

    def step_price(self, cost: Cost) -> Tally:
        """Return (rho, delta) of the step."""
        rho, delta = approx_zcdp(cost)
        return self._both(cost, units_up(rho), delta)


def one_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Check an option that takes one of a few words.

    Raises:
        InvalidCost: If the value is not one of them.
    """
    if not isinstance(value, str) or value not in choices:
        msg = f"{name} must be one of {', '.join(choices)}, got {value!r}"
        raise InvalidCost(msg, name=name, value=value)
    return value
