"""The odometer of nested RDP filters, each twice the size of the one before."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.prices import renyi
from dpflow.accounting.rules.rdp import idle_reading
from dpflow.accounting.rules.rdp_mixture import exact_orders, order_names
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import (
    Number,
    bound_above,
    exact_delta,
    float_up,
    from_units,
    units_up,
)

#: The orders of the paper's experiments.
PAPER_ORDERS = (*(Fraction(n, 4) for n in range(5, 41)), Fraction(16), Fraction(32))


class RdpDoublingOdometer(Odometer):
    """Read the converted size of the smallest filter that the divergences fit.

    Source: Lecuyer 2021 (arXiv 2103.01379v2) Thm 2 with Sec. 4.4 and 4.5. At each
    order a, filter number f = 1, 2, ... has the size e(f) = 2**(f-1) log(2 n / delta)
    / (a - 1), with n orders; the reading is the smallest e(f) + log(2 n f**2 / delta)
    / (a - 1) over the orders, f being the first filter that fits. The union over f
    costs sum 1 / (2 f**2) = 0.8225 of delta. It is read as a bound on the loss: the
    paper's "(e(f), delta)-DP" has no meaning for a random f
    (docs/derivations/rdp.md#doubling-odometer).

    Assumes: each step has finite Renyi divergences of all the orders given the
    outputs before it; the orders are fixed in advance. One-sided. Never below the
    mixture of `rdp` under the same assumptions; for comparison only.

    Rounding: prices, readings and the filters' sizes up.

    Checked by: tests/accounting/rules/test_rdp.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        orders: The orders, each above 1. Default: the 38 of the paper.
        halt_at_epsilon: Accepted as by all odometers; there is nothing to tune.
    """

    theorem = "rdp-doubling"
    made_from = ("delta", "orders")

    def __init__(
        self,
        *,
        delta: Number,
        orders: list[Number] | None = None,
        halt_at_epsilon: Number | None = None,
    ) -> None:
        del halt_at_epsilon
        self.delta: Fraction = exact_delta(delta, zero=False)
        chosen = list(PAPER_ORDERS) if orders is None else orders
        self.orders, _ = exact_orders(chosen)
        self.components = (*order_names(self.orders), "uncovered")
        share = self.delta / (2 * len(self.orders))
        # The sizes may be any numbers that are fixed: those of the paper, rounded up.
        self._first = [units_up(idle_reading(share, order)) for order in self.orders]
        self._extra: dict[int, list[int]] = {}

    def step_price(self, cost: Cost) -> Tally:
        """Return the step's divergence at each order."""
        return Tally((*(units_up(renyi(cost, order)) for order in self.orders), 0))

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss so far."""
        *amounts, uncovered = tally.amounts
        if uncovered:
            return float("inf")
        return float_up(
            from_units(
                min(map(self._read_order, amounts, self._first, range(len(amounts))))
            )
        )

    def _read_order(self, amount: int, first: int, index: int) -> int:
        # The least number with 2**(number - 1) * first >= amount.
        size = -(-amount // first)
        number = max(size - 1, 0).bit_length() + 1
        extra = self._extra.get(number)
        if extra is None:
            log = _twice_log(number)
            extra = [units_up(log / (order - 1)) for order in self.orders]
            self._extra[number] = extra
        return ((1 << (number - 1)) + 1) * first + extra[index]


def _twice_log(number: int) -> Fraction:
    """Return 2 log(number), rounded up."""
    if number == 1:
        return Fraction(0)
    return bound_above(lambda mp: 2 * mp.log(number))
