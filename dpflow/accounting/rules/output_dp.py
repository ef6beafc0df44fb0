"""Composition of output differential privacy: realised epsilons add up."""

from __future__ import annotations

from typing import ClassVar, TypeGuard

from dpflow.accounting.costs.base import Cost, Outcome
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.rules.basic import BasicFilter
from dpflow.accounting.rules.tally import Tally


class OutputDpFilter(BasicFilter):
    """Admit while realised epsilons and the new worst case fit epsilon, deltas delta.

    Source: Hartmann, Bindschaedler, Bentkamp, West 2022, Thm 7 (verified in Lean by its
    authors) and Def 19; docs/derivations/output-dp.md#composition-by-cells.

    Assumes: each step is (cells, epsilon by cell, delta)-ODP given the outputs before
    it; mechanisms and parameters may be chosen adaptively. The worst cell is reserved
    before the step runs; when it settles, epsilon falls to that of the cell of its own
    output, and delta stays. `basic` is the special case of one cell.

    An `EarlyStopping` with an accountant is priced by its stops: the largest epsilon
    of a stop is reserved, that of the stop reached is settled, and its whole delta is
    spent. With the accountant basic it is priced as its sub-steps, delta included.

    Rounding: thresholds down to 36 decimals, prices up; decimals are exact.

    Checked by: tests/accounting/rules/test_basic.py,
    tests/adversaries/test_output_dp.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in [0, 1).
    """

    theorem = "output-dp"
    settlements: ClassVar[frozenset[str]] = frozenset({"full", "steps", "outcome"})

    def price(self, cost: Cost, used: Tally | None = None) -> Tally:
        """Return a step's price; a step that stops early is priced by its stops."""
        return super().price(cost.output_dp() if _stops_are_cells(cost) else cost, used)

    def price_realised(
        self, cost: Cost, outcome: Outcome | None, used: Tally | None = None
    ) -> Tally:
        """Return the epsilon of the outcome's cell, and delta in full."""
        if outcome is not None and _stops_are_cells(cost):
            return super().price_realised(cost.output_dp(), cost.cell(outcome), used)
        return super().price_realised(cost, outcome, used)


def _stops_are_cells(cost: Cost) -> TypeGuard[EarlyStopping]:
    return isinstance(cost, EarlyStopping) and cost.accountant != "basic"
