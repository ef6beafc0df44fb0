"""What the journals and rows of a ledger say, and whether they say the same."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from dpflow.ledger.audit.verify import verify
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.journal import follow
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import all_terms
from dpflow.ledger.rows import Account
from dpflow.ledger.state import State, charge_keys, whole_book
from dpflow.ledger.storage.tables import Reading
from tests.ledger.auditor import UNIT


def entries(ledger: Ledger, book: str | None = "a") -> list[Entry]:
    """Return the entries that name a dataset, or all; hashes checked."""
    with ledger.storage.read() as reading:
        return [e for e in reading.after() if book is None or book in e.books]


def kinds(ledger: Ledger, book: str | None = "a") -> list[str]:
    """Return the kinds of a dataset's entries, in order."""
    return [entry.kind for entry in entries(ledger, book)]


def body(ledger: Ledger, kind: str, book: str = "a") -> dict[str, Any]:
    """Return the body of a dataset's newest entry of a kind."""
    found = [entry for entry in entries(ledger, book) if entry.kind == kind]
    return dict(found[-1].body)


def whole(ledger: Ledger, *charges: str) -> State:
    """Return all terms and accounts, and some charges."""
    with ledger.storage.read() as reading:
        books = reading.books()

        def needs(state: State) -> Iterator[str]:
            yield from all_terms(state, *books)
            yield from map(whole_book, books)
            for charge in charges:
                yield from charge_keys(state, charge)

        found = reading.load(needs)
        found.whole = True
        return found


def account(ledger: Ledger, name: str = "a#1") -> Account | None:
    """Return an account; None before its first entry."""
    return whole(ledger).account(name)


def sums(ledger: Ledger, name: str = "a#1") -> tuple[Fraction, Fraction]:
    """Return what is settled and held on the first component of an account."""
    found = account(ledger, name)
    if found is None:
        return Fraction(0), Fraction(0)
    return Fraction(found.settled[0], UNIT), Fraction(found.held[0], UNIT)


def state_of(ledger: Ledger, charge: str) -> str | None:
    """Return the state of a charge; None if nobody made it."""
    found = whole(ledger, charge).charge(charge)
    return None if found is None else found.state


def await_death(ledger: Ledger, charge: str) -> None:
    """Wait until a ledger sees that the owner of a charge has died.

    The server of a database hears of it a moment after the operating system.
    """
    found, until = whole(ledger, charge).charge(charge), time.monotonic() + 10
    while found is not None and ledger.owners.alive(found.owner):
        assert time.monotonic() < until
        time.sleep(0.005)


def terms_of(ledger: Ledger, book: str = "a") -> list[dict[str, Any]]:
    """Return what each term of a book pins, oldest first."""
    return [dict(term.facts) for term in whole(ledger).terms(book)]


def folded(entries: Iterable[Entry]) -> State:
    """Follow a journal from its first entry."""
    state = State(whole=True)
    for entry in entries:
        follow(state, entry)
    return state


def stored(reading: Reading) -> State:
    """Load every key that the tags name."""
    keys = [key for (key,) in reading.ask("names", first="", last="~")]
    found = reading.load(lambda _: keys)
    found.whole = True
    return found


def unlike(folded: State, stored: State) -> list[str]:
    """Return the keys that are not what the journal comes to, or not in its place."""
    return [
        key
        for key in sorted({*folded.rows, *stored.rows})
        if canonical(folded.rows.get(key)) != canonical(stored.rows.get(key))
        or folded.numbers.get(key) != stored.numbers.get(key)
    ]


def audit(ledger: Ledger) -> None:
    """Compare every key with the fold of the journal, and let `verify` do so."""
    with ledger.storage.read() as reading:
        assert unlike(folded(reading.after()), stored(reading)) == []
    assert verify(ledger).bad == []
