"""Budgets against roots found independently: never too large, never much too small."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given, settings

from dpflow.accounting.curves.conversions import (
    NEGLIGIBLE_DELTA,
    gdp_budget,
    rdp_epsilon_allowed,
    zcdp_budget,
)
from dpflow.accounting.curves.conversions import gaussian_delta as curves_delta
from dpflow.rounding import DELTA_LOW
from tests.accounting.oracle import (
    DELTAS,
    EPSILONS,
    MP,
    assert_just_above,
    gaussian_delta,
    powers,
    real,
    zcdp_log_delta,
)
from tests.sizes import scaled

CLOSE = Fraction(1, 10**9)
#: Within which 120 digits compare two numbers.
SLACK = 1 + MP.mpf("1e-60")
corners = [
    (Fraction(1, 10**9), Fraction(1, 10**30)),
    (Fraction(1000), Fraction(1, 10**30)),
    (Fraction(1000), Fraction(1, 2)),
]


# -- Gaussian ----------------------------------------------------------------------


@settings(max_examples=scaled(14))
@given(EPSILONS, DELTAS)
@example(*corners[0])
@example(*corners[1])
@example(*corners[2])
def test_the_budgets_of_gdp_and_zcdp_anywhere(epsilon, delta):
    """A budget keeps delta, and 1e-9 more would break it."""
    mu_squared, rho = gdp_budget(epsilon, delta), zcdp_budget(epsilon, delta)
    e, d, more = real(epsilon), real(delta), 1 + CLOSE
    assert gaussian_delta(e, real(mu_squared)) <= d * SLACK
    assert gaussian_delta(e, real(mu_squared * more)) > d
    assert MP.exp(zcdp_log_delta(epsilon, rho)) <= d * SLACK
    assert MP.exp(zcdp_log_delta(epsilon, rho * more)) > d
    # The classic conversion solves rho + 2 sqrt(rho log(1/delta)) = epsilon.
    classic = zcdp_budget(epsilon, delta, tight=False)
    reached, beyond = (
        real(r) + 2 * MP.sqrt(real(r) * -MP.log(d)) for r in (classic, classic * more)
    )
    assert reached <= e * SLACK
    assert beyond > e


@given(powers(-6, 3), powers(-3, 1))
def test_gaussian_delta_is_rounded_up(epsilon, distance):
    """The delta of a mu is never below the referee's and 1e-25 close to it."""
    mu = epsilon / distance
    truth = gaussian_delta(real(epsilon), real(mu**2))
    assert_just_above(curves_delta(epsilon, mu), truth, "1e-25")


@pytest.mark.parametrize(("epsilon", "mu"), [("1000", "0.001"), ("1e4", "1e-300")])
def test_a_delta_far_out_is_small_and_has_few_digits(epsilon, mu):
    """Where the exact delta would have billions of digits, it is rounded up to one."""
    above = curves_delta(Fraction(epsilon), Fraction(mu))
    assert above == NEGLIGIBLE_DELTA < DELTA_LOW
    # log delta <= log Phi(-x) < -x**2 / 2, in whole numbers.
    distance = Fraction(epsilon) / Fraction(mu) - Fraction(mu) / 2
    assert distance**2 / 2 > 2171 * Fraction("2.302586")


# -- Renyi -------------------------------------------------------------------------


@given(EPSILONS, DELTAS, powers(-4, 6).map(lambda excess: 1 + excess))
def test_the_divergence_that_one_order_allows(epsilon, delta, order):
    """CKS gives back at most delta at the allowed divergence, and more above it."""
    e, d, a = real(epsilon), real(delta), real(order)
    # Mironov's is r + log(1/delta)/(order-1), solved from below.
    classic = rdp_epsilon_allowed(epsilon, delta, order, tight=False)
    reached, beyond = (
        real(r) - MP.log(d) / (a - 1) for r in (classic, classic + abs(classic) * CLOSE)
    )
    assert reached <= e * SLACK
    assert beyond > e
    # e^((a-1)(r-eps)) / (a-1) * (1-1/a)^a is the delta of CKS Prop. 12.
    allowed = rdp_epsilon_allowed(epsilon, delta, order)
    given_back = [
        (a - 1) * (real(r) - e) - MP.log(a - 1) + a * MP.log1p(-1 / a)
        for r in (allowed, allowed + abs(allowed) * CLOSE)
    ]
    assert given_back[0] <= MP.log(d) + MP.mpf("1e-60")
    assert given_back[1] > MP.log(d)
