"""What the journals and rows of a ledger say, and whether they say the same."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dpflow.ledger import journal
from dpflow.ledger.entry import Entry, canonical
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import EPOCH, Account, Charge, JournalError, Key, Row

#: One epsilon in tally units.
UNIT = 10**36


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


def terms_of(ledger: Ledger, book: str = "a") -> list[dict[str, Any]]:
    """Return what each term of a book pins, oldest first."""
    return [dict(term.facts) for term in whole(ledger).terms(book)]


def folded(journals: dict[str, list[Entry]]) -> dict[Key, Row]:
    """Fold the journals of all books, each as far as the others let it.

    Raises:
        JournalError: If an entry does not follow from those before it.
    """
    rows: dict[Key, Row] = {}
    rest = {book: list(found) for book, found in journals.items()}
    while any(rest.values()):
        stuck: JournalError | None = None
        moved = False
        for found in rest.values():
            while found:
                try:
                    changes = journal.follow(rows, found[0])
                except JournalError as error:
                    stuck = error
                    break
                found.pop(0)
                moved = True
                for key, row in changes.items():
                    if row is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = row
        if not moved and stuck is not None:
            raise stuck
    return rows


def audit(ledger: Ledger) -> None:
    """Compare every account, term, book and charge with the fold of the journals."""
    with ledger.storage.read() as reading:
        books = tuple(reading.books())
        rows = folded({book: list(reading.after(book)) for book in books})
        charges = tuple(r.id for r in rows.values() if isinstance(r, Charge))
        keys = Keys(whole=books, charges=charges)
        stored = dict(reading.load(keys).rows)
    stored.pop(EPOCH, None)
    told = {key: canonical(rows.get(key)) for key in stored}
    assert told == {key: canonical(row) for key, row in stored.items()}
    kinds_of = {"account", "term", "book", "charge"}
    assert {key for key in rows if key[0] in kinds_of} <= stored.keys()


def make_ledger(path: Any) -> Ledger:
    """Make a ledger at a place."""
    import uuid

    from dpflow.ledger.storage.base import Identity
    from dpflow.ledger.storage.memory import Memory, MemoryOwners
    from dpflow.ledger.storage.owners import Owners
    from dpflow.ledger.storage.sqlite import SqliteStorage

    identity = Identity(uuid.uuid4().hex, None, "t")
    if str(path).startswith("memory://"):
        storage: Any = Memory.create(str(path).removeprefix("memory://"), identity, b"0")
        return Ledger(storage, MemoryOwners())
    storage = SqliteStorage.create(path, identity, b"0")
    return Ledger(storage, Owners(path.with_name(f"{path.name}.owners")))


def open_ledger(url: str, conditions: Any = None) -> Ledger:
    """Open it."""
    from pathlib import Path

    from dpflow.ledger.storage.memory import Memory, MemoryOwners
    from dpflow.ledger.storage.owners import Owners
    from dpflow.ledger.storage.sqlite import SqliteStorage

    if url.startswith("memory://"):
        return Ledger(Memory(url.removeprefix("memory://")), MemoryOwners(), conditions=conditions)
    path = Path(url.removeprefix("sqlite:///"))
    owners = Owners(path.with_name(f"{path.name}.owners"))
    return Ledger(SqliteStorage(path), owners, conditions=conditions)
