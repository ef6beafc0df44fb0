"""A ledger in memory: the same SQL without files, for many short histories."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import create_ledger
from dpflow.ledger.database import Row, Session, statements
from tests.hunts.trips import PlainTrips


@cache
def empty_ledger() -> bytes:
    """Return the content of a new ledger's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        create_ledger(f"sqlite:///{path}").close()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = DELETE")
        content = connection.serialize()
        connection.close()
    return content


class StatementSession(PlainTrips):
    """The ledger's named statements on a connection of the standard library."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def lock(self, datasets: Iterable[str]) -> None:
        """Do nothing: the transaction holds everything."""

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Run a named statement and return its rows."""
        return self._connection.execute(statements()[statement], values).fetchall()

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        return self._connection.execute(statements()[statement], values).rowcount


class MemoryDatabase:
    """A new, empty ledger in memory."""

    place, dialect = "memory", "sqlite"
    unwritable = None

    def __init__(self) -> None:
        self.connection: Any = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.deserialize(empty_ledger())
        self.connection.row_factory = sqlite3.Row
        self.connection.execute("PRAGMA foreign_keys = ON")

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Run a block in one transaction."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield StatementSession(self.connection)
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.roll_back()
            msg = f"the ledger in memory is damaged: {error}"
            raise LedgerCorrupt(msg) from error
        except BaseException:
            self.roll_back()
            raise

    read = write

    def roll_back(self) -> None:
        """Leave the transaction, if there is one."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Keep the content: other workers use it."""
