"""Policies that are refused, each with its whole error: tests/snapshots/refusals.txt.

A case is a line with a policy below and its edits, old and new, as JSON; an edit
without an old text is appended. The error stands below it.
"""

from __future__ import annotations

import json

import pytest

from tests.policy_examples import EXAMPLE, SHORT, edited, refused
from tests.snapshots import answers, differences

pytestmark = pytest.mark.quick

WEEKS = """\
dataset: visits
unit: customer-week
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
partition: {by: week}
window: {length: 2}
"""
RESERVED = f"""\
{SHORT}flows:
  f: {{epsilon: 2, delta: 5e-7, reserved: true}}
"""
POLICIES = {
    "none": "",
    "short": SHORT,
    "long": EXAMPLE,
    "weeks": WEEKS,
    "reserved": RESERVED,
    "shares": f"{SHORT}flows: {{weekly: {{share: 70%}}, monthly: {{share: 30%}}}}\n",
}


def refusal(case: str) -> str:
    """Return the error of a policy with its edits."""
    name, *edits = json.loads(case)
    text = POLICIES[name]
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        text = edited(old, new, text) if old else text + new
    return str(refused(text))


def test_a_refusal_names_its_line_the_reason_and_what_to_write() -> None:
    """Wrong fields, numbers, names, YAML, hidden characters, shares and windows."""
    assert differences({"refusals": answers("refusals", refusal)}) == []
