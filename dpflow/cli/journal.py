"""The journal, joined with what the accounts and open reservations say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.cli.tables import Line
from dpflow.ledger import Ledger
from dpflow.ledger import views as ledger_views
from dpflow.ledger.decision.terms import BY_ITSELF
from dpflow.ledger.records import AccountView, Entry
from dpflow.ledger.views.words import amounts_text
from dpflow.rounding import number_from_text, number_text

FORFEITED = (
    "A forfeited reservation is one whose process ended without settling it. It stays "
    "charged in full: nobody knows what the step released."
)
#: Kinds of entries that somebody decided on, and that charge nothing.
_DECISIONS = frozenset({"open", "tighten", "freeze", "thaw"})
#: Entries of one charge bear times some milliseconds apart.
_SLACK = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A journal entry with its context.

    Attributes:
        account: The account that it moved, as it is now.
        fate: Of an open reservation: "running", or "forfeited" if its process has
            ended without settling it; else "".
    """

    entry: Entry
    account: AccountView
    fate: str

    @property
    def left_after(self) -> dict[str, str] | None:
        """What the budget had left after the entry, or None without a budget."""
        budget = self.account.budget
        if budget is None:
            return None
        entry = self.entry
        return {
            name: _left(text, entry.settled_after[name], entry.held_after[name])
            for name, text in budget.items()
        }


def journal(
    ledger: Ledger, dataset: str | None, *, limit: int, all_accounts: bool
) -> list[JournalEntry]:
    """Return the newest entries, newest first.

    Each charge posts to several accounts. Unless all are asked for, the dataset's
    account stands for them; refusals are told whichever gate refused, and so is what
    was decided about a population.
    """
    accounts = {view.id: view for view in ledger_views.accounts(ledger, dataset)}
    kinds = {view.kind for view in accounts.values()}
    # Behind `limit` entries of datasets there are at most as many of each other kind,
    # and one for each account that was opened.
    several = limit if all_accounts else limit * max(len(kinds), 1) + len(accounts)
    entries = ledger_views.history(ledger, dataset, kind=None, limit=several + _SLACK)
    fates = {
        reservation.reservation: "running" if reservation.alive else "forfeited"
        for reservation in ledger_views.open_reservations(ledger)
    }
    found = [
        JournalEntry(
            entry=entry,
            account=accounts[entry.account],
            fate=fates.get(entry.reservation or "", ""),
        )
        for entry in entries
        if all_accounts or _stands_alone(entry, accounts[entry.account], dataset)
    ]
    return found[:limit]


def journal_line(item: JournalEntry, *, place: str) -> Line:
    """Return an entry as the commands show it to people."""
    entry, body = item.entry, item.entry.body
    outcome, alarm = _outcome(item)
    return Line(
        at=entry.at,
        kind=entry.kind,
        place=place,
        step=str(body.get("step") or ""),
        flow=str(body.get("flow") or ""),
        amount=entry.amount,
        settled=entry.settled_after,
        left=item.left_after,
        release=str(body.get("release_key") or ""),
        outcome=outcome,
        alarm=alarm,
        message=_message(item),
    )


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


def _stands_alone(entry: Entry, account: AccountView, dataset: str | None) -> bool:
    """Say whether an entry is shown where a charge is told once."""
    if entry.kind == "refuse":
        # An odometer that halts the run journals another gate's refusal, too.
        return bool(account.kind == entry.body.get("gate", account.kind))
    if account.kind == "population":
        return dataset is not None or entry.kind in _DECISIONS
    return account.kind == "dataset"


def _left(budget: str, settled: str, held: str) -> str:
    used = number_from_text(settled) + number_from_text(held)
    return number_text(max(number_from_text(budget) - used, number_from_text("0")))


def _outcome(item: JournalEntry) -> tuple[str, bool]:
    """Say in a few words what came of an entry, and whether that is bad news."""
    body, kind = item.entry.body, item.entry.kind
    if kind == "open":
        return _with_name(_opened(item), body), False
    if kind == "reserve":
        drawn = "from the preflight" if "preflight" in body else ""
        return _with_name(item.fate or drawn, body), item.fate == "forfeited"
    if kind == "refuse":
        return str(body.get("refusal")).removeprefix("Budget").lower(), True
    if kind == "seal":
        return f"run {body.get('outcome')}, undrawn rest returned", False
    if kind == "settle" and body.get("outcome") == "failed":
        return f"failed: {body.get('error_type', 'error')}", True
    if kind == "settle":
        return f"noise {body.get('noise', 'unknown')}", False
    raised = kind in {"forfeit", "amend", "prior", "repair"}
    return _decided(body), raised


def _with_name(text: str, body: Mapping[str, Any]) -> str:
    """Say who did it, unless the text does."""
    who = body.get("who")
    name = f"by {who}" if who and f"({who})" not in text else ""
    return "; ".join(filter(None, (text, name)))


def _decided(body: Mapping[str, Any]) -> str:
    """Say why something was done and, where a person did it, who."""
    because, who = body.get("because"), body.get("who")
    if because and who:
        return f"{because} ({who})"
    return str(body.get("reason") or because or "")


def opened_with(item: JournalEntry) -> str:
    """Say with which rule an account was opened; it may be tighter now."""
    account = item.account
    rule = item.entry.body.get("term", {}).get("opened", {})
    limits = {
        "epsilon": rule.get("epsilon", account.epsilon or "0"),
        "delta": rule.get("delta", account.delta),
    }
    return f"{account.theorem}: {amounts_text(limits)}"


def _opened(item: JournalEntry) -> str:
    opened, body = opened_with(item), item.entry.body
    by_hand = body.get("because") not in (None, *BY_ITSELF)
    return f"{opened}; {_decided(body)}" if by_hand else opened


def _message(item: JournalEntry) -> str:
    """Return what is said below the table."""
    if item.fate == "forfeited" and item.entry.kind == "reserve":
        return FORFEITED
    return str(item.entry.body.get("message") or "")
