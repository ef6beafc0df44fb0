"""What a mechanism with cells costs at its worst, in each notion."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    renyi_divergence,
)


@approx_dp.register
def _(cost: OutcomeCost) -> tuple[Fraction, Fraction]:
    # Hartmann et al., Lemma 4.
    return cost.highest()


@approx_zcdp.register
def _(cost: OutcomeCost) -> tuple[Fraction, Fraction]:
    return approx_zcdp(cost.worst_case())


@gdp_mu_squared.register
def _(cost: OutcomeCost) -> Fraction:
    return gdp_mu_squared(cost.worst_case())


@renyi_divergence.register
def _(cost: OutcomeCost, order: Fraction) -> Fraction:
    return renyi_divergence(cost.worst_case(), order)
