"""One open transaction on a SQLite connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.database import Row, split_statements, statements
from dpflow.ledger.recall import Recall

#: The parameters of each statement that are columns of its answer as well.
_keys: dict[str, tuple[str, ...]] = {}


def _keys_of(
    statement: str, values: Mapping[str, object], row: sqlite3.Row
) -> tuple[str, ...]:
    known = _keys.get(statement)
    if known is None:
        known = _keys[statement] = tuple(values.keys() & set(row.keys()))
    return known


class SqliteSession:
    """Runs the ledger's statements inside one transaction.

    Args:
        connection: In a transaction.
        recall: What the connection knows from earlier ones.
    """

    #: The file's lock is held from the beginning.
    exclusive = True

    def __init__(
        self, connection: sqlite3.Connection, recall: Recall | None = None
    ) -> None:
        self._connection = connection
        self._sql = statements()
        self._recall = recall or Recall()
        self.kept: dict[str, Any] = self._recall.accounts
        if recall is not None:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            recall.begin(version)

    def lock(self, datasets: Iterable[str]) -> None:
        """Do nothing: the transaction holds the whole file."""

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Return the rows of a named statement, which may be known already.

        Raises:
            LedgerCorrupt: If a row is not one that was asked for.
        """
        return self._recall.rows(statement, values, self._ask)

    def _ask(self, statement: str, values: Mapping[str, object]) -> list[Row]:
        # No cursor by name: an error would keep it, and with it the transaction.
        found = self._connection.execute(self._sql[statement], values).fetchall()
        # Where pages are out of order, SQLite's search ends at some other row and does
        # not look at its key again. A column that bears a parameter's name equals it.
        if found:
            for key in _keys_of(statement, values, found[0]):
                asked = values[key]
                if asked is not None and any(row[key] != asked for row in found):
                    msg = (
                        f"the ledger is damaged: it answered {statement} with another "
                        "row"
                    )
                    raise LedgerCorrupt(msg)
        return found

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        self._recall.changing(statement, values)
        return self._connection.execute(self._sql[statement], values).rowcount

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
        self._recall.clear()
        for statement in split_statements(script):
            self._connection.execute(statement)

    def check_references(self) -> None:
        """Raise if a row refers to one that is not there."""
        broken = self._connection.execute("PRAGMA foreign_key_check").fetchall()
        if broken:
            msg = f"FOREIGN KEY constraint failed in table {broken[0][0]}"
            raise sqlite3.IntegrityError(msg)
