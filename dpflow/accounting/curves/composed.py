"""Costs, in each notion, of steps with parts or cells.

Parts compose adaptively. The worst cell counts.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

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
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    probabilistic_dp,
    renyi,
    renyi_divergence,
)

_ADAPTIVE = "adaptive composition"


def _adds_up(
    notion: Any, why: str = _ADAPTIVE, price: Callable[..., Any] | None = None
) -> None:
    """Register in a notion that the prices of parts add up."""
    of = price or notion

    def parts(cost: Composed, *order: Fraction) -> Any:
        return _sum([of(part, *order) for part in cost.costs])

    def times(cost: Repeated, *order: Fraction) -> Any:
        return _sum([of(cost.cost, *order)], cost.times)

    parts.__doc__ = f"Sum of the parts' prices: {why}."
    times.__doc__ = "As many times the price of the step."
    notion.register(Composed, parts)
    notion.register(Repeated, times)


def _sum(prices: list[Any], times: int = 1) -> Any:
    """Return the sum of numbers, or of pairs of them, times a count."""
    if isinstance(prices[0], tuple):
        return tuple(times * sum(column) for column in zip(*prices, strict=True))
    return times * sum(prices)


_adds_up(approx_dp)
_adds_up(approx_zcdp)
_adds_up(probabilistic_dp, "union bound over the losses that are too large")
_adds_up(gdp_mu_squared)
_adds_up(renyi_divergence, price=renyi)


@approx_dp.register
def _(cost: OutcomeCost) -> tuple[Fraction, Fraction]:
    # Hartmann et al., Lemma 4.
    return cost.highest()


for _notion in (approx_zcdp, gdp_mu_squared, renyi_divergence):

    def _worst(cost: OutcomeCost, *order: Fraction, of: Any = _notion) -> Any:
        return of(cost.worst_case(), *order)

    _notion.register(OutcomeCost, _worst)


def apart(cost: Cost) -> tuple[Cost, Fraction]:
    """Return a step without a delta, and the separate delta.

    Both laws of the step are mixtures: with probability at least 1 - delta, the same
    for both, of laws that are as private as the returned step; otherwise of any laws.

    Source: (epsilon, delta)-DP: Kairouz, Oh, Viswanath 2015 (arXiv 1311.0776v4) Thm
    3.1; others by definition. docs/derivations/composition.md#steps-with-a-delta.

    Assumes: nothing beyond the cost's own declaration.

    Rounding: none, both are exact.

    Checked by: tests/accounting/rules/test_basic.py.
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
        return Composed(*(core for core, _ in parts)), sum((d for _, d in parts), none)
    if isinstance(cost, Repeated):
        core, delta = apart(cost.cost)
        return Repeated(core, cost.times), delta * cost.times
    return cost, none
