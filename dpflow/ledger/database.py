"""What the ledger's kernel asks of a database, and the SQL that it runs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from dpflow.exceptions import LedgerUnavailable

#: Version of the newest migration, and the oldest code that may write after it.
SCHEMA_VERSION = 7
MIN_WRITER = 6

Row = Mapping[str, Any]


class Session(Protocol):
    """One open transaction."""

    @property
    def kept(self) -> dict[str, Any]:
        """Accounts that were checked or written, and that nobody else can have moved.

        They need not be read again. Empty after a rollback and a strange change, and
        where others may have written: after a lock, if that is not held all along.
        """

    @property
    def exclusive(self) -> bool:
        """Whether no other writer overlaps the transaction, whatever it locks."""

    def lock(self, datasets: Iterable[str]) -> None:
        """Keep other writers from these datasets until the transaction ends."""

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Run a named statement and return its rows."""

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""

    def post(self, statement: str, **values: object) -> None:
        """Run a named statement that changes exactly one row, now or later.

        What was not sent or not answered yet is before anything commits.

        Raises:
            LedgerCorrupt: If it changed none, here or at a later call.
        """

    def soon(self, statement: str, **values: object) -> None:
        """Say which rows will be asked for next, so that one trip brings them all."""


class Database(Protocol):
    """A place that keeps a ledger.

    Implementations turn every error of their driver into `LedgerUnavailable`,
    `LedgerMissing` or `LedgerCorrupt`, and never reuse a connection after an error.
    """

    #: The place, for messages.
    place: str
    #: Which folder of migrations it takes.
    dialect: str

    @property
    def unwritable(self) -> LedgerUnavailable | None:
        """Why this process can only read it; None if it can write."""

    def write(self) -> AbstractContextManager[Session]:
        """Run a block in one transaction.

        No other writer overlaps it on the datasets that the block locks.

        The block's writes are durable when the manager returns without an error.
        """

    def read(self) -> AbstractContextManager[Session]:
        """Run a block that reads one consistent state."""

    def migrate(self, scripts: Iterable[str]) -> None:
        """Run migrations in one transaction that nothing else overlaps."""

    def close(self) -> None:
        """Close what is open; a later call opens it again."""


#: Changes that move the account which a parameter names.
_MOVES = {"append_entry": "account", "move_account": "id", "open_account": "id"}
#: Changes that touch no account.
_ASIDE = {
    "savepoint",
    "release_savepoint",
    "open_term",
    "note_alert",
    "note_granted",
    "note_refused",
    "open_reservation",
    "close_reservation",
    "claim_release",
    "settle_release",
    "drop_claim",
    "open_preflight",
    "adopt_preflight",
}
#: Changes of which it is known what they touch.
KNOWN_CHANGES = frozenset({*_MOVES, *_ASIDE})


def forget_changed(
    kept: dict[str, Any], statement: str, values: Mapping[str, Any]
) -> None:
    """Forget the accounts that a change moves: all, if it is not known which."""
    if statement in _MOVES:
        kept.pop(values[_MOVES[statement]], None)
    elif statement not in _ASIDE:
        kept.clear()


@cache
def statements() -> dict[str, str]:
    """Return the ledger's SQL by name, with `:named` parameters."""
    return named_statements("statements.sql")


def named_statements(file: str) -> dict[str, str]:
    """Read a file of named statements."""
    text = files("dpflow.ledger").joinpath(file).read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {
        name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)
    }


@cache
def migrations(dialect: str) -> dict[int, str]:
    """Return the migrations of a kind of database, by the schema they lead to."""
    folder = files("dpflow.ledger").joinpath("migrations", dialect)
    scripts = {
        int(item.name.partition("_")[0]): item.read_text("utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".sql")
    }
    return dict(sorted(scripts.items()))


def split_statements(script: str) -> list[str]:
    """Split a migration into statements; triggers hold semicolons of their own."""
    found, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
