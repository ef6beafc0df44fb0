"""The journal as people read it: a line for each account that an entry moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import AccountLine
from dpflow.ledger.rows import split
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.charges import bodies, books_of, newest_first
from dpflow.ledger.views.parts import gates_by_name
from dpflow.policy.population import PREFIX

#: Entries that a person decided on: no charge and no refusal of a step.
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

    def keep(_: Entry, account: str) -> bool:
        return kind in (None, split(account)[2])

    return [line for line, _ in lines(ledger, dataset, limit=limit, keep=keep)]


def lines(
    ledger: Ledger,
    dataset: str | None,
    *,
    limit: int,
    keep: Callable[[Entry, str], bool],
) -> list[Line]:
    """Return the newest lines of such entries and accounts, newest first."""
    with ledger.storage.read() as reading:
        books = reading.books() if dataset is None else [dataset]
        found = (
            (entry, account)
            for entry, accounts in _moved(reading, newest_first(reading, books), books)
            for account in sorted(accounts, reverse=True)
            if keep(entry, account)
        )
        return list(_written(reading, list(islice(found, limit))))


def decided(
    ledger: Ledger, dataset: str | None = None, *, limit: int | None = None
) -> list[Line]:
    """Return a line for each of the newest decisions of people, newest first.

    A decision that moves several accounts has the line of a whole dataset.
    """
    with ledger.storage.read() as reading:
        books = reading.books() if dataset is None else [dataset]
        found = (
            (entry, min(accounts, key=lambda each: (each.startswith(PREFIX), each)))
            for entry, accounts in _moved(reading, reading.rare(*_DECIDED), books)
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
        names = (
            entry.amounts
            or entry.body.get("accounts")
            or [
                f"{book}#{terms[book]}"
                for book in books_of(reading, entry)
                if book in terms
            ]
        )
        if accounts := [name for name in names if split(name)[0] in terms]:
            yield entry, accounts
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
