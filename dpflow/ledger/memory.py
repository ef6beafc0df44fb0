"""A ledger in this process's memory, for tests: it is gone when the process ends.

The same statements run on the same SQLite as in a file. There is nothing to restore,
copy or lose by accident, and so no witness, no lock file and no owner file. A forked
child has a copy that would spend the same budget again, so it is refused there.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger.database import migrations
from dpflow.ledger.sqlite_session import SqliteSession
from dpflow.locks import Line, Turn

#: How long a transaction waits for those of other threads.
_LOCK_SECONDS = 30.0
#: What the URL of such a ledger begins with; a name follows.
MEMORY = "memory://"


@dataclass(slots=True)
class _Memory:
    """One ledger: every object that names it shares a connection, in turns."""

    connection: sqlite3.Connection
    line: Line = field(default_factory=Line)
    pid: int = field(default_factory=os.getpid)


_memories: dict[str, _Memory] = {}
#: The owners of all ledgers in memory that were not closed.
_owners: set[str] = set()


class MemoryDatabase:
    """A ledger in memory.

    Args:
        name: Tells it from the others of this process.
    """

    dialect = "sqlite"
    unwritable = None

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = f"{MEMORY}{name}"

    @classmethod
    def create(
        cls, name: str, fill: Callable[[SqliteSession], object]
    ) -> MemoryDatabase:
        """Make a new, empty ledger.

        Args:
            name: No ledger of this process may have it.
            fill: Writes the first rows.

        Raises:
            ConfigurationError: If there is one of this name.
        """
        database = cls(name)
        if not name or name in _memories:
            msg = f"there is a ledger at {database.place} already, or it has no name"
            raise ConfigurationError(msg)
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        _memories[name] = _Memory(connection)
        with database.write() as session:
            for script in migrations("sqlite").values():
                session.run(script)
            fill(session)
        return database

    def migrate(self, scripts: Iterable[str]) -> None:
        """Run migrations in one transaction; a ledger in memory is never old."""
        with self.write() as session:
            for script in scripts:
                session.run(script)

    @contextmanager
    def write(self) -> Iterator[SqliteSession]:
        """Run a block in one transaction that no other thread overlaps."""
        memory, turn = self._memory(), Turn()
        try:
            try:
                self._begin(memory, turn)
                yield SqliteSession(memory.connection)
                memory.connection.execute("COMMIT")
            except sqlite3.Error as error:
                msg = f"the ledger {self.place} is damaged or inconsistent: {error}"
                raise LedgerCorrupt(msg, ledger=self.place) from error
            finally:
                self._end(memory, turn)
        finally:
            # An interrupt may have come before the line above.
            self._end(memory, turn)

    def _begin(self, memory: _Memory, turn: Turn) -> None:
        if not memory.line.take(turn, _LOCK_SECONDS):
            who = memory.line.first_name()
            msg = (
                f"another thread of this process, {who}, is in a transaction of the "
                f"ledger {self.place}; waited {_LOCK_SECONDS:g} s. The step did not "
                "run; try again."
            )
            raise LedgerUnavailable(msg, ledger=self.place, waited=_LOCK_SECONDS)
        # What an interrupt may have left of the turn before.
        self._roll_back(memory)
        memory.connection.execute("BEGIN IMMEDIATE")

    def _end(self, memory: _Memory, turn: Turn) -> None:
        """Let go of all that a turn holds; a second time, of nothing more."""
        if memory.line.is_first(turn):
            self._roll_back(memory)
        memory.line.leave(turn)

    @contextmanager
    def read(self) -> Iterator[SqliteSession]:
        """Run a block that reads one consistent state."""
        with self.write() as session:
            yield session

    def close(self) -> None:
        """Do nothing: other objects of this process may use the same ledger."""

    def _memory(self) -> _Memory:
        memory = _memories.get(self.name)
        if memory is None:
            msg = (
                f"there is no ledger at {self.place} in this process; `create_ledger` "
                "makes one. A ledger in memory is for tests and ends with its process."
            )
            raise LedgerMissing(msg, ledger=self.place)
        if memory.pid != os.getpid():
            msg = (
                f"the ledger {self.place} is in the memory of another process, and a "
                "copy of it would spend the same budget again; use one in a file"
            )
            raise LedgerUnavailable(msg, ledger=self.place)
        return memory

    @staticmethod
    def _roll_back(memory: _Memory) -> None:
        if memory.connection.in_transaction:
            with suppress(sqlite3.Error):
                memory.connection.execute("ROLLBACK")


class MemoryOwners:
    """Who holds what in a ledger in memory: each object is an owner of its own."""

    def __init__(self) -> None:
        self._name: str | None = None

    def mine(self) -> str:
        """Return this object's owner name."""
        if self._name is None:
            self._name = uuid.uuid4().hex
            _owners.add(self._name)
        return self._name

    def alive(self, owner: str) -> bool:
        """Say whether an owner was not closed."""
        return owner in _owners

    def close(self) -> None:
        """Give the name up; its open reservations become forfeited."""
        _owners.discard(self._name or "")
        self._name = None


def forget_memory(url: str) -> None:
    """Remove a ledger in memory, at the end of a test."""
    memory = _memories.pop(url.removeprefix(MEMORY), None)
    if memory is not None:
        memory.connection.close()
