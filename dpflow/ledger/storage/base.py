"""What every storage does, and which rows a command's keys lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import le
from typing import Any, NamedTuple, Protocol

from dpflow.exceptions import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Keys, Reach, State
from dpflow.ledger.rows import (
    EPOCH,
    Account,
    Amounts,
    Book,
    Changes,
    Charge,
    Key,
    Release,
    Row,
    Rows,
    Run,
    Sums,
    Term,
    name_of_term,
)

#: Reads one row by its key.
Read = Callable[[Key], Row | None]
ReadEntry = Callable[[str, int], Entry]
#: Book and number of an entry.
Place = tuple[str, int]

#: Kinds of which there are many: a step's. Entries of all others are found by an index.
COMMON = ("reserve", "settle", "void", "seal")


class Identity(NamedTuple):
    """What a ledger is told from others by; it never changes.

    Attributes:
        ledger: Its id.
        environment: The only one that it serves; None for any.
        created_at: A label.
    """

    ledger: str
    environment: str | None
    created_at: str


#: What this code writes, and the oldest code that may write after it.
SCHEMA_VERSION = 1


def first_edition(place: str, schema: int) -> LedgerUnavailable:
    """Make the error for a ledger whose tables are those of the first edition."""
    msg = (
        f"the ledger {place} was made by the first edition of dpflow (schema "
        f"{schema}); this one cannot read it. Keep it as evidence, make a new one "
        "with `dpflow ledger init` and charge what was spent with `dpflow ledger "
        "import-prior`."
    )
    return LedgerUnavailable(msg, ledger=place)


def check_writer(place: str, needed: int) -> None:
    """Refuse a ledger that only a newer dpflow may write to.

    Raises:
        LedgerUnavailable: If it is one.
    """
    if needed > SCHEMA_VERSION:
        msg = (
            f"the ledger {place} needs a dpflow that writes schema {needed}; this one "
            f"writes {SCHEMA_VERSION}. Upgrade dpflow."
        )
        raise LedgerUnavailable(msg, ledger=place)


def another_ledger(place: str, opened: str, found: str) -> LedgerCorrupt:
    """Make the error for a ledger that was put in the place of the one in use."""
    msg = (
        f"the ledger {place} had id {opened} when it was opened and has {found} now: "
        "another ledger was put in its place. Restore the first."
    )
    return LedgerCorrupt(msg, ledger=place)


def read_only_error(place: str) -> LedgerUnavailable:
    """Make the error for a write where only reading was asked for."""
    msg = f"the ledger {place} was opened for reading only; nothing is charged"
    return LedgerUnavailable(msg, ledger=place)


def damaged(what: str, place: str) -> LedgerCorrupt:
    """Make the error for a row or an entry that is not what it should be."""
    msg = (
        f"{what}. Someone edited the ledger, or it is damaged: restore a backup before "
        "any further step."
    )
    return LedgerCorrupt(msg, ledger=place)


class Reading(Protocol):
    """One consistent state of a ledger, while its block runs."""

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked; a writer locks its books.

        Raises:
            LedgerCorrupt: If a row is not what its entry says, or another ledger is
                in the place of the one that was opened.
        """

    def books(self) -> list[str]:
        """Return the names of all books, sorted."""

    def entries(self, places: Iterable[Place]) -> Mapping[Place, Entry]:
        """Return those of some entries that are there, hashes checked."""

    def after(self, book: str, number: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, oldest first, hashes checked.

        Raises:
            LedgerCorrupt: If one is not what was hashed, or is missing.
        """

    def newest(self, book: str, before: int | None = None) -> Iterator[Entry]:
        """Yield the entries of a book before a number, newest first, hashes checked."""

    def rare(self, book: str, *kinds: str) -> Iterator[Entry]:
        """Yield a book's entries of other kinds than `COMMON`, newest first.

        Args:
            book: Name of the book.
            *kinds: Only these. Default: all but `COMMON`.
        """

    def open_charges(self) -> list[str]:
        """Return the ids of all charges that did not end, sorted."""

    def releases(self) -> list[tuple[Release, int | None]]:
        """Return every release with the length of its value, if it is kept."""

    def page(self, book: str, number: int) -> list[tuple[Any, ...]]:
        """Return the next entries of a book after a number, as they are kept.

        Nothing is checked; it is for who checks all of it.

        Returns:
            At most some thousand, oldest first: the columns of each and its hash.
        """

    def kept(
        self, kind: str, above: str = "", limit: int = 1000
    ) -> list[tuple[Any, ...]]:
        """Return rows of a kind as they are kept, by their first column; unchecked.

        Args:
            kind: "book", "term", "account", "charge", "release", "run", "granted" or
                "claim"; a release has its value as well.
            above: The first column is above this; ignored for terms and what was
                granted, of which all are returned.
            limit: The most to return.
        """

    def secret(self) -> bytes:
        """Return what release keys are made with; who only reads may not have it."""


class Transaction(Reading, Protocol):
    """A state that nobody else changes, and what is written on it."""

    def store(
        self,
        changes: Changes,
        entries: Sequence[Entry],
        values: Mapping[str, str],
    ) -> None:
        """Write entries, and the rows that follow from them.

        Args:
            changes: The rows that `follow` made of the entries.
            entries: Each the next of its book.
            values: Values of the releases that they settle, by key.
        """


class Storage(Protocol):
    """A place where a ledger is kept.

    Attributes:
        place: For messages; without any secret.
        identity: Of the ledger that was opened.
        exclusive: Whether a transaction keeps every other writer away, and not only
            those of the books that it locks.
    """

    place: str
    exclusive: bool

    @property
    def identity(self) -> Identity:
        """Which ledger it is; read when it is opened.

        Raises:
            LedgerMissing: If there is none.
            LedgerUnavailable: If it cannot be read, or is of another version.
        """

    @property
    def unwritable(self) -> LedgerUnavailable | None:
        """Why this process may only read; None if it may write."""

    def write(self) -> AbstractContextManager[Transaction]:
        """Run a block in one transaction; what it stored goes if it raises.

        Nobody else writes the books that its first `load` names until it ends.

        Raises:
            LedgerUnavailable: If it cannot be had now, or its outcome is unknown.
        """

    def read(self) -> AbstractContextManager[Reading]:
        """Run a block that sees one consistent state; the right to read will do."""

    def close(self) -> None:
        """Close it; a later call opens it again."""


class _Reader:
    """Collects the rows that keys lead to, each once."""

    def __init__(self, read: Read, entry: ReadEntry, reach: Reach) -> None:
        self._read, self._entry, self._reach = read, entry, reach
        self.rows: dict[Key, Row] = {}

    def take(self, key: Key) -> Row | None:
        """Read a row, if it is there."""
        if key not in self.rows and (found := self._read(key)) is not None:
            self.rows[key] = found
        return self.rows.get(key)

    def book(self, name: str, places: Iterable[str], *, whole: bool) -> None:
        """Read a book with its newest term, or all of them, and some accounts."""
        book = self.take(("book", name))
        terms = book.terms if isinstance(book, Book) else 0
        for number in range(1 if whole else max(terms, 1), terms + 1):
            self.take(("term", name, str(number)))
        for place in places:
            base = f"{name}#{terms}"
            self.take(("account", f"{base}/{place}" if place else base))

    def release(self, key: str) -> None:
        """Read a release with the charge that made it."""
        found = self.take(("release", key))
        if isinstance(found, Release):
            self.take(("charge", found.charge))

    def run(self, name: str) -> None:
        """Read a run with the preflight that holds it."""
        found = self.take(("run", name))
        if isinstance(found, Run) and found.preflight is not None:
            self.charge(found.preflight)

    def charge(self, name: str) -> None:
        """Read a charge with what of it is within reach."""
        found = self.take(("charge", name))
        if not isinstance(found, Charge):
            return
        if found.key is not None:
            self.take(("release", found.key))
        for book, (made, _) in found.places.items():
            if self._reach >= Reach.ACCOUNTS:
                self.take(("book", book))
                self._moved(book, made)

    def _moved(self, book: str, made: int) -> None:
        for account in self._entry(book, made).postings:
            self.take(("account", account))
            if self._reach >= Reach.TERMS:
                self.take(("term", book, name_of_term(account)))


def reached(
    keys: Keys,
    read: Read,
    entry: ReadEntry,
    accounts: Callable[[str], Iterable[str]],
) -> Rows:
    """Return every row that keys lead to.

    Args:
        keys: What a command names.
        read: Reads a row.
        entry: Reads an entry.
        accounts: The ids of a book's accounts.
    """
    reader = _Reader(read, entry, keys.reach)
    reader.take(EPOCH)
    for name in dict.fromkeys((*keys.books, *keys.whole)):
        whole = name in keys.whole
        reader.book(name, keys.gates.get(name, ()), whole=whole)
        for account in accounts(name) if whole else ():
            reader.take(("account", account))
    for claim in keys.claims:
        reader.take(("claim", claim))
    for name, step in keys.granted:
        reader.take(("granted", name, step))
    for key in keys.releases:
        reader.release(key)
    for name in keys.runs:
        reader.run(name)
    for name in keys.charges:
        reader.charge(name)
    return reader.rows


def entries_of(rows: Rows, read: ReadEntry) -> dict[tuple[str, int], Entry]:
    """Return the entries that begin and end charges, or refused a run, among rows."""
    wanted = [place for row in rows.values() for place in _places(row)]
    return {(book, number): read(book, number) for book, number in wanted}


def _places(row: Row) -> Iterator[tuple[str, int]]:
    if isinstance(row, Run) and row.unheld is not None:
        yield row.unheld
    if isinstance(row, Charge):
        for book, numbers in row.places.items():
            yield from ((book, number) for number in numbers if number)


def disagreement(row: Row, read: ReadEntry) -> str | None:
    """Say how a row differs from what the entry that moved it last says of it."""
    check = _CHECKS.get(type(row))
    return None if check is None else check(row, read)


def _of_book(row: Book, read: ReadEntry) -> str | None:
    if row.number and read(row.name, row.number).hash != row.hash:
        return f"the end of book {row.name!r} is not entry {row.number} of its journal"
    return None


def _of_account(row: Account, read: ReadEntry) -> str | None:
    posting = read(row.book, row.entry).postings.get(row.id)
    if posting is None or posting[1:] != (row.settled, row.held):
        return f"account {row.id!r} is not what entry {row.entry} says"
    return None


def _of_term(row: Term, read: ReadEntry) -> str | None:
    told = read(row.book, row.entry).body.get("term")
    if told != row.facts or told is None or told.get("number") != row.number:
        return f"term {row.number} of {row.book!r} is not what entry {row.entry} says"
    return None


def _of_charge(row: Charge, read: ReadEntry) -> str | None:
    made: dict[str, Amounts] = {}
    for book, (first, last) in row.places.items():
        entry = read(book, first)
        ended = read(book, last) if last else None
        state = "open" if ended is None else KINDS[ended.kind].ends
        names = {each.charge for each in (entry, ended) if each is not None}
        told = [entry.body.get(name) for name in ("covers", "key", "owner")]
        # Another process may have taken a preflight over.
        owner = row.owner if row.covers is None else told[2]
        if (entry.kind, state, names) != ("reserve", row.state, {row.id}) or told != [
            row.covers,
            row.key,
            owner,
        ]:
            return f"charge {row.id} is not what its entries say"
        made |= {name: posting.amount for name, posting in entry.postings.items()}
    if row.state != "open":
        made = {}
    # What a run's steps drew of its preflight is not in the entry that made it.
    if row.held != made and (row.covers is None or not _is_part(row.held, made)):
        return f"charge {row.id} does not hold what its entries say"
    return None


def _is_part(held: Sums, made: Sums) -> bool:
    return held.keys() == made.keys() and all(
        len(held[name]) == len(amount) and all(map(le, held[name], amount))
        for name, amount in made.items()
    )


def _of_run(row: Run, read: ReadEntry) -> str | None:
    if row.unheld is not None and read(*row.unheld).body.get("covers") != row.id:
        return f"flow run {row.id!r} is not what entry {row.unheld[1]} says"
    return None


_CHECKS: Mapping[type, Callable[[Any, ReadEntry], str | None]] = {
    Book: _of_book,
    Account: _of_account,
    Term: _of_term,
    Charge: _of_charge,
    Run: _of_run,
}


def contradiction(rows: Rows, entries: Mapping[Place, Entry]) -> str | None:
    """Say how rows differ from entries that were read for other rows.

    A row may agree with an entry of its own and still be as it was before a later one,
    or be gone.

    Args:
        rows: All that were found.
        entries: All that were read.
    """
    for (_, number), entry in entries.items():
        for name in entry.postings:
            account = rows.get(("account", name))
            if isinstance(account, Account) and account.entry < number:
                return f"account {name!r} is not as entry {number} left it"
    for row in rows.values():
        if not isinstance(row, Release) or row.state == "claimed":
            continue
        # Another charge with its key leads to a release without the one that made it.
        charge = rows.get(("charge", row.charge))
        if isinstance(charge, Charge) and row.digest != _digest_of(
            charge, row, entries
        ):
            return f"release {row.key} is not what the entries of its charge say"
    return None


def _digest_of(
    charge: Charge, release: Release, entries: Mapping[Place, Entry]
) -> str | None:
    _, ended = charge.places.get(release.book, (0, 0))
    entry = entries.get((release.book, ended))
    return None if entry is None else entry.body.get("digest")
