"""Shares, halts, other flows, and what a policy pins."""

from __future__ import annotations

import json

import pytest

from dpflow.accounting import make_filter, make_odometer
from dpflow.ledger.decisions.gates import covers_flow
from dpflow.policy import parse_policy
from dpflow.policy.pinned import difference_lines
from tests.policy_examples import EXAMPLE, SHORT, edited, share

pytestmark = pytest.mark.quick


def test_a_share_has_the_theorem_of_the_dataset():
    """The flow's own filter differs in its numbers only."""
    policy = parse_policy(EXAMPLE)
    expected = make_filter("gdp", epsilon=2, delta="5e-7")
    assert expected == policy.flow_filter("weekly-report")
    assert policy.flow_filter("other") is None
    assert policy.flow_filter(None) is None


def test_odometers_are_tuned_for_the_halt_of_the_flow():
    """A flow that halts is tuned for its halt, any other for the budget."""
    policy = parse_policy(share("{halt_at_epsilon: 1.5}"))
    halting = make_odometer("rdp", delta="1e-6", halt_at_epsilon="1.5")
    idle = make_odometer("rdp", delta="1e-6", halt_at_epsilon=3)
    assert halting == policy.flow_odometer("weekly-report")
    assert idle == policy.flow_odometer("other")
    assert idle == policy.flow_odometer(None)
    assert halting != idle


def test_other_flows_are_refused_once_any_flow_is_named():
    """A policy that names flows allows these only, unless it says otherwise."""
    for lines, named, unnamed in (
        ("", True, True),
        ("flows: {}\n", True, True),
        ("other_flows: refuse\n", False, False),
        ("flows: {a: {}}\n", True, False),
        ("flows: {a: {}}\nother_flows: allow\n", True, True),
    ):
        pinned = parse_policy(SHORT + lines).to_pinned()
        assert named == covers_flow(pinned, "a")
        assert unnamed == covers_flow(pinned, "b") == covers_flow(pinned, None)


def test_pins_rebuild_the_rules():
    """The pinned parameters are enough to make equal rules."""
    policy = parse_policy(EXAMPLE)
    pinned = json.loads(json.dumps(policy.to_pinned()))
    flow = pinned["flows"]["weekly-report"]
    assert policy.dataset_filter() == make_filter(**pinned["filter"])
    assert policy.flow_odometer(None) == make_odometer(**pinned["odometer"])
    assert policy.flow_filter("weekly-report") == make_filter(**flow["filter"])
    assert policy.flow_odometer("weekly-report") == make_odometer(**flow["odometer"])


def test_what_no_guarantee_rests_on_is_not_pinned():
    """Alerts, errors, exhaustion and version may change at any time."""
    text = edited("[0.5, 0.8, 0.95]", "[0.9]", edited("redact", "keep"))
    text = edited("pause", "keep", text) + 'data_version: "2"\n'
    assert parse_policy(text).to_pinned() == parse_policy(EXAMPLE).to_pinned()


def test_differences_name_field_ledger_and_file():
    """Each change is said once, with both values."""
    changed = parse_policy(edited("epsilon: 3", "epsilon: 4", SHORT) + "source: a\n")
    assert difference_lines(
        parse_policy(SHORT).to_declared(), changed.to_declared()
    ) == ["budget.epsilon: ledger 3, file 4", "source: ledger none, file a"]
