"""The journal, joined with what the accounts and open reservations say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpflow.ledger.decision.terms import BY_ITSELF
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import AccountLine, AccountView
from dpflow.ledger.rows import split
from dpflow.ledger.views.accounts import account_view
from dpflow.ledger.views.history import decided, lines
from dpflow.ledger.views.reservations import waiting
from dpflow.ledger.views.words import FORFEITED, amounts_text
from dpflow.rounding import number_from_text, number_text


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A journal entry with its context.

    Attributes:
        account: The account that it moved, as it is now.
        fate: Of an open reservation: "running", or "forfeited" if its process has
            ended without settling it; else "".
    """

    entry: AccountLine
    account: AccountView = field(repr=False)
    fate: str

    @property
    def when(self) -> str:
        """The minute in which it was written, in UTC; a label."""
        return self.entry.at[:16].replace("T", " ")

    @property
    def left_after(self) -> dict[str, str] | None:
        """What the budget had left after the entry, or None without one or a change."""
        budget, entry = self.account.budget, self.entry
        if budget is None or not entry.settled_after:
            return None
        return {
            name: _left(text, entry.settled_after[name], entry.held_after[name])
            for name, text in budget.items()
        }

    @property
    def opened_with(self) -> str:
        """With which rule the account was opened; it may be tighter now."""
        account = self.account
        rule = self.entry.body.get("term", {}).get("opened", {})
        limits = {
            "epsilon": rule.get("epsilon", account.epsilon or "0"),
            "delta": rule.get("delta", account.delta),
        }
        return f"{account.theorem}: {amounts_text(limits)}"

    @property
    def outcome(self) -> tuple[str, bool]:
        """What came of the entry, in a few words, and whether that is bad news."""
        body, kind = self.entry.body, self.entry.kind
        if kind == "open":
            opened = self.opened_with
            by_hand = body.get("reason") not in (None, *BY_ITSELF)
            text = f"{opened}; {_decided(body)}" if by_hand else opened
            return _with_name(text, body), False
        if kind == "reserve":
            drawn = "from the reservation" if "preflight" in body else ""
            return _with_name(self.fate or drawn, body), self.fate == "forfeited"
        if kind == "refuse":
            return str(body.get("refusal")).removeprefix("Budget").lower(), True
        if kind == "seal":
            return f"run {body.get('outcome')}, undrawn rest returned", False
        if kind == "settle" and body.get("outcome") == "failed":
            return f"failed: {body.get('error_type', 'error')}", True
        if kind == "settle":
            return f"noise {body.get('noise', 'unknown')}", False
        return _decided(body), kind == "forfeit" or KINDS[kind].by_hand

    @property
    def message(self) -> str:
        """What is to be said of it at length; mostly nothing."""
        if self.fate == "forfeited" and self.entry.kind == "reserve":
            return FORFEITED
        return str(self.entry.body.get("message") or "")


def journal_entries(
    ledger: Ledger, dataset: str | None, *, limit: int, all_accounts: bool
) -> list[JournalEntry]:
    """Return the newest entries, newest first.

    Each charge posts to several accounts. Unless all are asked for, the dataset's
    account stands for them; refusals are told whichever gate refused, and so is what
    was decided about a population.
    """

    def keep(entry: Entry, account: str) -> bool:
        return all_accounts or _stands_alone(entry, account, dataset)

    with ledger.storage.read() as reading:
        fates = {
            charge.id: "running" if alive else "forfeited"
            for charge, alive in waiting(ledger, reading)
        }
    return [
        JournalEntry(
            entry=line,
            account=account_view(gate),
            fate=fates.get(line.reservation or "", ""),
        )
        for line, gate in lines(ledger, dataset, limit=limit, keep=keep)
    ]


def decision_entries(
    ledger: Ledger, dataset: str | None, *, limit: int
) -> list[JournalEntry]:
    """Return the newest decisions, newest first."""
    return [
        JournalEntry(entry=line, account=account_view(gate), fate="")
        for line, gate in decided(ledger, dataset, limit=limit)
    ]


def _stands_alone(entry: Entry, account: str, dataset: str | None) -> bool:
    """Say whether an entry is shown where a charge is told once."""
    kind = split(account)[2]
    if entry.kind == "refuse":
        # An odometer that halts the run as well is not the gate that refused.
        return bool(account == entry.body["account"])
    if kind == "population":
        return dataset is not None or KINDS[entry.kind].decides
    return kind == "dataset"


def _left(budget: str, settled: str, held: str) -> str:
    used = number_from_text(settled) + number_from_text(held)
    return number_text(max(number_from_text(budget) - used, number_from_text("0")))


def _with_name(text: str, body: Mapping[str, Any]) -> str:
    """Say who did it, unless the text does."""
    who = body.get("who")
    name = f"by {who}" if who and f"({who})" not in text else ""
    return "; ".join(filter(None, (text, name)))


def _decided(body: Mapping[str, Any]) -> str:
    """Say why something was done and, where a person did it, who."""
    reason, who = body.get("reason"), body.get("who")
    return f"{reason} ({who})" if reason and who else str(reason or "")
