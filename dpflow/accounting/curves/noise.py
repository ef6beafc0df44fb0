"""What mechanisms that add noise cost in each notion of privacy."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    PoissonSampledGaussian,
    RandomizedResponse,
)
from dpflow.accounting.costs.refined import LaplaceDraws
from dpflow.accounting.curves.prices import (
    approx_zcdp,
    gdp_mu_squared,
    pure_mu_squared,
    refuse,
    renyi_divergence,
)
from dpflow.accounting.curves.responses import (
    discrete_laplace_mu_squared,
    discrete_laplace_rho,
    response_mu_squared,
    response_rho,
)
from dpflow.accounting.curves.sampled_gaussian import _bound_total
from dpflow.rounding import bound_above, to_real

_SAMPLED_HINT = (
    "Use filter: rdp, which prices sampling. For a price without sampling, "
    "declare Gaussian(sensitivity=1, noise_multiplier=...)."
)


@approx_zcdp.register
def _(cost: DiscreteLaplace) -> tuple[Fraction, Fraction]:
    """Its mean loss: derivations/notions.md#discrete-laplace-to-zcdp."""
    return discrete_laplace_rho(cost.sensitivity, cost.scale), Fraction(0)


@approx_zcdp.register
def _(cost: RandomizedResponse) -> tuple[Fraction, Fraction]:
    """Its worst order: derivations/notions.md#response-to-zcdp."""
    return response_rho(cost.epsilon, cost.categories), Fraction(0)


@approx_zcdp.register
def _(cost: ExponentialMechanism) -> tuple[Fraction, Fraction]:
    """Mean loss (arXiv 2510.25746): derivations/notions.md#range-to-zcdp."""
    return _range_rho(cost.epsilon), Fraction(0)


@lru_cache(maxsize=4096)
def _range_rho(epsilon: Fraction) -> Fraction:
    def value(mp: Any) -> Any:
        half = to_real(mp, epsilon) / 2
        return mp.log(mp.sinh(half) / half) + half * mp.coth(half) - 1

    # Cesar, Rogers 2021 (arXiv 2004.07223v3) Cor. 9.
    return min(bound_above(value), epsilon**2 / 8)


@approx_zcdp.register
def _(cost: LaplaceDraws) -> tuple[Fraction, Fraction]:
    """That of the finest draw: derivations/accuracy.md#refined-laplace."""
    return approx_zcdp(cost.finest)


@gdp_mu_squared.register
def _(cost: LaplaceDraws) -> Fraction:
    """That of the finest draw: derivations/accuracy.md#refined-laplace."""
    return gdp_mu_squared(cost.finest)


@approx_zcdp.register
def _(cost: PoissonSampledGaussian) -> tuple[Fraction, Fraction]:
    """Refused: no rho is smaller than the unsampled one at large orders."""
    raise refuse(cost, "zCDP", _SAMPLED_HINT)


@gdp_mu_squared.register
def _(cost: DiscreteLaplace) -> Fraction:
    """The middle test: derivations/notions.md#discrete-laplace-to-gdp."""
    return discrete_laplace_mu_squared(cost.sensitivity, cost.scale)


@gdp_mu_squared.register
def _(cost: RandomizedResponse) -> Fraction:
    """Its one corner: derivations/notions.md#response-to-gdp."""
    return response_mu_squared(cost.epsilon, cost.categories)


@gdp_mu_squared.register
def _(cost: ExponentialMechanism) -> Fraction:
    """Return the mu**2 of an (epsilon / 2, 0)-DP step.

    Let the loss lie in [t - eta, t]. The pair of two-point distributions with losses
    t and t - eta dominates it (its likelihood ratio is a mean-preserving spread), has
    p = P(t), q = Q(t) with logit(p) - logit(q) = eta, and is mu-GDP for mu =
    quantile(p) - quantile(q). logit of the normal distribution function is odd and
    convex right of zero, so mu is largest where p = 1 - q: at the randomized response
    of eta / 2.
    """
    return pure_mu_squared(cost.epsilon / 2)


@gdp_mu_squared.register
def _(cost: DiscreteGaussian) -> Fraction:
    """Refuse the cost: there is no proof of a mu."""
    hint = "Its mu has not been proved; use filter: zcdp or filter: rdp."
    raise refuse(cost, "Gaussian DP", hint)


@gdp_mu_squared.register
def _(cost: PoissonSampledGaussian) -> Fraction:
    """Refused: the CLT is optimistic (docs/derivations/notions.md#sampled-gaussian)."""
    raise refuse(cost, "Gaussian DP", _SAMPLED_HINT)


@renyi_divergence.register
def _(cost: DiscreteLaplace, order: Fraction) -> Fraction:
    """Exact sum over the whole numbers.

    For a shift by D it is A u**D + B v**D with u = exp((order - 1) / scale), v =
    exp(-order / scale) and A, B > 0, A + B = 1. Its logarithm is convex in D and zero
    at 0, so a vector costs most where its whole L1 sensitivity is in one coordinate.
    """
    shift, scale = cost.sensitivity, cost.scale

    def value(mp: Any) -> Any:
        alpha, rate = to_real(mp, order), to_real(mp, 1 / scale)
        decay, steep = mp.exp(-rate), -mp.expm1((1 - 2 * alpha) * rate)
        # 1 - decay over 1 - exp((1 - 2 alpha) rate): the weight inside the shift.
        inner = -mp.expm1(-rate) / steep
        first = (1 + inner * (1 - steep)) / (1 + decay)
        second = (1 - inner) / (1 + decay)
        loss = to_real(mp, shift) * rate
        # first + second = 1, so the sum less one has no large terms to cancel.
        excess = first * mp.expm1((alpha - 1) * loss) + second * mp.expm1(-alpha * loss)
        return mp.log1p(excess) / (alpha - 1)

    return min(bound_above(value), shift / scale)


@renyi_divergence.register
def _(cost: RandomizedResponse, order: Fraction) -> Fraction:
    """Mironov 2017 (arXiv 1702.07476v3) Prop. 5, for any number of categories."""
    epsilon, categories = cost.epsilon, cost.categories

    def value(mp: Any) -> Any:
        alpha, eps = to_real(mp, order), to_real(mp, epsilon)
        other = 1 / (mp.exp(eps) + (categories - 1))
        # Less the same sum at order one, which is 1: expm1 keeps the digits.
        excess = mp.exp(eps) * mp.expm1((alpha - 1) * eps) + mp.expm1((1 - alpha) * eps)
        return mp.log1p(excess * other) / (alpha - 1)

    return min(bound_above(value), epsilon)


@renyi_divergence.register
def _(cost: ExponentialMechanism, order: Fraction) -> Fraction:
    """Worst loss of range epsilon: Dong, Durfee, Rogers 2020 (arXiv 1909.13830).

    As in the price in Gaussian DP, two-point distributions with losses t and t - eta
    are worst, where eta = epsilon; their maximum over t is exact. With s =
    exp(t), the moment is (A s**(order-1) - B s**order) / (exp(eta) - 1), where A =
    exp(eta) - exp(-(order-1) eta) and B = 1 - exp(-(order-1) eta); it is largest at
    s = (order-1) A / (order B). Never above order eta**2 / 8 (Cesar, Rogers 2021).
    """
    epsilon = cost.epsilon

    def value(mp: Any) -> Any:
        alpha, eta = to_real(mp, order), to_real(mp, epsilon)
        upper = mp.exp(eta) * -mp.expm1(-alpha * eta)
        lower = -mp.expm1((1 - alpha) * eta)
        best = mp.log((alpha - 1) * upper / (alpha * lower))
        return mp.log(upper / (alpha * mp.expm1(eta))) / (alpha - 1) + best

    return min(bound_above(value), epsilon, order * epsilon**2 / 8)


@renyi_divergence.register
def _(cost: PoissonSampledGaussian, order: Fraction) -> Fraction:
    """Mironov, Talwar, Zhang 2019 (arXiv 1908.10530v1) Sec. 3.3, at whole orders.

    Between them a trapezoid rule with a bound on its error (`sampled_fractional`), or
    the chord if that is less: (order - 1) times the divergence is convex in the order
    and zero at order 1. The mixture against the base is the worse direction (Thm 5).
    """
    rate, noise = cost.sampling_rate, cost.noise_multiplier
    plain = Gaussian(sensitivity=1, noise_multiplier=noise)
    if rate == 1:
        return renyi_divergence(plain, order)
    total = _bound_total(order, rate, noise)
    # Sampling never costs more than no sampling.
    return min(total / (order - 1), renyi_divergence(plain, order))
