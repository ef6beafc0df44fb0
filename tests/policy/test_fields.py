"""Fields and theorems that are refused, with the file, the line and a hint."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from dpflow.exceptions import PolicyError
from dpflow.ledger.decision.gates import covers_flow
from dpflow.policy import (
    Policy,
    parse_policy,
)
from tests.policy_examples import EXAMPLE, SHORT, edited, refused, share

pytestmark = pytest.mark.quick

# Refusals of fields


REFUSED_FIELDS = [
    (edited("errors:", "erors:"), 12, "erors: this field is unknown", "'errors'?"),
    (
        edited("{epsilon: 3,", "{epsilom: 3, epsilon: 3,"),
        5,
        "budget.epsilom",
        "'epsilon'",
    ),
    (share("{halt: 3}"), 9, "flows.weekly-report.halt", "'halt_at_epsilon'?"),
    (edited("schedule:", "schedul:"), 13, "on_exhausted.schedul", "'schedule'?"),
    (
        edited("unit: customer\n", ""),
        2,
        "unit: this field is missing",
        "unit: customer",
    ),
    (edited("epsilon: 3, ", ""), 5, "budget.epsilon: this field", "`epsilon: 3`"),
    (edited("epsilon: 3,", "epsilon: true,"), 5, "finite number, got True", "1e-6"),
    (edited("epsilon: 3,", "epsilon: [3],"), 5, "finite number, got [3]", "1e-6"),
    (edited("epsilon: 3,", 'epsilon: " 3",'), 5, "finite number, got ' 3'", "1e-6"),
    (edited("epsilon: 3,", "epsilon: 1_0,"), 5, "finite number, got '1_0'", "1e-6"),
    (edited("epsilon: 3,", 'epsilon: "٣",'), 5, "finite number, got '٣'", "1e-6"),
    (edited("epsilon: 3,", "epsilon: 'nan',"), 5, "finite number, got 'nan'", "1e-6"),
    (edited("epsilon: 3,", "epsilon: 0,"), 5, "budget.epsilon must lie in", "zeros"),
    (edited("epsilon: 3,", "epsilon: -1,"), 5, "got '-1'", "without the sign"),
    (edited("3, delta: 1e-6}", "3, delta: 1}"), 5, "budget.delta must be", "below"),
    (edited("3, delta: 1e-6}", "3, delta: -1}"), 5, "budget.delta must", "sign"),
    (edited("cdnow", "a b"), 2, "dataset 'a b' is not", "Use 1 to 200 letters"),
    (edited("cdnow", "a" * 201), 2, "is not a usable name", "Use 1 to 200 letters"),
    (edited("cdnow", "12"), 2, "dataset: should be text, got 12", "`dataset: cdnow`"),
    (edited("customer", '" "'), 3, "unit must be printable", "1 to 200 characters"),
    (edited("customer", r'"a\nb"'), 3, "unit must be printable", "on one line"),
    (edited("customer", "true"), 3, "unit: should be text, got True", "customer`"),
    (edited("add-or-remove", "swap"), 4, "'add-or-remove' or 'replace-one'", "for ex"),
    (edited("[0.5, 0.8, 0.95]", "[0.8, 0.5]"), 11, "alerts must rise", "Sort them"),
    (edited("[0.5, 0.8, 0.95]", "[0.5, 0.50]"), 11, "alerts must rise", "repetitions"),
    (edited("[0.5, 0.8, 0.95]", "[0, 0.5]"), 11, "alerts[0] must lie", "zeros"),
    (edited("[0.5, 0.8, 0.95]", "[0.5,\n 1]"), 12, "alerts[1] must lie", "zeros"),
    (edited("[0.5, 0.8, 0.95]", "0.5"), 11, "alerts: should be a list", "[0.5, 0.8"),
    (edited("redact", "hide"), 12, "should be 'redact' or 'keep'", "errors: redact"),
    (edited("pause", "stop"), 13, "should be 'pause' or 'keep'", "schedule: pause"),
    (edited("{flow: halt, schedule: pause}", "halt"), 13, "should be a mapping", "fl"),
    (edited("{epsilon: 3, delta: 1e-6}", "3"), 5, "budget: should be a mapping", "3"),
    (
        EXAMPLE + "data_version: 2\n",
        14,
        "data_version: should be text",
        '`data_version: "1"`',
    ),
    (edited("other_flows: refuse", "other_flows: no"), 10, "'refuse' or 'allow'", "fo"),
    (share("3"), 9, "flows.weekly-report: should be a mapping", "Correct the value"),
    (edited("weekly-report:", '"a&b":'), 9, "flow 'a&b' is not", "none of %&<>"),
    (edited("weekly-report:", '" a":'), 9, "flow ' a' is not a usable", "at the ends"),
    (edited("weekly-report:", r'"a\nb":'), 9, "is not a usable name", "printable"),
    (edited("weekly-report:", '"Ta\u0308glich":'), 9, "is not a usable name", "NFC"),
    (edited("epsilon: 3,", "epsilon: 1,5,"), 5, "'5' is not text", "write 1.5."),
]


@pytest.mark.parametrize(("text", "line", "message", "hint"), REFUSED_FIELDS)
def test_fields_that_cannot_be_used_are_refused(
    text: str, line: int, message: str, hint: str
) -> None:
    """Every wrong field is refused with its line and what to write instead."""
    error = refused(text)
    assert line == error.line
    assert message in str(error)
    assert hint in error.hint


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    """Someone who repairs a file sees the whole list."""
    text = edited("customer", "12", edited("redact", "hide"))
    lines = str(refused(text)).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("cdnow.yaml:3: unit: ")
    assert lines[1].startswith("cdnow.yaml:12: errors: ")


@pytest.mark.parametrize(
    "name",
    ["weekly report @ 1/2", "Täglicher Bericht", "日報", "ETL (a), v2 #1 😀"],
)
def test_flow_names_are_those_of_prefect(name: str) -> None:
    """Any printable name that Prefect takes can stand in a policy, and a / too."""
    policy = parse_policy(edited("weekly-report:", f'"{name}":'))
    assert covers_flow(policy.pinned(), name)


# Refusals of theorems


REFUSED_THEOREMS = [
    ("filter", "gpd", 6, "there is no filter 'gpd'", "'gdp'? Known: "),
    ("filter", "{theorem: zzz}", 6, "there is no filter 'zzz'", "Known: auto"),
    ("filter", "{theorem: 3}", 6, "filter.theorem: should be text", "theorem: "),
    ("filter", "{orders: [2]}", 6, "filter.theorem: this field is missing", "Add it"),
    ("filter", "3", 6, "filter must be a theorem, got 3", "{theorem: NAME"),
    ("filter", "{theorem: auto, members: []}", 6, "option 'members'", "pins them"),
    ("filter", "{theorem: basic, x: 1}", 6, "no option 'x'", "There are none"),
    (
        "filter",
        "{theorem: zcdp,\n convrsion: tight}",
        7,
        "no option 'convrsion'",
        "Did you mean 'conversion'? Known: conversion, delta_loss.",
    ),
    (
        "filter",
        "{theorem: zcdp,\n conversion: loose}",
        7,
        "filter.conversion must be one of tight, classic, got 'loose'",
        "",
    ),
    ("filter", "{theorem: zcdp, delta_loss: 1e-3}", 6, "exceeds delta", ""),
    ("filter", "{theorem: basic, epsilon: 9}", 6, "no option 'epsilon'", "`budget`"),
    ("filter", "{theorem: basic, delta: 0}", 6, "no option 'delta'", "`budget`"),
    ("odometer", "rdq", 7, "there is no odometer 'rdq'", "Did you mean 'rdp'?"),
    ("odometer", "{theorem: rdp, ordr: 8}", 7, "no option 'ordr'", "'order'? Known"),
    ("odometer", "{theorem: rdp,\n order: 0.5}", 8, "odometer.order must", "zeros"),
    ("odometer", "{theorem: rdp, delta: 2}", 7, "odometer.delta must", "zeros"),
    ("odometer", "{theorem: rdp, delta: 0}", 7, "odometer.delta must", "below"),
    (
        "odometer",
        "{theorem: rdp, halt_at_epsilon: 3}",
        7,
        "no option 'halt_at_epsilon'",
        "flows: {",
    ),
]


@pytest.mark.parametrize(
    ("field", "choice", "line", "message", "hint"), REFUSED_THEOREMS
)
def test_theorems_that_cannot_be_made_are_refused(
    field: str, choice: str, line: int, message: str, hint: str
) -> None:
    """A wrong theorem or option is refused with its line and what there is."""
    old = {"filter": "gdp", "odometer": "{theorem: rdp, delta: 1e-6}"}[field]
    with pytest.raises(PolicyError) as caught:
        parse_policy(edited(old, choice), file="cdnow.yaml")
    error = caught.value
    assert ("cdnow.yaml", line) == (error.file, error.line)
    assert message in str(error)
    assert hint in error.hint


def test_options_that_yaml_cannot_hold_are_refused_from_python() -> None:
    """An option is data, never an object."""
    data = yaml.safe_load(SHORT) | {"filter": {"theorem": "gdp", "x": object()}}
    with pytest.raises(ValidationError, match="the option x cannot be <object"):
        Policy.model_validate(data)
