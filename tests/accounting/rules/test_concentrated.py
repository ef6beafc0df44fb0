"""The concentrated filter: rhos add up to the rho that the target allows."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import concentrated_budget
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS, units_down
from tests.sizes import scaled

SPLIT = make_filter("concentrated", epsilon=1, delta="1e-6", delta_loss="6e-7")
WHOLE = make_filter("concentrated", epsilon=1, delta="1e-6")
TWENTY = Gaussian(sensitivity=1, sigma=20)

rhos = st.integers(1, 10**6).map(lambda n: Fraction(n, 10**8))
tiny_deltas = st.integers(0, 10**6).map(lambda n: Fraction(n, 10**12))
costs = st.one_of(
    st.builds(lambda r: ZCDP(rho=r), rhos),
    st.builds(lambda n: PureDP(epsilon=Fraction(n, 10**4)), st.integers(1, 2000)),
    st.builds(
        lambda n, d: ApproxDP(epsilon=Fraction(n, 10**4), delta=d),
        st.integers(1, 2000),
        tiny_deltas,
    ),
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
    ("epsilon", "conversion", "cost", "count"),
    [
        (1, "tight", TWENTY, 19),
        (5, "tight", TWENTY, 370),
        (1, "classic", TWENTY, 13),
        (5, "classic", TWENTY, 308),
        (1, "tight", PureDP(epsilon=0.1), 4),
        (5, "tight", PureDP(epsilon=0.1), 92),
        (1, "tight", ZCDP(rho="0.00125"), 19),
        (1, "tight", ZCDP(rho="0.0243559703595383"), 1),
        (1, "tight", ZCDP(rho="0.0243559703595384"), 0),
    ],
)
def test_known_numbers_of_steps(epsilon, conversion, cost, count):
    """The rule admits as many identical steps as theory says, and no more."""
    rule = make_filter(
        "concentrated", epsilon=epsilon, delta="1e-6", conversion=conversion
    )
    assert admitted(rule, cost) == count


@pytest.mark.parametrize("conversion", ["tight", "classic"])
def test_the_split_is_paid_for_by_the_conversion(conversion):
    """With part of delta kept for steps, rho is that of the rest of delta."""
    options = {"epsilon": 1, "conversion": conversion}
    split = make_filter("concentrated", delta="1e-6", delta_loss="6e-7", **options)
    whole = make_filter("concentrated", delta="6e-7", **options)
    assert split.limit.amounts[0] == whole.limit.amounts[0]
    assert split.limit.amounts[1] == units_down(Fraction("4e-7"))
    assert whole.limit.amounts[1] == 0


def test_the_limit_is_rounded_down_from_fifty_digits():
    """The classic limit is the whole number of units below its closed form."""
    with mpmath.workdps(60):
        log = mpmath.log(10**6)
        root = (mpmath.sqrt(1 + log) - mpmath.sqrt(log)) ** 2
        units = int(mpmath.floor(root * UNITS))
    rule = make_filter("concentrated", epsilon=1, delta="1e-6", conversion="classic")
    assert 0 < units - rule.limit.amounts[0] <= units // 10**29


def test_the_deltas_of_steps_have_their_own_limit():
    """Deltas add up to what the split keeps for them, exactly, and no further."""
    assert admitted(SPLIT, ApproxDP(epsilon="1e-6", delta="1e-7")) == 4
    assert admitted(SPLIT, ApproxDP(epsilon="1e-6", delta="4e-7")) == 1
    assert admitted(SPLIT, ApproxDP(epsilon="1e-6", delta="4.0000001e-7")) == 0


def test_without_a_split_a_step_with_a_delta_is_refused():
    """A filter that keeps no delta for steps says so; delta zero is no delta."""
    with pytest.raises(UnsupportedCost, match="delta_loss"):
        WHOLE.price(ApproxDP(epsilon=0.1, delta="1e-35"))
    pure = WHOLE.price(PureDP(epsilon=0.1))
    assert WHOLE.price(ApproxDP(epsilon=0.1, delta=0)) == pure


def test_the_limit_is_the_budget_in_whole_units_rounded_down():
    """A limit is what the conversion allows, rounded down to 36 decimals."""
    budget = concentrated_budget(WHOLE.epsilon, WHOLE.delta)
    limit = WHOLE.limit.amounts[0]
    assert limit <= budget * UNITS < limit + UNITS // 10**36


def test_the_smallest_excess_is_refused():
    """Equality fits; one unit above is refused, in either component."""
    full = SPLIT.limit
    assert SPLIT.admits(full)
    assert not SPLIT.admits(full + Tally((1, 0)))
    assert not SPLIT.admits(full + Tally((0, 1)))


def test_a_step_too_small_for_floats_still_counts():
    """After the limit is full, the least Gaussian that can be declared is refused."""
    least = SPLIT.price(Gaussian(sensitivity=1, sigma=10**9))
    assert least.amounts[0] > 0
    assert not SPLIT.admits(SPLIT.limit + least)


# -- laws --------------------------------------------------------------------------


@given(steps, st.randoms(use_true_random=False))
def test_the_order_of_charges_is_irrelevant(costs, random):
    """Any order of the same steps leaves the same tally, so the same decisions."""
    assert total(SPLIT, costs) == total(SPLIT, random.sample(costs, len(costs)))


@given(steps, costs)
def test_admission_is_monotone(costs, extra):
    """What is refused stays refused after one more charge."""
    tally = total(SPLIT, costs)
    more = tally + SPLIT.price(extra)
    assert SPLIT.admits(tally) or not SPLIT.admits(more)
    assert SPLIT.used_fraction(tally) <= SPLIT.used_fraction(more)
    assert (SPLIT.used_fraction(more) <= 1) == SPLIT.admits(more)


@given(steps, costs, costs)
def test_reserve_then_settle_equals_charge(costs, worst, realised):
    """Holding the worst case and posting another leaves what posting alone leaves."""
    before = total(SPLIT, costs)
    held = before + SPLIT.price(worst)
    settled = held - SPLIT.price(worst) + SPLIT.price(realised)
    assert settled == before + SPLIT.price(realised)


budgets = st.tuples(
    st.integers(1, 50).map(lambda n: Fraction(n, 10)),
    st.integers(1, 1000).map(lambda n: Fraction(n, 10**8)),
    st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(1)]),
)


@settings(max_examples=scaled(6))
@given(budgets, st.fractions(Fraction(1, 2), 1, max_denominator=20))
def test_a_tighter_budget_never_admits_more(budget, share):
    """Less epsilon, less delta or less of either part never raises a limit."""
    epsilon, delta, part = budget
    conversions = "classic", "tight"
    limits = [
        make_filter(
            "concentrated",
            epsilon=epsilon * e,
            delta=delta * d,
            delta_loss=delta * part * d,
            conversion=conversion,
        ).limit
        for e, d in ((share, share), (share, 1), (1, share), (1, 1))
        for conversion in conversions
    ]
    assert all(limit.fits_within(limits[-1]) for limit in limits)
    assert all(limits[i].fits_within(limits[i + 1]) for i in (0, 2, 4, 6))


# -- parameters --------------------------------------------------------------------


@pytest.mark.parametrize(
    "numbers",
    [
        {"epsilon": 1, "delta": "1e-6"},
        {"epsilon": 1, "delta": "1e-6", "delta_loss": "5e-7"},
        {"epsilon": 0.1, "delta": 1e-5, "conversion": "classic"},
        {"epsilon": "1e-12", "delta": "1e-35"},
        {"epsilon": Fraction(1, 3), "delta": Fraction(1, 7 * 10**5)},
        {"epsilon": 2, "delta": Fraction(1, 7), "delta_loss": Fraction(1, 11)},
    ],
    ids=repr,
)
def test_parameters_make_an_equal_rule_again(numbers):
    """What a ledger pins rebuilds the rule through JSON, limits included."""
    rule = make_filter("concentrated", **numbers)
    again = make_filter(**json.loads(json.dumps(rule.parameters())))
    assert again == rule
    assert hash(again) == hash(rule)
    assert again.limit == rule.limit


def test_rules_of_different_numbers_differ():
    """The split and the conversion are part of what a rule is."""
    others = [
        SPLIT,
        make_filter("concentrated", epsilon=1, delta="1e-6", conversion="classic"),
        make_filter("concentrated", epsilon=2, delta="1e-6"),
        make_filter("concentrated", epsilon=1, delta="6e-7"),
    ]
    assert WHOLE not in others
    same = make_filter("concentrated", epsilon=1, delta="1e-6", delta_loss=1e-6)
    assert same == WHOLE


def test_a_rule_names_its_tally_in_its_own_currency():
    """Journals show rho and delta as exact decimals."""
    named = SPLIT.named(SPLIT.price(TWENTY))
    assert {k: Fraction(v) for k, v in named.items()} == {
        "rho": Fraction(1, 800),
        "delta": 0,
    }


def test_used_fraction_is_rounded_up():
    """The share of the limit that is shown is the next float, not the nearest."""
    tally = WHOLE.price(TWENTY)
    share = WHOLE.used_fraction(tally)
    exactly = Fraction(tally.amounts[0], WHOLE.limit.amounts[0])
    assert Fraction(math.nextafter(share, 0)) < exactly <= Fraction(share)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("epsilon", {"epsilon": 0}),
        ("epsilon", {"epsilon": float("nan")}),
        ("delta", {"delta": 0}),
        ("delta", {"delta": 1}),
        ("delta", {"delta": float("nan")}),
        ("delta_loss", {"delta_loss": 0}),
        ("delta_loss", {"delta_loss": -1}),
        ("delta_loss", {"delta_loss": "1.0000001e-6"}),
        ("delta_loss", {"delta_loss": float("nan")}),
        ("delta_loss", {"delta_loss": True}),
        ("delta_loss", {"delta_loss": "half"}),
        ("conversion", {"conversion": "best"}),
        ("conversion", {"conversion": "Tight"}),
        ("conversion", {"conversion": None}),
        ("conversion", {"conversion": True}),
        ("conversion", {"conversion": ["tight"]}),
    ],
    ids=repr,
)
def test_a_bad_option_is_refused_by_name(name, options):
    """Each option that is no number, out of range or no known word names itself."""
    with pytest.raises(InvalidCost, match=name) as caught:
        make_filter("concentrated", **{"epsilon": 1, "delta": "1e-6", **options})
    assert caught.value.name == name


def test_delta_must_be_given():
    """Without a delta there is no conversion, and the message says so."""
    with pytest.raises(InvalidCost, match="delta"):
        make_filter("concentrated", epsilon=1)


@pytest.mark.parametrize("option", ["order", "delta_steps", "rho"])
def test_an_unknown_option_is_refused(option):
    """A misspelt option is InvalidCost with its name."""
    with pytest.raises(InvalidCost, match=option):
        make_filter("concentrated", epsilon=1, delta="1e-6", **{option: 1})
