"""Costs that are declared by their guarantee, and costs of several steps."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given

from dpflow import ApproxDP, Composed, DiscreteGaussian, PureDP, Repeated
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import relations_of
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    probabilistic_dp,
    renyi,
)
from dpflow.accounting.rules.individual import PersonBudgets
from dpflow.costs import ProbabilisticDP, RenyiDP
from dpflow.exceptions import UnsupportedCost
from tests.accounting.oracle import MP, ORDERS, powers, real
from tests.projects import ROOT, run_python
from tests.tables import read_costs, read_tables

pytestmark = pytest.mark.quick

TABLES = read_tables(__file__)


def test_a_cost_is_worth_what_its_notion_implies():
    """Exact prices where the notion implies one, a refusal where it does not."""
    prices = (approx_dp, gdp_mu_squared, lambda cost: renyi(cost, Fraction(4)))
    for text, *row in TABLES["exact"]:
        cost = cost_from_text(text)
        for price, expected in zip(prices, row, strict=True):
            if expected is None:
                with pytest.raises(UnsupportedCost, match="has no sound price"):
                    price(cost)
            elif expected == "pure":
                assert price(cost) == price(PureDP(epsilon=2))
            elif price is approx_dp:
                assert price(cost) == tuple(map(Fraction, expected))
            else:
                assert price(cost) == Fraction(expected)


@given(order=ORDERS, wanted=ORDERS, bound=powers(-9, 3))
def test_a_bound_at_one_order_holds_for_lower_orders_only(order, wanted, bound):
    """The divergence grows with the order, so no bound holds above."""
    cost = RenyiDP(order=order, epsilon=bound)
    if wanted <= order:
        assert renyi(cost, wanted) == bound
    else:
        with pytest.raises(UnsupportedCost, match="use at most that order"):
            renyi(cost, wanted)


def test_only_a_declared_bound_on_the_loss_counts_as_one():
    """(epsilon, delta)-DP with a delta is not probabilistic DP."""
    tenth = (Fraction("0.1"), 0)
    assert probabilistic_dp(PureDP(epsilon="0.1")) == tenth
    assert probabilistic_dp(ApproxDP(epsilon="0.1", delta=0)) == tenth
    cost = ProbabilisticDP(epsilon="0.1", delta="1e-8")
    assert probabilistic_dp(cost) == (Fraction("0.1"), Fraction("1e-8"))
    for cost in read_costs(TABLES["no bounds on the loss"]):
        with pytest.raises(UnsupportedCost, match="Declare"):
            probabilistic_dp(cost)


@given(epsilon=powers(-3, 1), delta=powers(-9, -1), gap=powers(-3, 1))
def test_how_far_approximate_privacy_bounds_the_loss(epsilon, delta, gap):
    """P(loss > epsilon + g) reaches delta / (1 - exp(-g)), above the printed lemma.

    The pair p = delta / (1 - exp(-g)), q = p exp(-epsilon - g) is (epsilon, delta)-DP
    in both orders as long as p is below one half.
    """
    e, d, g = map(real, (epsilon, delta, gap))
    p = d / (1 - MP.exp(-g))
    q = p * MP.exp(-e - g)
    if p >= MP.mpf(1) / 2:
        return
    grown, slack = MP.exp(e), MP.mpf(10) ** -40
    for first, second in ((p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p)):
        assert first <= grown * second + d + slack
    assert MP.log(p / q) > e + g - slack
    if gap <= epsilon <= Fraction(1, 2):
        assert p > 2 * d / grown


def test_rounded_noise_can_be_typed():
    """Four digits, never less noise."""
    for text, expected in TABLES["rounded"].items():
        cost = cost_from_text(text)
        rounded = cost.noisier(Fraction(7)).round_noise()
        assert repr(rounded) == expected
        assert rounded.round_noise() == rounded


GAUSSIAN, *_, SAMPLED = PARTS = read_costs(TABLES["parts"])


def test_composed_and_repeated_add_up():
    """In every notion that all parts have."""
    order = Fraction(8)
    pure = PARTS[1:3]
    assert sum(renyi(p, order) for p in PARTS) == renyi(Composed(*PARTS), order)
    assert 7 * renyi(SAMPLED, order) == renyi(Repeated(SAMPLED, 7), order)
    assert sum(map(gdp_mu_squared, PARTS[:3])) == gdp_mu_squared(Composed(*PARTS[:3]))
    assert (Fraction("0.4"), 0) == approx_dp(Composed(*pure))
    assert sum(approx_zcdp(p)[0] for p in pure) == approx_zcdp(Composed(*pure))[0]
    step = ApproxDP(epsilon="0.1", delta="1e-8")
    assert (Fraction(1), Fraction("1e-7")) == approx_dp(Repeated(step, 10))
    loss = ProbabilisticDP(epsilon="0.1", delta="1e-8")
    both = Composed(loss, Repeated(loss, 2))
    assert (Fraction("0.3"), Fraction("3e-8")) == probabilistic_dp(both)


def test_a_cost_without_a_price_has_none_in_a_sum():
    """Nor when it is repeated."""
    discrete, sampled = DiscreteGaussian(sensitivity=1, sigma=20), SAMPLED
    for cost, price in ((discrete, gdp_mu_squared), (sampled, approx_zcdp)):
        for made in (cost, Repeated(cost, 3), Composed(PureDP(epsilon=1), cost)):
            with pytest.raises(UnsupportedCost, match="no sound price"):
                price(made)


def test_a_description_is_read_without_importing_its_module():
    """A journal names mechanisms; reading one loads what prices them."""
    script = (
        "from dpflow.accounting.costs.base import cost_from_description as read\n"
        "from dpflow.accounting.curves.prices import approx_dp\n"
        "inner = {'mechanism': 'ExponentialMechanism', 'epsilon': '0.1'}\n"
        "cost = read({'mechanism': 'Repeated', 'times': '2', 'cost': inner})\n"
        "print(float(approx_dp(cost)[0]))"
    )
    assert run_python(script, folder=ROOT) == 0.2


def test_relations():
    """Sampling and randomized response hold for one relation each."""
    response = cost_from_text("RandomizedResponse(epsilon=0.1, categories=5)")
    assert relations_of(GAUSSIAN) == ("add-or-remove", "replace-one")
    assert relations_of(Repeated(response, 3)) == ("replace-one",)
    assert relations_of(Composed(GAUSSIAN, SAMPLED)) == ("add-or-remove",)
    assert relations_of(Composed(response, SAMPLED)) == ()


def test_budgets_per_person_are_opened_once():
    """Their price is the remaining budget, and nothing where it was paid."""
    rule = make_filter("individual", epsilon=1, delta="1e-6", measure="gdp")
    used = rule.price(PersonBudgets())
    assert used.amounts > (0,)
    assert rule.price(PersonBudgets(), used).amounts == (0,)
