"""The tables of a ledger in SQLite: what a transaction reads and writes of them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Changes, JournalError, Key
from dpflow.ledger.storage.base import (
    SCHEMA_VERSION,
    Identity,
    Place,
    another_version,
    check_writer,
    damaged,
)
from dpflow.ledger.storage.loading import Found
from dpflow.ledger.storage.row_texts import (
    entry_texts,
    key_text,
    row_of,
    row_texts,
    statements,
)
from dpflow.ledger.storage.transaction import Transaction

T = TypeVar("T")

#: Up to so many parameters a statement has a text of its own.
_FEW = 16
#: Most entries or rows of one statement.
_MANY = 256


class Tables(Transaction):
    """A ledger within one transaction of a connection.

    Args:
        connection: In a transaction; who opened it has set and read back durability.
        place: The ledger, for messages.
        identity: Of the ledger that was opened.
    """

    def __init__(
        self, connection: sqlite3.Connection, place: str, identity: Identity
    ) -> None:
        super().__init__(place, identity)
        self.connection = connection

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        return self._loaded(keys, self._rows, self.accounts, self._proved)

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them."""
        gone = [(key_text(key),) for key, row in changes.items() if row is None]
        for name, each in (
            ("new_entries", entry_texts(entries)),
            ("new_rows", row_texts(changes, values)),
            ("drop_rows", gone),
        ):
            for some in _pieces(each):
                values_of_all = tuple(chain.from_iterable(some))
                self.connection.execute(_text(name, len(some)), values_of_all)

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole ledger, its log included, as this transaction sees it."""
        self.connection.backup(target)

    def _rows(self, keys: Collection[Key]) -> list[Found]:
        """Return those of some rows that are there.

        Where pages are out of order, SQLite's search ends at some other row and does
        not look at its key again.
        """
        texts = {key_text(key): key for key in keys}
        found: list[Found] = []
        for some in _pieces([*texts]):
            told = self.connection.execute(_text("rows", len(some)), some).fetchall()
            none, *identity = told[0] if told else ("",)
            self._check_identity((identity[0], identity[1]) if none is None else None)
            for text, value, output in told[1:]:
                key = texts.get(text)
                if key is None:
                    what = f"another row came than the one that was asked for: {text}"
                    raise JournalError(what)
                found.append((key, row_of(key, value), output))
        return found

    def _proved(self, shown: set[Place], proofs: set[Place]) -> dict[Place, Entry]:
        """Return those of some entries that are there; proofs lack their bodies."""
        found: dict[Place, Entry] = {}
        wanted = [*shown, *proofs]
        for some in _pieces(wanted):
            values = tuple(chain.from_iterable(some))
            for columns in self.connection.execute(_text("entries", len(some)), values):
                place = columns[:2]
                found[place] = self._entry(columns, body=place in shown)
        if not found.keys() <= set(wanted):
            what = "another entry came than the one that was asked for"
            raise damaged(what, self.place)
        return found

    def _ask(self, name: str, **parameters: Any) -> sqlite3.Cursor:
        return self.connection.execute(statements("sqlite")[name], parameters)


def _pieces(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut many rows into pieces of few different lengths."""
    start, rest = 0, len(rows)
    while rest:
        size = rest if rest <= _FEW else min(_MANY, 1 << (rest.bit_length() - 1))
        yield rows[start : start + size]
        start, rest = start + size, rest - size


_GROUPS = re.compile(r"\((\(\?(?:, \?)*\))\)|\(\?\)")


@cache
def _text(name: str, size: int) -> str:
    """Return a statement for so many parameters, or groups of them."""

    def repeated(found: re.Match[str]) -> str:
        if found[1] is None:
            return f"({', '.join('?' * size)})"
        return ", ".join([found[1]] * size)

    text, _, each = statements("sqlite")[name].partition("-- each\n")
    return _GROUPS.sub(repeated, text) + each * size


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
    ((ledger, _, needed, at),) = rows
    if not tables:
        raise another_version(place)
    check_writer(place, needed)
    environment = connection.execute(sql["environment"]).fetchone()[0]
    return Identity(ledger, environment, at)
