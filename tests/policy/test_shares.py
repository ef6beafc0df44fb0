"""Shares in percent: parts of the threshold in force."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_filter
from dpflow.policy import parse_policy
from dpflow.policy.changes import tighten_pins
from dpflow.policy.reserved import run_lines
from tests.ledger.support import make_policy
from tests.policy_examples import POLICIES

pytestmark = pytest.mark.quick

BASE = POLICIES["shares"]


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
