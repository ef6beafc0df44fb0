"""Policies and what is said of them: refusals.txt and promises.txt of tests/snapshots.

A case is a line with a policy below and its edits, old and new, as JSON; an edit
without an old text is appended. The error, or what is promised, stands below it; a
number says how many terms like the policy were charged.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dpflow.forecast.advice import advice
from dpflow.ledger.decisions.terms import view_policy
from dpflow.policy import parse_policy
from dpflow.policy.reserved import run_lines
from dpflow.show.guarantees import odds_in_words
from tests.policy_examples import POLICIES, SHORT, edited, refused
from tests.snapshots import answers, differences

pytestmark = pytest.mark.quick


def text_of(name: str, *edits: str) -> str:
    """Return a policy with its edits."""
    text = POLICIES[name]
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        text = edited(old, new, text) if old else text + new
    return text


def refusal(case: str) -> str:
    """Return the error of a policy with its edits."""
    return str(refused(text_of(*json.loads(case))))


@pytest.mark.promise("hidden-field")
def test_a_refusal_names_its_line_the_reason_and_what_to_write() -> None:
    """Wrong fields, numbers, names, YAML, hidden characters, shares and windows."""
    assert differences({"refusals": answers("refusals", refusal)}) == []


def promise(case: str) -> str:
    """Return the guarantee, the odds and the weaknesses after some charged terms."""
    name, terms, *edits = json.loads(case)
    policy = parse_policy(text_of(name, *edits))
    views = [view_policy(policy, number) for number in range(1, terms + 1)]
    lines = [f"filter {policy.filter.theorem}", policy.guarantee_sentence()]
    lines += [odds_in_words(policy.to_pinned(), views), *run_lines(policy.to_pinned())]
    return "\n".join([*lines, *(f"{w.code}: {w.line}" for w in advice(policy))])


def test_a_policy_says_what_it_promises_and_where_it_is_weak() -> None:
    """Units, windows, lifetimes, zones and shares; each weakness from its limit on.

    A lifetime that may follow from a release, terms without a sum, and exact numbers.
    """
    assert differences({"promises": answers("promises", promise)}) == []


CHOSEN = "if no term was opened because of a release"


def odds(text: str, **fields) -> str:
    """Return the sentence of a policy after a charged term like its file."""
    policy = parse_policy(text)
    return odds_in_words(policy.to_pinned(), [replace(view_policy(policy), **fields)])


def test_a_late_lifetime_is_a_reading():
    """Named or raised after the first charge, it may follow from a release."""
    text = f"{SHORT}lifetime: {{epsilon: 6, delta: 2e-6}}"
    assert CHOSEN not in odds(text)
    assert CHOSEN in odds(text, promised=None)
    assert CHOSEN in odds(text, promised={"epsilon": "5", "delta": "2e-6"})


def test_there_are_no_odds_where_no_sum_bounds_the_loss():
    """In an overdrawn term; `promises.txt` has terms above the lifetime."""
    assert odds(SHORT, overdrawn=True) == ""
