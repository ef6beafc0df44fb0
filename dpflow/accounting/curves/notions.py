"""What a step costs that is described by a guarantee, notion by notion.

Each is worth what its notion implies and nothing more: a pair without a sound price is
refused.
"""

from __future__ import annotations

from fractions import Fraction
from functools import singledispatch

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.notions import (
    ApproxDP,
    ApproxZCDP,
    GaussianDP,
    ProbabilisticDP,
    PureDP,
    RenyiDP,
)
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    refuse,
    renyi_divergence,
)
from dpflow.exceptions import UnsupportedCost


@approx_dp.register
def _(cost: ProbabilisticDP) -> tuple[Fraction, Fraction]:
    # The half that is true: docs/derivations/notions.md#probabilistic-dp.
    return cost.epsilon, cost.delta


@approx_zcdp.register
def _(cost: ProbabilisticDP) -> tuple[Fraction, Fraction]:
    return approx_zcdp(_as_approx(cost))


@approx_zcdp.register
def _(cost: ApproxZCDP) -> tuple[Fraction, Fraction]:
    return cost.rho, cost.delta


@approx_zcdp.register
def _(cost: GaussianDP) -> tuple[Fraction, Fraction]:
    # A mu-GDP pair is a post-processing of the pair of Gaussians (Blackwell).
    return cost.mu**2 / 2, Fraction(0)


@gdp_mu_squared.register
def _(cost: GaussianDP) -> Fraction:
    return cost.mu**2


@gdp_mu_squared.register
def _(cost: ProbabilisticDP) -> Fraction:
    if cost.delta:
        hint = "It has a delta: set delta_loss for such steps."
        raise refuse(cost, "Gaussian DP", hint)
    return gdp_mu_squared(PureDP(epsilon=cost.epsilon))


@renyi_divergence.register
def _(cost: GaussianDP, order: Fraction) -> Fraction:
    return order * cost.mu**2 / 2


@renyi_divergence.register
def _(cost: ApproxZCDP, order: Fraction) -> Fraction:
    if cost.delta:
        raise refuse(cost, _renyi_of(order), "It has a delta of its own.")
    return order * cost.rho


@renyi_divergence.register
def _(cost: ProbabilisticDP, order: Fraction) -> Fraction:
    if cost.delta:
        raise refuse(cost, _renyi_of(order), "It has a delta of its own.")
    return renyi_divergence(PureDP(epsilon=cost.epsilon), order)


@renyi_divergence.register
def _(cost: RenyiDP, order: Fraction) -> Fraction:
    if order > cost.order:
        hint = f"Its bound is of order {float(cost.order):g}; use at most that order."
        raise refuse(cost, _renyi_of(order), hint)
    return cost.epsilon


def _renyi_of(order: Fraction) -> str:
    return f"Renyi DP of order {float(order):g}"


def _as_approx(cost: ProbabilisticDP) -> ApproxDP:
    return ApproxDP(epsilon=cost.epsilon, delta=cost.delta)


def loss_unbounded(cost: Cost, theorem: str) -> UnsupportedCost:
    """Make the error for a step that states no bound on its loss."""
    msg = (
        f"{cost!r} states no bound on the loss itself, which is what this odometer "
        "reads; the delta of an (epsilon, delta)-DP step is none. Declare "
        "ProbabilisticDP(epsilon=..., delta=...) if its loss exceeds epsilon with "
        "probability at most delta; for a Gaussian use form: zcdp or the "
        "rdp odometer."
    )
    return UnsupportedCost(msg, theorem=theorem, mechanism=cost.mechanism)


@singledispatch
def probabilistic_dp(cost: Cost) -> tuple[Fraction, Fraction]:
    """Return (epsilon, delta): the loss exceeds epsilon with probability <= delta.

    Source: Definition; an (epsilon, 0)-DP step has no larger loss at all. An
    (epsilon, delta)-DP step with delta > 0 may:
    docs/derivations/notions.md#dp-is-not-probabilistic.

    Assumes: nothing beyond the cost's own declaration.

    Rounding: as `curves.approx_dp`.

    Checked by: tests/accounting/costs/test_notions.py.

    Raises:
        UnsupportedCost: For a step that does not declare a bound on its loss.
    """
    try:
        epsilon, delta = approx_dp(cost)
    except UnsupportedCost as error:
        raise loss_unbounded(cost, "probabilistic DP") from error
    if delta:
        raise loss_unbounded(cost, "probabilistic DP")
    return epsilon, delta


@probabilistic_dp.register
def _(cost: ProbabilisticDP) -> tuple[Fraction, Fraction]:
    return cost.epsilon, cost.delta
