"""Databases whose statements run between two hooks, which tests replace."""

from __future__ import annotations

from typing import Any

from dpflow.ledger.tables.sqlite import SqliteDatabase
from tests.faults.support import Hook, nothing


class FaultyConnection:
    """A connection that calls its database's hooks around each statement."""

    def __init__(self, connection: Any, hooks: FaultySqlite) -> None:
        self._connection, self._hooks = connection, hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> Any:
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


class FaultySqlite(SqliteDatabase):
    """A ledger file whose statements run between two hooks, which tests replace."""

    #: What stands between the ledger and its driver.
    wire = FaultyConnection
    before: Hook = staticmethod(nothing)
    after: Hook = staticmethod(nothing)

    def _connect(self) -> Any:
        return self.wire(super()._connect(), self)
