"""Storages whose statements run between two hooks, which tests replace."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg

from dpflow.ledger.storage.postgres import PostgresStorage
from dpflow.ledger.storage.postgres_connection import Connection
from dpflow.ledger.storage.postgres_pipeline import Answer, Wire
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.ledger.support import Place


def faulty(path: Place) -> FaultySqlite | FaultyPostgres:
    """Open a storage whose statements run between two hooks."""
    return FaultyPostgres(path) if isinstance(path, str) else FaultySqlite(path)


class FaultySqlite(SqliteStorage):
    """A ledger file whose statements run between two hooks, which tests replace."""

    #: What its driver raises when something outside fails.
    fault = sqlite3.OperationalError

    def __init__(self, path: Path | str, **options: Any) -> None:
        super().__init__(path, **options)
        self.before: Callable[[str], None] = _nothing
        self.after: Callable[[str], None] = _nothing

    def _connect(self) -> Any:
        return _FaultyConnection(super()._connect(), self)


class _FaultyConnection:
    """A connection that calls its storage's hooks around each statement."""

    def __init__(self, connection: sqlite3.Connection, hooks: FaultySqlite) -> None:
        self._connection, self._hooks = connection, hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run a statement between the hooks."""
        self._hooks.before(sql)
        cursor = self._connection.execute(sql, *values)
        try:
            self._hooks.after(sql)
        except BaseException:
            # The driver leaves no statement running when it raises.
            cursor.close()
            raise
        return cursor


class FaultyPostgres(PostgresStorage):
    """A PostgreSQL ledger whose statements run between two hooks."""

    fault = psycopg.OperationalError

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.quiet()

    def quiet(self) -> None:
        """Let every statement be."""
        self.before: Callable[[str], None] = _nothing
        self.after: Callable[[str], None] = _nothing

    def wire(self, connection: Connection) -> Wire:
        """Return a wire that calls the hooks."""
        return _FaultyWire(connection, self)


class _FaultyWire(Wire):
    """Sends statements to PostgreSQL between its storage's hooks."""

    def __init__(self, connection: Connection, hooks: FaultyPostgres) -> None:
        super().__init__(connection)
        self._hooks = hooks

    def send(self, name: str, sql: bytes, values: Sequence[object] = ()) -> Answer:
        """Send a statement between the hooks."""
        self._hooks.before(sql.decode())
        answer = super().send(name, sql, values)
        if self._hooks.after is not _nothing:
            # It has run, not only been sent, when the hook is called.
            self.wait()
        self._hooks.after(sql.decode())
        return answer


def _nothing(sql: str) -> None:
    """Let a statement be."""
