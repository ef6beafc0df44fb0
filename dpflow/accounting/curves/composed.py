"""What steps cost that are made of other steps: adaptive composition in each notion."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.accounting.curves.notions import probabilistic_dp
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    renyi,
    renyi_divergence,
)


@approx_dp.register
def _(cost: Composed) -> tuple[Fraction, Fraction]:
    """Sum of the parts' prices: adaptive composition."""
    return _sum_of_pairs([approx_dp(part) for part in cost.costs])


@approx_dp.register
def _(cost: Repeated) -> tuple[Fraction, Fraction]:
    """As many times the price of the step."""
    epsilon, delta = approx_dp(cost.cost)
    return cost.times * epsilon, cost.times * delta


@approx_zcdp.register
def _(cost: Composed) -> tuple[Fraction, Fraction]:
    """Sum of the parts' prices: adaptive composition."""
    return _sum_of_pairs([approx_zcdp(part) for part in cost.costs])


@approx_zcdp.register
def _(cost: Repeated) -> tuple[Fraction, Fraction]:
    """As many times the price of the step."""
    rho, delta = approx_zcdp(cost.cost)
    return cost.times * rho, cost.times * delta


@probabilistic_dp.register
def _(cost: Composed) -> tuple[Fraction, Fraction]:
    """Sum of the parts' prices: union bound over the losses that are too large."""
    return _sum_of_pairs([probabilistic_dp(part) for part in cost.costs])


@probabilistic_dp.register
def _(cost: Repeated) -> tuple[Fraction, Fraction]:
    """As many times the price of the step."""
    epsilon, delta = probabilistic_dp(cost.cost)
    return cost.times * epsilon, cost.times * delta


@gdp_mu_squared.register
def _(cost: Composed) -> Fraction:
    """Sum of the parts' prices: adaptive composition."""
    return sum((gdp_mu_squared(part) for part in cost.costs), Fraction(0))


@gdp_mu_squared.register
def _(cost: Repeated) -> Fraction:
    """As many times the price of the step."""
    return cost.times * gdp_mu_squared(cost.cost)


@renyi_divergence.register
def _(cost: Composed, order: Fraction) -> Fraction:
    """Sum of the parts' prices: adaptive composition."""
    return sum((renyi(part, order) for part in cost.costs), Fraction(0))


@renyi_divergence.register
def _(cost: Repeated, order: Fraction) -> Fraction:
    """As many times the price of the step."""
    return cost.times * renyi(cost.cost, order)


def _sum_of_pairs(
    pairs: list[tuple[Fraction, Fraction]],
) -> tuple[Fraction, Fraction]:
    zero = Fraction(0)
    return sum((p[0] for p in pairs), zero), sum((p[1] for p in pairs), zero)
