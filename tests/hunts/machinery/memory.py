"""A ledger in memory, for many short histories, and the hooks that break one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.storage.base import Identity
from dpflow.ledger.storage.tables import Transaction, make_tables
from tests.ledger.columns import show_columns
from tests.ledger.faults import FaultyConnection

IDENTITY = Identity("0" * 32, None, "2026-11-22T00:00:00.000+00:00")
SECRET = bytes(32)
#: Hears a statement before or after it runs; what it raises, the statement raises.
Hook = Callable[[str], None]


class Crash(BaseException):
    """The process ends here; nothing catches it."""


def nothing(_: str) -> None:
    """Let a statement be."""


class Nth:
    """A hook that raises at the n-th call, or from there on."""

    def __init__(self, number: int, error: BaseException, *, once: bool) -> None:
        self.left, self.error, self.once = number, error, once

    def __call__(self, _: str) -> None:
        """Count, and raise when it is time."""
        self.left -= 1
        if self.left == -1 or (self.came and not self.once):
            raise self.error

    @property
    def came(self) -> bool:
        """Whether it raised."""
        return self.left < 0


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

    place, identity, unwritable, writer = "memory", IDENTITY, None, None

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.before: Hook = nothing
        self.after: Hook = nothing
        hooks: Any = self
        self.wire: Any = FaultyConnection(connection, hooks)

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block in one transaction."""
        try:
            self.wire.execute("BEGIN IMMEDIATE")
            yield Transaction(self.wire, self.place, IDENTITY)
            self.wire.execute("COMMIT")
        except sqlite3.Error as error:
            msg = f"the ledger in memory is damaged: {error}"
            raise LedgerCorrupt(msg) from error
        finally:
            self.roll_back()

    read = write

    def roll_back(self) -> None:
        """Leave the transaction, if there is one."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Keep the content: other workers use it."""
