"""Mechanisms described by their parameters: prices against independent sums."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    PoissonSampledGaussian,
    RandomizedResponse,
)
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.curves.conversions import gaussian_delta
from dpflow.accounting.curves.prices import approx_zcdp, gdp_mu_squared, renyi
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.accounting.oracle import arithmetic, powers
from tests.sizes import scaled

MP, real = arithmetic(120)

ZERO = Fraction(0)


EPSILONS = powers(-9, 3)
ORDERS = st.one_of(powers(0, 6).filter(lambda a: a > 1), st.just(Fraction("1.0001")))


def assert_just_above(truth, price: Fraction, *, cap: Fraction | None = None):
    """Assert that a price is never below the truth, and within 1e-9 of it."""
    bound = real(price)
    assert truth * (1 - MP.mpf("1e-60")) <= bound
    if cap is None or price < cap:
        assert bound <= truth * (1 + MP.mpf("1e-9"))


def moments(losses, order: Fraction):
    """Return the divergence of (probability, loss) pairs, loss being log P/Q."""
    total = MP.fsum(p * MP.exp((real(order) - 1) * loss) for p, loss in losses)
    return MP.log(total) / (real(order) - 1)


def sampled_sum(rate: Fraction, noise: Fraction, order: int):
    """Return the divergence of whole order as the plain binomial sum."""
    q, s = real(rate), real(noise)
    terms = (
        MP.binomial(order, k)
        * (1 - q) ** (order - k)
        * q**k
        * MP.exp((k * k - k) / (2 * s * s))
        for k in range(order + 1)
    )
    return MP.log(MP.fsum(terms)) / (order - 1)


@settings(max_examples=scaled(12), deadline=None)
@given(rate=powers(-6, 0), noise=powers(-3, 6), order=st.integers(2, 90))
def test_sampled_gaussian_is_exact_at_whole_orders(rate, noise, order):
    """Within 1e-30 of the binomial sum, and never below it."""
    cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
    assert_just_above(sampled_sum(rate, noise, order), renyi(cost, Fraction(order)))


@settings(max_examples=scaled(8), deadline=None)
@given(shift=st.integers(1, 30), rate=powers(-6, 2), order=ORDERS)
def test_discrete_laplace_is_the_sum_over_the_whole_numbers(shift, rate, order):
    """Tails in closed form, the middle term by term."""
    cost = DiscreteLaplace(sensitivity=shift, scale=1 / rate)
    t = real(rate)
    decay = MP.exp(-t)
    weight = (1 - decay) / (1 + decay)
    losses = [(1 / (1 + decay), shift * t), (decay**shift / (1 + decay), -shift * t)]
    losses += [(weight * decay**x, (shift - 2 * x) * t) for x in range(1, shift)]
    assert abs(MP.fsum(p for p, _ in losses) - 1) < MP.mpf("1e-100")
    assert_just_above(moments(losses, order), renyi(cost, order), cap=shift * rate)


@settings(max_examples=scaled(8), deadline=None)
@given(epsilon=EPSILONS, categories=st.integers(2, 10**6), order=ORDERS)
def test_randomized_response_of_many_categories(epsilon, categories, order):
    """The exact sum over the categories."""
    other = 1 / (MP.exp(real(epsilon)) + categories - 1)
    loss = real(epsilon)
    losses = [
        (MP.exp(loss) * other, loss),
        (other, -loss),
        ((categories - 2) * other, MP.mpf(0)),
    ]
    cost = RandomizedResponse(epsilon=epsilon, categories=categories)
    assert_just_above(moments(losses, order), renyi(cost, order), cap=epsilon)


def two_point(eta: Fraction, t):
    """Return (P, Q) of the first of two points with losses t and t - eta."""
    p = (MP.exp(real(eta)) - MP.exp(t)) / MP.expm1(real(eta))
    return p, p * MP.exp(-t)


@settings(max_examples=scaled(8), deadline=None)
@given(epsilon=EPSILONS, order=ORDERS, part=st.integers(1, 99))
def test_exponential_mechanism_bounds_every_loss_of_its_range(epsilon, order, part):
    """No two-point distribution with that range diverges more."""
    t = real(epsilon) * part / 100
    p, _ = two_point(epsilon, t)
    losses = [(p, t), (1 - p, t - real(epsilon))]
    truth = moments(losses, order)
    price = real(renyi(ExponentialMechanism(epsilon=epsilon), order))
    assert truth * (1 - MP.mpf("1e-60")) <= price
    assert price <= real(order * epsilon**2 / 8)
    assert price <= real(epsilon)


@settings(max_examples=scaled(6), deadline=None)
@given(epsilon=EPSILONS, order=ORDERS)
def test_exponential_mechanism_is_attained(epsilon, order):
    """The worst two-point distribution, found by golden section, costs the price."""
    eta = real(epsilon)
    golden = (MP.sqrt(5) - 1) / 2

    def at(t):
        p, _ = two_point(epsilon, t)
        return moments([(p, t), (1 - p, t - eta)], order)

    low, high = MP.mpf(0), eta
    for _ in range(120):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (left, high) if at(left) < at(right) else (low, right)
    price = renyi(ExponentialMechanism(epsilon=epsilon), order)
    assert_just_above(at((low + high) / 2), price)


@pytest.mark.parametrize("epsilon", ["0.001", "0.1", "1", "5"])
def test_exponential_mechanism_in_gaussian_dp(epsilon):
    """At every budget its delta is at most the Gaussian's; at one the mu is needed."""
    eta = Fraction(epsilon)
    mu_squared = gdp_mu_squared(ExponentialMechanism(epsilon=eta))
    assert gdp_mu_squared(PureDP(epsilon=eta / 2)) == mu_squared

    def quantile(p):
        return MP.findroot(lambda x: MP.ncdf(x) - p, 0) if 0 < p < 1 else None

    with MP.workdps(30):
        mu = MP.sqrt(real(mu_squared))
        needed = []
        for part in range(1, 40):
            p, q = two_point(eta, real(eta) * part / 40)
            needed.append(quantile(p) - quantile(q))
        assert max(needed) == needed[19]
        assert needed[19] <= mu * (1 + MP.mpf("1e-25"))
        assert mu <= needed[19] * (1 + MP.mpf("1e-9"))
    upper = Fraction(float(mu)) * Fraction("1.000000000001")
    for part in (5, 20, 35):
        p, q = two_point(eta, real(eta) * part / 40)
        for share in (Fraction(1, 100), Fraction(1, 4), Fraction(45, 100)):
            delta = p - MP.exp(real(share * eta)) * q
            assert delta <= real(gaussian_delta(share * eta, upper))


def test_discrete_gaussian_prices():
    """The vector of the sheet is below the price; there is no Gaussian-DP price."""
    cost = DiscreteGaussian(sensitivity=1, sigma="0.5")
    assert Fraction(5) == renyi(cost, Fraction("2.5"))
    assert (Fraction(2), ZERO) == approx_zcdp(cost)
    terms = range(-60, 61)
    total = MP.fsum(MP.exp(-2 * MP.mpf(x) ** 2) for x in terms)
    losses = [(MP.exp(-2 * MP.mpf(x) ** 2) / total, MP.mpf(2 - 4 * x)) for x in terms]
    assert float(moments(losses, Fraction("2.5"))) == pytest.approx(4.98082032)
    with pytest.raises(UnsupportedCost, match="zcdp or filter: rdp"):
        gdp_mu_squared(cost)


def test_numbers_that_make_no_mechanism():
    """Refused when the cost is made, with the number in the message."""
    for kind, numbers in (
        (DiscreteLaplace, {"sensitivity": "0.5", "scale": 1}),
        (DiscreteLaplace, {"sensitivity": 1}),
        (DiscreteLaplace, {"sensitivity": 1, "scale": 1, "epsilon": 1}),
        (DiscreteGaussian, {"sensitivity": 1, "sigma": float("nan")}),
        (RandomizedResponse, {"truth": "0.5"}),
        (RandomizedResponse, {"truth": 1}),
        (RandomizedResponse, {"epsilon": 1, "categories": "2.5"}),
        (RandomizedResponse, {}),
        (ExponentialMechanism, {"epsilon": True}),
        (PoissonSampledGaussian, {"sampling_rate": "1.01", "noise_multiplier": 1}),
        (PoissonSampledGaussian, {"sampling_rate": 0, "noise_multiplier": 1}),
    ):
        with pytest.raises(InvalidCost):
            kind(**numbers)
