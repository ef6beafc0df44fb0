"""The journal for people and programs, and what people decided about the budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpflow.config import settings
from dpflow.guard.inspection import Tell, as_warning, inspected
from dpflow.ledger.views.entries import (
    JournalEntry,
    decision_entries,
    journal_entries,
)
from dpflow.ledger.views.standing import check_dataset
from dpflow.ledger.views.words import amounts_text
from dpflow.notebook import TableRecord
from dpflow.policy.files import policies_and_problem

#: What is said of each kind of entry.
_WORDS = {
    "tighten": "tightened",
    "freeze": "frozen",
    "unfreeze": "unfrozen",
    "forfeit": "charge closed in full",
    "repair": "lost charges charged again",
}

_DECISION_HEADS = ("when (UTC)", "decision", "dataset", "what", "who", "reason")
_ENTRY_HEADS = (
    *("when (UTC)", "entry", "dataset", "step", "flow"),
    *("charged", "outcome"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History(TableRecord):
    """The newest entries of the journal: what `dpflow history` shows.

    In a notebook it is a table.

    Attributes:
        ledger: Id of the ledger.
        place: Where it is.
        entries: The newest first.
        more: Whether there are older ones.
        decisions: Whether they are what people decided, and no charges.
        any_policy: Whether the project has a policy.
    """

    ledger: str
    place: str
    entries: tuple[JournalEntry, ...]
    more: bool
    decisions: bool
    any_policy: bool

    def sheet(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return the heads and the rows of its table."""
        if self.decisions:
            return _DECISION_HEADS, [_decision_cells(each) for each in self.entries]
        return _ENTRY_HEADS, [_entry_cells(each) for each in self.entries]


def _decision_cells(item: JournalEntry) -> tuple[str, ...]:
    words = (what_of(item), who_of(item), reason_of(item))
    return (item.when, decision_of(item), item.account.dataset, *words)


def _entry_cells(item: JournalEntry) -> tuple[str, ...]:
    entry, body = item.entry, item.entry.body
    step, flow = str(body.get("step") or ""), str(body.get("flow") or "")
    place = (item.when, entry.kind, item.account.dataset, step, flow)
    return (*place, amounts_text(entry.amount), item.outcome[0])


def history(
    dataset: str | None = None,
    *,
    limit: int = 30,
    all_accounts: bool = False,
    decisions: bool = False,
    tell: Tell = as_warning,
) -> History:
    """Return the newest entries of the journal.

    Nothing is charged, and nothing is written.

    Args:
        dataset: Only this one. Default: all of the project.
        limit: At most so many.
        all_accounts: Also what each charge posted to shares and odometers.
        decisions: Only what people decided: terms, tightenings, freezes, and what was
            charged by hand.
        tell: Hears what is wrong with numbers that are shown all the same.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows it.
        LedgerError: If the ledger is missing or out of reach.

    Examples:
        >>> history("orders", limit=5).entries[0].entry.kind
    """
    found = settings()
    with inspected(found, tell=tell) as ledger:
        # One more than asked for tells whether there are more.
        if decisions:
            items = decision_entries(ledger, dataset, limit=limit + 1)
        else:
            items = journal_entries(
                ledger, dataset, limit=limit + 1, all_accounts=all_accounts
            )
        policies, _ = policies_and_problem(found.policies)
        if not items and dataset is not None:
            check_dataset(ledger, policies, dataset)
        return History(
            ledger=ledger.id,
            place=ledger.place,
            entries=tuple(items[:limit]),
            more=len(items) > limit,
            decisions=decisions,
            any_policy=bool(policies),
        )


def decision_of(item: JournalEntry) -> str:
    """Name a decision."""
    kind = item.entry.kind
    if kind == "open":
        return f"term {item.account.term} opened"
    if kind == "adjust":
        return "charge raised" if item.entry.reservation else "prior charged"
    return _WORDS[kind]


def what_of(item: JournalEntry) -> str:
    """Say what was decided: a promise, its changes, or what was charged on whom."""
    entry, body = item.entry, item.entry.body
    if entry.kind == "open":
        return item.opened_with
    if entry.kind == "tighten":
        return "; ".join(map(str, body.get("changes", ())))
    if entry.kind in ("freeze", "unfreeze"):
        return ""
    step = f"step {body['step']}: " if entry.reservation and body.get("step") else ""
    return f"{step}{amounts_text(entry.amount)}"


def who_of(item: JournalEntry) -> str:
    """Say who decided it."""
    return str(item.entry.body.get("who") or item.entry.writer)


def reason_of(item: JournalEntry) -> str:
    """Say why."""
    return str(item.entry.body.get("reason") or "")
