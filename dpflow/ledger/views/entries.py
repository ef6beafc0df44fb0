"""The journal as people read it: a line for each account that an entry moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.terms import BY_ITSELF
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import AccountLine, AccountView
from dpflow.ledger.rows import split
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.accounts import account_view, gates_by_name, waiting
from dpflow.ledger.views.charges import bodies, books_of, newest_first
from dpflow.ledger.views.words import FORFEITED, amounts_text
from dpflow.policy.population import PREFIX
from dpflow.rounding import number_from_text, number_text

_DECIDED = ("forfeit", *(n for n, k in KINDS.items() if k.decides or k.by_hand))
#: A line of the journal, and the gate of its account as it stands now.
Line = tuple[AccountLine, Gate]


def history(
    ledger: Ledger,
    dataset: str | None = None,
    *,
    kind: str | None = "dataset",
    limit: int = 50,
) -> list[AccountLine]:
    """Return the newest lines of the journal, newest first.

    Args:
        ledger: The ledger to read.
        dataset: Only of this dataset or population.
        kind: Only accounts of this kind; each charge posts to several. None: all.
        limit: At most so many.
    """

    def shown(_: Entry, names: list[str]) -> list[str]:
        return [name for name in names if kind in (None, split(name)[2])]

    return [line for line, _ in _lines(ledger, dataset, shown, limit=limit)]


def _lines(
    ledger: Ledger,
    dataset: str | None,
    shown: Callable[[Entry, list[str]], list[str]],
    *,
    limit: int,
    decided: bool = False,
) -> list[Line]:
    """Return the newest lines, newest first.

    Args:
        ledger: The ledger to read.
        dataset: Only of this dataset or population.
        shown: Which of the accounts that an entry is about have a line.
        limit: At most so many.
        decided: Only what people decided: no charge and no refusal of a step.
    """
    with ledger.storage.read() as reading:
        books = reading.books() if dataset is None else [dataset]
        every = reading.rare(*_DECIDED) if decided else newest_first(reading, books)
        found = (
            (entry, account)
            for entry, accounts in _moved(reading, every, books)
            for account in shown(entry, accounts)
        )
        return list(_written(reading, list(islice(found, limit))))


def _moved(
    reading: Reading, entries: Iterable[Entry], books: Iterable[str]
) -> Iterator[tuple[Entry, list[str]]]:
    """Yield entries, newest first, each with the accounts of books that it is about.

    One that names no account is about the whole of the term at its time.
    """
    terms = {book: len(reading.names(f"term/{book}#")) for book in books}
    for entry in entries:
        about = [book for book in books_of(reading, entry) if book in terms]
        names = entry.amounts or entry.body.get("accounts", ())
        own = sorted((n for n in names if split(n)[0] in about), reverse=True)
        if about:
            yield entry, own or [f"{book}#{terms[book]}" for book in about]
        if entry.kind == "open" and entry.body["book"] in terms:
            terms[entry.body["book"]] -= 1


def _written(reading: Reading, found: list[tuple[Entry, str]]) -> Iterator[Line]:
    gates = gates_by_name(reading, {account for _, account in found})
    facts = bodies(reading, [entry for entry, _ in found])
    for (entry, account), body in zip(found, facts, strict=True):
        moved, named = entry.postings.get(account, ()), gates[account].rule.named
        asked = body.get("asked", {}) if account == body.get("account") else {}
        amount, settled, held = [named(Tally(a)) for a in moved] or (asked, {}, {})
        line = AccountLine(
            account=account,
            seq=entry.number,
            kind=entry.kind,
            reservation=entry.charge,
            amount=amount,
            settled_after=settled,
            held_after=held,
            run=body.get("flow_run"),
            body=body,
            at=entry.at,
            writer=entry.writer,
        )
        yield line, gates[account]


# With its context


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

    def shown(entry: Entry, names: list[str]) -> list[str]:
        alone = (name for name in names if _stands_alone(entry, name, dataset))
        return names if all_accounts else [*alone]

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
        for line, gate in _lines(ledger, dataset, shown, limit=limit)
    ]


def decision_entries(
    ledger: Ledger, dataset: str | None, *, limit: int
) -> list[JournalEntry]:
    """Return the newest decisions, newest first.

    A decision that moves several accounts has the line of a whole dataset.
    """

    def shown(_: Entry, names: list[str]) -> list[str]:
        return [min(names, key=lambda each: (each.startswith(PREFIX), each))]

    return [
        JournalEntry(entry=line, account=account_view(gate), fate="")
        for line, gate in _lines(ledger, dataset, shown, limit=limit, decided=True)
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
