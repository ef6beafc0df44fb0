"""Steps with a delta, taken apart: what may be revealed, and the step that is left."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.accounting.costs.notions import (
    ZCDP,
    ApproxDP,
    ApproxZCDP,
    ProbabilisticDP,
    PureDP,
)
from dpflow.accounting.costs.outcomes import OutcomeCost


def apart(cost: Cost) -> tuple[Cost, Fraction]:
    """Return a step without a delta, and the delta beside it.

    Both laws of the step are mixtures: with probability at least 1 - delta, the same
    for both, of laws that are as private as the step returned; otherwise of whatever.

    Source: (epsilon, delta)-DP: Kairouz, Oh, Viswanath 2015 (arXiv 1311.0776v4) Thm
    3.1; others by definition. docs/derivations/composition.md#steps-with-a-delta.

    Assumes: nothing beyond the cost's own declaration.

    Rounding: none, both are exact.

    Checked by: tests/accounting/rules/test_delta_loss.py.
    """
    none = Fraction(0)
    if isinstance(cost, ApproxDP | ProbabilisticDP):
        return PureDP(epsilon=cost.epsilon), cost.delta
    if isinstance(cost, ApproxZCDP):
        return ZCDP(rho=cost.rho), cost.delta
    if isinstance(cost, OutcomeCost):
        # Cells are for mechanisms without a delta; others are as their worst one.
        worst = cost.worst_case()
        return apart(worst) if isinstance(worst, ApproxDP) else (cost, none)
    if isinstance(cost, Composed):
        parts = [apart(part) for part in cost.costs]
        return Composed(*(rest for rest, _ in parts)), sum((d for _, d in parts), none)
    if isinstance(cost, Repeated):
        rest, delta = apart(cost.cost)
        return Repeated(rest, cost.times), delta * cost.times
    return cost, none
