"""Each edit of a policy is judged: tighter, looser, or another guarantee."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_filter
from dpflow.exceptions import InvalidCost
from dpflow.policy import parse_policy
from dpflow.policy.changes import judge, overall, tighten_pins
from tests.tables import read_tables

pytestmark = pytest.mark.quick

ROWS = read_tables(__file__)
BASE, FLOWS = ROWS["base"], ROWS["flows"]


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
    for fields in ROWS["same"]:
        assert policy(**fields).to_declared() == policy().to_declared()
    one = policy(filter="{theorem: rdp, orders: [2, 8.0], conversion: tight}")
    two = policy(filter='{theorem: rdp, orders: ["2.0", 8], conversion: tight}')
    assert one.to_declared()["filter"] == two.to_declared()["filter"]
    assert one.to_declared()["filter"]["orders"] == ["2", "8"]


def test_each_field_is_judged():
    """And the other way round, the other way round."""
    opposite = {"tighter": "looser", "looser": "tighter"}
    for fields, verdicts in ROWS["judged"]:
        expected = [*verdicts.items()]
        before, after = policy(), policy(**fields)
        assert judged(before, after) == expected
        back = [(field, opposite.get(v, v)) for field, v in expected]
        assert judged(after, before) == back
    for fields in ROWS["other"]:
        before, after = policy(), policy(**fields)
        assert verdict(before, after) == verdict(after, before) == "other"


def test_an_unknown_field_cannot_be_compared():
    """A later version's field is no tightening to this one."""
    before, after = dict(policy().to_declared()), dict(policy().to_declared())
    after["partition"] = {"by": "week"}
    (change,) = judge(before, after)
    assert (change.field, change.verdict) == ("partition", "other")


@pytest.mark.parametrize(
    ("old", "new", "others", "charged", "expected"), ROWS["shares"]
)
def test_each_change_of_a_flow_is_judged(old, new, others, charged, expected):
    """A share may begin in the middle of a term only if nothing was charged before."""
    before = policy(flows=FLOWS[old], other_flows=others)
    after = policy(flows=FLOWS[new], other_flows=others)
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


@pytest.mark.parametrize(("old", "new", "charged", "expected"), ROWS["others"])
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
