"""Mechanisms described by their parameters: prices against independent sums."""

from __future__ import annotations

import json
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    RandomizedResponse,
)
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.curves.conversions import gaussian_delta
from dpflow.accounting.curves.notions import probabilistic_dp
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    renyi,
)
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.sizes import scaled

MP = mpmath.mp.clone()
MP.dps = 120
ZERO = Fraction(0)


def real(value: Fraction | int):
    """Return an exact number in 120-digit arithmetic."""
    return MP.mpf(Fraction(value).numerator) / Fraction(value).denominator


def powers(low: int, high: int) -> st.SearchStrategy[Fraction]:
    """Draw a decimal with four digits between two powers of ten."""
    return st.builds(
        lambda digits, exponent: Fraction(digits, 1000) * Fraction(10) ** exponent,
        st.integers(1000, 9999),
        st.integers(low, high - 1),
    )


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


VECTORS = {
    (".01", "1"): {
        2: "0.000171813422074547930990657278983",
        4: "0.000363154048910756718563921751041",
        8: "0.000893643907606031847345140480713",
        16: "3.08785078369624459372360157873",
        32: "11.2462759370480688354082125437",
    },
    (".1", "2"): {
        2: "0.00283622826626362231165520133576",
        8: "0.0137254301032199179180404316035",
        16: "0.0452918390836219587637666075258",
        32: "1.62720230101943583347150067265",
    },
    (".02", "1.1"): {
        4: "0.00110742229132708712990314779913",
        8: "0.00287703754946319454841440435793",
        32: "9.18492320031988794769182565419",
    },
}


def test_sampled_gaussian_vectors():
    """The vectors of the theorem sheet, to 24 digits."""
    for (rate, noise), table in VECTORS.items():
        cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
        for order, text in table.items():
            price = real(renyi(cost, Fraction(order)))
            assert abs(price / MP.mpf(text) - 1) < MP.mpf("1e-12")


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


@pytest.mark.parametrize(
    ("rate", "noise", "order"),
    [("0.01", "2", 1500), ("0.01", "0.5", 1500), ("0.001", "300", 3000)],
)
def test_sampled_gaussian_may_stop_summing(rate, noise, order):
    """The sums that stop early, from either end, still match the whole sum."""
    cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
    truth = sampled_sum(Fraction(rate), Fraction(noise), order)
    assert_just_above(truth, renyi(cost, Fraction(order)))


def sampled_integral(rate: str, noise: str, order: str, *, reverse: bool = False):
    """Return the divergence of any order by quadrature to 25 digits."""
    with MP.workdps(30):
        q, s, a = map(MP.mpf, (rate, noise, order))

        def ratio(x):
            return (1 - q) + q * MP.exp((2 * x - 1) / (2 * s * s))

        power = 1 - a if reverse else a
        cuts = sorted({-14 * s, -3 * s, MP.mpf(0), a / 2, a, a + 4 * s, a + 14 * s})
        moment = MP.quad(lambda x: MP.npdf(x, 0, s) * ratio(x) ** power, cuts)
        return MP.log(moment) / (a - 1)


FRACTIONAL = [
    ("0.01", "2", "6.5"),
    ("0.01", "1", "3.5"),
    ("0.01", "1", "8.5"),
    ("0.1", "2", "2.5"),
    ("0.5", "1", "1.01"),
    ("0.001", "0.5", "3.5"),
]


@pytest.mark.parametrize(("rate", "noise", "order"), FRACTIONAL)
def test_sampled_gaussian_between_whole_orders(rate, noise, order):
    """Never below the integral, and within 1e-12 of it."""
    cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
    price = real(renyi(cost, Fraction(order)))
    truth = sampled_integral(rate, noise, order)
    assert truth <= price <= truth * (1 + MP.mpf("1e-12"))


@pytest.mark.parametrize(("rate", "noise", "order"), FRACTIONAL[:4])
def test_the_mixture_against_the_base_is_the_worse_direction(rate, noise, order):
    """The other order of the two distributions diverges less."""
    reverse = sampled_integral(rate, noise, order, reverse=True)
    assert reverse < sampled_integral(rate, noise, order)


def test_sampling_everybody_or_nearly_is_the_gaussian():
    """Rate 1 is the plain Gaussian; no rate costs more than it."""
    plain = Gaussian(sensitivity=1, noise_multiplier=3)
    for order in (Fraction("1.0001"), Fraction(2), Fraction("7.3"), Fraction(400)):
        every = PoissonSampledGaussian(sampling_rate=1, noise_multiplier=3)
        nearly = PoissonSampledGaussian(sampling_rate="0.999", noise_multiplier=3)
        assert renyi(plain, order) == renyi(every, order)
        assert renyi(nearly, order) <= renyi(plain, order)


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


def test_discrete_laplace_costs_most_in_one_coordinate():
    """The divergence of a shift is superadditive: splitting it never costs more."""
    for order in (Fraction("1.5"), Fraction(8), Fraction(200)):
        price = [
            renyi(DiscreteLaplace(sensitivity=n, scale=7), order) for n in range(1, 13)
        ]
        for first in range(1, 12):
            for second in range(1, 13 - first):
                assert price[first - 1] + price[second - 1] <= price[
                    first + second - 1
                ] * (1 + Fraction(1, 10**25))


def test_discrete_laplace_lies_between_its_relatives():
    """At sensitivity 1 it is randomized response; far above, continuous Laplace."""
    order = Fraction(8)
    pure = renyi(PureDP(epsilon="0.1"), order)
    continuous = renyi(Laplace(sensitivity=1, epsilon="0.1"), order)
    one = renyi(DiscreteLaplace(sensitivity=1, epsilon="0.1"), order)
    many = renyi(DiscreteLaplace(sensitivity=10**6, epsilon="0.1"), order)
    assert float(pure) == float(one)
    assert float(continuous) == pytest.approx(float(many), rel=1e-9)
    assert continuous < many < one


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


def test_two_categories_are_the_worst_pure_mechanism():
    """Randomized response of two costs what any (epsilon, 0)-DP step costs."""
    two, any_step = RandomizedResponse(epsilon="0.7"), PureDP(epsilon="0.7")
    order = Fraction("3.7")
    assert float(renyi(any_step, order)) == float(renyi(two, order))
    assert approx_dp(any_step) == approx_dp(two)
    assert approx_zcdp(any_step) == approx_zcdp(two)
    assert gdp_mu_squared(any_step) == gdp_mu_squared(two)


def test_truth_becomes_epsilon_rounded_up():
    """Three in four true answers of two, and of four."""
    two = RandomizedResponse(truth="0.75")
    four = RandomizedResponse(truth="0.75", categories=4)
    for cost, odds in ((two, 3), (four, 9)):
        assert 0 < real(cost.epsilon) - MP.log(odds) < MP.mpf("1e-29")
        assert cost == cost_from_description(cost.describe())


@pytest.mark.parametrize(
    "cost",
    [
        DiscreteGaussian(sensitivity=10**12, noise_multiplier=2000),
        DiscreteGaussian(sensitivity=10**15, noise_multiplier=10**9),
        DiscreteGaussian(sensitivity="1e-15", noise_multiplier="1e-6"),
        DiscreteLaplace(sensitivity=10**12, epsilon="1e-6"),
        DiscreteLaplace(sensitivity=10**15, epsilon="1e-9"),
        DiscreteLaplace(sensitivity=1, epsilon=10**4),
    ],
    ids=repr,
)
def test_a_cost_at_the_edge_survives_the_journal(cost):
    """What could be said as a multiple or an epsilon is read back as its spread."""
    assert cost == cost_from_description(json.loads(json.dumps(cost.describe())))


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


PURE = [
    DiscreteLaplace(sensitivity=3, scale=30),
    RandomizedResponse(epsilon="0.1", categories=5),
    ExponentialMechanism(epsilon="0.1"),
]


@pytest.mark.parametrize("cost", PURE)
def test_pure_mechanisms_have_every_price(cost):
    """No price is above that of an arbitrary step of the same epsilon."""
    any_step = PureDP(epsilon="0.1")
    order = Fraction(6)
    assert (Fraction("0.1"), ZERO) == approx_dp(cost) == probabilistic_dp(cost)
    assert approx_zcdp(cost) <= approx_zcdp(any_step)
    assert gdp_mu_squared(cost) <= gdp_mu_squared(any_step)
    assert renyi(cost, order) <= renyi(any_step, order) * (1 + Fraction(1, 10**25))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DiscreteLaplace(sensitivity="0.5", scale=1),
        lambda: DiscreteLaplace(sensitivity=1),
        lambda: DiscreteLaplace(sensitivity=1, scale=1, epsilon=1),
        lambda: DiscreteGaussian(sensitivity=1, sigma=float("nan")),
        lambda: RandomizedResponse(truth="0.5"),
        lambda: RandomizedResponse(truth=1),
        lambda: RandomizedResponse(epsilon=1, categories=1),
        lambda: RandomizedResponse(epsilon=1, categories="2.5"),
        RandomizedResponse,
        lambda: ExponentialMechanism(epsilon=0),
        lambda: ExponentialMechanism(epsilon=True),
        lambda: PoissonSampledGaussian(sampling_rate=0, noise_multiplier=1),
        lambda: PoissonSampledGaussian(sampling_rate="1.01", noise_multiplier=1),
        lambda: PoissonSampledGaussian(sampling_rate="0.1", noise_multiplier=-1),
    ],
)
def test_numbers_that_make_no_mechanism(make):
    """Refused when the cost is made, with the number in the message."""
    with pytest.raises(InvalidCost):
        make()


FILTERS = ["basic", "rogers", "whitehouse", "gdp", "zcdp", "auto"]
ODOMETERS = {"basic": {}, "rogers": {"beta": 1}, "mixture": {"rho": 1}}
ODOMETERS |= {"stitched": {"v0": 1}, "rdp": {"order": 8}}


@pytest.mark.parametrize("scale", ["1e-6", "1e-5", "9e-5", "1e-4"])
def test_discrete_laplace_has_a_price_where_laplace_has(scale: str) -> None:
    """Under every rule; an epsilon above 10,000 is a price like any other."""
    made = [make_filter(name, epsilon=1, delta="1e-6") for name in FILTERS]
    made += [
        make_odometer(name, delta="1e-6", **options)
        for name, options in ODOMETERS.items()
    ]
    for rule in made:
        smooth = rule.price(Laplace(sensitivity=10**6, scale=10**6 * Fraction(scale)))
        whole = rule.price(
            DiscreteLaplace(sensitivity=10**6, scale=10**6 * Fraction(scale))
        )
        for one, other in zip(smooth.amounts, whole.amounts, strict=True):
            assert one <= other * (1 + Fraction(1, 10**3))
            assert other <= one * (1 + Fraction(1, 10**3))
