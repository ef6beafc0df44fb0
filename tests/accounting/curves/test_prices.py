"""Prices and budgets against 120-digit numbers: on the safe side, and never far off.

The referee evaluates other forms of the formulas; where a number is the root of an
equation it is checked, not solved again. Soundness is shown apart from any formula, on
the exact laws of mechanisms, with a smaller price that the same comparison refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpflow import (
    ZCDP,
    ApproxDP,
    Cost,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    PureDP,
    RandomizedResponse,
)
from dpflow.accounting.curves import conversions, prices
from dpflow.accounting.curves.prices import approx_zcdp, gdp_mu_squared, renyi
from dpflow.rounding import DELTA_LOW
from tests.accounting.oracle import (
    DELTAS,
    EPSILONS,
    MP,
    ORDERS,
    Law,
    assert_just_above,
    gaussian_delta,
    maximum,
    normal_quantile,
    powers,
    range_law,
    real,
    renyi_divergence,
    response,
    sampled_divergence,
    zcdp_log_delta,
)
from tests.sizes import scaled
from tests.tables import read_costs, read_tables

CLOSE = Fraction(1, 10**9)
TABLES = read_tables(__file__)


def rho_of(cost: Cost) -> Fraction:
    """Return the rho that a step is charged."""
    rho, delta = approx_zcdp(cost)
    assert delta == 0
    return rho


# -- formulas ----------------------------------------------------------------------


@given(EPSILONS)
@example(Fraction(1, 10**12))
@example(Fraction(10**4))
def test_rho_and_mu_of_pure_and_laplace_steps(epsilon):
    """The KL divergence of the worst pair, and the mu whose curve touches a corner."""
    least = max(epsilon, Fraction(1, 10**9))  # the largest scale of Laplace noise
    pure, noise = PureDP(epsilon=epsilon), Laplace(sensitivity=7, scale=7 / least)
    e, b = real(epsilon), real(least)
    assert_just_above(rho_of(pure), e * MP.tanh(e / 2), cap=epsilon)
    assert_just_above(rho_of(noise), b + MP.expm1(-b))
    # A larger mu has the smaller tail.
    tail = lambda mu_squared: MP.erfc(MP.sqrt(real(mu_squared) / 8)) / 2
    for cost, corner in ((pure, 1 / (1 + MP.exp(e))), (noise, MP.exp(-b / 2) / 2)):
        price = gdp_mu_squared(cost)
        assert tail(price) < corner < tail(price / (1 + CLOSE))
    # Laplace noise is charged its middle test, never its cheaper Renyi rate.
    assert gdp_mu_squared(noise) > 2 * rho_of(noise)


@given(EPSILONS, ORDERS)
def test_the_divergences_anywhere(epsilon, order):
    """Pure steps cost what randomized response diverges, Laplace steps Table II."""
    pure, noise = PureDP(epsilon=epsilon), Laplace(sensitivity=1, scale=1 / epsilon)
    a, e = real(order), real(epsilon)
    truth = renyi_divergence(response(e), a)
    assert_just_above(renyi(pure, order), truth, cap=epsilon)
    # Table II of Mironov 2017.
    first = a / (2 * a - 1) * MP.exp(e * (a - 1))
    second = (a - 1) / (2 * a - 1) * MP.exp(-e * a)
    truth = MP.log(first + second) / (a - 1)
    assert_just_above(renyi(noise, order), truth, cap=epsilon)


@given(powers(-5, 3), ORDERS)
def test_what_needs_no_rounding_is_exact(value, order):
    """A Gaussian costs mu**2, half of it as rho; zCDP what it says; a delta is kept."""
    noise = Gaussian(sensitivity="0.7", sigma=value)
    squared = (Fraction("0.7") / value) ** 2
    assert gdp_mu_squared(noise) == squared
    assert approx_zcdp(noise) == (squared / 2, 0)
    assert renyi(noise, order) == order * squared / 2
    assert approx_zcdp(ZCDP(rho=value)) == (value, 0)
    assert renyi(ZCDP(rho=value), order) == order * value
    cost, delta = ApproxDP(epsilon=value, delta="1e-30"), Fraction("1e-30")
    assert prices.approx_dp(cost) == (value, delta)
    assert approx_zcdp(cost) == (rho_of(PureDP(epsilon=value)), delta)


@pytest.mark.parametrize("epsilon", ["0.01", "3"])
def test_laplace_noise_diverges_as_much_as_it_is_charged(epsilon):
    """The integral of the two densities equals the price and stays below the rho."""
    cost = Laplace(sensitivity=1, epsilon=epsilon)
    for order in ("1.0001", "2", "40"):
        with MP.workdps(40):
            e, a = real(epsilon), real(order)
            moment = MP.quad(
                lambda x, e=e, a=a: MP.exp(-a * abs(x) - (1 - a) * abs(x - e)) / 2,
                [-MP.inf, 0, e, MP.inf],
            )
            truth, price = MP.log(moment) / (a - 1), real(renyi(cost, Fraction(order)))
            assert abs(price - truth) <= price * MP.mpf("1e-20")
            assert truth <= a * real(rho_of(cost))


@settings(max_examples=scaled(12), deadline=None)
@given(rate=powers(-6, 0), noise=powers(-3, 6), order=st.integers(2, 90))
def test_sampled_gaussian_is_exact_at_whole_orders(rate, noise, order):
    """Within 1e-9 of the binomial sum, and never below it."""
    cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
    truth = sampled_divergence(order, rate, real(1 / noise**2))
    assert_just_above(renyi(cost, Fraction(order)), truth)


# -- laws --------------------------------------------------------------------------


def discrete_laplace(shift: int, decay: Any) -> Law:
    """Return the law of discrete Laplace noise, each tail in one output."""
    whole, inner = 1 / (1 + decay), (1 - decay) / (1 + decay)
    law = [(inner * decay**i, inner * decay ** (shift - i)) for i in range(1, shift)]
    return [(whole, decay**shift * whole), *law, (decay**shift * whole, whole)]


def law_of(cost: Cost) -> Law:
    """Return the exact law of a mechanism with finitely many losses."""
    if isinstance(cost, RandomizedResponse):
        return response(real(cost.epsilon), cost.categories)
    assert isinstance(cost, DiscreteLaplace)
    return discrete_laplace(int(cost.sensitivity), MP.exp(-real(1 / cost.scale)))


@settings(max_examples=scaled(12), deadline=None)
@given(
    st.one_of(
        st.builds(
            DiscreteLaplace,
            sensitivity=st.integers(1, 30),
            scale=powers(-6, 2).map(lambda rate: 1 / rate),
        ),
        st.builds(
            RandomizedResponse, epsilon=EPSILONS, categories=st.integers(2, 10**6)
        ),
    ),
    ORDERS,
)
def test_divergences_are_sums_over_the_law(cost, order):
    """Discrete Laplace noise and randomized response, over all their outputs."""
    law = law_of(cost)
    assert abs(MP.fsum(p for p, _ in law) - 1) < MP.mpf("1e-100")
    cap = max(MP.log(p / q) for p, q in law)
    truth, price = renyi_divergence(law, real(order)), renyi(cost, order)
    assert_just_above(price, truth, cap=Fraction(float(cap)) * (1 - CLOSE))


def needed_mu(law: Law) -> Any:
    """Return the mu that the best tests of a law need."""
    with MP.workdps(40):
        ordered = sorted(law, key=lambda pair: pair[0] / pair[1], reverse=True)
        needed = MP.mpf(0)
        for end in range(1, len(ordered)):
            kept, rest = ordered[:end], ordered[end:]
            p, q = MP.fsum(x for x, _ in kept), MP.fsum(x for _, x in kept)
            not_p, not_q = MP.fsum(x for x, _ in rest), MP.fsum(x for _, x in rest)
            mu = normal_quantile(p, not_p) - normal_quantile(q, not_q)
            needed = max(needed, mu)
        return needed


def needed_rho(law: Law) -> Any:
    """Return the largest divergence over its order, at orders from 1 + 1e-6 to 1e4."""
    with MP.workdps(40):

        def rate(power: Any) -> Any:
            order = 1 + MP.mpf(10) ** power
            return renyi_divergence(law, order) / order

        best = max((MP.mpf(quarter) / 4 for quarter in range(-24, 17)), key=rate)
        return max(rate(best), maximum(rate, best - 0.25, best + 0.25, steps=20))


@pytest.mark.parametrize("cost", read_costs(TABLES["finite laws"]), ids=repr)
def test_the_mu_and_rho_are_what_the_best_tests_and_orders_need(cost: Cost) -> None:
    """Every test of the exact law is within the Gaussians', one just so."""
    mu = MP.sqrt(real(gdp_mu_squared(cost)))
    needed = needed_mu(law_of(cost))
    assert needed <= mu * (1 + MP.mpf("1e-35"))
    assert mu <= needed * (1 + MP.mpf("1e-25"))
    # The control: a thousandth less of the squared mu is too little.
    assert mu * MP.sqrt(MP.mpf("0.999")) < needed
    # No order diverges more than the rho; one nearly as much.
    rho, needed = real(rho_of(cost)), needed_rho(law_of(cost))
    assert needed <= rho <= needed * (1 + MP.mpf("3e-4"))


def test_cheaper_prices_are_noticed() -> None:
    """The mean loss of many categories, and continuous noise for discrete noise."""
    many = law_of(RandomizedResponse(epsilon="0.1", categories=100))
    mean_loss = MP.fsum(p * MP.log(p / q) for p, q in many)
    assert needed_rho(many) > 5 * mean_loss
    whole = law_of(DiscreteLaplace(sensitivity=2, scale=2))
    smooth = Laplace(sensitivity=2, scale=2)
    assert needed_rho(whole) > 1.05 * real(rho_of(smooth))
    assert needed_mu(whole) ** 2 > 1.04 * real(gdp_mu_squared(smooth))


shares = st.fractions("1/1000", "999/1000", max_denominator=1000)
tilts = st.one_of(st.sampled_from([-1, 1]).map(Fraction), st.fractions(-1, 1))


@given(powers(-3, 1), shares, tilts, powers(-2, 3).map(lambda excess: 1 + excess))
def test_no_two_point_pair_is_worse_than_its_price(epsilon, q, tilt, order):
    """Divergence, mean loss and every test of any pure pair, in both directions.

    A tilt of 1 or -1 moves P as far from Q as epsilon allows.
    """
    cost, base = PureDP(epsilon=epsilon), real(q)
    grown = MP.exp(real(epsilon) if tilt > 0 else -real(epsilon))
    ends = (grown * base, 1 - (1 - base) / grown)
    end = min(ends) if tilt > 0 else max(ends)
    p, slack = base + (end - base) * abs(real(tilt)), 1 + MP.mpf("1e-30")
    for pair in ([(p, base), (1 - p, 1 - base)], [(base, p), (1 - base, 1 - p)]):
        worst = renyi_divergence(pair, real(order))
        mean = MP.fsum(a * MP.log(a / b) for a, b in pair)
        assert worst <= real(renyi(cost, order)) * slack
        assert worst <= real(order * rho_of(cost)) * slack
        assert mean <= real(rho_of(cost)) * slack
        assert needed_mu(pair) <= MP.sqrt(real(gdp_mu_squared(cost))) * slack


# -- exponential mechanism and discrete Gaussian -----------------------------------


@settings(max_examples=scaled(8, push=4), deadline=None)
@given(epsilon=EPSILONS, order=ORDERS)
def test_exponential_mechanism_costs_the_worst_place_of_its_range(epsilon, order):
    """No pair of two outputs with that range diverges more, and one as much."""
    eta = real(epsilon)
    price = renyi(ExponentialMechanism(epsilon=epsilon), order)

    def at(top: Any) -> Any:
        return renyi_divergence(range_law(eta, top), real(order))

    for part in (1, 20, 50, 80, 99):
        assert at(eta * part / 100) <= real(price) * (1 + MP.mpf("1e-60"))
    assert_just_above(price, maximum(at, MP.mpf(0), eta))
    assert price <= min(order * epsilon**2 / 8, epsilon)


@settings(max_examples=scaled(8, push=4), deadline=None)
@given(epsilon=EPSILONS)
@example(epsilon=Fraction(1, 10**12))
@example(epsilon=Fraction(10**4))
def test_exponential_mechanism_costs_its_largest_mean_loss(epsilon):
    """Under zCDP, in 120 digits; about an eighth of the square where it is small."""
    eta, price = real(epsilon), rho_of(ExponentialMechanism(epsilon=epsilon))

    def mean_loss(top: Any) -> Any:
        # The loss is top, or less by eta with this probability.
        return top - eta * MP.expm1(top) / MP.expm1(eta)

    assert_just_above(price, maximum(mean_loss, MP.mpf(0), eta, steps=150))
    assert price <= epsilon**2 / 8


@pytest.mark.parametrize("epsilon", ["1", "2", "5", "8"])
def test_no_order_and_place_of_a_range_need_more_rho(epsilon):
    """Of either direction; less, and the mean loss in the middle, are caught."""
    eta = real(epsilon)
    rho = real(rho_of(ExponentialMechanism(epsilon=epsilon)))
    laws = [range_law(eta, eta * part / 40) for part in range(1, 40)]
    needed = max(needed_rho(law) for law in laws)
    assert rho * MP.mpf("0.999") < needed <= rho
    middle = MP.fsum(p * MP.log(p / q) for p, q in laws[19])
    assert middle < needed
    # An eighth of the square: 5 % too much at 2, and 63 % at 8.
    assert eta**2 / 8 >= rho * {"1": 1.01, "2": 1.05, "5": 1.29, "8": 1.62}[epsilon]


@pytest.mark.parametrize("epsilon", ["0.001", "0.1", "1", "5"])
def test_exponential_mechanism_in_gaussian_dp(epsilon):
    """No place of its range needs a larger mu than the middle, which needs all."""
    eta = Fraction(epsilon)
    mu_squared = gdp_mu_squared(ExponentialMechanism(epsilon=eta))
    assert gdp_mu_squared(PureDP(epsilon=eta / 2)) == mu_squared
    places = [range_law(real(eta), real(eta * part / 20)) for part in range(1, 20)]
    needed, mu = [needed_mu(law) for law in places], MP.sqrt(real(mu_squared))
    assert max(needed) <= needed[9] * (1 + MP.mpf("1e-30"))
    assert needed[9] <= mu * (1 + MP.mpf("1e-25"))
    assert mu <= needed[9] * (1 + MP.mpf("1e-9"))


def test_discrete_gaussian_prices():
    """The vector of the sheet is below the price."""
    cost = DiscreteGaussian(sensitivity=1, sigma="0.5")
    assert Fraction(5) == renyi(cost, Fraction("2.5"))
    assert approx_zcdp(cost) == (2, 0)
    weights = {x: MP.exp(-2 * MP.mpf(x) ** 2) for x in range(-60, 62)}
    total = MP.fsum(weights.values())
    law = [(weights[x] / total, weights[x - 1] / total) for x in range(-59, 62)]
    assert float(renyi_divergence(law, MP.mpf("2.5"))) == pytest.approx(4.98082032)


# -- vectors -----------------------------------------------------------------------


def deltas(law: Law, decay: Fraction, reach: int) -> list[Fraction]:
    """Return delta exactly, at whole multiples of 1 / scale and in between."""
    parts, doubles = (1, (1 + 1 / decay) / 2), range(-2 * reach - 2, 2 * reach + 3)
    growths = (decay ** (-(double // 2)) * parts[double % 2] for double in doubles)
    return [sum(max(p - grown * q, 0) for p, q in law) for grown in growths]


@pytest.mark.parametrize("shifts", [(1, 1), (2, 1), (3, 3), (5, 2), (2, 2, 1)])
def test_no_vector_is_worse_than_one_number(shifts):
    """In whole numbers and fractions of them; a shift by one less would be too few."""
    for decay in (Fraction(1, 50), Fraction(2, 3), Fraction(99, 100)):
        law, whole = discrete_laplace(shifts[0], decay), sum(shifts)
        for shift in shifts[1:]:
            other = discrete_laplace(shift, decay)
            law = [(p * r, q * s) for p, q in law for r, s in other]
        vector, one, less = (
            deltas(each, decay, whole)
            for each in (law, *(discrete_laplace(n, decay) for n in (whole, whole - 1)))
        )
        assert all(a <= b for a, b in zip(vector, one, strict=True))
        assert any(a > b for a, b in zip(vector, less, strict=True))


def assert_largest(budget: Fraction, reading: Callable[..., Any], limit: Any) -> None:
    """Assert that a budget keeps a limit in 120 digits, and 1e-9 more breaks it."""
    assert reading(budget) <= limit * (1 + MP.mpf("1e-60"))
    assert reading(budget + abs(budget) * CLOSE) > limit


# -- Gaussian ----------------------------------------------------------------------


@settings(max_examples=scaled(14, push=3))
@given(EPSILONS, DELTAS)
@example(Fraction(1, 10**9), Fraction(1, 10**30))
@example(Fraction(1000), Fraction(1, 10**30))
@example(Fraction(1000), Fraction(1, 2))
def test_the_budgets_of_gdp_and_zcdp_anywhere(epsilon, delta):
    """A budget keeps delta, and 1e-9 more would break it."""
    e, d = real(epsilon), real(delta)
    mu_squared = conversions.gdp_budget(epsilon, delta)
    assert_largest(mu_squared, lambda value: gaussian_delta(e, real(value)), d)
    rho = conversions.zcdp_budget(epsilon, delta)
    assert_largest(rho, lambda value: MP.exp(zcdp_log_delta(epsilon, value)), d)
    # The classic conversion solves rho + 2 sqrt(rho log(1/delta)) = epsilon.
    classic = conversions.zcdp_budget(epsilon, delta, tight=False)
    assert_largest(
        classic, lambda rho: real(rho) + 2 * MP.sqrt(real(rho) * -MP.log(d)), e
    )


def test_a_budget_next_to_a_delta_of_one_keeps_it():
    """Where the digits do not tell where it is, the whole range is searched."""
    epsilon, delta = Fraction(12, 31), 1 - Fraction(9, 10**81)
    mu_squared = conversions.gdp_budget(epsilon, delta)
    assert mu_squared > 1
    assert gaussian_delta(real(epsilon), real(mu_squared)) <= real(delta)


@pytest.mark.parametrize(
    ("solve", "name", "most"),
    [
        (conversions.gdp_budget, "_gaussian_delta", 30),
        (conversions.zcdp_budget, "_divergence", 150),
    ],
)
def test_a_budget_is_solved_in_few_steps(monkeypatch, solve, name, most):
    """To every digit; halving a range would take 110 steps, every order 331."""
    function, calls = getattr(conversions, name), []
    counted = lambda *args, **options: calls.append(1) or function(*args, **options)
    monkeypatch.setattr(conversions, name, counted)
    solve.__wrapped__(Fraction(1), Fraction(1, 10**6))
    assert 15 < len(calls) < most


@given(powers(-6, 3), powers(-3, 1))
def test_gaussian_delta_is_rounded_up(epsilon, distance):
    """The delta of a mu is never below the referee's and 1e-25 close to it."""
    mu = epsilon / distance
    truth = gaussian_delta(real(epsilon), real(mu**2))
    assert_just_above(conversions.gaussian_delta(epsilon, mu), truth, "1e-25")


@pytest.mark.parametrize(("epsilon", "mu"), [("1000", "0.001"), ("1e4", "1e-300")])
def test_a_delta_far_out_is_small_and_has_few_digits(epsilon, mu):
    """Where the exact delta would have billions of digits, it is rounded up to one."""
    above = conversions.gaussian_delta(Fraction(epsilon), Fraction(mu))
    assert above == conversions.NEGLIGIBLE_DELTA < DELTA_LOW
    # log delta <= log Phi(-x) < -x**2 / 2, in whole numbers.
    distance = Fraction(epsilon) / Fraction(mu) - Fraction(mu) / 2
    assert distance**2 / 2 > 2171 * Fraction("2.302586")


# -- Renyi -------------------------------------------------------------------------


@given(EPSILONS, DELTAS, powers(-4, 6).map(lambda excess: 1 + excess))
def test_the_divergence_that_one_order_allows(epsilon, delta, order):
    """CKS gives back at most delta at the allowed divergence, and more above it."""
    e, d, a = real(epsilon), real(delta), real(order)
    # Mironov's is r + log(1/delta)/(order-1), solved from below.
    classic = conversions.rdp_epsilon_allowed(epsilon, delta, order, tight=False)
    assert_largest(classic, lambda r: real(r) - MP.log(d) / (a - 1), e)
    # e^((a-1)(r-eps)) / (a-1) * (1-1/a)^a is the delta of CKS Prop. 12.
    allowed = conversions.rdp_epsilon_allowed(epsilon, delta, order)
    factor = (1 - 1 / a) ** a / (a - 1)
    assert_largest(allowed, lambda r: MP.exp((a - 1) * (real(r) - e)) * factor, d)
