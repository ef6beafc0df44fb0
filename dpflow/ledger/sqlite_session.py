"""One open transaction on a SQLite connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.database import Row, forget_changed, split_statements, statements


class SqliteSession:
    """Runs the ledger's statements inside one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.kept: dict[str, Any] = {}

    def lock(self, datasets: Iterable[str]) -> None:  # noqa: ARG002
        """Forget what was read; the transaction holds the whole file anyway."""
        self.kept.clear()

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Run a named statement and return its rows.

        Raises:
            LedgerCorrupt: If a row is not one that was asked for.
        """
        found = self._connection.execute(statements()[statement], values).fetchall()
        # Where pages are out of order, SQLite's search ends at some other row and does
        # not look at its key again. A column that bears a parameter's name equals it.
        keys = values.keys() & (set(found[0].keys()) if found else set())
        for row in found:
            if any(values[key] not in (None, row[key]) for key in keys):
                msg = f"the ledger is damaged: it answered {statement} with another row"
                raise LedgerCorrupt(msg)
        return found

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        forget_changed(self.kept, statement, values)
        return self._connection.execute(statements()[statement], values).rowcount

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole ledger, its log included, as this transaction sees it."""
        self._connection.backup(target)

    def post(self, statement: str, **values: object) -> None:
        """Run a named statement that must change one row."""
        if self.change(statement, **values) != 1:
            msg = f"the ledger is inconsistent: {statement} found no row to change"
            raise LedgerCorrupt(msg)

    def soon(self, statement: str, **values: object) -> None:
        """Do nothing: the file is at hand."""

    def run(self, script: str) -> None:
        """Run a migration; `executescript` would commit first."""
        for statement in split_statements(script):
            self._connection.execute(statement)

    def check_references(self) -> None:
        """Raise if a row refers to one that is not there."""
        broken = self._connection.execute("PRAGMA foreign_key_check").fetchall()
        if broken:
            msg = f"FOREIGN KEY constraint failed in table {broken[0][0]}"
            raise sqlite3.IntegrityError(msg)
