"""The tables of a ledger in SQLite: what a transaction reads and writes of them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Columns, Entry, columns_of, entry_of, proof_of
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Changes, JournalError, Release
from dpflow.ledger.storage.base import (
    SCHEMA_VERSION,
    Identity,
    Place,
    another_ledger,
    check_writer,
    damaged,
    first_edition,
)
from dpflow.ledger.storage.columns import COLUMNS
from dpflow.ledger.storage.loading import Loading, Part

_PAGE = 1000
#: Up to so many parameters a statement has a text of its own.
_FEW = 8
#: Most entries or rows of one statement.
_MANY = 256
#: Parts of `load` that are asked by pairs.
_PAIRS = ("load_gate", "load_term", "load_granted", "entries")


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return a dialect's statements by name."""
    text = files("dpflow.ledger.storage").joinpath(f"{dialect}.sql").read_text("utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name.strip(): sql.strip().rstrip(";") for name, _, sql in parts}


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

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        loading = Loading(keys, self._rows, self._proved)
        try:
            return loading.state()
        except (JournalError, *UNREADABLE) as error:
            what = str(error) if isinstance(error, JournalError) else f"{error!r:.80}"
            raise damaged(what, self.place) from error
        finally:
            # What another ledger says of itself is no damage.
            self._check_identity(loading.ledger)

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them."""
        kinds: dict[str, list[Any]] = {
            "entry": [(*columns_of(entry), entry.hash) for entry in entries]
        }
        for key, row in changes.items():
            kind: str = key[0]
            columns: tuple[Any, ...] = key[1:] if row is None else COLUMNS[kind](row)
            if row is None:
                kind = "drop_release"
            if kind == "release":
                value = values.get(key[1]) if columns[3] == "settled" else None
                columns = (*columns, value)
            kinds.setdefault(kind, []).append(columns)
        for kind, rows in kinds.items():
            for some in _pieces(rows):
                sql = _text(((kind, len(some)),))
                self._connection.execute(sql, tuple(chain.from_iterable(some)))

    def books(self) -> list[str]:
        """Return the names of all books, sorted."""
        return [name for (name,) in self._asked("books")]

    def entries(self, places: Iterable[Place]) -> dict[Place, Entry]:
        """Return those of some entries that are there, hashes checked."""
        return self._proved(set(places))

    def after(self, book: str, number: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, oldest first, hashes checked.

        Raises:
            LedgerCorrupt: If one is not what was hashed, or is missing.
        """
        previous = self._hash_of(book, number)
        while True:
            asked = {"book": book, "after": number, "limit": _PAGE}
            found = self._asked("after", **asked).fetchall()
            for columns in found:
                if columns[:2] != (book, number + 1):
                    what = f"entry {number + 1} of book {book!r} is not there"
                    raise damaged(what, self.place)
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
        return [name for (name,) in self._asked("open_charges")]

    def releases(self) -> list[tuple[Release, int | None]]:
        """Return every release with the length of its value, if it is kept."""
        return [(Release(*row[:5]), row[5]) for row in self._asked("releases")]

    def secret(self) -> bytes:
        """Return what release keys are made with."""
        ((text,),) = self._asked("secret").fetchall()
        return bytes.fromhex(text)

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole ledger, its log included, as this transaction sees it."""
        self._connection.backup(target)

    def _backwards(self, name: str, book: str, before: int | None) -> Iterator[Entry]:
        while True:
            asked = {"book": book, "before": before, "limit": _PAGE}
            found = self._asked(name, **asked).fetchall()
            for columns in found:
                if columns[0] != book:
                    what = f"an entry of book {columns[0]!r} is among those of {book!r}"
                    raise damaged(what, self.place)
                yield self._entry(columns[9] or "", columns)
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

    def _check_identity(self, found: tuple[str, int] | None) -> None:
        """Refuse another ledger than the one that was opened."""
        if found is None:
            return
        ledger, needed = found
        check_writer(self.place, needed)
        if ledger != self._identity.ledger:
            raise another_ledger(self.place, self._identity.ledger, ledger)

    def _rows(self, parts: Sequence[Part]) -> list[tuple[Any, ...]]:
        """Return the rows of several parts of `load`."""
        shape: list[tuple[str, int]] = []
        values: list[Any] = []
        for name, given in parts:
            padded = _padded(given)
            shape.append((name, len(padded)))
            values += chain.from_iterable(padded) if name in _PAIRS else padded
        return self._connection.execute(_text(tuple(shape)), values).fetchall()

    def _proved(
        self, shown: Collection[Place], proofs: Collection[Place] = ()
    ) -> dict[Place, Entry]:
        """Return those of some entries that are there; proofs lack their bodies."""
        found: dict[Place, Entry] = {}
        wanted = [*shown, *proofs]
        for start in range(0, len(wanted), _MANY):
            some = wanted[start : start + _MANY]
            for columns in self._rows([("entries", some)]):
                place, read = (
                    columns[:2],
                    proof_of if columns[:2] in proofs else entry_of,
                )
                found[place] = self._entry(columns[9] or "", columns, read)
        if not found.keys() <= set(wanted):
            what = "another entry came than the one that was asked for"
            raise damaged(what, self.place)
        return found

    def _entry(
        self,
        previous: str,
        columns: tuple[Any, ...],
        read: Callable[[str, Columns, str], Entry] = entry_of,
    ) -> Entry:
        try:
            return read(previous, Columns(*columns[:8]), columns[8])
        except JournalError as error:
            what = f"entry {columns[1]} of book {columns[0]!r}: {error}"
            raise damaged(what, self.place) from error

    def _asked(self, name: str, **parameters: Any) -> sqlite3.Cursor:
        return self._connection.execute(statements("sqlite")[name], parameters)


def _padded(given: Sequence[Any]) -> Sequence[Any]:
    """Repeat the last of many parameters, so that there are few different texts."""
    if len(given) <= _FEW:
        return given
    size = 1 << (len(given) - 1).bit_length()
    return [*given, *[given[-1]] * (size - len(given))]


def _pieces(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut many rows into pieces of few different lengths."""
    start = 0
    while start < len(rows):
        rest = min(len(rows) - start, _MANY)
        size = rest if rest <= _FEW else 1 << (rest.bit_length() - 1)
        yield rows[start : start + size]
        start += size


@cache
def _text(parts: tuple[tuple[str, int], ...]) -> str:
    """Return the statement that asks some parts, each for so many parameters."""
    sql = statements("sqlite")
    return "\nUNION ALL\n".join(_repeated(sql[name], size) for name, size in parts)


_GROUPS = re.compile(r"\((\(\?(?:, \?)*\))\)")


def _repeated(sql: str, size: int) -> str:
    groups = _GROUPS.search(sql)
    if groups is not None:
        return sql.replace(groups[0], ", ".join([groups[1]] * size))
    return sql.replace("(?)", f"({', '.join('?' * size)})")


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
