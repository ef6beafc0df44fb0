"""What every storage does, and what it says of a ledger that it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from dpflow.exceptions import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Changes, Release

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
    ) -> list[tuple[str, str, str | None]]:
        """Return rows of a kind as they are kept, by their keys; unchecked.

        Args:
            kind: As `rows.Key` begins.
            above: The key of each is above this one.
            limit: The most to return.

        Returns:
            Key and row, as `texts` writes them, and the output of a release, if it is
            kept.
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
