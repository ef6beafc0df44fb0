"""Odds in words: whose, over which releases, and on which conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpflow.ledger.decisions.terms import opened_as
from dpflow.policy import parse_policy
from dpflow.show.guarantees import odds_in_words

pytestmark = pytest.mark.quick

BASE = """
dataset: sales
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
"""
WEEKS = BASE.replace("customer", "customer-week") + "partition: {by: week}\n"
CHOSEN = "if no term was opened because of a release"


def odds(text: str, terms: int = 1, **fields) -> str:
    """Return the sentence of a policy after some charged terms like its file."""
    policy = parse_policy(text)
    views = [
        replace(opened_as(policy, number), **fields) for number in range(1, terms + 1)
    ]
    return odds_in_words(policy.to_pinned(), views)


@pytest.mark.parametrize(
    ("text", "terms", "parts"),
    [
        (BASE, 1, ["all releases of the term whether one customer is", "62.7 times"]),
        (BASE, 2, ["all releases of 2 terms", "67.7 times", CHOSEN]),
        (
            f"{BASE}lifetime: {{epsilon: 3, delta: 1e-6}}",
            1,
            ["all releases within the lifetime", "62.7 times"],
        ),
        (
            BASE.replace("gdp", "auto") + "lifetime: {epsilon: 6, delta: 2e-6}",
            2,
            ["within the lifetime", "99.8 times"],
        ),
        (
            BASE.replace("add-or-remove", "replace-one"),
            1,
            ["which of two rows is that of one customer: right"],
        ),
        (WEEKS, 1, ["all releases of the term whether one customer-week is", "62.7"]),
        (
            f"{WEEKS}window: {{length: 52}}",
            3,
            [
                "the releases of any 52 consecutive weeks whether one customer is",
                "62.7",
            ],
        ),
        (
            f"{WEEKS}lifetime: {{epsilon: 4, delta: 2e-6}}",
            1,
            ["within the lifetime whether one customer is", "66.7"],
        ),
        (f"{BASE}population: people", 1, ["are those of population 'people'"]),
    ],
)
def test_the_sentence_names_its_releases_and_its_conditions(text, terms, parts):
    """Lifetime, else terms, else windows; the unit and the relation of the policy."""
    result = odds(text, terms)
    assert [part for part in parts if part not in result] == []
    assert (CHOSEN in result) == (CHOSEN in parts)


def test_a_late_lifetime_is_a_reading():
    """Named or raised after the first charge, it may follow from a release."""
    text = f"{BASE}lifetime: {{epsilon: 6, delta: 2e-6}}"
    assert CHOSEN not in odds(text)
    assert CHOSEN in odds(text, promised=None)
    assert CHOSEN in odds(text, promised={"epsilon": "5", "delta": "2e-6"})


def test_there_are_no_odds_where_no_sum_bounds_the_loss():
    """An overdrawn term, and terms above the lifetime."""
    assert odds(BASE, overdrawn=True) == ""
    assert odds(f"{BASE}lifetime: {{epsilon: 3, delta: 1e-6}}", 2) == ""
