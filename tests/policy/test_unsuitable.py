"""Policies that no rule can hold: of parts, windows, reserved shares and people."""

from __future__ import annotations

import pytest

from dpflow.exceptions import PolicyError
from dpflow.policy import parse_policy
from tests.ledger.support import make_policy

pytestmark = pytest.mark.quick

WINDOWS = {
    "unit": "customer-week",
    "partition": "{by: week}",
    "window": "{length: 2}",
    "budget": "{epsilon: 3, delta: 1e-6}",
    "filter": "gdp",
}


def test_the_individual_filter_is_refused_under_replace_one() -> None:
    """Replacing a person touches two people, so its policy is refused with a line."""
    fields = {"budget": "{epsilon: 5, delta: 1e-6}", "filter": "individual"}
    assert make_policy(**fields).filter.theorem == "individual"
    with pytest.raises(PolicyError, match="not for replace-one") as caught:
        make_policy(**fields, relation="replace-one")
    assert caught.value.line == 5


def test_a_partition_that_promises_something_else_is_refused() -> None:
    """Another spelling of a period would be an id of a person, with a budget a week."""
    week = {"partition": "{by: week}"}
    for fields, message in (
        ({"partition": "{by: Week}"}, "'Week' is not how a period is written"),
        ({"partition": "{by: Months}"}, "'Months' is not how a period is written"),
        ({"zone": "Berlin"}, "time zone"),
        ({"zone": "../x"}, "time zone"),
        ({"zone": "localtime"}, "time zone"),
        ({"partition": "{by: region, zone: UTC}"}, "at the top of the policy"),
        (week, "customer-week"),
        ({"partition": "{by: month}", "unit": "user-week"}, "user-week-month"),
        ({"partition": "{by: a/b c}"}, "not a usable name"),
        ({"partition": "{by: region}", "relation": "replace-one"}, "replace: within"),
        ({"partition": "{}"}, "missing"),
    ):
        with pytest.raises(PolicyError, match=message):
            make_policy(**fields)
    assert make_policy(partition="{by: weekday}").partition


@pytest.mark.parametrize(
    ("fields", "share", "match"),
    [
        ({"filter": "auto"}, "", "filter: gdp"),
        ({"filter": "residue"}, "", "filter: gdp"),
        ({"filter": "whitehouse"}, "", "filter: gdp"),
        ({"filter": "rogers"}, "", "filter: gdp"),
        ({"filter": "{theorem: individual, measure: gdp}"}, "", "gdp"),
        ({"filter": "rdp"}, "", "different constants"),
        ({"filter": "{theorem: rdp, orders: [4, 16]}"}, "", "single threshold"),
        ({"filter": "gdp", "partition": "{by: region}"}, "", "each partition"),
        ({"filter": "gdp", "population": "all"}, "", "other datasets"),
        ({"filter": "gdp"}, ", g: {epsilon: 2.9, delta: 9e-7, reserved: true}",
         "exceed the budget's mu_squared"),
        ({"filter": "basic"}, ", g: {epsilon: 1, delta: 8e-7, reserved: true}",
         "exceed the budget's delta"),
        ({"filter": "gdp"}, ", g: {reserved: true}", "needs an epsilon"),
    ],
)  # fmt: skip
def test_where_no_single_threshold_bounds_a_share_nothing_is_reserved(
    fields: dict[str, str], share: str, match: str
) -> None:
    """Each combination is refused when the file is read, with what to write."""
    flows = f"{{f: {{epsilon: 2, delta: 5e-7, reserved: true}}{share}}}"
    with pytest.raises(PolicyError, match=match):
        make_policy(budget="{epsilon: 3, delta: 1e-6}", flows=flows, **fields)


@pytest.mark.parametrize(
    ("theorem", "share"),
    [
        ("basic", "{epsilon: 2}"),
        ("output-dp", "{epsilon: 2}"),
        ("gdp", "{epsilon: 2, delta: 5e-7}"),
        ("zcdp", "{epsilon: 2, delta: 5e-7}"),
        ("{theorem: rdp, order: 16}", "{epsilon: 2, delta: 5e-7}"),
    ],
)
def test_thresholds_of_share_and_others_add_up_exactly(
    theorem: str, share: str
) -> None:
    """Under each filter that allows it, in whole units and per component."""
    policy = make_policy(
        budget="{epsilon: 4, delta: 1e-6}",
        filter=theorem,
        flows=f"{{f: {share[:-1]}, reserved: true}}}}",
    )
    whole, own = policy.dataset_filter(), policy.flow_filter("f")
    assert own is not None
    assert whole.limit is not None
    assert own.limit is not None
    rest = policy.to_pinned()["others"]["thresholds"]
    both = [a + b for a, b in zip(rest, own.limit.amounts, strict=True)]
    assert both == list(whole.limit.amounts)


def test_policies_that_windows_do_not_suit_are_refused() -> None:
    """Each says what to write instead, and nothing is pinned."""
    reserved = "{r: {epsilon: 1, delta: 1e-7, reserved: true}}"
    for fields, message in (
        ({"filter": "auto"}, "filter `auto` cannot guard a window: the price of a"),
        ({"filter": "residue"}, "Write `filter: gdp` for Gaussian noise"),
        ({"partition": "{by: region}", "unit": "customer"}, "parts by time"),
        ({"window": "{length: 367}"}, "less than or equal to 366"),
        ({"window": "{of: week, length: 2}"}, "window.of"),
        ({"odometer": "{theorem: rdp, order: 8}"}, "Remove `odometer`"),
        ({"population": "people"}, "Remove `population`"),
        ({"on_exhausted": "{schedule: pause}"}, "Remove `schedule`"),
        ({"flows": reserved}, "Remove `reserved`"),
        ({"flows": "{r: {halt_at_epsilon: 1}}"}, "halt_at_epsilon"),
    ):
        with pytest.raises(PolicyError) as caught:
            make_policy(**{**WINDOWS, **fields})
        assert message in str(caught.value)


def test_without_a_filter_windows_take_gdp() -> None:
    """Its threshold needs the least Gaussian noise; the sentence names the window."""
    text = "dataset: a\nunit: customer-day\nrelation: add-or-remove\n"
    text += "budget: {epsilon: 3, delta: 1e-6}\npartition: {by: day}\n"
    policy = parse_policy(text + "window: {length: 365}\n")
    assert policy.filter.theorem == "gdp"
    sentence = policy.guarantee_sentence()
    said = "for what one customer did in any 365 consecutive days (UTC), if every"
    assert f"(epsilon = 3, delta = 1e-06)-differentially private {said}" in sentence
    assert "Longer periods are not covered; `lifetime` limits them." in sentence
