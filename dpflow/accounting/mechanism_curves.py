"""What the mechanisms of `mechanism_costs` cost in each notion of privacy.

Importing this module registers the prices with the functions of `curves`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs import Gaussian
from dpflow.accounting.curves import (
    _renyi,
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    pure_mu_squared,
    pure_rho,
    refuse,
)
from dpflow.accounting.mechanism_costs import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    PoissonSampledGaussian,
    RandomizedResponse,
)
from dpflow.accounting.sampled_fractional import fractional_log_moment
from dpflow.rounding import bound_above, to_real

#: Sums of a sampled Gaussian's terms stop at this share of what they have.
_NEGLIGIBLE = 1e-70
_HUGE = 250.0  # in logs
_SHORT = 64

_SAMPLED_HINT = (
    "Use filter: renyi, which knows what sampling gains. To be charged without that "
    "gain, declare Gaussian(sensitivity=1, noise_multiplier=...)."
)


@approx_dp.register
def _(cost: DiscreteLaplace) -> tuple[Fraction, Fraction]:
    """Ghosh, Roughgarden, Sundararajan 2012 (arXiv 0811.2841): ratios of the pmf."""
    return cost.sensitivity / cost.scale, Fraction(0)


@approx_dp.register
def _(cost: RandomizedResponse) -> tuple[Fraction, Fraction]:
    """By definition."""
    return cost.epsilon, Fraction(0)


@approx_dp.register
def _(cost: ExponentialMechanism) -> tuple[Fraction, Fraction]:
    """McSherry, Talwar 2007, Thm 6."""
    return cost.epsilon, Fraction(0)


@approx_zcdp.register
def _(cost: DiscreteLaplace) -> tuple[Fraction, Fraction]:
    """As (epsilon, 0)-DP, which is exact at sensitivity 1."""
    return pure_rho(cost.sensitivity / cost.scale), Fraction(0)


@approx_zcdp.register
def _(cost: RandomizedResponse) -> tuple[Fraction, Fraction]:
    """As (epsilon, 0)-DP, which is exact with two categories."""
    return pure_rho(cost.epsilon), Fraction(0)


@approx_zcdp.register
def _(cost: ExponentialMechanism) -> tuple[Fraction, Fraction]:
    """Cesar, Rogers 2021 (arXiv 2004.07223v3) Cor. 9: a loss of range epsilon."""
    return cost.epsilon**2 / 8, Fraction(0)


@approx_zcdp.register
def _(cost: DiscreteGaussian) -> tuple[Fraction, Fraction]:
    """Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v2) Thm 4."""
    return (cost.sensitivity / cost.sigma) ** 2 / 2, Fraction(0)


@approx_zcdp.register
def _(cost: PoissonSampledGaussian) -> tuple[Fraction, Fraction]:
    """Refused: no rho is smaller than the unsampled one at large orders."""
    raise refuse(cost, "zCDP", _SAMPLED_HINT)


@gdp_mu_squared.register
def _(cost: DiscreteLaplace) -> Fraction:
    """As (epsilon, 0)-DP."""
    return pure_mu_squared(cost.sensitivity / cost.scale)


@gdp_mu_squared.register
def _(cost: RandomizedResponse) -> Fraction:
    """As (epsilon, 0)-DP, which is exact with two categories."""
    return pure_mu_squared(cost.epsilon)


@gdp_mu_squared.register
def _(cost: ExponentialMechanism) -> Fraction:
    """As an (epsilon / 2, 0)-DP step: derived below.

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
    """Refused: nobody has proved one."""
    hint = "Its mu has not been proved; use filter: concentrated or filter: renyi."
    raise refuse(cost, "Gaussian DP", hint)


@gdp_mu_squared.register
def _(cost: PoissonSampledGaussian) -> Fraction:
    """Refused: the CLT is optimistic (docs/derivations/notions.md#sampled-gaussian)."""
    raise refuse(cost, "Gaussian DP", _SAMPLED_HINT)


@_renyi.register
def _(cost: DiscreteGaussian, order: Fraction) -> Fraction:
    """Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v2) Prop. 5."""
    return order * (cost.sensitivity / cost.sigma) ** 2 / 2


@_renyi.register
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
        whole = to_real(mp, shift) * rate
        # first + second = 1, so the sum less one has no large terms to cancel.
        rest = first * mp.expm1((alpha - 1) * whole) + second * mp.expm1(-alpha * whole)
        return mp.log1p(rest) / (alpha - 1)

    return min(bound_above(value), shift / scale)


@_renyi.register
def _(cost: RandomizedResponse, order: Fraction) -> Fraction:
    """Mironov 2017 (arXiv 1702.07476v3) Prop. 5, for any number of categories."""
    epsilon, categories = cost.epsilon, cost.categories

    def value(mp: Any) -> Any:
        alpha, eps = to_real(mp, order), to_real(mp, epsilon)
        other = 1 / (mp.exp(eps) + (categories - 1))
        # Less the same sum at order one, which is 1: expm1 keeps the digits.
        rest = mp.exp(eps) * mp.expm1((alpha - 1) * eps) + mp.expm1((1 - alpha) * eps)
        return mp.log1p(rest * other) / (alpha - 1)

    return min(bound_above(value), epsilon)


@_renyi.register
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


@_renyi.register
def _(cost: PoissonSampledGaussian, order: Fraction) -> Fraction:
    """Mironov, Talwar, Zhang 2019 (arXiv 1908.10530v1) Sec. 3.3, at whole orders.

    Between them a trapezoid rule with a bound on its error (`sampled_fractional`), or
    the chord if that is less: (order - 1) times the divergence is convex in the order
    and zero at order 1. The mixture against the base is the worse direction (Thm 5).
    """
    rate, noise = cost.sampling_rate, cost.noise_multiplier
    plain = Gaussian(sensitivity=1, noise_multiplier=noise)
    if rate == 1:
        return _renyi(plain, order)
    total = _sampled_total(order, rate, noise)
    # Sampling never costs more than no sampling.
    return min(total / (order - 1), _renyi(plain, order))


def _sampled_total(order: Fraction, rate: Fraction, noise: Fraction) -> Fraction:
    """Return (order - 1) times the divergence at any order above 1, up."""
    low = math.floor(order)
    if order == low:
        return _sampled_log_moment(low, rate, noise)
    rule = fractional_log_moment(order, rate, noise)
    # Long sums take seconds, and their chord gains nothing on the rule.
    if rule is not None and order > _SHORT:
        return rule
    below = _sampled_log_moment(low, rate, noise) if low > 1 else Fraction(0)
    above = _sampled_log_moment(low + 1, rate, noise)
    chord = (low + 1 - order) * below + (order - low) * above
    return chord if rule is None else min(chord, rule)


@lru_cache(maxsize=1024)
def _sampled_log_moment(order: int, rate: Fraction, noise: Fraction) -> Fraction:
    """Return (order - 1) times the divergence at a whole order of at least 2, up."""
    # The last term alone; where it is huge, few terms beside it count.
    last = order * math.log(rate) + order * (order - 1) / float(2 * noise**2)
    terms = _sampled_from_top if last > _HUGE else _sampled_from_mode
    return bound_above(lambda mp: terms(mp, order, rate, noise))


def _sampled_from_mode(mp: Any, order: int, rate: Fraction, noise: Fraction) -> Any:
    """Sum C(order, k) (1-q)^(order-k) q^k (exp((k^2-k)/2s^2) - 1), and take log1p.

    Without the "- 1" the weights sum to one, so nothing but small terms is added. The
    sum starts where the weights are largest and goes up, then down; each way it stops
    where a geometric series bounds the rest by nearly nothing, which it adds.
    """
    odds = to_real(mp, rate / (1 - rate))
    inverse = to_real(mp, 1 / noise**2)
    growth = mp.exp(inverse)
    mode = max(math.floor(rate * (order + 1)), 1)
    at_mode = to_real(mp, rate) ** mode * to_real(mp, 1 - rate) ** (order - mode)
    at_mode *= mp.binomial(order, mode)
    power_at_mode = mp.exp(mode * (mode - 1) * inverse / 2)

    total, k = mp.mpf(0), mode
    weight, power, step = at_mode, power_at_mode, growth**mode
    while k <= order:
        total += weight * (power - 1)
        if weight * power <= total * _NEGLIGIBLE:
            # Each later term is below this share of the one before.
            ratio = odds * (order - k) / (k + 1) * mp.exp((order + k) * inverse / 2)
            if 2 * ratio <= 1:
                total += weight * power
                break
        weight = weight * odds * (order - k) / (k + 1)
        power, step, k = power * step, step * growth, k + 1

    weight, power, step = at_mode, power_at_mode, growth ** (1 - mode)
    for k in range(mode, 1, -1):
        weight = weight * k / (odds * (order - k + 1))
        power, step = power * step, step * growth
        # This is the term of k - 1; the ratio is that of the weights below it.
        total += weight * (power - 1)
        ratio = (k - 1) / (odds * (order - k + 2))
        rest = weight * power * ratio
        if ratio < 1 and rest <= total * _NEGLIGIBLE * (1 - ratio):
            total += rest / (1 - ratio)
            break
    return mp.log1p(total)


def _sampled_from_top(mp: Any, order: int, rate: Fraction, noise: Fraction) -> Any:
    """Sum the same terms, without the "- 1", from the last one down."""
    odds = to_real(mp, (1 - rate) / rate)
    inverse = to_real(mp, 1 / noise**2)
    power = mp.exp(order * (order - 1) * inverse / 2)
    shrink, step = mp.exp(inverse), mp.exp(-(order - 1) * inverse)
    term = to_real(mp, rate) ** order * power
    total = term
    for k in range(order - 1, -1, -1):
        power *= step
        # The weights sum to one: the terms up to k are below exp((k^2-k)/2s^2).
        if power <= total * _NEGLIGIBLE:
            total += power
            break
        term = term * odds * (k + 1) / (order - k) * step
        total += term
        step *= shrink
    return mp.log(total)
