"""What the journals and rows of a ledger say, and whether they say the same."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

from dpflow.ledger.audit.fold import Fold
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Account, Key, Row, Run
from dpflow.ledger.storage.row_texts import key_of_text

#: One epsilon in tally units.
UNIT = math.lcm(10**36, *range(1, 101))


def entries(ledger: Ledger, book: str = "a") -> list[Entry]:
    """Return the entries of a book, hashes checked."""
    with ledger.storage.read() as reading:
        return list(reading.after(book)) if book in reading.books() else []


def kinds(ledger: Ledger, book: str = "a") -> list[str]:
    """Return the kinds of a book's entries, in order."""
    return [entry.kind for entry in entries(ledger, book)]


def body(ledger: Ledger, kind: str, book: str = "a") -> dict[str, Any]:
    """Return the body of a book's newest entry of a kind."""
    found = [entry for entry in entries(ledger, book) if entry.kind == kind]
    return dict(found[-1].body)


def whole(ledger: Ledger, *charges: str) -> State:
    """Return all terms and accounts, and some charges."""
    with ledger.storage.read() as reading:
        return reading.load(Keys(whole=tuple(reading.books()), charges=charges))


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


def folded(journals: dict[str, list[Entry]]) -> dict[Key, Row]:
    """Fold the journals of all books, in an order that they tell themselves."""
    fold = Fold()
    for book, found in journals.items():
        fold.add(book, found)
    fold.end()
    assert fold.bad == {}
    return fold.rows


def all_rows(reading: Any) -> dict[Key, Row]:
    """Load every row that is kept, and count that none is left out."""
    kept = {
        kind: [key_of_text(text) for text, _, _ in reading.kept(kind, limit=2**31)]
        for kind in KINDS_OF_ROWS
    }
    keys = Keys(
        whole=tuple(reading.books()),
        charges=tuple(name for _, name in kept["charge"]),
        releases=tuple(name for _, name in kept["release"]),
        runs=tuple(name for _, name in kept["run"]),
        granted=tuple((book, step) for _, book, step in kept["granted"]),
        claims=tuple(name for _, name in kept["claim"]),
    )
    rows = dict(reading.load(keys).rows)
    assert {key for found in kept.values() for key in found} == rows.keys()
    return rows


KINDS_OF_ROWS = (
    *("book", "term", "account", "charge", "release", "run", "granted", "claim"),
    "epoch",
)


def audit(ledger: Ledger) -> None:
    """Compare every row with the fold of the journals, and let `verify` do so."""
    with ledger.storage.read() as reading:
        rows = folded({book: list(reading.after(book)) for book in reading.books()})
        assert unordered(rows) == unordered(all_rows(reading))
    assert verify(ledger).bad == []


def unordered(rows: Any) -> dict[Key, str]:
    """Return rows as text, but for the order of a run's refusals."""
    found = {}
    for key, row in rows.items():
        runs = ("refused", "halted") if isinstance(row, Run) else ()
        sets = {name: tuple(sorted(getattr(row, name))) for name in runs}
        found[key] = canonical(row._replace(**sets))
    return found
