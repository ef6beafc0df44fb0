"""A ledger in memory: for tests, and gone with its process.

There is nothing to restore, copy or lose by accident, and so no witness, no lock file
and no owner file. A forked child has a copy that would spend the same budget again, so
it is refused there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger.entry import Entry, columns_of
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Account, Changes, Charge, JournalError, Key, Release, Row
from dpflow.ledger.storage.base import (
    COMMON,
    Identity,
    Place,
    damaged,
    read_only_error,
)
from dpflow.ledger.storage.loading import Found, Loading
from dpflow.ledger.storage.texts import key_text, row_text
from dpflow.locks import Line, Turn

#: How long a transaction waits for those of other threads.
_LOCK_SECONDS = 30.0
_PAGE = 1000
#: What the URL of such a ledger begins with; a name follows.
MEMORY = "memory://"


@dataclass(slots=True)
class Kept:
    """All that is kept of one ledger.

    Attributes:
        rows: Every row, by its key.
        entries: The journal of each book.
        values: Kept values, by release key.
    """

    identity: Identity
    secret: bytes
    rows: dict[Key, Row] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    line: Line = field(default_factory=Line)
    pid: int = field(default_factory=os.getpid)


_ledgers: dict[str, Kept] = {}
#: The owners of all ledgers in memory that were not closed.
_owners: set[str] = set()


class Memory:
    """A ledger in this process's memory; every object that names it shares it.

    Args:
        name: Tells it from the others of this process.
        read_only: Refuse every write.
    """

    exclusive = True

    def __init__(self, name: str, *, read_only: bool = False) -> None:
        self.name = name
        self._read_only = read_only
        self.place = f"{MEMORY}{name}"

    @classmethod
    def create(cls, name: str, identity: Identity, secret: bytes) -> Memory:
        """Make a new, empty ledger.

        Raises:
            ConfigurationError: If there is one of this name.
        """
        made = cls(name)
        if not name or name in _ledgers:
            msg = f"there is a ledger at {made.place} already, or it has no name"
            raise ConfigurationError(msg)
        _ledgers[name] = Kept(identity, secret)
        return made

    @property
    def identity(self) -> Identity:
        """Which ledger it is."""
        return self.kept.identity

    @property
    def kept(self) -> Kept:
        """What is kept of the ledger.

        Raises:
            LedgerMissing: If there is none of this name.
            LedgerUnavailable: In a forked child.
        """
        found = _ledgers.get(self.name)
        if found is None:
            msg = (
                f"there is no ledger at {self.place} in this process; `create_ledger` "
                "makes one. A ledger in memory is for tests and ends with its process."
            )
            raise LedgerMissing(msg, ledger=self.place)
        if found.pid != os.getpid():
            msg = (
                f"the ledger {self.place} is in the memory of another process, and a "
                "copy of it would spend the same budget again; use one in a file"
            )
            raise LedgerUnavailable(msg, ledger=self.place)
        return found

    @property
    def unwritable(self) -> LedgerUnavailable | None:
        """Why nothing is written; None if it may be."""
        return read_only_error(self.place) if self._read_only else None

    @contextmanager
    def write(self) -> Iterator[Within]:
        """Run a block that no other thread overlaps; it is kept whole or not at all."""
        if (why := self.unwritable) is not None:
            raise why
        with self._alone() as within:
            yield within
            within.keep()

    @contextmanager
    def read(self) -> Iterator[Within]:
        """Run a block that reads one consistent state."""
        with self._alone() as within:
            yield within

    @contextmanager
    def _alone(self) -> Iterator[Within]:
        kept, turn = self.kept, Turn()
        try:
            try:
                if not kept.line.take(turn, _LOCK_SECONDS):
                    raise self._busy(kept)
                yield Within(kept, self.place)
            finally:
                kept.line.leave(turn)
        finally:
            # An interrupt may have come before the line above.
            kept.line.leave(turn)

    def close(self) -> None:
        """Do nothing: other objects of this process may use the same ledger."""

    def _busy(self, kept: Kept) -> LedgerUnavailable:
        msg = (
            f"another thread of this process, {kept.line.first_name()}, is in a "
            f"transaction of the ledger {self.place}; waited {_LOCK_SECONDS:g} s. The "
            "step did not run; try again."
        )
        return LedgerUnavailable(msg, ledger=self.place, waited=_LOCK_SECONDS)


class Within:
    """One transaction; what it stores is kept at its end."""

    def __init__(self, kept: Kept, place: str) -> None:
        self._kept, self._place = kept, place
        self._changes: Changes = {}
        self._entries: list[Entry] = []
        self._values: dict[str, str] = {}

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        loading = Loading(keys, self._rows, self._accounts, self._proved)
        try:
            return loading.state()
        except JournalError as error:
            raise damaged(str(error), self._place) from error

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them."""
        mine = [*self._entries, *entries]
        for book in {entry.book for entry in entries}:
            first = len(self._kept.entries.get(book, ())) + 1
            numbers = [entry.number for entry in mine if entry.book == book]
            if numbers != list(range(first, first + len(numbers))):
                msg = f"entry {first} of book {book!r} is the next, not {numbers[0]}"
                raise LedgerCorrupt(msg, ledger=self._place)
        self._changes |= changes
        self._entries += entries
        self._values |= values

    def keep(self) -> None:
        """Keep what was stored."""
        kept = self._kept
        for entry in self._entries:
            kept.entries.setdefault(entry.book, []).append(entry)
        for key, row in self._changes.items():
            if row is None:
                kept.rows.pop(key, None)
                kept.values.pop(key[1], None)
                continue
            kept.rows[key] = row
            if isinstance(row, Release):
                if row.state != "settled":
                    kept.values.pop(row.key, None)
                elif row.key in self._values:
                    kept.values[row.key] = self._values[row.key]

    def books(self) -> list[str]:
        """Return the names of all books."""
        return sorted(self._kept.entries)

    def entries(self, places: Iterable[Place]) -> dict[Place, Entry]:
        """Return those of some entries that are there."""
        return {
            (book, number): self._entry(book, number)
            for book, number in places
            if 0 < number <= len(self._kept.entries.get(book, ()))
        }

    def after(self, book: str, number: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, oldest first."""
        yield from self._kept.entries.get(book, [])[number:]

    def newest(self, book: str, before: int | None = None) -> Iterator[Entry]:
        """Yield the entries of a book before a number, newest first."""
        found = self._kept.entries.get(book, [])
        yield from reversed(found if before is None else found[: before - 1])

    def rare(self, book: str, *kinds: str) -> Iterator[Entry]:
        """Yield a book's entries that are no step's, newest first."""
        for each in reversed(self._kept.entries.get(book, [])):
            if each.kind in kinds or not (kinds or each.kind in COMMON):
                yield each

    def open_charges(self) -> list[str]:
        """Return the ids of all charges that did not end."""
        rows = self._kept.rows.values()
        return sorted(r.id for r in rows if isinstance(r, Charge) and r.state == "open")

    def releases(self) -> list[tuple[Release, int | None]]:
        """Return every release with the length of its value."""
        found = [r for r in self._kept.rows.values() if isinstance(r, Release)]
        values = self._kept.values
        return [(r, len(values[r.key]) if r.key in values else None) for r in found]

    def page(self, book: str, number: int) -> list[tuple[Any, ...]]:
        """Return the next entries of a book after a number, as they are kept."""
        found = self._kept.entries.get(book, [])[number : number + _PAGE]
        return [(*columns_of(entry), entry.hash) for entry in found]

    def kept(
        self, kind: str, above: str = "", limit: int = _PAGE
    ) -> list[tuple[str, str, str | None]]:
        """Return rows of a kind as they are kept, by their keys."""
        known, values = self._kept.rows, self._kept.values
        rows = {key_text(key): row for key, row in known.items() if key[0] == kind}
        wanted = sorted(text for text in rows if text > above)[:limit]
        return [
            (text, row_text(rows[text]), values.get(text.removeprefix("release:")))
            for text in wanted
        ]

    def secret(self) -> bytes:
        """Return what release keys are made with."""
        return self._kept.secret

    def _entry(self, book: str, number: int) -> Entry:
        return self._kept.entries[book][number - 1]

    def _accounts(self, book: str) -> list[Key]:
        rows = self._kept.rows.items()
        return [k for k, row in rows if isinstance(row, Account) and row.book == book]

    def _rows(self, keys: Collection[Key]) -> Iterator[Found]:
        kept = self._kept
        for key in keys:
            row = kept.rows.get(key)
            if row is not None:
                value = kept.values.get(row.key) if isinstance(row, Release) else None
                yield key, row, value

    def _proved(self, shown: set[Place], proofs: set[Place]) -> dict[Place, Entry]:
        return self.entries(shown | proofs)


class MemoryOwners:
    """Who holds what in a ledger in memory: each object is an owner of its own."""

    def __init__(self) -> None:
        self._name: str | None = None

    def mine(self) -> str:
        """Return this object's owner name."""
        if self._name is None:
            self._name = uuid.uuid4().hex
            _owners.add(self._name)
        return self._name

    def alive(self, owner: str) -> bool:
        """Say whether an owner was not closed."""
        return owner in _owners

    def close(self) -> None:
        """Give the name up; its open reservations become forfeited."""
        _owners.discard(self._name or "")
        self._name = None


def forget_memory(url: str) -> None:
    """Remove a ledger in memory, at the end of a test."""
    _ledgers.pop(url.removeprefix(MEMORY), None)
