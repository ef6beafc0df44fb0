"""Laws of every filter and odometer, over a table of their options."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Cost, ExponentialMechanism, Gaussian, Laplace, PureDP
from dpflow.accounting import (
    FILTERS,
    ODOMETERS,
    Filter,
    Odometer,
    Rule,
    make_filter,
    make_odometer,
)
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.rules.rdp_doubling import PAPER_ORDERS
from dpflow.accounting.rules.rule import ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import same_prices
from dpflow.costs import ApproxZCDP
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.forecast.counting import WorkloadStep, runs_of
from dpflow.rounding import UNITS
from tests.sizes import scaled, spread
from tests.tables import read_tables

TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
TABLES = read_tables(__file__)
#: Each theorem with its options.
CASES = [
    (kind, theorem, options)
    for kind in ("filter", "odometer")
    for theorem, rows in TABLES[kind].items()
    for options in rows
]


def made(kind: str, theorem: str, given: dict[str, Any], **other: Any) -> Rule:
    """Make the rule of a row of the table."""
    options = {"delta": "1e-6", **given, **other}
    if kind == "odometer":
        return make_odometer(theorem, **options)
    return make_filter(theorem, **{"epsilon": 2, **options})


RULES = [made(*case) for case in CASES]

small = st.integers(1, 2000)
COSTS = st.one_of(
    small.map(lambda n: PureDP(epsilon=Fraction(n, 10**4))),
    small.map(lambda n: Laplace(sensitivity=1, scale=n + 4)),
    small.map(lambda n: Gaussian(sensitivity=1, sigma=n + 4)),
    small.map(lambda n: ZCDP(rho=Fraction(n, 10**7))),
    small.map(lambda n: ExponentialMechanism(epsilon=Fraction(n, 10**4))),
    st.tuples(small, small).map(
        lambda n: ApproxDP(epsilon=Fraction(n[0], 10**4), delta=Fraction(n[1], 10**11))
    ),
    st.sampled_from([TENTH, TWENTY]),
)


def names(rule: Rule) -> str:
    """Return a test's name: the theorem and its place in the table."""
    return f"{type(rule).__name__}-{RULES.index(rule)}"


def priced(rule: Rule, costs: list[Cost]) -> list[Cost]:
    """Return the costs that a rule has a price for."""
    result = []
    for cost in costs:
        with suppress(UnsupportedCost):
            rule.price(cost)
            result.append(cost)
    return result


def total(rule: Rule, costs: list[Cost]) -> Tally:
    """Return the tally after charging costs one after another."""
    tally = rule.zero()
    for cost in costs:
        tally = tally + rule.price(cost, tally)
    return tally


def level(rule: Rule, tally: Tally) -> float:
    """Return the share that a filter has used, or what an odometer reads."""
    if isinstance(rule, Filter):
        return rule.used_fraction(tally)
    assert isinstance(rule, Odometer)
    return rule.read(tally)


def test_every_theorem_stands_in_the_table() -> None:
    """A theorem that is added obeys the laws, too."""
    assert TABLES["filter"].keys() == FILTERS.keys()
    assert TABLES["odometer"].keys() == ODOMETERS.keys()


@pytest.mark.parametrize("rule", [r for r in RULES if r.steady], ids=names)
@settings(max_examples=scaled(12, push=4), deadline=None)
@given(costs=st.lists(COSTS, max_size=8), data=st.data())
def test_the_order_of_charges_is_irrelevant(rule, costs, data):
    """Any order leaves the same tally; holding, settling and voiding are exact."""
    costs = priced(rule, [*costs, TENTH])
    tally = total(rule, costs)
    assert tally == total(rule, data.draw(st.permutations(costs)))
    worst, realised = rule.price(costs[0]), rule.price(costs[-1])
    assert tally + worst - worst == tally
    assert tally + worst - worst + realised == tally + realised


@pytest.mark.parametrize("rule", RULES, ids=names)
@settings(max_examples=scaled(12, push=4), deadline=None)
@given(costs=st.lists(COSTS, max_size=8), times=st.integers(1, 400))
def test_a_further_step_never_helps(rule: Rule, costs: list[Cost], times: int) -> None:
    """What is refused stays refused; shares and readings never fall."""
    costs = priced(rule, [*costs, TENTH])
    tally = total(rule, costs).times(times)
    more = tally + rule.price(costs[0], tally)
    assert level(rule, tally) <= level(rule, more) * (1 + 1e-9)
    if isinstance(rule, Filter):
        assert rule.admits(tally) or not rule.admits(more)
        for spent in (tally, more):
            assert (rule.used_fraction(spent) <= 1) == rule.admits(spent)


# Delta sizes the filters of rdp-doubling, so that fewer of them may read less.
@pytest.mark.parametrize(
    "rule", [r for r in RULES if r.theorem != "rdp-doubling"], ids=names
)
@settings(max_examples=scaled(6, push=2), deadline=None)
@given(
    costs=st.lists(COSTS, max_size=6),
    times=st.integers(1, 400),
    share=st.fractions(Fraction(1, 2), 1, max_denominator=20),
)
def test_a_smaller_budget_never_admits_more(rule, costs, times, share):
    """With the same constants: less epsilon, less delta, or a rarer failure."""
    pinned = rule.parameters()
    fewer = [{"delta": Fraction(pinned["delta"]) * share}]
    if isinstance(rule, Filter):
        fewer.append({"epsilon": Fraction(pinned["epsilon"]) * share})
    some = priced(rule, [*costs, TENTH])
    tally = total(rule, some).times(times)
    make = make_filter if isinstance(rule, Filter) else make_odometer
    for less in fewer:
        try:
            tight = make(**{**pinned, **less})
        except InvalidCost:
            continue  # no such rule: its steps or its parts of delta do not fit
        if tight.components != rule.components:
            # All of the smaller delta is for the loss: steps have none.
            assert "delta" not in tight.components
            continue
        assert level(rule, tally) <= level(tight, tally) * (1 + 1e-9)
        if isinstance(rule, Filter) and isinstance(tight, Filter):
            assert rule.admits(tally) or not tight.admits(tally)
            if rule.adds_up and same_prices(rule, tight):
                assert total(tight, some) == total(rule, some)


def test_an_option_of_another_kind_is_refused_with_a_reason() -> None:
    """Also where no option is unknown and none is missing."""
    with pytest.raises(InvalidCost, match=r"options: .*int"):
        make_filter("auto", epsilon=1, delta="1e-6", members=3)
    with pytest.raises(InvalidCost, match="options: it needs steps"):
        make_filter("sequence", epsilon=1, delta="1e-6")


def test_only_rules_that_add_up_have_equal_prices_under_all_budgets() -> None:
    """Where budgets set prices, or an order does, amounts mean something else."""

    def filters(name: str, **options: Any) -> list[Filter]:
        return [make_filter(name, epsilon=e, delta="1e-6", **options) for e in (1, 2)]

    def are_alike(first: Filter, other: Filter) -> bool:
        return first.adds_up and same_prices(first, other)

    low, high = (filters("rdp", order=order) for order in (30, 40))
    steady = [*map(filters, ("basic", "gdp", "zcdp")), low, high]
    assert all(are_alike(*both) for both in steady)
    assert not any(are_alike(*filters(name)) for name in ("residue", "auto", "rdp"))
    assert not are_alike(low[0], high[0])


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_parameters_make_an_equal_rule_again(rule: Rule) -> None:
    """What a ledger pins rebuilds the rule through JSON, derived numbers included."""
    pinned = json.loads(json.dumps(rule.parameters()))
    again = (make_filter if isinstance(rule, Filter) else make_odometer)(**pinned)
    assert again == rule
    assert hash(again) == hash(rule)
    assert again.components == rule.components
    assert again.parameters() == rule.parameters()
    tally = rule.price(TENTH)
    assert level(again, tally) == level(rule, tally)
    if isinstance(rule, ThresholdFilter):
        assert again.limit == rule.limit  # type: ignore[union-attr]


def test_rules_of_different_numbers_differ() -> None:
    """No two rows of the table are equal, nor is one with another budget."""
    assert all(one != other for i, one in enumerate(RULES) for other in RULES[:i])
    for case, rule in zip(CASES, RULES, strict=True):
        assert made(*case, delta="2e-6") != rule
        assert made(*case, delta=1e-6) == rule
        if isinstance(rule, Filter):
            assert made(*case, epsilon=3) != rule


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_a_rule_names_its_tally_in_its_own_currency(rule: Rule) -> None:
    """Journals show each component as an exact decimal, and counts as counts."""
    tally = rule.price(TENTH)
    named = rule.label(tally)
    assert tuple(named) == rule.components
    for (name, text), amount in zip(named.items(), tally.amounts, strict=True):
        counted = name.endswith("uncovered") or rule.theorem == "sequence"
        assert Fraction(text) == (amount if counted else Fraction(amount, UNITS))


@pytest.mark.parametrize(
    "rule", [r for r in RULES if isinstance(r, ThresholdFilter)], ids=names
)
def test_the_smallest_excess_is_refused(rule: ThresholdFilter) -> None:
    """Equality fits, one unit more of any component does not; shares are rounded up."""
    assert rule.admits(rule.limit)
    assert rule.used_fraction(rule.limit) in (0, 1) or rule.theorem == "sequence"
    for place in range(len(rule.components)):
        unit = Tally(tuple(int(place == i) for i in range(len(rule.components))))
        assert not rule.admits(rule.limit + unit)
    spent = Tally(tuple(limit // 3 + 1 for limit in rule.limit.amounts))
    if rule.theorem != "sequence" and all(rule.limit.amounts):
        pairs = zip(spent.amounts, rule.limit.amounts, strict=True)
        exactly = max(Fraction(*pair) for pair in pairs)
        share = rule.used_fraction(spent)
        assert Fraction(math.nextafter(share, 0)) < exactly <= Fraction(share)


@pytest.mark.parametrize(
    "rule", [r for r in RULES if isinstance(r, Odometer)], ids=names
)
def test_a_step_without_a_price_ends_the_reading(rule: Odometer) -> None:
    """Refused by `price`, counted by `charge`; the reading is infinite until a void."""
    leak = ApproxZCDP(rho="0.01", delta="1e-35")
    for cost in (leak, ApproxDP(epsilon="0.1", delta="1e-8")):
        with pytest.raises(UnsupportedCost, match=r"ApproxZCDP|delta"):
            rule.price(cost)
    assert rule.charge(leak).amounts == (*(0,) * (len(rule.components) - 1), 1)
    before = rule.charge(TENTH)
    assert before == rule.price(TENTH)
    after = before + rule.charge(leak)
    assert rule.read(after) == rule.read(after + before) == math.inf
    assert rule.label(after + rule.charge(leak))["uncovered"] == "2"
    assert rule.read(after - rule.charge(leak)) == rule.read(before) < math.inf


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_bad_number_is_refused_by_name(case: tuple[str, str, dict[str, Any]]) -> None:
    """So is an option that the theorem does not have; nothing goes by position."""
    kind, theorem, _ = case
    bad = [*TABLES["bad numbers"]["both"], *TABLES["bad numbers"][kind]]
    if theorem not in ("basic", "output-dp", "auto", "sequence"):
        bad.append(["delta", 0])
    for name, number in bad:
        with pytest.raises(InvalidCost, match=name) as caught:
            made(*case, **{name: number})
        assert name != "epsilon" or caught.value.name == name
    with pytest.raises(TypeError, match="positional"):
        type(made(*case))(2, "1e-6")


def test_a_broken_rule_breaks_a_law() -> None:
    """Negative control: a price that depends on what is used is noticed."""
    rule = make_filter("residue", epsilon=2, delta="1e-6")
    costs: list[Cost] = [TENTH, TWENTY, PureDP(epsilon="1")]
    assert total(rule, costs) != total(rule, costs[::-1])


def test_known_numbers_of_steps() -> None:
    """A filter admits as many equal steps as theory says, and no more."""
    slow = spread(TABLES["admitted slowly"], 1)
    for theorem, row, text, counts in [*TABLES["admitted"], *slow]:
        is_paper = row.get("orders") == "paper"
        options = {"orders": [*PAPER_ORDERS]} if is_paper else row
        for (epsilon, delta), count in zip(TABLES["budgets"], counts, strict=True):
            if count is not None:
                rule = make_filter(theorem, epsilon=epsilon, delta=delta, **options)
                result = runs_of(rule, (WorkloadStep(cost_from_text(text)),))
                assert count == result, (theorem, options, text)
    for epsilon in (0.1, "0.1", Fraction(1, 10)):
        rule = make_filter("basic", epsilon="0.3")
        assert runs_of(rule, (WorkloadStep(PureDP(epsilon=epsilon)),)) == 3
