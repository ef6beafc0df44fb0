"""What a term pinned for its accounts, as its entry says.

It needs the standard library only, so that an auditor can run it alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from operator import add
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.rows import (
    Account,
    Book,
    JournalError,
    Key,
    Row,
    Term,
    asked_for,
    gate_in,
    name_of_term,
    split,
)

Data = Mapping[str, Any]


def gate_rule(facts: Data, account: str) -> Data:
    """Return the rule that a term pinned for an account; empty if none."""
    _, _, kind, name, _ = split(account)
    gate = gate_in(facts["gates"], kind, name)
    return {} if gate is None else _parsed(gate["rule"])


def rule_of(rows: Mapping[Key, Row], account: str) -> Data:
    """Return the rule of an account under the newest copy of its term."""
    term = rows.get(("term", account.partition("#")[0], name_of_term(account)))
    return gate_rule(term.facts, account) if isinstance(term, Term) else {}


@lru_cache(maxsize=512)
def _parsed(text: str) -> Data:
    found: Data = json.loads(text)
    return found


def thresholds(rule: Data, length: int) -> list[int] | None:
    """Return the pinned thresholds; None if the theorem has none of this form."""
    found = rule.get("thresholds")
    if not isinstance(found, list) or len(found) != length:
        return None
    return found if all(isinstance(each, int) for each in found) else None


def check_tighter(rows: Mapping[Key, Row], entry: Entry) -> None:
    """Check that no threshold of a term is raised in place."""
    facts = entry.body["term"]
    book = rows.get(("book", entry.book))
    before = rows.get(("term", entry.book, str(facts["number"])))
    if not isinstance(before, Term) or not isinstance(book, Book):
        what = f"there is no term {facts['number']} to tighten"
        raise JournalError(what)
    for place, gate in before.facts["gates"].items():
        after = facts["gates"].get(place)
        if gate is None or after is None:
            continue
        old = _parsed(gate["rule"]).get("thresholds")
        new = _parsed(after["rule"]).get("thresholds")
        if not isinstance(old, list) or not isinstance(new, list):
            continue
        whole = all(isinstance(each, int) for each in (*old, *new))
        if whole and any(b > a for a, b in zip(old, new, strict=True)):
            what = f"its gate {place!r} was loosened in place"
            raise JournalError(what)


def kept_beside(rows: Mapping[Key, Row], facts: Data, entry: Entry) -> list[int]:
    """Return what was kept for others when a step was granted; empty if nothing.

    Args:
        rows: As they were before.
        facts: Of the term that governed.
        entry: The grant. What a run's preflight held was granted before.
    """
    base = f"{entry.book}#{facts['number']}"
    posting = entry.postings.get(base)
    if posting is None or "preflight" in entry.body or not any(posting.amount):
        return []
    found: list[int] = []
    for flow, share in facts["pinned"]["flows"].items():
        if "run_holds" not in share:
            continue
        left = _held_for(share, rows.get(("account", f"{base}/kept/{flow}")))
        if flow == entry.body["flow"]:
            asked = list(zip(left, posting.amount, strict=True))
            if all(amount <= most for most, amount in asked):
                continue
            left = [max(most - amount, 0) for most, amount in asked]
        found = [a + b for a, b in zip(found or [0] * len(left), left, strict=True)]
    return found


def _held_for(share: Data, row: Row | None) -> list[int]:
    """Return what a flow has left of the runs that are kept for it."""
    whole = [share["keep"] * amount for amount in share["run_holds"]]
    if not isinstance(row, Account):
        return whole
    drawn = map(add, row.settled, row.held)
    return [max(a - b, 0) for a, b in zip(whole, drawn, strict=True)]


def is_taken_off(pinned: Data, flow: str) -> bool:
    """Say whether a flow may not use a dataset any more."""
    return (
        bool(flow) and flow not in pinned["flows"] and pinned["other_flows"] != "allow"
    )


def is_pinned(facts: Data, place: str) -> bool:
    """Say whether a gate has the theorem and the limits that its copy pins."""
    pinned, gate = facts["pinned"], facts["gates"][place]
    kind, _, name = place.partition("/")
    if kind != "partition" and is_taken_off(pinned, name):
        return True  # no step asks it, and what it charged was under it
    if kind == "partition" and name and name not in pinned.get("periods", {}):
        return gate is None
    asked = asked_for(pinned, kind, name)
    if gate is None or asked is None:
        return gate is asked
    wanted, _ = asked
    rule = _parsed(gate["rule"])
    return all(rule.get(n) == wanted.get(n) for n in ("theorem", "epsilon", "delta"))
