"""The tables of a ledger in SQLite: what a transaction reads and writes of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    Release,
    Row,
    key_of,
)
from dpflow.ledger.storage.base import (
    SCHEMA_VERSION,
    Identity,
    Place,
    another_ledger,
    check_writer,
    disagreement,
    entries_of,
    first_edition,
)
from dpflow.ledger.storage.columns import (
    columns_of_row,
    entries_behind,
    parameters,
    row_of,
    statements,
)

_PAGE = 1000
#: So many entries are read at once by who checks all of them.
_MOST = 4000


class Tables:
    """A ledger within one transaction of a connection.

    Args:
        connection: In a transaction; who opened it has set and read back durability.
        place: The ledger, for messages.
        identity: Of the ledger that was opened.
    """

    def __init__(
        self, connection: sqlite3.Connection, place: str, identity: Identity
    ) -> None:
        self.place = place
        self._identity = identity
        self._connection = connection
        self._sql = statements("sqlite")

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        found = self._ask("load", **parameters(keys)).fetchall()
        self._check_identity([row for row in found if row[0] == "epoch"])
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

    def books(self) -> list[str]:
        """Return the names of all books, sorted."""
        return [name for (name,) in self._ask("books")]

    def entries(self, places: Iterable[Place]) -> dict[Place, Entry]:
        """Return those of some entries that are there, hashes checked."""
        return self._entries(sorted(set(places)))

    def after(self, book: str, number: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, oldest first, hashes checked.

        Raises:
            LedgerCorrupt: If one is not what was hashed, or is missing.
        """
        previous = self._hash_of(book, number)
        while True:
            asked = {"book": book, "after": number, "limit": _PAGE}
            found = self._ask("after", **asked).fetchall()
            for columns in found:
                if columns[:2] != (book, number + 1):
                    what = f"entry {number + 1} of book {book!r} is not there"
                    raise self._damaged(what)
                yield self._entry(previous, columns)
                number, previous = columns[1], columns[8]
            if len(found) < _PAGE:
                return

    def newest(self, book: str, before: int | None = None) -> Iterator[Entry]:
        """Yield the entries of a book before a number, newest first, hashes checked."""
        yield from self._backwards("newest", book, before)

    def rare(self, book: str) -> Iterator[Entry]:
        """Yield a book's entries of other kinds than `COMMON`, newest first."""
        yield from self._backwards("rare", book, None)

    def open_charges(self) -> list[str]:
        """Return the ids of all charges that did not end, sorted."""
        return [name for (name,) in self._ask("open_charges")]

    def releases(self) -> list[tuple[Release, int | None]]:
        """Return every release with the length of its value, if it is kept."""
        return [(Release(*row[:5]), row[5]) for row in self._ask("releases")]

    def page(self, book: str, number: int) -> list[tuple[Any, ...]]:
        """Return the next entries of a book after a number, as they are kept."""
        return self._ask("after", book=book, after=number, limit=_MOST).fetchall()

    def kept(
        self, kind: str, above: str = "", limit: int = _PAGE
    ) -> list[tuple[Any, ...]]:
        """Return rows of a kind as they are kept, by their first column."""
        return self._ask(f"kept_{kind}", above=above, limit=limit).fetchall()

    def secret(self) -> bytes:
        """Return what release keys are made with."""
        ((text,),) = self._ask("secret").fetchall()
        return bytes.fromhex(text)

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole ledger, its log included, as this transaction sees it."""
        self._connection.backup(target)

    def _backwards(self, name: str, book: str, before: int | None) -> Iterator[Entry]:
        while True:
            asked = {"book": book, "before": before, "limit": _PAGE}
            found = self._ask(name, **asked).fetchall()
            for columns in found:
                if columns[0] != book:
                    what = f"an entry of book {columns[0]!r} is among those of {book!r}"
                    raise self._damaged(what)
                yield self._entry(columns[9], columns)
                before = columns[1]
            if len(found) < _PAGE:
                return

    def _hash_of(self, book: str, number: int) -> str:
        """Return the hash of an entry; empty for what is before the first."""
        found = self.entries([(book, number)]) if number else {}
        if number and not found:
            what = f"entry {number} of book {book!r} is not there"
            raise self._damaged(what)
        return found[book, number].hash if number else ""

    def _check_identity(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Refuse another ledger than the one that was opened."""
        if len(rows) != 1:
            what = f"{self.place} is no ledger: its identity row is missing"
            raise self._damaged(what)
        ((_, _, ledger, needed, *_),) = rows
        check_writer(self.place, needed)
        if ledger != self._identity.ledger:
            raise another_ledger(self.place, self._identity.ledger, ledger)

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


def make_tables(
    connection: sqlite3.Connection, identity: Identity, secret: bytes
) -> None:
    """Make the tables of a new ledger and enter its identity, within a transaction."""
    sql = statements("sqlite")
    for statement in split_statements(sql["schema"]):
        connection.execute(statement)
    values = {
        **identity._asdict(),
        "schema_version": SCHEMA_VERSION,
        "min_writer": SCHEMA_VERSION,
        "secret": secret.hex(),
    }
    connection.execute(sql["create_ledger"], values)


def split_statements(script: str) -> list[str]:
    """Split a script into statements; triggers hold semicolons of their own."""
    found, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return [*found, current] if current.strip() else found


def newest_identity(connection: sqlite3.Connection, place: str) -> Identity:
    """Return the identity of the ledger that is there.

    Raises:
        LedgerCorrupt: If there is none.
        LedgerUnavailable: If it was made by another version, or needs a newer one.
    """
    sql = statements("sqlite")
    (tables,) = connection.execute(sql["tables"]).fetchone()
    rows = connection.execute(sql["identity"]).fetchall()
    if len(rows) != 1:
        msg = f"{place} is no ledger: its identity row is missing"
        raise LedgerCorrupt(msg, ledger=place)
    ((ledger, version, needed, at),) = rows
    if not tables:
        raise first_edition(place, version)
    check_writer(place, needed)
    environment = connection.execute(sql["environment"]).fetchone()[0]
    return Identity(ledger, environment, at)
