"""Steps described by the guarantee that their author proved, notion by notion.

Use these for a mechanism that dpflow does not know. Each is worth what its notion
implies and nothing more: a pair without a sound price is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import singledispatch

from dpflow.accounting.costs import ApproxDP, Cost, PureDP
from dpflow.accounting.curves import (
    _renyi,
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    refuse,
)
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import (
    RHO_HIGH,
    RHO_LOW,
    Number,
    exact,
    exact_delta,
    exact_epsilon,
)

_ORDER_LOW, _ORDER_HIGH = Fraction(10001, 10000), Fraction(10**6)
_MU_LOW, _MU_HIGH = Fraction(1, 10**12), Fraction(10**6)


@dataclass(frozen=True, init=False, repr=False)
class ProbabilisticDP(Cost):
    """Any step whose privacy loss exceeds epsilon with probability at most delta.

    This is stronger than `ApproxDP` of the same numbers, and odometers need it: they
    speak about the loss itself. It must hold for both orders of every two neighbouring
    datasets. For a Gaussian with mu = sensitivity / sigma the delta of a chosen epsilon
    is Phi(mu/2 - epsilon/mu), larger than its delta as `ApproxDP`.

    Args:
        epsilon: What the loss stays below.
        delta: Probability with which it does not; zero makes it a `PureDP` step.

    Raises:
        InvalidCost: If a number is out of range.
    """

    epsilon: Fraction
    delta: Fraction

    def __init__(self, *, epsilon: Number, delta: Number) -> None:
        self._set(epsilon=exact_epsilon(epsilon), delta=exact_delta(delta))

    def noisier(self, factor: Fraction) -> ProbabilisticDP:
        """Return the step with epsilon divided by `factor` at the same delta."""
        return ProbabilisticDP(epsilon=self.epsilon / factor, delta=self.delta)


@dataclass(frozen=True, init=False, repr=False)
class ApproxZCDP(Cost):
    """Any delta-approximately rho-zero-concentrated differentially private step.

    Args:
        rho: Its rho, once mass `delta` is removed from each side.
        delta: Its delta; zero makes it a `ZCDP` step.

    Raises:
        InvalidCost: If a number is out of range.
    """

    rho: Fraction
    delta: Fraction

    def __init__(self, *, rho: Number, delta: Number) -> None:
        self._set(
            rho=exact(rho, name="rho", low=RHO_LOW, high=RHO_HIGH),
            delta=exact_delta(delta),
        )

    def noisier(self, factor: Fraction) -> ApproxZCDP:
        """Return the step with rho divided by `factor` squared, at the same delta."""
        return ApproxZCDP(rho=self.rho / factor**2, delta=self.delta)


@dataclass(frozen=True, init=False, repr=False)
class RenyiDP(Cost):
    """Any step with a bound on its Renyi divergence of one order.

    The bound holds for lower orders too, since the divergence grows with the order.
    It says nothing about higher orders.

    Args:
        order: The order, in [1.0001, 1e6].
        epsilon: The bound on the divergence of that order, both ways round.

    Raises:
        InvalidCost: If a number is out of range.
    """

    order: Fraction
    epsilon: Fraction

    def __init__(self, *, order: Number, epsilon: Number) -> None:
        self._set(
            order=exact(order, name="order", low=_ORDER_LOW, high=_ORDER_HIGH),
            epsilon=exact(epsilon, name="epsilon", low=RHO_LOW, high=RHO_HIGH),
        )

    def noisier(self, factor: Fraction) -> RenyiDP:
        """Return the step with the bound divided by the square of `factor`."""
        return RenyiDP(order=self.order, epsilon=self.epsilon / factor**2)


@dataclass(frozen=True, init=False, repr=False)
class GaussianDP(Cost):
    """Any mu-Gaussian differentially private step.

    Its trade-off function is nowhere below that of N(0, 1) against N(mu, 1). The mu
    that the central limit theorem gives for sampled Gaussians is no such mu.

    Args:
        mu: Its guarantee.

    Raises:
        InvalidCost: If mu is not a positive finite number of sane size.
    """

    mu: Fraction

    def __init__(self, *, mu: Number) -> None:
        self._set(mu=exact(mu, name="mu", low=_MU_LOW, high=_MU_HIGH))

    def noisier(self, factor: Fraction) -> GaussianDP:
        """Return the step with mu divided by `factor`."""
        return GaussianDP(mu=self.mu / factor)


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
        raise refuse(cost, "Gaussian DP", "No Gaussian bounds a step with a delta.")
    return gdp_mu_squared(PureDP(epsilon=cost.epsilon))


@_renyi.register
def _(cost: GaussianDP, order: Fraction) -> Fraction:
    return order * cost.mu**2 / 2


@_renyi.register
def _(cost: ApproxZCDP, order: Fraction) -> Fraction:
    if cost.delta:
        raise refuse(cost, _renyi_of(order), "It has a delta of its own.")
    return order * cost.rho


@_renyi.register
def _(cost: ProbabilisticDP, order: Fraction) -> Fraction:
    if cost.delta:
        raise refuse(cost, _renyi_of(order), "It has a delta of its own.")
    return _renyi(PureDP(epsilon=cost.epsilon), order)


@_renyi.register
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
        "probability at most delta; for a Gaussian use form: concentrated or the "
        "renyi odometer."
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

    Checked by: tests/accounting/test_notion_costs.py.

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
