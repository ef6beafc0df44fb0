"""A ledger in a SQLite file: two reads to load, one write a kind of row to store."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.entry import (
    Columns,
    Entry,
    columns_of,
    entry_of,
)
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import (
    Changes,
    Epoch,
    JournalError,
    Key,
    Row,
    key_of,
)
from dpflow.ledger.storage.base import (
    disagreement,
    entries_of,
)
from dpflow.ledger.storage.columns import (
    columns_of_row,
    entries_behind,
    parameters,
    row_of,
    statements,
)

_PAGE = 1000


class Connected:
    """A connection to a ledger file, within a transaction of its own.

    Args:
        connection: In autocommit mode; who opened it has set and read back durability.
        place: The ledger, for messages.
    """

    def __init__(self, connection: sqlite3.Connection, place: str) -> None:
        self.place = place
        self._connection = connection
        self._sql = statements("sqlite")

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        found = self._ask("load", **parameters(keys)).fetchall()
        behind = {place for row in found for place in entries_behind(row)}
        wanted = sorted(behind.union(keys.entries))
        entries = self._entries(wanted)

        def entry(book: str, number: int) -> Entry:
            known = entries.get((book, number))
            if known is None:
                what = f"entry {number} of book {book!r} is not there"
                raise self._damaged(what)
            return known

        rows: dict[Key, Row] = {}
        for columns in found:
            row = row_of(columns, entry)
            rows[key_of(row)] = row
            wrong = disagreement(row, entry)
            if wrong is not None:
                raise self._damaged(wrong)
        values = {c[1]: c[6] for c in found if c[0] == "release" and c[6] is not None}
        further = {place: entries[place] for place in keys.entries if place in entries}
        made = {**entries_of(rows, entry), **further}
        return State(rows=rows, entries=made, values=values)

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them."""
        if not entries:
            return
        told = [(*columns_of(entry), entry.hash) for entry in entries]
        self._ask("entry", rows=json.dumps(told))
        kinds: dict[str, list[tuple[Any, ...]]] = {}
        for key, row in changes.items():
            if row is None:
                self._ask("drop_release", key=key[1])
            elif isinstance(row, Epoch):
                self._ask("epoch", epoch=row.number)
            else:
                kinds.setdefault(key[0], []).append(columns_of_row(row, values))
        for kind, rows in kinds.items():
            self._ask(kind, rows=json.dumps(rows))

    def pages(self, book: str, after: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, in order, hashes checked.

        Raises:
            LedgerCorrupt: If one is not what was hashed.
        """
        before = self._ask("pages", book=book, after=after - 1, limit=1).fetchall()
        previous = before[0][8] if after else ""
        while True:
            found = self._ask("pages", book=book, after=after, limit=_PAGE).fetchall()
            for columns in found:
                yield self._entry(previous, columns)
                previous, after = columns[8], columns[1]
            if len(found) < _PAGE:
                return

    def books(self) -> list[str]:
        """Return the names of all books."""
        return [name for (name,) in self._ask("books")]

    def _entries(self, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], Entry]:
        rows = self._ask("entries", wanted=json.dumps(wanted)) if wanted else []
        return {(row[0], row[1]): self._entry(row[9], row) for row in rows}

    def _entry(self, previous: str, columns: tuple[Any, ...]) -> Entry:
        try:
            return entry_of(previous, Columns(*columns[:8]), columns[8])
        except JournalError as error:
            what = f"entry {columns[1]} of book {columns[0]!r}: {error}"
            raise self._damaged(what) from error

    def _ask(self, name: str, **parameters: Any) -> sqlite3.Cursor:
        return self._connection.execute(self._sql[name], parameters)

    def _damaged(self, what: str) -> LedgerCorrupt:
        msg = (
            f"{what}. Someone edited the ledger, or it is damaged: restore a backup "
            "before any further step."
        )
        return LedgerCorrupt(msg, ledger=self.place)


def make_tables(connection: sqlite3.Connection, identity: Mapping[str, Any]) -> None:
    """Make the tables of a new ledger and enter its identity, in one transaction."""
    sql = statements("sqlite")
    connection.executescript(f"BEGIN IMMEDIATE;\n{sql['schema']};")
    connection.execute(sql["create_ledger"], identity)
    connection.execute("COMMIT")
