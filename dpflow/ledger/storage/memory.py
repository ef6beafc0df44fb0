"""A ledger in memory: for tests, and gone with its process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Account, Key, Row
from dpflow.ledger.storage.base import disagreement, entries_of, folded, reached


class Memory:
    """Rows and entries in dictionaries, under one lock.

    Attributes:
        rows: Every row, by its key.
        entries: The journal of each book.
        values: Kept values, by release key.
    """

    def __init__(self, place: str = "memory") -> None:
        self.place = place
        self.rows: dict[Key, Row] = {}
        self.entries: dict[str, list[Entry]] = {}
        self.values: dict[str, str] = {}
        self._lock = threading.RLock()

    @contextmanager
    def transaction(self, keys: Keys) -> Iterator[Memory]:  # noqa: ARG002 (one lock for all)
        """Run a block that no other one overlaps; what it stored goes if it raises."""
        with self._lock:
            before = (
                dict(self.rows),
                {name: list(found) for name, found in self.entries.items()},
                dict(self.values),
            )
            try:
                yield self
            except BaseException:
                self.rows, self.entries, self.values = before
                raise

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        rows = reached(keys, self.rows.get, self._entry, self._accounts)
        for row in rows.values():
            wrong = disagreement(row, self._entry)
            if wrong is not None:
                msg = (
                    f"{wrong}. Someone edited the ledger, or it is damaged: restore a "
                    "backup before any further step."
                )
                raise LedgerCorrupt(msg, ledger=self.place)
        values = {
            key[1]: self.values[key[1]]
            for key in rows
            if key[0] == "release" and key[1] in self.values
        }
        entries = entries_of(rows, self._entry)
        return State(rows=rows, entries=entries, values=values)

    def store(
        self, state: State, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them."""
        for key, row in folded(state.rows, entries).items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        for entry in entries:
            self.entries.setdefault(entry.book, []).append(entry)
        self.values |= values
        kept = {
            k[1]
            for k, row in self.rows.items()
            if k[0] == "release" and getattr(row, "state", "") == "settled"
        }
        self.values = {key: v for key, v in self.values.items() if key in kept}

    def pages(self, book: str, after: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, in order."""
        yield from self.entries.get(book, [])[after:]

    def books(self) -> list[str]:
        """Return the names of all books."""
        return sorted(self.entries)

    def _entry(self, book: str, number: int) -> Entry:
        return self.entries[book][number - 1]

    def _accounts(self, book: str) -> list[str]:
        rows = self.rows.values()
        return [row.id for row in rows if isinstance(row, Account) and row.book == book]
