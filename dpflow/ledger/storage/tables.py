"""The tables of a ledger in SQLite: what a transaction reads and writes of them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Entry, columns_of, entry_of, proof_of
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Changes, JournalError
from dpflow.ledger.storage.base import (
    SCHEMA_VERSION,
    Identity,
    Place,
    another_ledger,
    check_writer,
    damaged,
    first_edition,
)
from dpflow.ledger.storage.columns import columns_of_row, statements
from dpflow.ledger.storage.loading import Loading, Part
from dpflow.ledger.storage.questions import Questions

#: Up to so many parameters a statement has a text of its own.
_FEW = 8
#: Most entries or rows of one statement.
_MANY = 256
#: Parts of `load` that are asked by pairs.
_PAIRS = ("load_gate", "load_term", "load_granted", "entries")


class Tables(Questions):
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
        self.identity = identity
        self.connection = connection

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
            if row is None:
                kinds.setdefault("drop_release", []).append(key[1:])
            else:
                kinds.setdefault(key[0], []).append(columns_of_row(row, values))
        for kind, rows in kinds.items():
            for some in _pieces(rows):
                sql = _text(((kind, len(some)),))
                self.connection.execute(sql, tuple(chain.from_iterable(some)))

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole ledger, its log included, as this transaction sees it."""
        self.connection.backup(target)

    def _check_identity(self, found: tuple[str, int] | None) -> None:
        """Refuse another ledger than the one that was opened."""
        if found is None:
            return
        ledger, needed = found
        check_writer(self.place, needed)
        if ledger != self.identity.ledger:
            raise another_ledger(self.place, self.identity.ledger, ledger)

    def _rows(self, parts: Sequence[Part]) -> list[tuple[Any, ...]]:
        """Return the rows of several parts of `load`."""
        shape: list[tuple[str, int]] = []
        values: list[Any] = []
        for name, given in parts:
            padded = _padded(given)
            shape.append((name, len(padded)))
            values += chain.from_iterable(padded) if name in _PAIRS else padded
        return self.connection.execute(_text(tuple(shape)), values).fetchall()

    def _entries(self, wanted: list[Place]) -> dict[Place, Entry]:
        return self._proved(set(wanted), set())

    def _proved(self, shown: set[Place], proofs: set[Place]) -> dict[Place, Entry]:
        """Return those of some entries that are there; proofs lack their bodies."""
        found: dict[Place, Entry] = {}
        wanted = [*shown, *proofs]
        for start in range(0, len(wanted), _MANY):
            for columns in self._rows([("entries", wanted[start : start + _MANY])]):
                place = columns[:2]
                read = entry_of if place in shown else proof_of
                found[place] = self._entry(columns[9] or "", columns, read)
        if not found.keys() <= set(wanted):
            what = "another entry came than the one that was asked for"
            raise damaged(what, self.place)
        return found

    def _ask(self, name: str, **parameters: Any) -> sqlite3.Cursor:
        return self.connection.execute(statements("sqlite")[name], parameters)


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
