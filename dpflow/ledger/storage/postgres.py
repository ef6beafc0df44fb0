"""The ledger in a PostgreSQL database, for workers on many machines.

A transaction that writes has the ledger for itself, as in a file: it takes the ledger's
turn before it reads. Its statements are sent together, in the driver's pipeline: one
trip begins the transaction and loads what the keys led to at the last load, and one
appends and commits. A process has one connection, used by one thread at a time, never
across a fork, and never again after an error of the server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psycopg

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Columns, JournalError, entry_of
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import VERSION, Identity
from dpflow.ledger.storage.postgres_connection import (
    Connection,
    Server,
    Session,
    sql_of,
)
from dpflow.ledger.storage.postgres_owners import SessionOwners
from dpflow.ledger.storage.storage import LOCK_SECONDS, Storage
from dpflow.ledger.storage.tables import ENDLESS, Needs, Transaction

#: More keys than these are forgotten.
_MOST = 10_000
#: How a transaction begins, and its first question. What comes behind the one that
#: waits for the turn sees all that was committed before.
_READING = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "identity")
_WRITING = ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", "turn")


class PostgresStorage(Storage):
    """A ledger in a schema `dpflow` of a PostgreSQL database.

    Args:
        url: `postgresql://user:password@host:port/database`.
        lock_seconds: How long to wait for other writers.
        read_only: Refuse every write, whatever the role may do.

    Raises:
        ConfigurationError: If the URL cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        lock_seconds: float = LOCK_SECONDS,
        read_only: bool = False,
    ) -> None:
        self.server = Server(url, lock_seconds=lock_seconds)
        super().__init__(self.server.place, lock_seconds, read_only=read_only)
        self._session = Session(self.server)
        #: What this process saw and wrote, which says what to load in the first trip.
        self.newest = State(whole=True)

    @classmethod
    def create(cls, url: str, identity: Identity, secret: bytes) -> PostgresStorage:
        """Make the schema `dpflow` with its tables in an existing database.

        Raises:
            ConfigurationError: If there is one already.
            LedgerUnavailable: If the server is out of reach or not durable.
        """
        storage, sql = cls(url), sql_of()
        values = {**identity._asdict(), "version": VERSION, "secret": secret.hex()}
        try:
            with storage.server.connect() as connection, connection.transaction():
                for name in ("make_schema", "tables", "rules"):
                    connection.execute(sql[name], prepare=False)
                connection.execute(sql["create_ledger"], values)
        except psycopg.Error as error:
            raise storage.server.translated(error) from None
        return storage

    @property
    def writer(self) -> str | None:
        """The login, which the database compares with the writer of each entry."""
        return self.server.login

    def _writing(self) -> AbstractContextManager[PostgresTables]:
        return self._transaction(_WRITING)

    def read(self) -> AbstractContextManager[PostgresTables]:
        """Run a block that reads one consistent state; the right to read will do."""
        return self._transaction(_READING)

    def owners(self) -> SessionOwners:
        """Return an owner of charges, which is seen by its lock in the database."""
        return SessionOwners(self.server)

    def close(self) -> None:
        """Close the connection; a later call opens it again.

        Raises:
            LedgerUnavailable: If another thread was in a transaction for too long.
        """
        with self._alone():
            self._session.drop()

    @contextmanager
    def _transaction(self, begin: tuple[str, str]) -> Iterator[PostgresTables]:
        with self._alone():
            connection = self._session.open()
            try:
                with connection.pipeline() as pipeline:
                    within = PostgresTables(self, connection, pipeline, begin)
                    yield within
                    within.end()
                within.check_committed()
            except psycopg.Error as error:
                # Whether a commit without an answer happened is looked up by the
                # caller.
                connection.close()
                raise self.server.translated(error) from None
            except Exception:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                raise
            except BaseException:
                connection.close()
                raise


class PostgresTables(Transaction):
    """A ledger within one transaction of a connection.

    Args:
        storage: Of the ledger that was opened.
        connection: Outside a transaction, in a pipeline; the first question begins one.
        pipeline: Waits for the answers to all that was sent.
        begin: `_READING` or `_WRITING`.
    """

    def __init__(
        self,
        storage: PostgresStorage,
        connection: Connection,
        pipeline: psycopg.Pipeline,
        begin: tuple[str, str],
    ) -> None:
        super().__init__(storage.place, storage._identity)  # noqa: SLF001
        self._storage, self._begin = storage, begin
        self._execute, self._sync = connection.execute, pipeline.sync
        self._sql = sql_of(shows_values=connection.facts["shows_values"])
        self._has_written = False
        self._commit: psycopg.Cursor[Any] | None = None

    def load(
        self, needs: Needs, *, numbers: Iterable[int] = (), before: int = ENDLESS
    ) -> State:
        """Return what some keys are; what they led to before is loaded with them."""
        storage, guess = self._storage, list[str]()
        if self._begin is _READING or before != ENDLESS:
            return super().load(needs, numbers=numbers, before=before)
        with suppress(JournalError, *UNREADABLE):
            guess += needs(storage.newest)
        state = super().load(
            lambda state: [*needs(state), *guess], numbers=numbers, before=before
        )
        if len(storage.newest.rows) > _MOST:
            storage.newest = State(whole=True)
        for name in ("rows", "numbers", "entries", "made", "ends"):
            getattr(storage.newest, name).update(getattr(state, name))
        return state

    def append(
        self, entries: Sequence[Columns], kept: Mapping[str, str | None]
    ) -> None:
        """Append entries; keep values by release key, or drop those that are None."""
        previous = self.head()[1]
        for columns in entries:
            self._execute(self._sql["new_entry"], columns)
            self._storage.newest.add(entry_of((*columns, previous)))
            previous = columns.hash
        for key, value in kept.items():
            self._execute(self._sql["drop_value"], (key,))
            if value is not None:
                self._execute(self._sql["keep_value"], (key, value))
        self._has_written = True

    def ask_all(
        self, questions: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[list[Any]]:
        """Run statements, all in one trip, and return the rows of each."""
        execute, sql, first = self._execute, self._sql, []
        if self._head is None:
            execute(self._begin[0])
            first = [execute(sql[self._begin[1]]), execute(sql["head"])]
        cursors = [
            None if _is_empty(values) else execute(sql[name], values)
            for name, values in questions
        ]
        self._sync()
        if first:
            identity, head = (cursor.fetchall() for cursor in first)
            self._started([row[:4] for row in identity], head)
            self._storage.server.check_durable(identity[0][4:])
        return [[] if cursor is None else cursor.fetchall() for cursor in cursors]

    def end(self) -> None:
        """Send a commit behind what was appended, if there is anything."""
        if self._has_written:
            self._commit = self._execute("COMMIT")
        elif self._head is not None:
            self._execute("ROLLBACK")

    def check_committed(self) -> None:
        """Check that what was appended is committed.

        Raises:
            LedgerUnavailable: If the server rolled back instead.
        """
        if self._commit is not None and self._commit.statusmessage != "COMMIT":
            msg = (
                f"the ledger {self.place} did not commit but answered "
                f"{self._commit.statusmessage}; nothing was charged"
            )
            raise LedgerUnavailable(msg, ledger=self.place)


def _is_empty(values: Mapping[str, Any]) -> bool:
    """Say whether a question is about lists that are all empty."""
    lists = [value for value in values.values() if isinstance(value, list)]
    return bool(lists) and not any(lists)
