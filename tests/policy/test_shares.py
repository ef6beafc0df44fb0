"""Shares in percent: parts of the threshold in force."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_filter
from dpflow.exceptions import PolicyError
from dpflow.policy import parse_policy
from dpflow.policy.changes import tighten_pins
from dpflow.policy.reserved import run_lines

pytestmark = pytest.mark.quick

BASE = """
dataset: sales
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
flows: {weekly: {share: 70%}, monthly: {share: 30%}}
"""


def thresholds(pins, *flows):
    """Return the threshold of the dataset, and of some shares."""
    rules = [pins["filter"], *(pins["flows"][flow]["filter"] for flow in flows)]
    return [make_filter(**rule).thresholds for rule in rules]


@pytest.mark.parametrize(
    "theorem", ["gdp", "zcdp", "basic", "{theorem: rdp, order: 9, delta_loss: 5e-7}"]
)
def test_a_share_is_a_part_of_each_threshold_rounded_down(theorem):
    """70 and 30 % are at most the whole, and all of it but the last place."""
    policy = parse_policy(BASE.replace("gdp", theorem))
    whole, weekly, monthly = thresholds(policy.to_pinned(), "weekly", "monthly")
    for total, most, least in zip(whole, weekly, monthly, strict=True):
        assert (most, least) == (total * 70 // 100, total * 30 // 100)


def test_a_share_shrinks_with_the_threshold_in_force():
    """After a tightening it is a part of the lower one."""
    before = parse_policy(BASE)
    after = parse_policy(BASE.replace("epsilon: 3", "epsilon: 2"))
    pins = tighten_pins(before.to_pinned(), after)
    (whole,), (share,) = thresholds(pins, "weekly")
    assert share == whole * 70 // 100 < thresholds(before.to_pinned(), "weekly")[1][0]


def test_one_percentage_has_one_declaration():
    """70.0% and 70% are equal; a share in epsilon declares no percentage."""
    one, two = parse_policy(BASE), parse_policy(BASE.replace("70%", '"7e1%"'))
    assert one.to_declared() == two.to_declared()
    assert one.to_declared()["flows"]["weekly"]["share"] == "70%"
    other = parse_policy(BASE.replace("share: 70%", "epsilon: 1, delta: 1e-7"))
    assert "share" not in other.to_declared()["flows"]["weekly"]


def test_shares_in_percent_leave_nothing_over():
    """52 weekly runs in 70 % and 12 monthly ones in 30 % of (3, 1e-6) under `gdp`."""
    plans = [f", plan: {{runs: {n}, steps: {{s: 1}}}}}}" for n in (52, 12)]
    text = BASE.replace("70%}", f"70%{plans[0]}").replace("30%}", f"30%{plans[1]}")
    flows = parse_policy(text).to_pinned()["flows"]
    noises = [float(flows[name]["noise"]["s"]) for name in ("weekly", "monthly")]
    assert noises == pytest.approx([13.31, 9.765], abs=0.005)


REFUSED = [
    ("70%", "0.7", "flows.weekly.share: should be text"),
    ("70%", "0%", "must be a percentage, got '0%'"),
    ("70%", "101%", "must be a percentage"),
    ("70%", "70", "flows.weekly.share: should be text"),
    ("70%", "70%, epsilon: 1", "a share is a percentage, or an epsilon"),
    ("70%", "70%, delta: 1e-7", "a share is a percentage, or an epsilon"),
    ("70%", "80%, reserved: true", "the shares add up to 110%"),
    ("gdp", "auto", "Write `epsilon` and `delta`, or `filter: gdp`."),
    ("gdp", "{theorem: rdp, orders: [8, 9]}", "no single threshold. Write `epsilon`"),
    (
        "filter: gdp\n",
        "filter: gdp\npartition: {by: week}\nwindow: {length: 4}\n",
        "each window has its own sum. Write `epsilon` and `delta`.",
    ),
    ("weekly", '"team-*"', "none of %&<>\\*"),
    ("weekly", '"a?"', "flow 'a\\?' is not a usable name"),
    ("sales", '"sa[l]es"', "dataset 'sa\\[l\\]es' is not a usable name"),
]


@pytest.mark.parametrize(("old", "new", "text"), REFUSED)
def test_what_is_no_part_of_one_threshold_is_refused(old, new, text):
    """The error says what to write."""
    source = BASE.replace("customer", "customer-week") if "window" in new else BASE
    with pytest.raises(PolicyError, match=text):
        parse_policy(source.replace(old, new))


def test_a_sum_above_the_whole_is_allowed_where_no_share_is_reserved():
    """A share is a limit; flows may compete for the rest."""
    assert parse_policy(BASE.replace("30%", "90%")).flows["monthly"].share == "90%"
    assert parse_policy(BASE.replace("70%", "70%, reserved: true"))


EACH = f"{BASE}other_flows: {{share_each: 5.0%}}\n"


def test_each_flow_without_a_name_may_have_a_share():
    """One declaration, one filter, one sentence."""
    policy = parse_policy(EACH)
    assert policy.to_declared()["other_flows"] == {"share_each": "5%"}
    pins = policy.to_pinned()
    (whole,) = make_filter(**pins["filter"]).thresholds
    assert make_filter(**pins["each"]).thresholds == (whole * 5 // 100,)
    assert "Each flow without a name in the policy has 5% of" in run_lines(pins)[0]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("5.0%", "5", "share_each must be a percentage, got '5'"),
        ("{share_each: 5.0%}", "maybe", "must be allow, refuse or a mapping"),
        ("gdp", "auto", "other_flows: .* Write `other_flows: allow`, or `filter: gdp`"),
        (
            "70%",
            "60%, reserved: true",
            "other_flows: .* do not go with reserved shares",
        ),
    ],
)
def test_shares_of_unnamed_flows_have_the_same_limits(old, new, text):
    """And they do not go with reserved shares."""
    source = EACH if "70%" in old else EACH.replace("{share: 70%}", "{}")
    source = source.replace("{share: 30%}", "{}")
    with pytest.raises(PolicyError, match=text):
        parse_policy(source.replace(old, new))
