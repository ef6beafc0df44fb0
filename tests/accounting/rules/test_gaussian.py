"""The Gaussian filter: squared mus add up, without loss for Gaussians."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import gaussian_budget
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS
from tests.sizes import scaled

RULE = make_filter("gaussian", epsilon=1, delta="1e-6")
TWENTY = Gaussian(sensitivity=1, sigma=20)

costs = st.one_of(
    st.builds(lambda n: PureDP(epsilon=Fraction(n, 10**4)), st.integers(1, 2000)),
    st.builds(lambda n: Laplace(sensitivity=1, scale=n), st.integers(5, 5000)),
    st.builds(lambda n: Gaussian(sensitivity=1, sigma=n), st.integers(5, 5000)),
)
steps = st.lists(costs, min_size=1, max_size=8)


def total(rule: Filter, costs: list[Cost]) -> Tally:
    """Return the tally after charging every cost."""
    return sum((rule.price(cost) for cost in costs), rule.zero())


def admitted(rule: Filter, cost: Cost) -> int:
    """Count identical steps until the rule refuses one, or give up."""
    tally, count = rule.zero(), 0
    while count < 1000 and rule.admits(tally + rule.price(cost)):
        tally, count = tally + rule.price(cost), count + 1
    return count


@pytest.mark.parametrize(
    ("epsilon", "cost", "count"),
    [
        (1, TWENTY, 22),
        (5, TWENTY, 416),
        (1, Gaussian(sensitivity=100, noise_multiplier=20), 22),
        (1, Gaussian(sensitivity=2, sigma=20), 5),
        (1, PureDP(epsilon=0.1), 3),
        (5, PureDP(epsilon=0.1), 66),
        (1, Laplace(sensitivity=1, scale=10), 3),
        (1, Gaussian(sensitivity=1, sigma="4.2246"), 0),
        (1, Gaussian(sensitivity=1, sigma="4.2247"), 1),
    ],
)
def test_known_numbers_of_steps(epsilon, cost, count):
    """The rule admits as many identical steps as theory says, and no more."""
    rule = make_filter("gaussian", epsilon=epsilon, delta="1e-6")
    assert admitted(rule, cost) == count


@pytest.mark.parametrize(
    "cost",
    [
        ZCDP(rho="1e-9"),
        ApproxDP(epsilon="1e-9", delta="1e-35"),
        ApproxDP(epsilon="1e-9", delta="1e-6"),
    ],
)
def test_a_step_that_is_not_gaussian_dp_is_refused(cost):
    """ZCDP implies no GDP, and neither does anything with a delta of its own."""
    with pytest.raises(UnsupportedCost, match=type(cost).__name__) as caught:
        RULE.price(cost)
    assert caught.value.mechanism == type(cost).__name__


def test_the_limit_is_the_budget_in_whole_units_rounded_down():
    """A limit is what the conversion allows, rounded down to 36 decimals."""
    budget = gaussian_budget(RULE.epsilon, RULE.delta)
    limit = RULE.limit.amounts[0]
    assert limit <= budget * UNITS < limit + UNITS // 10**36


def test_the_smallest_excess_is_refused():
    """Equality fits and one unit above is refused."""
    assert RULE.admits(RULE.limit)
    assert not RULE.admits(RULE.limit + Tally((1,)))


def test_a_step_too_small_for_floats_still_counts():
    """After the limit is full, the least Gaussian that can be declared is refused."""
    least = RULE.price(Gaussian(sensitivity=1, sigma=10**9))
    assert least == Tally((UNITS // 10**18,))
    assert not RULE.admits(RULE.limit + least)


def test_many_small_steps_cost_what_one_large_step_costs():
    """A hundred Gaussians of sigma 10 are one of sigma 1, to the last unit."""
    hundred = total(RULE, [Gaussian(sensitivity=1, sigma=10)] * 100)
    assert hundred == RULE.price(Gaussian(sensitivity=1, sigma=1)) == Tally((UNITS,))


def test_a_price_that_is_no_whole_number_of_units_is_rounded_up():
    """To 36 decimals: 1/289 is no part of 1 to 100."""
    cost = Gaussian(sensitivity=1, sigma=17)
    assert RULE.price(cost) == Tally((-(-(10**36) // 289) * (UNITS // 10**36),))


# -- laws --------------------------------------------------------------------------


@given(steps, st.randoms(use_true_random=False))
def test_the_order_of_charges_is_irrelevant(costs, random):
    """Any order of the same steps leaves the same tally, so the same decisions."""
    assert total(RULE, costs) == total(RULE, random.sample(costs, len(costs)))


@given(steps, costs)
def test_admission_is_monotone(costs, extra):
    """What is refused stays refused after one more charge."""
    tally = total(RULE, costs)
    more = tally + RULE.price(extra)
    assert RULE.admits(tally) or not RULE.admits(more)
    assert RULE.used_fraction(tally) <= RULE.used_fraction(more)
    assert (RULE.used_fraction(more) <= 1) == RULE.admits(more)


@given(steps, costs, costs)
def test_reserve_then_settle_equals_charge(costs, worst, realised):
    """Holding the worst case and posting another leaves what posting alone leaves."""
    before = total(RULE, costs)
    held = before + RULE.price(worst)
    settled = held - RULE.price(worst) + RULE.price(realised)
    assert settled == before + RULE.price(realised)


@settings(max_examples=scaled(6))
@given(
    st.integers(1, 50).map(lambda n: Fraction(n, 10)),
    st.integers(1, 1000).map(lambda n: Fraction(n, 10**8)),
    st.fractions(Fraction(1, 2), 1, max_denominator=20),
)
def test_a_tighter_budget_never_admits_more(epsilon, delta, share):
    """Less epsilon or less delta never raises the limit."""

    def limit(epsilon: Fraction, delta: Fraction) -> Tally:
        return make_filter("gaussian", epsilon=epsilon, delta=delta).limit

    loose = limit(epsilon, delta)
    assert limit(epsilon * share, delta).fits_within(loose)
    assert limit(epsilon, delta * share).fits_within(loose)
    assert limit(epsilon * share, delta * share).fits_within(loose)


@pytest.mark.parametrize("epsilon", ["0.1", "1", "5"])
@pytest.mark.parametrize("delta", ["1e-9", "1e-5"])
def test_gaussians_fare_no_worse_than_under_concentrated(epsilon, delta):
    """For Gaussians the lossless rule admits at least what the zCDP rule admits."""
    gaussian = make_filter("gaussian", epsilon=epsilon, delta=delta)
    concentrated = make_filter("concentrated", epsilon=epsilon, delta=delta)
    assert 2 * concentrated.limit.amounts[0] < gaussian.limit.amounts[0]


# -- parameters --------------------------------------------------------------------


@pytest.mark.parametrize(
    "numbers",
    [
        {"epsilon": 1, "delta": "1e-6"},
        {"epsilon": 0.1, "delta": 1e-5},
        {"epsilon": "1e-12", "delta": "1e-35"},
        {"epsilon": Fraction(1, 3), "delta": Fraction(1, 7 * 10**5)},
    ],
    ids=repr,
)
def test_parameters_make_an_equal_rule_again(numbers):
    """What a ledger pins rebuilds the rule through JSON, limits included."""
    rule = make_filter("gaussian", **numbers)
    again = make_filter(**json.loads(json.dumps(rule.parameters())))
    assert again == rule
    assert hash(again) == hash(rule)
    assert again.limit == rule.limit


def test_rules_of_different_numbers_differ():
    """No other epsilon, delta or theorem is the same rule."""
    assert RULE not in [
        make_filter("gaussian", epsilon=1, delta="1e-5"),
        make_filter("gaussian", epsilon=2, delta="1e-6"),
        make_filter("concentrated", epsilon=1, delta="1e-6"),
    ]
    assert make_filter("gaussian", epsilon="1.0", delta=1e-6) == RULE


def test_a_rule_names_its_tally_in_its_own_currency():
    """Journals show mu squared as an exact decimal."""
    named = RULE.named(RULE.price(TWENTY))
    assert {k: Fraction(v) for k, v in named.items()} == {
        "mu_squared": Fraction(1, 400)
    }


def test_used_fraction_is_rounded_up():
    """The share of the limit that is shown is the next float, not the nearest."""
    tally = RULE.price(TWENTY)
    share = RULE.used_fraction(tally)
    exactly = Fraction(tally.amounts[0], RULE.limit.amounts[0])
    assert Fraction(math.nextafter(share, 0)) < exactly <= Fraction(share)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("epsilon", {"epsilon": 0}),
        ("epsilon", {"epsilon": float("nan")}),
        ("epsilon", {"epsilon": "1e5"}),
        ("delta", {"delta": 0}),
        ("delta", {"delta": 1}),
        ("delta", {"delta": "1e-36"}),
        ("delta", {"delta": float("nan")}),
        ("delta", {"delta": None}),
    ],
    ids=repr,
)
def test_a_bad_number_is_refused_by_name(name, options):
    """A budget that is no number or out of range names the option."""
    with pytest.raises(InvalidCost, match=name) as caught:
        make_filter("gaussian", **{"epsilon": 1, "delta": "1e-6", **options})
    assert caught.value.name == name


@pytest.mark.parametrize("option", ["order", "delta_loss", "conversion"])
def test_an_option_of_another_theorem_is_refused(option):
    """What means something to another filter is not silently ignored by this one."""
    with pytest.raises(InvalidCost, match=option):
        make_filter("gaussian", epsilon=1, delta="1e-6", **{option: 1})
