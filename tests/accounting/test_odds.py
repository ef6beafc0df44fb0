"""Odds: no pair of neighbours that a guarantee allows is told apart more often."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.accounting import make_filter
from dpflow.accounting.odds import bound_right_guesses
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import units_down
from tests.accounting.oracle import MP, real, renyi_divergence
from tests.tables import read_tables

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("theorem", "epsilon", "delta", "options", "odds"), read_tables(__file__)["vectors"]
)
def test_odds_are_those_of_the_filters_own_curve(
    theorem, epsilon, delta, options, odds
):
    """Of the first component, of mixtures and unions those of the budget."""
    rule = make_filter(theorem, epsilon=epsilon, delta=delta, **options)
    result = bound_right_guesses(rule.epsilon, rule.delta, rule, rule.limit)
    assert result == Fraction(odds)


def at_rho(rho: str) -> Fraction:
    """Return the odds of a threshold of zCDP, at a budget that says nothing."""
    rule = make_filter("zcdp", epsilon=1000, delta="1e-6")
    limit = Tally((units_down(Fraction(rho)), 0))
    return bound_right_guesses(rule.epsilon, rule.delta, rule, limit)


def divergence(order: Any, p: Any, q: Any) -> Any:
    """Return the Renyi divergence of two coins, in 120 digits."""
    return renyi_divergence([(p, q), (1 - p, 1 - q)], order)


ORDERS = [1 + MP.mpf(2) ** (MP.mpf(k) / 2) for k in range(-40, 24)]


def test_zcdp_is_told_apart_more_often_than_its_gaussian():
    """The negative control: the curve of `gdp` is below a pair that zCDP allows."""
    rho, odds = real("0.21"), at_rho("0.21")
    gaussian = 100 * MP.ncdf(MP.sqrt(2 * rho) / 2)
    p = real("0.659")
    assert all(divergence(a, p, 1 - p) <= rho * a for a in ORDERS)
    assert gaussian < 62.8 < 100 * p <= real(odds)
    assert odds == Fraction("66")


@pytest.mark.parametrize("rho", ["1e-6", "0.001", "0.05", "0.21", "1", "5"])
def test_the_order_of_zcdp_is_the_strictest(rho):
    """A pair at the printed odds is above the limit at some order; just below, none."""
    odds = at_rho(rho)
    for shift, allowed in (("-0.11", True), ("0.01", False)):
        p = real(odds + Fraction(shift)) / 100
        if MP.mpf("0.5") < p < 1:
            fits = all(divergence(a, p, 1 - p) <= real(rho) * a for a in ORDERS)
            assert fits == allowed


coins = st.tuples(*[st.integers(1, 999).map(lambda n: Fraction(n, 1000))] * 2)


@given(coins, st.sampled_from(["1.01", "2", "8", "64"]))
def test_no_two_coins_are_told_apart_more_often(pair, order):
    """Of any pair, each curve that covers it names at least its odds."""
    p, q = map(real, pair)
    truth = 50 + 50 * abs(p - q)
    a = real(order)
    both = [divergence(a, *pair) for pair in ((p, q), (q, p))]
    rule = make_filter("rdp", epsilon=9000, delta="1e-6", order=order)
    # A millionth more than the pair has.
    least = abs(Fraction(str(MP.nstr(max(both), 30)))) * (1 + Fraction(1, 10**6))
    limit = Tally((units_down(least) + 1,))
    assert real(bound_right_guesses(rule.epsilon, rule.delta, rule, limit)) >= truth
    ratio = max(p / q, q / p, (1 - p) / (1 - q), (1 - q) / (1 - p))
    if ratio > 1:
        epsilon = Fraction(str(MP.nstr(MP.log(ratio), 30))) * (1 + Fraction(1, 10**6))
        assert real(bound_right_guesses(epsilon, Fraction(0))) >= truth


@given(st.integers(1, 4000), st.integers(0, 900))
def test_the_odds_of_a_budget_are_exact(thousandths, delta):
    """The pair that meets the budget's curve at its middle has these odds."""
    epsilon, part = Fraction(thousandths, 1000), Fraction(delta, 1000)
    e = MP.exp(real(epsilon))
    p = (e + real(part)) / (e + 1)
    assert p <= e * (1 - p) + real(part) + MP.mpf(10) ** -100
    odds = bound_right_guesses(epsilon, part)
    assert 0 <= real(odds) - 100 * min(p, 1) <= MP.mpf("0.1000001")
