"""Every price against python-flint: never below the truth and never far above it.

The referee evaluates other forms of the formulas in interval arithmetic; where the
price is the root of an equation it is checked, not solved again. Soundness is shown
apart from any formula, on exact two-point distributions and by integrals.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import flint
import mpmath
import pytest
from flint import arb
from hypothesis import example, given
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    renyi,
)
from tests.accounting.oracle import ends, powers, to_arb

pytestmark = pytest.mark.quick

BITS = 1500
CLOSE = Fraction(1, 10**9)


epsilons = powers(-9, 3)
orders = powers(-4, 6).map(lambda excess: 1 + excess)


def check(
    price: Fraction, truth: Callable[[], arb], cap: Fraction | None = None
) -> None:
    """Assert that a price is not below the truth and within 1e-9 of it.

    A cap is a known bound that the truth approaches from below.
    """
    with flint.ctx.workprec(BITS):
        low, high = ends(truth())
    assert high - low <= high * CLOSE / 10**30
    assert price >= high or (price == cap and price >= low)
    assert price <= high * (1 + CLOSE)


# -- the referee's own formulas ----------------------------------------------------


def pure_rho(epsilon: Fraction) -> arb:
    """Return the KL divergence of randomized response: e (e^e - 1) / (e^e + 1)."""
    grown = to_arb(epsilon).exp()
    return to_arb(epsilon) * (grown - 1) / (grown + 1)


def laplace_rho(epsilon: Fraction) -> arb:
    """Return the KL divergence of two Laplace distributions."""
    return to_arb(epsilon) - 1 + (-to_arb(epsilon)).exp()


def pure_renyi(epsilon: Fraction, order: Fraction) -> arb:
    """Return the divergence of randomized response from its two probabilities."""
    a = to_arb(order)
    heads = 1 / (1 + (-to_arb(epsilon)).exp())
    tails = 1 / (1 + to_arb(epsilon).exp())
    moment = heads**a * tails ** (1 - a) + tails**a * heads ** (1 - a)
    return moment.log() / (a - 1)


def laplace_renyi(epsilon: Fraction, order: Fraction) -> arb:
    """Return Mironov's Table II for the Laplace mechanism."""
    a, e = to_arb(order), to_arb(epsilon)
    first = a / (2 * a - 1) * (e * (a - 1)).exp()
    second = (a - 1) / (2 * a - 1) * (-e * a).exp()
    return (first + second).log() / (a - 1)


def check_mu_squared(price: Fraction, corner: Callable[[], arb]) -> None:
    """Assert that Phi(-mu/2) encloses a probability as closely as it must."""
    with flint.ctx.workprec(BITS):
        least = corner()

        def tail(mu_squared: Fraction) -> arb:
            return (to_arb(mu_squared) / 8).sqrt().erfc() / 2

        # A larger mu has the smaller tail.
        assert tail(price) < least
        assert tail(price / (1 + CLOSE)) > least


# -- prices against the referee ----------------------------------------------------


@given(epsilons)
@example(Fraction(1, 10**12))
@example(Fraction(10**4))
def test_the_rho_of_a_pure_step(epsilon):
    """(epsilon, 0)-DP costs the KL divergence of randomized response, rounded up."""
    price, delta = approx_zcdp(PureDP(epsilon=epsilon))
    assert delta == 0
    check(price, lambda: pure_rho(epsilon), cap=epsilon)


@given(epsilons)
@example(Fraction(1, 10**9))
@example(Fraction(10**4))
def test_the_rho_of_a_laplace_step(epsilon):
    """Laplace noise costs the KL divergence of its two laws, rounded up."""
    price, delta = approx_zcdp(Laplace(sensitivity=7, scale=7 / epsilon))
    assert delta == 0
    check(price, lambda: laplace_rho(epsilon))


@given(epsilons)
@example(Fraction(1, 10**12))
@example(Fraction(10**4))
def test_the_mu_of_a_pure_step(epsilon):
    """(epsilon, 0)-DP costs the mu whose curve touches its corner, rounded up."""
    price = gdp_mu_squared(PureDP(epsilon=epsilon))
    check_mu_squared(price, lambda: 1 / (1 + to_arb(epsilon).exp()))


@pytest.mark.parametrize("scale", ["1e-6", "0.001", "0.1", "1", "300", "1e9"])
def test_the_mu_of_a_laplace_step(scale):
    """Laplace is charged its middle test, never its cheaper Renyi rate."""
    cost = Laplace(sensitivity=1, scale=scale)
    half = 1 / (2 * Fraction(scale))
    check_mu_squared(gdp_mu_squared(cost), lambda: (-to_arb(half)).exp() / 2)
    assert gdp_mu_squared(cost) > 2 * approx_zcdp(cost)[0]


@given(epsilons, orders)
def test_the_divergences_anywhere(epsilon, order):
    """Pure and Laplace steps are priced right between the corners as well."""
    pure, noise = PureDP(epsilon=epsilon), Laplace(sensitivity=1, scale=1 / epsilon)
    check(renyi(pure, order), lambda: pure_renyi(epsilon, order), cap=epsilon)
    check(renyi(noise, order), lambda: laplace_renyi(epsilon, order), cap=epsilon)


@given(powers(-5, 3), orders)
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
    assert approx_dp(cost) == (value, delta)
    assert approx_zcdp(cost) == (approx_zcdp(PureDP(epsilon=value))[0], delta)


# -- soundness, apart from the formulas --------------------------------------------


def two_point(epsilon: Fraction, q: Fraction, tilt: Fraction) -> tuple[arb, arb]:
    """Return P(1), Q(1) of a two-point pair that is (epsilon, 0)-DP.

    A tilt of 1 or -1 moves P as far from Q as epsilon allows.
    """
    grown, shrunk = to_arb(epsilon).exp(), (-to_arb(epsilon)).exp()
    base = to_arb(q)
    upper = (grown * base).min(1 - shrunk * (1 - base))
    lower = (shrunk * base).max(1 - grown * (1 - base))
    target = upper if tilt > 0 else lower
    return base + (target - base) * abs(to_arb(tilt)), base


def divergence(p: arb, q: arb, order: Fraction) -> arb:
    """Return the Renyi divergence of two two-point distributions."""
    a = to_arb(order)
    moment = p**a * q ** (1 - a) + (1 - p) ** a * (1 - q) ** (1 - a)
    return moment.log() / (a - 1)


def kl(p: arb, q: arb) -> arb:
    """Return the Kullback-Leibler divergence of two two-point distributions."""
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


shares = st.fractions("1/1000", "999/1000", max_denominator=1000)
tilts = st.one_of(st.sampled_from([-1, 1]).map(Fraction), st.fractions(-1, 1))
moderate = powers(-3, 1)
moderate_orders = powers(-2, 3).map(lambda excess: 1 + excess)


@given(moderate, shares, tilts, moderate_orders)
def test_no_two_point_pair_diverges_more_than_it_is_charged(epsilon, q, tilt, order):
    """Renyi and zCDP prices hold for every pure two-point pair, in both directions."""
    cost = PureDP(epsilon=epsilon)
    with flint.ctx.workprec(400):
        p, base = two_point(epsilon, q, tilt)
        worst = max(
            ends(divergence(*pair, order))[0] for pair in ((p, base), (base, p))
        )
        mean = max(ends(kl(*pair))[0] for pair in ((p, base), (base, p)))
    assert worst <= renyi(cost, order)
    assert worst <= order * approx_zcdp(cost)[0]
    assert mean <= approx_zcdp(cost)[0]


@given(moderate, shares, tilts)
def test_no_two_point_pair_is_easier_to_tell_apart_than_its_mu(epsilon, q, tilt):
    """Every test between a pure pair errs at least as much as between Gaussians."""
    mu_squared = gdp_mu_squared(PureDP(epsilon=epsilon))
    with flint.ctx.workprec(400):
        p, base = two_point(epsilon, q, tilt)
        mu, root = to_arb(mu_squared).sqrt(), arb(2).sqrt()
        for first, second in (
            (base, 1 - p),
            (1 - base, p),
            (p, 1 - base),
            (1 - p, base),
        ):
            # Gaussian trade-off: beta = Phi(Phi^-1(1 - alpha) - mu).
            quantile = (2 * first).erfcinv() * root
            least = ((mu - quantile) / root).erfc() / 2
            assert not second < least


@pytest.mark.parametrize("share", [Fraction(1), Fraction(99, 100)])
@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1), Fraction(6)])
def test_the_pair_that_decides_the_mu_would_notice_a_smaller_one(epsilon, share):
    """Randomized response breaks 99 % of the mu**2 and just keeps all of it."""
    mu_squared = gdp_mu_squared(PureDP(epsilon=epsilon)) * share
    with flint.ctx.workprec(400):
        heads = 1 / (1 + (-to_arb(epsilon)).exp())
        mu, root = to_arb(mu_squared).sqrt(), arb(2).sqrt()
        quantile = (2 * (1 - heads)).erfcinv() * root
        least = ((mu - quantile) / root).erfc() / 2
        broken = 1 - heads < least
    assert broken == (share < 1)


@pytest.mark.parametrize("order", ["1.0001", "1.5", "2", "8", "40"])
@pytest.mark.parametrize("epsilon", ["0.01", "0.5", "3"])
def test_laplace_noise_diverges_as_much_as_it_is_charged(epsilon, order):
    """The integral of the two densities equals the price and stays below the rho."""
    eps, alpha = Fraction(epsilon), Fraction(order)
    with mpmath.workdps(40):
        e, a = mpmath.mpf(epsilon), mpmath.mpf(order)
        moment = mpmath.quad(
            lambda x: mpmath.exp(-a * abs(x) - (1 - a) * abs(x - e)) / 2,
            [-mpmath.inf, 0, e, mpmath.inf],
        )
        integral = mpmath.log(moment) / (a - 1)
    price = renyi(Laplace(sensitivity=1, scale=1 / eps), alpha)
    rho, _ = approx_zcdp(Laplace(sensitivity=1, scale=1 / eps))
    truth = Fraction(mpmath.nstr(integral, 30))
    assert abs(price - truth) <= price / 10**20
    assert truth <= alpha * rho
    if alpha < Fraction("1.001"):
        assert alpha * rho <= truth * Fraction("1.001")
