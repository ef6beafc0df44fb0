"""Each edit of a policy is judged: tighter, looser, or another guarantee."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_filter
from dpflow.exceptions import InvalidCost
from dpflow.policy import parse_policy
from dpflow.policy.changes import judge, overall, tighten_pins

pytestmark = pytest.mark.quick

BASE = {
    "dataset": "shop",
    "unit": "customer",
    "relation": "add-or-remove",
    "budget": "{epsilon: 3, delta: 1e-6}",
    "filter": "gdp",
    "odometer": "{theorem: rdp, delta: 1e-6}",
    "flows": "{weekly: {epsilon: 2, delta: 5e-7, halt_at_epsilon: 3}}",
}


def policy(**fields):
    """Make the base policy with other fields; None leaves one out."""
    given = {name: text for name, text in (BASE | fields).items() if text is not None}
    return parse_policy("\n".join(f"{name}: {text}" for name, text in given.items()))


def judged(before, after, charged=None):
    """Return each changed field with its verdict."""
    verdicts = judge(before.to_declared(), after.to_declared(), charged_flows=charged)
    return [(change.field, change.verdict) for change in verdicts]


def verdict(before, after, charged=()):
    """Return what all changes together do."""
    return overall(
        judge(before.to_declared(), after.to_declared(), charged_flows=charged)
    )


def test_one_guarantee_has_one_declaration():
    """However its numbers are spelt, and whatever no guarantee rests on."""
    for fields in (
        {"budget": "{epsilon: 3.00, delta: 0.000001}"},
        {"budget": '{delta: "1e-6", epsilon: "3.0"}'},
        {"filter": "{theorem: gdp}"},
        {"odometer": '{theorem: rdp, delta: "0.000001"}'},
        {"flows": "{weekly: {halt_at_epsilon: 3.0, epsilon: 2.0, delta: 0.5e-6}}"},
        {"other_flows": "refuse"},
        {"alerts": "[0.9]", "errors": "keep", "data_version": '"2"'},
    ):
        assert policy(**fields).to_declared() == policy().to_declared()
    one = policy(filter="{theorem: rdp, orders: [2, 8.0], conversion: tight}")
    two = policy(filter='{theorem: rdp, orders: ["2.0", 8], conversion: tight}')
    assert one.to_declared()["filter"] == two.to_declared()["filter"]
    assert one.to_declared()["filter"]["orders"] == ["2", "8"]


LESS_DELTA = "{theorem: rdp, delta: 9e-7}"
SPLIT = [("budget.delta", "looser"), ("budget.epsilon", "tighter")]
JUDGED = [
    ({"budget": "{epsilon: 2, delta: 1e-6}"}, [("budget.epsilon", "tighter")]),
    ({"budget": "{epsilon: 3, delta: 9e-7}"}, [("budget.delta", "tighter")]),
    ({"budget": "{epsilon: 4, delta: 1e-6}"}, [("budget.epsilon", "looser")]),
    ({"budget": "{epsilon: 2, delta: 2e-6}"}, SPLIT),
    ({"unit": "visit"}, [("unit", "other")]),
    ({"filter": "zcdp"}, [("filter.theorem", "other")]),
    ({"odometer": LESS_DELTA}, [("odometer.delta", "other")]),
    ({"other_flows": "allow"}, [("other_flows", "access")]),
    ({"lifetime": "{epsilon: 9, delta: 1e-5}"}, [("lifetime", "tighter")]),
]


def test_each_field_is_judged():
    """And the other way round, the other way round."""
    opposite = {"tighter": "looser", "looser": "tighter"}
    for fields, expected in JUDGED:
        before, after = policy(), policy(**fields)
        assert judged(before, after) == expected
        back = [(field, opposite.get(v, v)) for field, v in expected]
        assert judged(after, before) == back
    share = "{weekly: {epsilon: 2, delta: 5e-7}}"
    for fields in (
        {"relation": "replace-one", "odometer": None, "flows": share},
        {"filter": "{theorem: rdp, order: 9}"},
    ):
        before, after = policy(), policy(**fields)
        assert verdict(before, after) == verdict(after, before) == "other"


def test_an_unknown_field_cannot_be_compared():
    """A later version's field is no tightening to this one."""
    before, after = dict(policy().to_declared()), dict(policy().to_declared())
    after["partition"] = {"by": "week"}
    (change,) = judge(before, after)
    assert (change.field, change.verdict) == ("partition", "other")


SHARED = (
    "{weekly: {epsilon: 2, delta: 5e-7, halt_at_epsilon: 3}, "
    "daily: {epsilon: 1, delta: 5e-7}}"
)
PERCENT = SHARED.replace("epsilon: 1, delta: 5e-7", "share: 20%")
PLANNED = SHARED.replace("7}}", "7, plan: {runs: 2, steps: {count: 1}}}}")
RESERVED = SHARED.replace("7}}", "7, reserved: true}}")
EACH = "{share_each: 5%}"
NAMED = "{weekly: {epsilon: 2, delta: 5e-7, halt_at_epsilon: 3}, daily: {}}"


@pytest.mark.parametrize(
    ("old", "new", "others", "charged", "expected"),
    [
        # A flow that could not use the dataset.
        (None, SHARED, "refuse", (), "access"),
        (None, SHARED, "refuse", ("daily",), "other"),
        (None, NAMED, "refuse", ("daily",), "access"),
        (SHARED, None, "refuse", ("daily",), "access"),
        # One that could: its share is new, and must have seen all that it charged.
        (None, SHARED, "allow", (), "access"),
        (None, SHARED, "allow", ("daily",), "other"),
        (None, SHARED, "allow", None, "other"),
        (NAMED, SHARED, "refuse", (), "access"),
        (NAMED, SHARED, "refuse", ("daily",), "other"),
        (SHARED, None, "allow", ("daily",), "access"),
        (SHARED, NAMED, "refuse", ("daily",), "access"),
        (None, NAMED, "allow", ("daily",), "neutral"),
        (SHARED, SHARED.replace(": 1,", ": 0.5,"), "refuse", ("daily",), "access"),
        (SHARED, SHARED.replace(": 1,", ": 1.5,"), "refuse", ("daily",), "access"),
        (SHARED, SHARED.replace("n: 3}", "n: 2.5}"), "refuse", ("weekly",), "tighter"),
        (SHARED, SHARED.replace("n: 3}", "n: 3.5}"), "refuse", (), "looser"),
        (SHARED.replace(", halt_at_epsilon: 3", ""), SHARED, "refuse", None, "tighter"),
        (SHARED, SHARED.replace(", halt_at_epsilon: 3", ""), "refuse", (), "looser"),
        # Percentages, and shares of flows without a name.
        (SHARED, PERCENT, "refuse", ("daily",), "access"),
        (PERCENT, PERCENT.replace("20%", "30%"), "refuse", ("daily",), "access"),
        (PERCENT, None, EACH, ("daily",), "access"),
        (None, PERCENT, EACH, ("daily",), "access"),
        (None, PERCENT.replace("20%", "5%"), EACH, ("daily",), "neutral"),
        (NAMED, None, EACH, ("daily",), "other"),
        (NAMED, None, EACH, (), "access"),
        # A planned noise is solved for its share.
        (PLANNED, PLANNED.replace(": 1,", ": 0.5,"), "refuse", ("daily",), "other"),
        (PLANNED, PLANNED.replace(": 1,", ": 0.5,"), "refuse", (), "access"),
        # Where a share is reserved, the guarantee of the rest depends on all of them.
        (None, RESERVED, "refuse", (), "other"),
        (RESERVED, f"{RESERVED[:-1]}, monthly: {{}}}}", "refuse", (), "looser"),
        (f"{RESERVED[:-1]}, monthly: {{}}}}", RESERVED, "refuse", (), "tighter"),
        (RESERVED, RESERVED.replace(": 1,", ": 0.5,"), "refuse", (), "tighter"),
    ],
)
def test_each_change_of_a_flow_is_judged(old, new, others, charged, expected):
    """A share may begin in the middle of a term only if nothing was charged before."""
    before = policy(flows=old or BASE["flows"], other_flows=others)
    after = policy(flows=new or BASE["flows"], other_flows=others)
    verdicts = judge(before.to_declared(), after.to_declared(), charged_flows=charged)
    assert verdicts
    assert overall(verdicts) == expected


def test_derived_numbers_stay_as_they_were_pinned():
    """The file alone would tune another order, which no tally has kept."""
    renyi = {"filter": "rdp"}
    before = policy(**renyi)
    after = policy(
        **renyi,
        budget="{epsilon: 2.5, delta: 1e-6}",
        flows="{weekly: {epsilon: 1.5, delta: 5e-7, halt_at_epsilon: 2.5}}",
    )
    old, pins = before.to_pinned(), tighten_pins(before.to_pinned(), after)
    assert pins["filter"] == {**old["filter"], "epsilon": "2.5"}
    assert pins["filter"] != after.to_pinned()["filter"]
    assert pins["odometer"] == old["odometer"]
    share, kept = pins["flows"]["weekly"], old["flows"]["weekly"]
    assert share["filter"] == {**kept["filter"], "epsilon": "1.5"}
    assert (share["odometer"], share["halt_at_epsilon"]) == (kept["odometer"], "2.5")
    assert make_filter(**share["filter"]).components == ("rdp",)


@pytest.mark.parametrize(
    ("old", "new", "charged", "expected"),
    [
        ("refuse", "allow", ("x",), "access"),
        ("refuse", EACH, (), "access"),
        # It was charged while it had no share.
        ("refuse", EACH, ("x",), "other"),
        ("allow", "refuse", ("x",), "access"),
        ("allow", EACH, (), "other"),
        (EACH, EACH.replace("5", "6"), ("x",), "access"),
        (EACH, EACH.replace("5", "4"), ("x",), "access"),
        (EACH, "allow", ("x",), "access"),
        (EACH, "refuse", ("x",), "access"),
    ],
)
def test_access_of_flows_without_a_name(old, new, charged, expected):
    """A tally may not begin after charges that it did not see."""
    before, after = policy(other_flows=old), policy(other_flows=new)
    assert verdict(before, after, charged) == expected


def test_a_share_goes_on_in_its_constants():
    """A raised share keeps the order; a percentage has that of the dataset."""
    renyi = {"filter": "rdp", "odometer": None}
    flows = "{weekly: {epsilon: 1.5, delta: 5e-7}}"
    pins = policy(**renyi, flows=flows).to_pinned()
    more = tighten_pins(pins, policy(**renyi, flows=flows.replace("1.5", "2.5")))
    share, old = (copy["flows"]["weekly"]["filter"] for copy in (more, pins))
    assert share == {**old, "epsilon": "2.5"}
    assert share["order"] != pins["filter"]["order"]
    with pytest.raises(InvalidCost, match="would price steps in another way"):
        tighten_pins(pins, policy(**renyi, flows="{weekly: {share: 50%}}"))
