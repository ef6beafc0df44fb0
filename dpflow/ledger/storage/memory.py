"""A ledger in memory: for tests, and gone with its process.

Its tables are those of a file. There is nothing to restore, copy or lose by accident,
and so no witness, no lock file and no owner file. A forked child has a copy that would
spend the same budget again, so it is refused there.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from dpflow.exceptions import ConfigurationError, LedgerMissing, LedgerUnavailable
from dpflow.ledger.storage.base import Identity, damaged
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import SqliteTables, make_tables
from dpflow.locks import TurnQueue

#: How long a transaction waits for those of other threads.
_LOCK_SECONDS = 30.0
#: What the URL of such a ledger begins with; a name follows.
MEMORY = "memory://"


@dataclass(slots=True)
class Kept:
    """All that is kept of one ledger: the tables of a file, in no file."""

    identity: Identity
    connection: sqlite3.Connection
    line: TurnQueue = field(default_factory=TurnQueue)
    pid: int = field(default_factory=os.getpid)


_ledgers: dict[str, Kept] = {}
#: The owners of all ledgers in memory that were not closed.
_owners: set[str] = set()


class Memory(Storage):
    """A ledger in this process's memory; every object that names it shares it.

    Args:
        name: Tells it from the others of this process.
        read_only: Refuse every write.
    """

    def __init__(self, name: str, *, read_only: bool = False) -> None:
        super().__init__(f"{MEMORY}{name}", _LOCK_SECONDS, read_only=read_only)
        self.name = name

    @classmethod
    def create(cls, name: str, identity: Identity, secret: bytes) -> Memory:
        """Make a new, empty ledger.

        Raises:
            ConfigurationError: If there is one of this name.
        """
        made = cls(name)
        if not name or name in _ledgers:
            msg = f"there is a ledger at {made.place} already, or it has no name"
            raise ConfigurationError(msg)
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        connection.execute("BEGIN")
        make_tables(connection, identity, secret)
        connection.execute("COMMIT")
        _ledgers[name] = Kept(identity, connection)
        return made

    @property
    def kept(self) -> Kept:
        """What is kept of the ledger.

        Raises:
            LedgerMissing: If there is none of this name.
            LedgerUnavailable: In a forked child.
        """
        found = _ledgers.get(self.name)
        if found is None:
            msg = (
                f"there is no ledger at {self.place} in this process; `create_ledger` "
                "makes one. A ledger in memory is for tests and ends with its process."
            )
            raise LedgerMissing(msg, ledger=self.place)
        if found.pid != os.getpid():
            msg = (
                f"the ledger {self.place} is in the memory of another process, and a "
                "copy of it would spend the same budget again; use one in a file"
            )
            raise LedgerUnavailable(msg, ledger=self.place)
        return found

    def _writing(self) -> AbstractContextManager[SqliteTables]:
        return self._transaction("COMMIT")

    def read(self) -> AbstractContextManager[SqliteTables]:
        """Run a block that reads one consistent state; what it wrote would go."""
        return self._transaction("ROLLBACK")

    @contextmanager
    def _transaction(self, end: str) -> Iterator[SqliteTables]:
        kept = self.kept
        # Every object that names the ledger stands in its line.
        self._line = kept.line
        with self._alone():
            kept.connection.rollback()  # an interrupt kept the turn before from its end
            try:
                kept.connection.execute("BEGIN")
                yield SqliteTables(kept.connection, self.place, kept.identity)
                kept.connection.execute(end)
            except sqlite3.Error as error:
                raise damaged(str(error), self.place) from error
            finally:
                kept.connection.rollback()

    def close(self) -> None:
        """Do nothing: other objects of this process may use the same ledger."""


class MemoryOwners:
    """Who holds what in a ledger in memory: each object is an owner of its own."""

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex

    def mine(self) -> str:
        """Return this object's owner name."""
        _owners.add(self._name)
        return self._name

    def alive(self, owner: str) -> bool:
        """Say whether an owner was not closed."""
        return owner in _owners

    def close(self) -> None:
        """Give the name up; its open reservations become forfeited."""
        _owners.discard(self._name)
        self._name = uuid.uuid4().hex


def forget_memory(url: str) -> None:
    """Remove a ledger in memory, at the end of a test."""
    _ledgers.pop(url.removeprefix(MEMORY), None)
