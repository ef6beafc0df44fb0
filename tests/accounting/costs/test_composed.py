"""Steps made of other steps, descriptions, and what has no price."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow import (
    ApproxDP,
    Composed,
    DiscreteGaussian,
    EarlyStopping,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
    PureDP,
    RandomizedResponse,
    Repeated,
)
from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import cost_from_description, relations_of
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    probabilistic_dp,
    renyi,
)
from dpflow.accounting.rules.individual import PersonBudgets
from dpflow.costs import ProbabilisticDP
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS
from tests.projects import ROOT, run_python

pytestmark = pytest.mark.quick

RESPONSE = RandomizedResponse(epsilon="0.1", categories=5)
GAUSSIAN, LAPLACE, RANGE, SAMPLED = PARTS = (
    Gaussian(sensitivity=1, sigma=20),
    Laplace(sensitivity=1, epsilon="0.1"),
    ExponentialMechanism(epsilon="0.3"),
    PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1),
)


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


def test_a_repeated_step_costs_the_sum_of_its_steps():
    """Ten in one step, or ten steps: the same tally but for rounding once."""
    step = Laplace(sensitivity=1, epsilon="0.01")
    for theorem in ("basic", "zcdp", "gdp", "rdp", "whitehouse"):
        rule = make_filter(theorem, epsilon=1, delta="1e-6")
        gained = (rule.price(step).times(10) - rule.price(Repeated(step, 10))).amounts
        assert max(gained) < 10 * UNITS // 10**36


def test_what_makes_no_composition():
    """Refused when the cost is made; a cost without a price has none in a sum."""
    for make in (
        Composed,
        lambda: Composed("Gaussian"),
        lambda: Repeated(PureDP(epsilon=1), 0),
        lambda: Repeated(PureDP(epsilon=1), "1.5"),
        lambda: Repeated(3, 1),
        lambda: cost_from_description({"mechanism": "Composed", "parts": []}),
    ):
        with pytest.raises(InvalidCost):
            make()
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
    assert relations_of(GAUSSIAN) == ("add-or-remove", "replace-one")
    assert relations_of(Repeated(RESPONSE, 3)) == ("replace-one",)
    assert relations_of(Composed(GAUSSIAN, SAMPLED)) == ("add-or-remove",)
    assert relations_of(Composed(RESPONSE, SAMPLED)) == ()


def test_budgets_per_person_are_no_part_of_a_cost():
    """Their price is the remaining budget: a second part would be free, unchecked."""
    rule = make_filter("individual", epsilon=1, delta="1e-6", measure="gdp")
    used = rule.price(PersonBudgets())
    assert used.amounts > (0,)
    assert rule.price(PersonBudgets(), used).amounts == (0,)
    for wrap in (
        Composed,
        lambda cost: Repeated(cost, 1),
        lambda cost: EarlyStopping(cost, stops=(1,)),
    ):
        with pytest.raises(InvalidCost, match="the whole step"):
            wrap(PersonBudgets())
        wrap(PureDP(epsilon=1))
