"""A ledger file whose SQL driver runs between hooks, to fail or to die at."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.hunts.machinery.hooks import Hooks, Wire


class HookedFile(SqliteStorage):
    """dpflow's own storage, with hooks around each statement."""

    wire: type[Wire] = Wire

    def __init__(self, path: Path | str, **options: Any) -> None:
        self.hooks = Hooks()
        super().__init__(path, **options)

    def _connect(self) -> Any:
        return self.wire(super()._connect(), self.hooks)


class UsedAfterError(BaseException):
    """A connection was used after it failed."""


class Failures(Wire):
    """A connection that fails when it is told to, and must not be used after that."""

    _failed = False

    def execute(self, sql: str, *values: Any) -> Any:
        """Run a statement between two chances to fail."""
        if self._failed:
            raise UsedAfterError(sql)
        try:
            return super().execute(sql, *values)
        except sqlite3.Error:
            self._failed = True
            raise


class FailingStorage(HookedFile):
    """dpflow's own storage on a driver that fails."""

    wire = Failures
