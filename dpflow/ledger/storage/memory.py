"""A ledger in memory: for tests; it ends with its process.

Its tables are those of a file. Nothing can be restored, copied or lost by accident, and
so it has no witness, no lock file and no file of owners. A forked child has none of its
parent's ledgers: a copy would spend the same budget again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator

from dpflow.exceptions import ConfigurationError, DpflowError, LedgerMissing
from dpflow.interrupts import contextmanager
from dpflow.ledger.storage.base import Identity, damaged
from dpflow.ledger.storage.owners import Liveness
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import Transaction, make_tables
from dpflow.locks import TurnQueue

#: What the URL of such a ledger begins with; a name follows.
MEMORY = "memory://"
#: The tables of each ledger, and the line of the threads that use them.
_ledgers: dict[str, tuple[sqlite3.Connection, TurnQueue]] = {}
os.register_at_fork(after_in_child=_ledgers.clear)


class Memory(Storage):
    """A ledger in this process's memory; every object that names it shares it.

    Args:
        name: Distinguishes it from the others of this process.
        read_only: Refuse every write.
    """

    _errors = (sqlite3.Error,)

    def __init__(self, name: str, *, read_only: bool = False) -> None:
        super().__init__(f"{MEMORY}{name}", read_only=read_only)
        self.name = name

    @classmethod
    def create(cls, name: str, identity: Identity, secret: bytes) -> Memory:
        """Make a new, empty ledger.

        Raises:
            ConfigurationError: If there is one of this name.
        """
        storage = cls(name)
        if not name or name in _ledgers:
            msg = f"there is a ledger at {storage.place} already, or it has no name"
            raise ConfigurationError(msg)
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        make_tables(connection, identity, secret)
        _ledgers[name] = connection, TurnQueue()
        return storage

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection that has the tables.

        Raises:
            LedgerMissing: If this process has no ledger of this name.
        """
        if self.name not in _ledgers:
            msg = (
                f"there is no ledger at {self.place} in this process; `create_ledger` "
                "makes one. A ledger in memory is for tests and ends with its process: "
                "a forked child needs one in a file."
            )
            raise LedgerMissing(msg, ledger=self.place)
        # Every object that names the ledger stands in its line.
        connection, self._line = _ledgers[self.name]
        return connection

    def owners(self) -> Liveness:
        """Return a new owner of charges."""
        return Liveness()

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Run a block in one transaction; what it stored goes if it raises."""
        connection = self.connection
        with self._alone():
            connection.rollback()  # an interrupt prevented the end of the turn before
            try:
                connection.execute("BEGIN")
                yield Transaction(connection, self.place, self.opened, self._newest)
                connection.execute("COMMIT")
            finally:
                connection.rollback()

    read = write

    def _translated(self, error: Exception, waited: float) -> DpflowError:  # noqa: ARG002
        return damaged(str(error), self.place)

    def close(self) -> None:
        """Do nothing: other objects of this process may use the same ledger."""


def forget_memory(url: str) -> None:
    """Remove a ledger in memory, at the end of a test."""
    _ledgers.pop(url.removeprefix(MEMORY), None)
