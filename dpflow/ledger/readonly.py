"""A ledger that cannot be written, for those who only show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.database import Database, Session
from dpflow.ledger.sqlite_session import SqliteSession

_QUERY_ONLY = "PRAGMA query_only = ON;"
_WRITABLE = "PRAGMA query_only = OFF;"


class ReadOnlyDatabase:
    """A database whose sessions can only read; the database itself refuses the rest.

    PostgreSQL's reading transactions are read-only anyway; SQLite is told.

    Args:
        database: The one to read.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.place = database.place
        self.dialect = database.dialect

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Run a block that reads one consistent state."""
        with self.database.read() as session:
            if not isinstance(session, SqliteSession):
                yield session
                return
            session.run(_QUERY_ONLY)
            try:
                yield session
            finally:
                # A ledger in memory has one connection, and others write to it.
                session.run(_WRITABLE)

    def write(self) -> AbstractContextManager[Session]:
        """Refuse.

        Raises:
            LedgerUnavailable: Always.
        """
        raise self.unwritable

    def migrate(self, scripts: Iterable[str]) -> None:  # noqa: ARG002
        """Refuse.

        Raises:
            LedgerUnavailable: Always.
        """
        raise self.unwritable

    def close(self) -> None:
        """Close what is open; a later call opens it again."""
        self.database.close()

    @property
    def unwritable(self) -> LedgerUnavailable:
        """Why nothing is written, whatever this process may do."""
        msg = f"the ledger {self.place} was opened for reading only; nothing is charged"
        return LedgerUnavailable(msg, ledger=self.place)
