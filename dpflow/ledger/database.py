"""What the ledger's kernel asks of a database, and the SQL that it runs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

#: Version of the newest migration, and the oldest code that may write after it.
SCHEMA_VERSION = 1
MIN_WRITER = 1

Row = Mapping[str, Any]


class Session(Protocol):
    """One open transaction."""

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Run a named statement and return its rows."""

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""


class Database(Protocol):
    """A place that keeps a ledger.

    Implementations turn every error of their driver into `LedgerUnavailable`,
    `LedgerMissing` or `LedgerCorrupt`, and never reuse a connection after an error.
    """

    #: The place, for messages.
    place: str

    def write(self) -> AbstractContextManager[Session]:
        """Run a block in one transaction that no other writer overlaps.

        The block's writes are durable when the manager returns without an error.
        """

    def read(self) -> AbstractContextManager[Session]:
        """Run a block that reads one consistent state."""

    def close(self) -> None:
        """Close what is open; a later call opens it again."""


@cache
def statements() -> dict[str, str]:
    """Return the ledger's SQL by name, with `:named` parameters."""
    text = files("dpflow.ledger").joinpath("statements.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {
        name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)
    }


@cache
def migrations() -> list[str]:
    """Return the migrations in order; the position is the schema version."""
    folder = files("dpflow.ledger").joinpath("migrations")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return [folder.joinpath(name).read_text("utf-8") for name in names]


def split_statements(script: str) -> list[str]:
    """Split a migration into statements; triggers hold semicolons of their own."""
    found, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
