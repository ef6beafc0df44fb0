"""What people decided about the budgets, as `dpflow history --decisions` tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from dpflow.cli.journal import JournalEntry, journal_json, opened_with
from dpflow.cli.tables import cell, new_table
from dpflow.ledger import Ledger
from dpflow.ledger import views as ledger_views
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


def decisions(ledger: Ledger, dataset: str | None, *, limit: int) -> list[JournalEntry]:
    """Return the newest decisions, newest first."""
    accounts = {view.id: view for view in ledger_views.accounts(ledger, dataset)}
    return [
        JournalEntry(entry=entry, account=accounts[entry.account], fate="")
        for entry in ledger_views.decisions(ledger, dataset)[:limit]
    ]


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
        return opened_with(item)
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
