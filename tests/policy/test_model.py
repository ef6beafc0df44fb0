"""Shares, halts, other flows, and what a policy pins."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from dpflow.accounting import make_filter, make_odometer
from dpflow.ledger.decisions.gates import covers_flow
from dpflow.policy import parse_policy
from dpflow.policy.pinned import difference_lines
from dpflow.rounding import short_up
from tests.policy_examples import EXAMPLE, SHORT, edited, refused, share

pytestmark = pytest.mark.quick


def test_a_share_has_the_theorem_of_the_dataset():
    """The flow's own filter differs in its numbers only."""
    policy = parse_policy(EXAMPLE)
    expected = make_filter("gdp", epsilon=2, delta="5e-7")
    assert expected == policy.flow_filter("weekly-report")
    assert policy.flow_filter("other") is None
    assert policy.flow_filter(None) is None


LOWEST = make_odometer("rdp", delta="1e-6", halt_at_epsilon="1e-9")
LOWEST_IDLE = short_up(Fraction(LOWEST.read(LOWEST.zero())))

REFUSED_SHARES = [
    (share("{epsilon: 3.0001, delta: 0}"), "epsilon 3.0001 exceeds the", "at most 3,"),
    (share("{epsilon: 2, delta: 2e-6}"), "delta 0.000002 exceeds", "at most 0.000001"),
    (share("{delta: 5e-7}"), "delta needs an epsilon", "or drop delta"),
    (share("{epsilon: 2}"), "delta must be in [1e-35, 1)", "A share uses"),
    (
        edited("odometer: {theorem: rdp, delta: 1e-6}", ""),
        "halt_at_epsilon needs an odometer",
        "Known: basic, individual",
    ),
    (
        edited("rdp, delta", "rdp, order: 5, delta"),
        "the odometer 'rdp' reads 3.454 before any step, at or above halt_at_epsilon 3",
        "Raise halt_at_epsilon above 3.454, or the odometer's delta.",
    ),
    (
        share("{halt_at_epsilon: 1e-9}"),
        f"reads {LOWEST_IDLE} before any step",
        f"Raise halt_at_epsilon above {LOWEST_IDLE}, or the odometer's delta.",
    ),
]


def test_shares_that_cannot_hold_are_refused():
    """A share beyond the budget or a halt that admits nothing is refused.

    Options that hold for the dataset must hold for each share.
    """
    for text, message, hint in REFUSED_SHARES:
        error = refused(text)
        assert error.line == 9
        assert "flows.weekly-report" in str(error)
        assert message in str(error)
        assert hint in error.hint
    error = refused(edited("gdp", "{theorem: zcdp, delta_loss: 9e-7}"))
    assert error.line == 9
    assert "delta_loss 9e-7 exceeds" in str(error)
    assert "A share uses the dataset's filter and options." in error.hint


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


def test_pins_hold_every_derived_number():
    """What a ledger keeps is written out, defaults and tuning included."""
    rule = {"theorem": "gdp", "epsilon": "3", "delta": "0.000001"}
    odometer = parse_policy(EXAMPLE).flow_odometer(None)
    assert odometer is not None
    assert "order" in odometer.parameters()
    assert {
        "dataset": "cdnow",
        "unit": "customer",
        "relation": "add-or-remove",
        "budget": {"epsilon": "3", "delta": "0.000001"},
        "filter": rule,
        "odometer": odometer.parameters(),
        "flows": {
            "weekly-report": {
                "epsilon": "2",
                "delta": "5e-7",
                "halt_at_epsilon": "3",
                "filter": {**rule, "epsilon": "2", "delta": "5e-7"},
                "odometer": odometer.parameters(),
            }
        },
        "other_flows": "refuse",
    } == parse_policy(EXAMPLE).to_pinned()


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
    ) == [
        "budget.epsilon: ledger 3, file 4",
        "source: ledger none, file a",
    ]
