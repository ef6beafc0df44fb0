"""Budgets against roots found independently: never too large, never much too small."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import flint
import mpmath
import pytest
from flint import arb
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpflow.accounting.curves.conversions import (
    NEGLIGIBLE_DELTA,
    gaussian_delta,
    gdp_budget,
    rdp_epsilon_allowed,
    zcdp_budget,
)
from dpflow.rounding import DELTA_LOW
from tests.accounting.oracle import powers, to_arb
from tests.sizes import scaled

BITS = 700
CLOSE = Fraction(1, 10**9)


epsilons = powers(-9, 3)
deltas = st.one_of(
    powers(-30, -1),
    st.fractions(Fraction(1, 10), Fraction(9, 10), max_denominator=99),
)
orders = powers(-4, 6).map(lambda excess: 1 + excess)


def normal_delta(epsilon: Fraction, mu: arb) -> arb:
    """Return the hockey-stick divergence of N(mu, 1) from N(0, 1) at epsilon."""
    eps, root = to_arb(epsilon), arb(2).sqrt()

    def phi(x: arb) -> arb:
        return (-x / root).erfc() / 2

    return phi(mu / 2 - eps / mu) - eps.exp() * phi(-mu / 2 - eps / mu)


def renyi_delta(epsilon: Fraction, divergence: Fraction, order: Fraction) -> arb:
    """Return e^((a-1)(r-eps)) / (a-1) * (1-1/a)^a, the delta of CKS Prop. 12."""
    a = to_arb(order)
    exponent = (a - 1) * (to_arb(divergence) - to_arb(epsilon))
    return exponent.exp() / (a - 1) * (1 - 1 / a) ** a


def best_delta(mp: Any, epsilon: Fraction, rho: Fraction) -> Any:
    """Return the logarithm of the smallest delta that CKS give rho-zCDP at epsilon.

    The derivative in the order a is (2a-1) rho - eps + log(1-1/a). It grows with a,
    so bisection finds its only zero.
    """
    eps, r = mp.mpf(epsilon.numerator) / epsilon.denominator, mp.mpf(rho.numerator)
    r /= rho.denominator
    low, high = mp.mpf(-250), mp.mpf(250)  # log2 of the order minus one

    def order(place: Any) -> Any:
        return 1 + mp.mpf(2) ** place

    for _ in range(330):
        middle = (low + high) / 2
        a = order(middle)
        if (2 * a - 1) * r - eps + mp.log1p(-1 / a) > 0:
            high = middle
        else:
            low = middle
    a = order((low + high) / 2)
    return (a - 1) * (a * r - eps) - mp.log(a - 1) + a * mp.log1p(-1 / a)


# -- Gaussian ----------------------------------------------------------------------


@settings(max_examples=scaled(14))
@given(epsilons, deltas)
@example(Fraction(1, 10**9), Fraction(1, 10**30))
@example(Fraction(1000), Fraction(1, 10**30))
@example(Fraction(1000), Fraction(1, 2))
def test_the_gdp_budget_anywhere(epsilon, delta):
    """The budget keeps delta, and 1e-9 more would break it."""
    budget = gdp_budget(epsilon, delta)
    with flint.ctx.workprec(BITS):
        assert normal_delta(epsilon, to_arb(budget).sqrt()) <= to_arb(delta)
        more = to_arb(budget * (1 + CLOSE)).sqrt()
        assert normal_delta(epsilon, more) > to_arb(delta)


@given(powers(-6, 3), powers(-3, 1))
def test_gaussian_delta_is_rounded_up(epsilon, distance):
    """The delta of a mu is never below the referee's and 1e-25 close to it."""
    mu = epsilon / distance
    above = gaussian_delta(epsilon, mu)
    with flint.ctx.workprec(4000):
        truth = normal_delta(epsilon, to_arb(mu))
        assert truth <= to_arb(above)
        assert to_arb(above) <= truth * (1 + arb(10) ** -25)


@pytest.mark.parametrize(("epsilon", "mu"), [("1000", "0.001"), ("1e4", "1e-300")])
def test_a_delta_far_out_is_small_and_has_few_digits(epsilon, mu):
    """Where the exact delta would have billions of digits, it is rounded up to one."""
    above = gaussian_delta(Fraction(epsilon), Fraction(mu))
    assert above == NEGLIGIBLE_DELTA < DELTA_LOW
    # log delta <= log Phi(-x) < -x**2 / 2, in whole numbers.
    distance = Fraction(epsilon) / Fraction(mu) - Fraction(mu) / 2
    assert distance**2 / 2 > 2171 * Fraction("2.302586")


# -- zCDP --------------------------------------------------------------------------


@settings(max_examples=scaled(12))
@given(epsilons, deltas)
@example(Fraction(1, 10**9), Fraction(1, 10**30))
@example(Fraction(1000), Fraction(1, 10**30))
@example(Fraction(1000), Fraction(1, 2))
def test_the_zcdp_budget_anywhere(epsilon, delta):
    """Some order proves delta, and 1e-9 more rho finds no order."""
    budget = zcdp_budget(epsilon, delta)
    mp = mpmath.mp.clone()
    mp.dps = 120
    log_delta = mp.log(mp.mpf(delta.numerator) / delta.denominator)
    assert best_delta(mp, epsilon, budget) <= log_delta
    assert best_delta(mp, epsilon, budget * (1 + CLOSE)) > log_delta


@settings(max_examples=scaled(12))
@given(epsilons, deltas)
def test_the_classic_budget_solves_its_equation_from_below(epsilon, delta):
    """Rho + 2 sqrt(rho log(1/delta)) reaches epsilon at the budget, not before."""
    budget = zcdp_budget(epsilon, delta, tight=False)

    def reached(rho: Fraction) -> arb:
        return to_arb(rho) + 2 * (to_arb(rho) * -to_arb(delta).log()).sqrt()

    with flint.ctx.workprec(BITS):
        assert reached(budget) <= to_arb(epsilon)
        assert reached(budget * (1 + CLOSE)) > to_arb(epsilon)


# -- Renyi -------------------------------------------------------------------------


@given(epsilons, deltas, orders)
def test_the_divergence_that_one_order_allows(epsilon, delta, order):
    """CKS gives back at most delta at the allowed divergence, and more above it."""
    allowed = rdp_epsilon_allowed(epsilon, delta, order)
    classic = rdp_epsilon_allowed(epsilon, delta, order, tight=False)
    with flint.ctx.workprec(BITS):
        # Mironov's is r + log(1/delta)/(order-1), solved from below.
        reached = to_arb(classic) - to_arb(delta).log() / (to_arb(order) - 1)
        assert reached <= to_arb(epsilon) < reached + to_arb(abs(classic) * CLOSE)
        assert renyi_delta(epsilon, allowed, order) <= to_arb(delta)
        more = allowed + abs(allowed) * CLOSE
        assert renyi_delta(epsilon, more, order) > to_arb(delta)
