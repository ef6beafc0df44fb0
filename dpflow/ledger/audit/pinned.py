"""What a term pinned for its accounts, as its entry says."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.rows import (
    Account,
    Key,
    Row,
)

Data = Mapping[str, Any]


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
