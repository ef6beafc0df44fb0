"""What is read of a ledger within a transaction, and what every storage does."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from heapq import merge
from operator import attrgetter
from typing import Any

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Changes, Charge, JournalError, Key, Release
from dpflow.ledger.storage.base import (
    Identity,
    Place,
    another_ledger,
    check_writer,
    damaged,
    read_only_error,
)
from dpflow.ledger.storage.loading import Found, Loading
from dpflow.ledger.storage.row_texts import (
    entry_from,
    key_of_text,
    key_text,
    place_text,
    prefixed,
    row_of,
)
from dpflow.locks import Turn, TurnQueue

_PAGE = 1000
#: So many entries are read at once by who checks all of them.
_MOST = 4000
#: Above every number of an entry.
_ENDLESS = 2**62


class Reading(ABC):
    """One consistent state of a ledger, while its block runs.

    Args:
        place: The ledger, for messages.
        identity: Of the ledger that was opened.
    """

    def __init__(self, place: str, identity: Identity) -> None:
        self.place = place
        self.identity = identity

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked.

        Raises:
            LedgerCorrupt: If a row is not what its entry says, or another ledger is
                in the place of the one that was opened.
        """
        self._check_identity(self._ask("identity"))
        return self._loaded(keys)

    def _loaded(self, keys: Keys) -> State:
        try:
            return Loading(keys, self._rows, self.accounts, self._proved).state()
        except (JournalError, *UNREADABLE) as error:
            what = str(error) if isinstance(error, JournalError) else f"{error!r:.80}"
            raise damaged(what, self.place) from error

    def books(self) -> list[str]:
        """Return the names of all books, sorted."""
        return [key_of_text(row[0])[1] for row in self.kept("book", limit=_ENDLESS)]

    def accounts(self, book: str) -> list[str]:
        """Return the ids of a book's accounts in all of its terms."""
        above, below = prefixed("account", book)
        found = self._ask("keys", above=above, below=below)
        return [key_of_text(text)[1] for (text,) in found]

    def entries(self, places: Iterable[Place]) -> Mapping[Place, Entry]:
        """Return those of some entries that are there, hashes checked."""
        return self._proved(set(places), set())

    def after(self, book: str, number: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, oldest first, hashes checked.

        Raises:
            LedgerCorrupt: If one is not what was hashed, or is missing.
        """
        previous = self._hash_of(book, number)
        while True:
            found = self._ask("after", book=book, after=number, limit=_PAGE)
            for columns in found:
                if columns[:2] != (book, number + 1):
                    what = f"entry {number + 1} of book {book!r} is not there"
                    raise damaged(what, self.place)
                yield self._entry((*columns, previous))
                number, previous = columns[1], columns[8]
            if len(found) < _PAGE:
                return

    def newest(self, book: str, before: int | None = None) -> Iterator[Entry]:
        """Yield the entries of a book before a number, newest first, hashes checked."""
        yield from self._backwards("newest", book, before or _ENDLESS)

    def rare(self, book: str, *kinds: str) -> Iterator[Entry]:
        """Yield a book's entries of other kinds than a step's, newest first.

        Args:
            book: Name of the book.
            *kinds: Only these. Default: all that are found by an index.
        """
        found = (
            self._backwards("rare", book, _ENDLESS, kind=kind) for kind in kinds or [""]
        )
        yield from merge(*found, key=attrgetter("number"), reverse=True)

    def open_charges(self) -> list[str]:
        """Return the ids of all charges that did not end, sorted."""
        found = [self._row(*columns) for columns in self._ask("open_charges")]
        rows = (row for _, row, _ in found)
        return sorted(r.id for r in rows if isinstance(r, Charge) and r.state == "open")

    def releases(self) -> list[tuple[Release, int | None]]:
        """Return every release with the length of its value, if it is kept."""
        found = [
            (self._row(key, value)[1], size)
            for key, value, size in self._ask("releases")
        ]
        return [(row, size) for row, size in found if isinstance(row, Release)]

    def charges_of(self, book: str | None, text: str = "") -> set[str]:
        """Return the charges of a book, or of all, whose entry holds a text."""
        first, last = ("", "\U0010ffff") if book is None else (book, book)
        found = self._ask("charges_of", first=first, last=last, text=text)
        return {charge for (charge,) in found}

    def page(self, book: str, number: int) -> list[tuple[Any, ...]]:
        """Return the next entries of a book after a number, as they are kept.

        Nothing is checked; it is for who checks all of it.

        Returns:
            At most some thousand, oldest first: the columns of each and its hash.
        """
        return self._ask("after", book=book, after=number, limit=_MOST)

    def kept(
        self, kind: str, above: str = "", limit: int = _PAGE
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
        first, below = prefixed(kind)
        return self._ask("kept", above=max(first, above), below=below, limit=limit)

    def secret(self) -> bytes:
        """Return what release keys are made with; who only reads may not have it."""
        ((text,),) = self._ask("secret")
        return bytes.fromhex(text)

    def _backwards(
        self, name: str, book: str, before: int, **kind: str
    ) -> Iterator[Entry]:
        while True:
            asked = {"book": book, "before": before, "limit": _PAGE, **kind}
            found = self._ask(name, **asked)
            for columns in found:
                if columns[0] != book or kind.get("kind", "") not in ("", columns[2]):
                    what = f"an entry of book {columns[0]!r} is among those of {book!r}"
                    raise damaged(what, self.place)
                yield self._entry(columns)
                before = columns[1]
            if len(found) < _PAGE:
                return

    def _hash_of(self, book: str, number: int) -> str:
        """Return the hash of an entry; empty for what is before the first."""
        found = self.entries([(book, number)]) if number else {}
        if number and not found:
            what = f"entry {number} of book {book!r} is not there"
            raise damaged(what, self.place)
        return found[book, number].hash if number else ""

    def _entry(self, columns: tuple[Any, ...], *, body: bool = True) -> Entry:
        """Read an entry from its columns, its hash and the one before."""
        try:
            return entry_from(columns, body=body)
        except JournalError as error:
            what = f"entry {columns[1]} of book {columns[0]!r}: {error}"
            raise damaged(what, self.place) from error

    def _row(self, text: str, value: str) -> Found:
        key = key_of_text(text)
        try:
            return key, row_of(key, value), None
        except JournalError as error:
            raise damaged(str(error), self.place) from error

    def _rows(self, keys: Collection[Key]) -> list[Found]:
        """Return those of some rows that are there.

        Where pages are out of order, SQLite's search ends at some other row and does
        not look at its key again.
        """
        texts = {key_text(key): key for key in keys}
        found: list[Found] = []
        for text, value, output in self._named("rows", [*texts]):
            if text not in texts:
                what = f"another row came than the one that was asked for: {text}"
                raise JournalError(what)
            found.append((texts[text], row_of(texts[text], value), output))
        return found

    def _proved(self, shown: set[Place], proofs: set[Place]) -> dict[Place, Entry]:
        """Return those of some entries that are there; proofs lack their bodies."""
        found: dict[Place, Entry] = {}
        wanted = shown | proofs
        for columns in self._named("entries", [place_text(each) for each in wanted]):
            place = columns[:2]
            if place not in wanted:
                what = "another entry came than the one that was asked for"
                raise damaged(what, self.place)
            found[place] = self._entry(columns, body=place in shown)
        return found

    def _named(self, name: str, names: list[str]) -> list[tuple[Any, ...]]:
        """Return rows by their keys, or entries by their places."""
        return self._ask(name, names=names) if names else []

    def _check_identity(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Refuse another ledger than the one that was opened."""
        if len(rows) != 1:
            what = f"{self.place} is no ledger: its identity row is missing"
            raise damaged(what, self.place)
        ((ledger, needed),) = rows
        check_writer(self.place, needed)
        if ledger != self.identity.ledger:
            raise another_ledger(self.place, self.identity.ledger, ledger)

    @abstractmethod
    def _ask(self, name: str, **parameters: Any) -> list[Any]:
        """Run a statement and return its rows."""


class Transaction(Reading):
    """A state that nobody else changes, and what is written on it."""

    @abstractmethod
    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them.

        Args:
            changes: The rows that `follow` made of the entries.
            entries: Each the next of its book.
            values: Values of the releases that they settle, by key.
        """


class Storage(ABC):
    """A place where a ledger is kept, used by one thread of a process at a time.

    Args:
        place: The ledger, for messages; without any secret.
        lock_seconds: How long to wait for other writers.
        read_only: Refuse every write, whatever this process may do.
    """

    def __init__(self, place: str, lock_seconds: float, *, read_only: bool) -> None:
        self.place = place
        self._lock_seconds = lock_seconds
        self._read_only = read_only
        self._identity: Identity | None = None
        self._pid = os.getpid()
        self._line = TurnQueue()

    @property
    def identity(self) -> Identity:
        """Which ledger it is; read when it is opened.

        Raises:
            LedgerMissing: If there is none.
            LedgerUnavailable: If it cannot be read, or is of another version.
        """
        if self._identity is None:
            with self.read() as reading:
                return reading.identity
        return self._identity

    @property
    def unwritable(self) -> LedgerUnavailable | None:
        """Why this process may only read the ledger; None if it may write it."""
        return read_only_error(self.place) if self._read_only else None

    def write(self) -> AbstractContextManager[Transaction]:
        """Run a block in one transaction; what it stored goes if it raises.

        Nobody else writes the ledger until it ends.

        Raises:
            LedgerUnavailable: If it cannot be had now, or its outcome is unknown.
        """
        if (why := self.unwritable) is not None:
            raise why
        return self._writing()

    @abstractmethod
    def read(self) -> AbstractContextManager[Reading]:
        """Run a block that reads one consistent state; the right to read will do."""

    @abstractmethod
    def close(self) -> None:
        """Close it; a later call opens it again."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Transaction]:
        """Run a block in one transaction that writes."""

    @contextmanager
    def _alone(self) -> Iterator[Turn]:
        """Keep the other threads of this process away."""
        if self._pid != os.getpid():
            # A fork that Python did not make, and so did not tell of.
            self._after_fork_in_child()
        line, turn = self._line, Turn()
        try:
            try:
                if not line.take(turn, self._lock_seconds):
                    raise self._held_by_thread(line.first_name())
                yield turn
            finally:
                self._leave(line, turn)
        finally:
            # An interrupt may have come before the line above.
            self._leave(line, turn)

    def _held_by_thread(self, name: str) -> LedgerUnavailable:
        waited = self._lock_seconds
        msg = (
            f"another thread of this process, {name}, holds the lock of the ledger "
            f"{self.place}; waited {waited:g} s. The step did not run; try again."
        )
        return LedgerUnavailable(msg, ledger=self.place, waited=waited, holder=name)

    def _leave(self, line: TurnQueue, turn: Turn) -> None:
        """End a turn, and what it holds; a second time, nothing more."""
        line.leave(turn)

    def _after_fork_in_child(self) -> None:
        """Leave what it holds to the parent.

        The line stays: inherited turns are over, and two threads that come here at
        the same time must not have a line each.
        """
        self._pid = os.getpid()
