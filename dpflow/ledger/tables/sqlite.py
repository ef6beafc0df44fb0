"""A ledger in one SQLite file: durable, and safe between processes.

WAL with synchronous=FULL, both read back, and one file lock around every transaction
that writes (`dpflow.ledger.tables.sqlite_connection`).
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpflow.durable import make_private_folder
from dpflow.exceptions import ConfigurationError, LedgerMissing
from dpflow.interrupts import contextmanager, suppress
from dpflow.ledger.canonical import canonical
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import MEMORY, refuse_damaged
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.sqlite_connection import SqliteConnection
from dpflow.ledger.tables.sqlite_files import (
    check_before_making,
    is_only_read,
    open_for_reading,
    real_path,
)
from dpflow.ledger.tables.statements import statements
from dpflow.ledger.tables.transaction import VERSION, Identity, Questions, Transaction
from dpflow.locks import TurnQueue


class SqliteTransaction(Transaction):
    """One transaction of a connection to SQLite."""

    def run(self, questions: Questions) -> list[list[Any]]:
        """Run statements and return the rows of each."""
        execute, named, answers = self.connection.execute, statements("sqlite"), []
        for name, parameters in questions:
            values = {
                key: canonical(value) if type(value) is list else value
                for key, value in parameters.items()
            }
            answers.append(execute(named.get(name, name), values).fetchall())
        return answers

    def send(self, questions: Questions) -> None:
        """Run statements without reading answers; no column is a list."""
        execute, named = self.connection.execute, statements("sqlite")
        for name, parameters in questions:
            execute(named.get(name, name), parameters)


def make_tables(
    connection: sqlite3.Connection, identity: Identity, secret: bytes, complete: int
) -> None:
    """Make the tables of a new ledger and enter its identity, within a transaction.

    One that a copy fills gets its triggers when it is complete.
    """
    run_script(connection, "tables")
    row = ledger_row(identity, secret, complete)
    connection.execute(statements("sqlite")["insert_ledger"], row)
    if complete:
        run_script(connection, "rules")


def run_script(connection: sqlite3.Connection, name: str) -> None:
    """Make the tables or the triggers, within a transaction."""
    # A semicolon within a trigger ends no line but the last.
    script = statements("sqlite")[name].replace(";\nEND", "; END")
    for statement in script.split(";\n"):
        connection.execute(statement)


def ledger_row(identity: Identity, secret: bytes, complete: int = 1) -> dict[str, Any]:
    """Return the parameters of the row of the table `ledger`."""
    return {
        "one": 1,
        "id": identity.ledger,
        "version": VERSION,
        "secret": secret.hex(),
        "environment": identity.environment,
        "created_at": identity.created_at,
        "complete": complete,
        "moving_to": None,
        "moved_to": None,
    }


class SqliteDatabase(SqliteConnection):
    """A ledger file.

    One connection per object, used by one thread at a time and never across a fork.

    Args:
        path: The file. It must exist; `create` makes one.
        read_only: Refuse every write, whatever this process may do.
    """

    @classmethod
    def create(
        cls, path: Path | str, identity: Identity, secret: bytes, *, complete: int = 1
    ) -> SqliteDatabase:
        """Make a new, empty ledger file with its tables and its identity.

        Raises:
            ConfigurationError: If something is at this place already.
            LedgerUnavailable: If the file cannot be written, or may not lie there.
        """
        database = cls(path)
        with database._alone():
            make_private_folder(database.path.parent)
            check_before_making(database.path)
            os.close(os.open(database.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with database.transaction() as transaction:
            make_tables(transaction.connection, identity, secret, complete)
        return database

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Run a block in one transaction; what it stored goes if it raises."""
        until = time.monotonic() + self.lock_seconds
        with self._alone() as turn:
            connection = self._lock_connection(until)
            connection.execute("BEGIN IMMEDIATE")
            yield SqliteTransaction(self, connection)
            connection.execute("COMMIT")
            # What went into a file that is not there any more is no commit.
            log_size = self._check_same_files()
            self._committed = turn
            if log_size > self._log_limit:
                self._shorten_log(connection)

    def remove(self) -> None:
        """Remove the files of an unfinished copy."""
        self.close()
        for end in ("", "-wal", "-shm", ".lock", ".owners"):
            real_path(self.path, end).unlink(missing_ok=True)
        self.opened = None

    def complete(self) -> None:
        """Make the triggers of a copy that is filled, and let steps use it."""
        with self.transaction() as transaction:
            run_script(transaction.connection, "rules")
            transaction.run([("complete_ledger", {})])

    @contextmanager
    def snapshot(self) -> Iterator[SqliteTransaction]:
        """Run a block that reads one consistent state; the right to read will do.

        It takes no lock that a writer waits for.
        """
        until = time.monotonic() + self.lock_seconds
        with self._alone():
            may_stay = is_only_read(self.path, is_at_rest=self.is_at_rest)
            if self._connection is None and may_stay:
                # A reader changes no file that it may not.
                with open_for_reading(self.path) as connection:
                    connection.execute("BEGIN")
                    yield SqliteTransaction(self, connection)
                return
            connection = self._connect_without_lock(until)
            try:
                connection.execute("BEGIN")
                yield SqliteTransaction(self, connection)
            except sqlite3.Error:
                self._close_connection()
                raise
            finally:
                with suppress(sqlite3.Error):
                    connection.rollback()


#: The tables of each ledger in memory, and the line of the threads that use them.
_ledgers: dict[str, tuple[sqlite3.Connection, TurnQueue]] = {}
os.register_at_fork(after_in_child=_ledgers.clear)


class MemoryDatabase(Database):
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
    def create(cls, name: str, identity: Identity, secret: bytes) -> MemoryDatabase:
        """Make a new, empty ledger.

        Raises:
            ConfigurationError: If there is one of this name.
        """
        database = cls(name)
        if not name or name in _ledgers:
            msg = f"there is a ledger at {database.address} already, or it has no name"
            raise ConfigurationError(msg)
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        make_tables(connection, identity, secret, 1)
        _ledgers[name] = connection, TurnQueue()
        return database

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection that has the tables.

        Raises:
            LedgerMissing: If this process has no ledger of this name.
        """
        if self.name not in _ledgers:
            msg = (
                f"there is no ledger at {self.address} in this process; "
                "`create_ledger` makes one. A ledger in memory is for tests and ends "
                "with its process: a forked child needs one in a file."
            )
            raise LedgerMissing(msg, ledger=self.address)
        # Every object that names the ledger stands in its line.
        connection, self._line = _ledgers[self.name]
        return connection

    def owners(self) -> Liveness:
        """Return a new owner of charges."""
        return Liveness()

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """Run a block in one transaction; what it stored goes if it raises."""
        connection = self.connection
        with self._alone():
            connection.rollback()  # an interrupt prevented the end of the turn before
            try:
                connection.execute("BEGIN")
                yield SqliteTransaction(self, connection)
                connection.execute("COMMIT")
            finally:
                connection.rollback()

    snapshot = transaction

    def _translate_error(self, error: Exception, waited: float) -> Exception:  # noqa: ARG002
        return refuse_damaged(str(error), self.address)

    def close(self) -> None:
        """Do nothing: other objects of this process may use the same ledger."""


def forget_memory(url: str) -> None:
    """Remove a ledger in memory, at the end of a test."""
    _ledgers.pop(url.removeprefix(MEMORY), None)
