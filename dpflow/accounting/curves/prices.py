"""What a mechanism costs in each notion of differential privacy.

One function per notion, dispatched on the class of the cost. A pair without a sound
price raises `UnsupportedCost`: an unknown mechanism is refused, never guessed.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache, singledispatch
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    RandomizedResponse,
)
from dpflow.accounting.costs.notions import (
    ZCDP,
    ApproxDP,
    ApproxZCDP,
    GaussianDP,
    ProbabilisticDP,
    PureDP,
    RenyiCurve,
    RenyiDP,
)
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UnsettledBound, bound_above, to_real

_HINTS = {
    "approx": "Use a filter that prices it (gdp, zcdp), or declare "
    "ApproxDP(epsilon=..., delta=...) if you know such a guarantee.",
    "zcdp": "Give the filter a delta for its steps (delta_loss) or use filter: basic.",
    "gdp": "Use filter: zcdp or filter: basic for this dataset.",
    "delta": "Give the filter a delta for its steps (delta_loss), if it takes one.",
    "rdp": "A step with a delta of its own has no finite Renyi divergence; a "
    "delta_loss in the filter rdp keeps a part of delta for it.",
}


def refuse(cost: Cost, notion: str, hint: str) -> UnsupportedCost:
    """Make the error that says a cost has no price in a notion."""
    return UnsupportedCost(
        f"{cost!r} has no sound price as {notion}. {hint}",
        theorem=notion,
        mechanism=cost.mechanism,
    )


@singledispatch
def approx_dp(cost: Cost) -> tuple[Fraction, Fraction]:
    """Return (epsilon, delta) of a step, exactly.

    Source: definitions; Laplace: Dwork, McSherry, Nissim, Smith 2006, Prop. 1.

    Assumes: the declared sensitivity holds in L1 norm for Laplace.

    Rounding: none, both numbers are exact.

    Checked by: tests/accounting/curves/test_prices.py.

    Raises:
        UnsupportedCost: For a mechanism whose epsilon depends on a free choice of
            delta, such as the Gaussian.
    """
    raise refuse(cost, "(epsilon, delta)-DP", _HINTS["approx"])


@approx_dp.register
def _(
    cost: PureDP | RandomizedResponse | ExponentialMechanism,
) -> tuple[Fraction, Fraction]:
    """By definition; the exponential mechanism: McSherry, Talwar 2007, Thm 6."""
    return cost.epsilon, Fraction(0)


@approx_dp.register
def _(cost: ApproxDP | ProbabilisticDP) -> tuple[Fraction, Fraction]:
    """By definition, or its true half: derivations/notions.md#probabilistic-dp."""
    return cost.epsilon, cost.delta


@approx_dp.register
def _(cost: Laplace | DiscreteLaplace) -> tuple[Fraction, Fraction]:
    """Dwork, McSherry, Nissim, Smith 2006; discrete: Ghosh et al. (arXiv 0811.2841)."""
    return cost.sensitivity / cost.scale, Fraction(0)


@singledispatch
def approx_zcdp(cost: Cost) -> tuple[Fraction, Fraction]:
    """Return (rho, delta): the step is delta-approximately rho-zCDP.

    Source: Gaussian: Bun, Steinke 2016 (arXiv 1605.02065v1) Prop. 1.6. (epsilon, 0)-DP:
    rho = epsilon tanh(epsilon / 2), docs/derivations/notions.md#pure-to-zcdp
    (tight, attained by randomized response). Laplace: rho = epsilon + exp(-epsilon) -
    1, arXiv 2510.25746. (epsilon, delta)-DP: the same rho after removing mass delta,
    docs/derivations/notions.md#approximate-to-zcdp.

    Assumes: the declared sensitivity holds in the norm of the mechanism.

    Rounding: up by a relative 1e-30; exact for Gaussian and zCDP.

    Checked by: tests/accounting/curves/test_prices.py.
    """
    raise refuse(cost, "zCDP", _HINTS["zcdp"])


@lru_cache(maxsize=4096)
def pure_rho(epsilon: Fraction) -> Fraction:
    """Return the rho of an (epsilon, 0)-DP step, up; for an epsilon of any size."""

    def value(mp: Any) -> Any:
        real = to_real(mp, epsilon)
        return real * mp.tanh(real / 2)

    # epsilon * 1 bounds it too, where tanh rounds to more than one.
    return min(bound_above(value), epsilon)


@approx_zcdp.register
def _(cost: PureDP) -> tuple[Fraction, Fraction]:
    return pure_rho(cost.epsilon), Fraction(0)


@approx_zcdp.register
def _(cost: ApproxDP | ProbabilisticDP) -> tuple[Fraction, Fraction]:
    return pure_rho(cost.epsilon), cost.delta


@approx_zcdp.register
def _(cost: Laplace) -> tuple[Fraction, Fraction]:
    return _laplace_rho(cost.sensitivity / cost.scale), Fraction(0)


@lru_cache(maxsize=4096)
def _laplace_rho(epsilon: Fraction) -> Fraction:
    def value(mp: Any) -> Any:
        real = to_real(mp, epsilon)
        return real + mp.expm1(-real)

    return bound_above(value)


@approx_zcdp.register
def _(cost: Gaussian | DiscreteGaussian) -> tuple[Fraction, Fraction]:
    """Bun, Steinke 2016; discrete: Canonne et al. 2020 (arXiv 2004.00010v2) Thm 4."""
    return (cost.sensitivity / cost.sigma) ** 2 / 2, Fraction(0)


@approx_zcdp.register
def _(cost: ZCDP) -> tuple[Fraction, Fraction]:
    return cost.rho, Fraction(0)


@approx_zcdp.register
def _(cost: ApproxZCDP) -> tuple[Fraction, Fraction]:
    return cost.rho, cost.delta


@approx_zcdp.register
def _(cost: GaussianDP) -> tuple[Fraction, Fraction]:
    # A mu-GDP pair is a post-processing of the pair of Gaussians (Blackwell).
    return cost.mu**2 / 2, Fraction(0)


@singledispatch
def gdp_mu_squared(cost: Cost) -> Fraction:
    """Return mu**2: the step is mu-Gaussian differentially private.

    Source: Gaussian: Dong, Roth, Su 2022 (arXiv 1905.02383v3) Thm 2.7.
    (epsilon, 0)-DP: mu = -2 Phi^-1(1 / (1 + e^epsilon)),
    docs/derivations/notions.md#pure-to-gdp. Laplace: mu = -2 Phi^-1(e^(-epsilon/2)
    / 2), docs/derivations/notions.md#laplace-to-gdp; exact, like all of these. Its
    Renyi or zCDP rate is no GDP bound.

    Assumes: the declared sensitivity holds in the norm of the mechanism.

    Rounding: up by a relative 1e-30; exact for the Gaussian.

    Checked by: tests/accounting/curves/test_prices.py.
    """
    raise refuse(cost, "Gaussian DP", _HINTS["gdp"])


@gdp_mu_squared.register
def _(cost: Gaussian) -> Fraction:
    return (cost.sensitivity / cost.sigma) ** 2


@gdp_mu_squared.register
def _(cost: PureDP) -> Fraction:
    return pure_mu_squared(cost.epsilon)


@gdp_mu_squared.register
def _(cost: GaussianDP) -> Fraction:
    return cost.mu**2


@gdp_mu_squared.register
def _(cost: ApproxDP | ProbabilisticDP) -> Fraction:
    if cost.delta:
        raise refuse(cost, "Gaussian DP", _HINTS["delta"])
    return pure_mu_squared(cost.epsilon)


@gdp_mu_squared.register
def _(cost: Laplace) -> Fraction:
    """-2 Phi^-1(e^(-epsilon/2) / 2): derivations/notions.md#laplace-to-gdp."""
    return laplace_mu_squared(cost.sensitivity / cost.scale)


@lru_cache(maxsize=4096)
def pure_mu_squared(epsilon: Fraction) -> Fraction:
    """Solve 2 Phi(-mu/2) = 2 / (1 + e^epsilon) for mu**2; epsilon has any size."""

    def value(mp: Any) -> Any:
        # 2 erfinv(tanh(epsilon/2)) sqrt(2) is the same mu, but loses all digits for
        # large epsilon; Newton on log Phi does not.
        target = -mp.log1p(mp.exp(to_real(mp, epsilon)))
        return tail_quantile(mp, target) ** 2 * 4

    return bound_above(value)


@lru_cache(maxsize=4096)
def laplace_mu_squared(epsilon: Fraction) -> Fraction:
    """Solve Phi(-mu/2) = e^(-epsilon/2) / 2 for mu**2; epsilon has any size."""

    def value(mp: Any) -> Any:
        target = -to_real(mp, epsilon) / 2 - mp.log(2)
        return tail_quantile(mp, target) ** 2 * 4

    return bound_above(value)


def tail_quantile(mp: Any, log_probability: Any) -> Any:
    """Return x >= 0 with log Phi(-x) equal to the given number (at most log 1/2)."""
    root_two = mp.sqrt(2)
    if log_probability > -1:
        x = -(mp.exp(log_probability) - mp.mpf(1) / 2) * mp.sqrt(2 * mp.pi)
    else:
        x = mp.sqrt(-2 * log_probability)
    for _ in range(200):
        tail = mp.erfc(x / root_two) / 2
        density = mp.exp(-x * x / 2) / mp.sqrt(2 * mp.pi)
        step = (mp.log(tail) - log_probability) * tail / density
        x += step
        # Coarser than the arithmetic: `evaluate` asks again with more digits.
        if abs(step) <= (1 + x) * mp.eps * 1024:
            return x
    msg = "the normal quantile did not converge"
    raise UnsettledBound(msg, name="bound")


@lru_cache(maxsize=4096)
def renyi(cost: Cost, order: Fraction) -> Fraction:
    """Return an upper bound on the Renyi divergence of one order, in both directions.

    Source: Mironov 2017 (arXiv 1702.07476v3) Table II for Gaussian, Laplace and
    randomized response; the last is the worst (epsilon, 0)-DP mechanism at every
    order. zCDP: order * rho, by definition.

    Assumes: order > 1; the declared sensitivity holds in the norm of the mechanism.

    Rounding: up by a relative 1e-30; exact for Gaussian and zCDP.

    Checked by: tests/accounting/curves/test_prices.py.

    Args:
        cost: What the step does.
        order: The order of the divergence, above 1.

    Raises:
        UnsupportedCost: For a step with a delta of its own.
    """
    return renyi_divergence(cost, order)


@singledispatch
def renyi_divergence(cost: Cost, order: Fraction) -> Fraction:
    """Return the same, computed anew: the prices of each cost register here."""
    raise refuse(cost, f"Renyi DP of order {float(order):g}", _HINTS["rdp"])


@renyi_divergence.register
def _(
    cost: Gaussian | DiscreteGaussian | GaussianDP | ZCDP, order: Fraction
) -> Fraction:
    """The order times its rho, which holds at every order."""
    return order * approx_zcdp(cost)[0]


@renyi_divergence.register
def _(cost: ApproxZCDP, order: Fraction) -> Fraction:
    if cost.delta:
        raise refuse(cost, f"Renyi DP of order {float(order):g}", _HINTS["rdp"])
    return order * cost.rho


@renyi_divergence.register
def _(cost: RenyiDP, order: Fraction) -> Fraction:
    if order > cost.order:
        hint = f"Its bound is of order {float(cost.order):g}; use at most that order."
        raise refuse(cost, f"Renyi DP of order {float(order):g}", hint)
    return cost.epsilon


@renyi_divergence.register
def _(cost: RenyiCurve, order: Fraction) -> Fraction:
    curve = dict(cost.curve)
    if order not in curve:
        hint = "Add this order to the curve, or name its orders in the filter rdp."
        raise refuse(cost, f"Renyi DP of order {float(order):g}", hint)
    return curve[order]


@renyi_divergence.register
def _(cost: PureDP, order: Fraction) -> Fraction:
    return _pure_renyi(cost.epsilon, order)


@renyi_divergence.register
def _(cost: ApproxDP | ProbabilisticDP, order: Fraction) -> Fraction:
    if cost.delta:
        raise refuse(cost, f"Renyi DP of order {float(order):g}", _HINTS["rdp"])
    return _pure_renyi(cost.epsilon, order)


def _pure_renyi(epsilon: Fraction, order: Fraction) -> Fraction:
    def value(mp: Any) -> Any:
        alpha, eps = to_real(mp, order), to_real(mp, epsilon)
        # log of p^a q^(1-a) + q^a p^(1-a) with p = 1/(1+e^-eps), q = p e^-eps.
        terms = mp.exp((alpha - 1) * eps) + mp.exp(-alpha * eps)
        return (mp.log(terms) - mp.log1p(mp.exp(-eps))) / (alpha - 1)

    return min(bound_above(value), epsilon)


@renyi_divergence.register
def _(cost: Laplace, order: Fraction) -> Fraction:
    epsilon = cost.sensitivity / cost.scale

    def value(mp: Any) -> Any:
        alpha, eps = to_real(mp, order), to_real(mp, epsilon)
        weight = 2 * alpha - 1
        terms = alpha * mp.exp((alpha - 1) * eps) + (alpha - 1) * mp.exp(-alpha * eps)
        return mp.log(terms / weight) / (alpha - 1)

    return min(bound_above(value), epsilon)


def loss_unbounded(cost: Cost, theorem: str) -> UnsupportedCost:
    """Make the error for a step that states no bound on its loss."""
    msg = (
        f"{cost!r} states no bound on the loss itself, which this odometer reads; "
        "the delta of an (epsilon, delta)-DP step does not bound the loss. Declare "
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
