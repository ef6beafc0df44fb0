"""The tables of a ledger in SQLite: what a transaction reads and writes of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.rows import Changes
from dpflow.ledger.storage.base import (
    SCHEMA_VERSION,
    Identity,
    another_version,
    identity_of,
)
from dpflow.ledger.storage.row_texts import (
    entry_texts,
    key_text,
    row_texts,
    statements,
)
from dpflow.ledger.storage.transaction import Transaction


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

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them."""
        gone = [(key_text(key),) for key, row in changes.items() if row is None]
        sql = statements("sqlite")
        for name, rows in (
            ("new_entry", entry_texts(entries)),
            ("new_row", row_texts(changes, values)),
            ("drop_row", gone),
        ):
            for each in rows:
                self.connection.execute(sql[name], each)

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole ledger, its log included, as this transaction sees it."""
        self.connection.backup(target)

    def _ask(self, name: str, **parameters: Any) -> list[Any]:
        values = {
            key: json.dumps(value) if isinstance(value, list) else value
            for key, value in parameters.items()
        }
        return self.connection.execute(statements("sqlite")[name], values).fetchall()


def make_tables(
    connection: sqlite3.Connection, identity: Identity, secret: bytes
) -> None:
    """Make the tables of a new ledger and enter its identity, within a transaction."""
    sql = statements("sqlite")
    # A semicolon within a trigger ends no line.
    for statement in sql["schema"].split(";\n"):
        connection.execute(statement)
    values = {**identity._asdict(), "version": SCHEMA_VERSION, "secret": secret.hex()}
    connection.execute(sql["create_ledger"], values)


def newest_identity(connection: sqlite3.Connection, place: str) -> Identity:
    """Return the identity of the ledger that is there.

    Raises:
        LedgerCorrupt: If there is none.
        LedgerUnavailable: If it was made by another version, or needs a newer one.
    """
    sql = statements("sqlite")
    ledger, row = connection.execute(sql["tables"]).fetchone()
    if ledger > row:
        raise another_version(place)
    return identity_of(connection.execute(sql["whole_identity"]).fetchall(), place)
