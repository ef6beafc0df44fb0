"""Databases whose statements run between two hooks, which tests replace."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpflow.ledger.tables.sqlite import SqliteDatabase
from tests.faults.support import nothing


class FaultySqlite(SqliteDatabase):
    """A ledger file whose statements run between two hooks, which tests replace."""

    #: What its driver raises when something outside fails.
    fault = sqlite3.OperationalError

    def __init__(self, path: Path | str, **options: Any) -> None:
        super().__init__(path, **options)
        self.before: Callable[[str], None] = nothing
        self.after: Callable[[str], None] = nothing

    def _connect(self) -> Any:
        return FaultyConnection(super()._connect(), self)


class FaultyConnection:
    """A connection that calls its database's hooks around each statement."""

    def __init__(self, connection: Any, hooks: FaultySqlite) -> None:
        self._connection, self._hooks = connection, hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str | bytes, *values: Any) -> Any:
        """Run a statement between the hooks."""
        text = sql.decode() if isinstance(sql, bytes) else sql
        self._hooks.before(text)
        cursor = self._connection.execute(sql, *values)
        try:
            self._hooks.after(text)
        except BaseException:
            # The driver leaves no statement running when it raises.
            cursor.close()
            raise
        return cursor
