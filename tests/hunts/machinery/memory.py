"""A ledger in memory: the same SQL as in a file, for many short histories."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dpflow.ledger.storage.sqlite_transaction import Tables, make_tables

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.storage.base import Identity
from tests.hunts.machinery.hooks import Hooks, Wire
from tests.ledger.columns import show_columns

IDENTITY = Identity("0" * 32, None, "2026-11-22T00:00:00.000+00:00")
SECRET = bytes(32)


@cache
def empty_ledger() -> bytes:
    """Return the content of a new ledger's file."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("BEGIN")
    make_tables(connection, IDENTITY, SECRET)
    connection.execute("COMMIT")
    content = connection.serialize()
    connection.close()
    return content


def tables_in_memory() -> sqlite3.Connection:
    """Make a new, empty ledger and return the connection that keeps it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.deserialize(empty_ledger())
    return show_columns(connection)


class MemoryStorage:
    """A ledger in memory, with hooks around each of its statements.

    Several share one connection: they are workers, each with hooks of its own.
    """

    place = "memory"
    identity = IDENTITY
    unwritable = None

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection, self.hooks = connection, Hooks()
        self.wire: Any = Wire(connection, self.hooks)

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block in one transaction."""
        try:
            self.wire.execute("BEGIN IMMEDIATE")
            yield Tables(self.wire, self.place, IDENTITY)
            self.wire.execute("COMMIT")
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
