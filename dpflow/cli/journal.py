"""The journal for programs, and what people decided about the budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from dpflow.cli.tables import cell, new_table
from dpflow.ledger.views.entries import JournalEntry
from dpflow.ledger.views.words import amounts_text

#: What is said of each kind of entry.
_WORDS = {
    "tighten": "tightened",
    "freeze": "frozen",
    "thaw": "thawed",
    "forfeit": "charge closed in full",
    "amend": "charge raised",
    "prior": "prior charged",
    "repair": "lost charges charged again",
}


def journal_json(item: JournalEntry) -> dict[str, Any]:
    """Return an entry for programs; amounts are exact decimal text."""
    entry, body = item.entry, item.entry.body
    refusal = None
    if entry.kind == "refuse":
        names = ("refusal", "gate", "asked", "left", "fits", "message")
        refusal = {name: body.get(name) for name in names}
    return {
        "at": entry.at,
        "entry": entry.kind,
        "account": entry.account,
        "dataset": item.account.dataset,
        "sequence": entry.seq,
        "step": body.get("step"),
        "flow": body.get("flow"),
        "flow_run": entry.run,
        "cost": body.get("cost"),
        "amount": entry.amount,
        "settled_after": entry.settled_after,
        "held_after": entry.held_after,
        "left_after": item.left_after,
        "release_key": body.get("release_key"),
        "noise": body.get("noise"),
        "outcome": item.fate or body.get("outcome"),
        "error_type": body.get("error_type"),
        "refusal": refusal,
        "reservation": entry.reservation,
        "because": body.get("because"),
        "who": body.get("who"),
        "code": body.get("code"),
        "writer": entry.writer,
    }


def decision_json(item: JournalEntry) -> dict[str, Any]:
    """Return a decision for programs: a journal entry, with what it comes to."""
    return {
        **journal_json(item),
        "decision": _decision(item),
        "what": _what(item),
        "who": _who(item),
        "because": _because(item),
    }


def decisions_table(items: Sequence[JournalEntry]) -> Table:
    """Show decisions; the dataset's column is there where there are several."""
    several = len({item.account.dataset for item in items}) > 1
    table = new_table(
        "when (UTC)",
        "decision",
        *(["dataset"] if several else []),
        "what",
        "who",
        "because",
    )
    table.columns[0].no_wrap = True
    for item in items:
        when = item.entry.at[:16].replace("T", " ")
        place = [item.account.dataset] if several else []
        facts = (_what(item), _who(item), _because(item))
        table.add_row(*map(cell, (when, _decision(item), *place, *facts)))
    return table


def _decision(item: JournalEntry) -> str:
    kind = item.entry.kind
    if kind == "open":
        return f"term {item.account.term} opened"
    if kind == "prior" and "grant" in item.entry.body:
        return "carved"
    return _WORDS[kind]


def _what(item: JournalEntry) -> str:
    """Say what was decided: a promise, its changes, or what was charged on whom."""
    entry, body = item.entry, item.entry.body
    if entry.kind == "open":
        return item.opened_with
    if entry.kind == "tighten":
        return "; ".join(map(str, body.get("changes", ())))
    if entry.kind in ("freeze", "thaw"):
        return ""
    grant = body.get("grant")
    if isinstance(grant, Mapping):
        given = {name: str(grant[name]) for name in ("epsilon", "delta")}
        return f"{amounts_text(given)} for ledger {grant['taker']}"
    step = f"step {body['step']}: " if entry.reservation and body.get("step") else ""
    return f"{step}{amounts_text(entry.amount)}"


def _who(item: JournalEntry) -> str:
    return str(item.entry.body.get("who") or item.entry.writer)


def _because(item: JournalEntry) -> str:
    body = item.entry.body
    return str(body.get("because") or body.get("reason") or "")
