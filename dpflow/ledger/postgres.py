"""The ledger in a PostgreSQL database, for workers on many machines.

Every transaction is READ COMMITTED and locks its datasets' rows, in the order of their
names, before it reads: a statement after that sees all that was committed before. A
connection is used by one thread at a time, never across a fork, and never again after
an error.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from weakref import WeakSet

import psycopg

from dpflow.exceptions import ConfigurationError, LedgerMissing, LedgerUnavailable
from dpflow.ledger.account import now
from dpflow.ledger.database import migrations
from dpflow.ledger.identity import identity_row
from dpflow.ledger.postgres_server import Connection, Server, abandon
from dpflow.ledger.postgres_session import PostgresSession
from dpflow.ledger.writer import writer

_LOCK_SECONDS = 30.0
_CONNECTIONS = 4
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresDatabase:
    """A ledger in a schema `dpflow` of a PostgreSQL database.

    Args:
        url: `postgresql://user:password@host:port/database`.
        lock_seconds: How long to wait for other writers.
        connections: How many threads of this process may use the ledger at once.

    Raises:
        ConfigurationError: If the URL cannot be read.
    """

    dialect = "postgres"
    #: The server knows which roles may write, and says so.
    unwritable = None

    def __init__(
        self,
        url: str,
        *,
        lock_seconds: float = _LOCK_SECONDS,
        connections: int = _CONNECTIONS,
    ) -> None:
        self.server = Server(url, lock_seconds=lock_seconds)
        self.place = self.server.place
        self._lock_seconds = lock_seconds
        self._limit = connections
        self._forget()
        _databases.add(self)

    def _forget(self) -> None:
        self._turns = threading.BoundedSemaphore(self._limit)
        self._guard = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._pid = os.getpid()

    @classmethod
    def create(
        cls, url: str, fill: Callable[[PostgresSession], object] = lambda _: None
    ) -> PostgresDatabase:
        """Make the schema `dpflow` and its tables in an existing database.

        Args:
            url: Of the database; it must not have such a schema yet.
            fill: Writes the first rows, in the transaction that makes the tables.

        Raises:
            ConfigurationError: If there is one already.
            LedgerUnavailable: If the server is out of reach or not durable.
        """
        database = cls(url)
        with database.borrowed() as connection:
            if connection.has_ledger:
                msg = (
                    f"there is a ledger at {database.place} already; a ledger is never "
                    "overwritten"
                )
                raise ConfigurationError(msg)
            with database.transaction(connection, _WRITE) as session:
                for script in migrations(cls.dialect).values():
                    session.run(script)
                fill(session)
                _pin(session, connection, because="created")
            connection.has_ledger = True
        return database

    def migrate(self, scripts: Iterable[str]) -> None:
        """Run migrations in one transaction that no other transaction overlaps."""
        with self._session(_WRITE, checked=True) as session:
            session.change("lock_ledger")
            for script in scripts:
                session.run(script)

    def accept_server(self, *, because: str) -> None:
        """Pin the ledger to the server that it is on now.

        Args:
            because: Why nothing that was charged is missing there.
        """
        with (
            self._open() as connection,
            self.transaction(connection, _WRITE) as session,
        ):
            session.change("lock_ledger")
            # Not if only a newer dpflow may write here.
            identity_row(session, self.place)
            _pin(session, connection, because=because)

    @contextmanager
    def write(self) -> Iterator[PostgresSession]:
        """Run a block in one transaction; it locks what it decides about."""
        with self._session(_WRITE, checked=True) as session:
            yield session

    @contextmanager
    def read(self) -> Iterator[PostgresSession]:
        """Run a block that reads one consistent state."""
        with self._session(_READ, checked=False) as session:
            yield session

    def close(self) -> None:
        """Close the connections that nobody uses; a later call opens new ones."""
        self._after_unseen_fork()
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _session(self, begin: str, *, checked: bool) -> Iterator[PostgresSession]:
        with self._open() as connection, self.transaction(connection, begin) as session:
            if checked:
                # The answer comes with the first question's, before any commit.
                session.expect(
                    "check_server",
                    lambda rows: self.server.check_pinned(rows, connection),
                )
            yield session

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        """Borrow a connection to a database that has a ledger."""
        with self.borrowed() as connection:
            if not connection.has_ledger:
                msg = (
                    f"there is no ledger at {self.place}. For a new project, make one "
                    "with `dpflow ledger init`; if there was one, restore it: a new, "
                    "empty ledger would forget what has been spent."
                )
                raise LedgerMissing(msg, ledger=self.place)
            yield connection

    @contextmanager
    def transaction(
        self, connection: Connection, begin: str
    ) -> Iterator[PostgresSession]:
        """Run a block in one transaction on a connection, in pipeline mode.

        After an error the connection is closed, and its transaction rolled back with
        it; whether a commit without an answer happened is for the caller to look up.
        """
        context = connection.pipeline()
        try:
            session = PostgresSession(connection, context.__enter__(), self.place)
            session.begin(begin)
            yield session
            session.commit()
            context.__exit__(None, None, None)
            session.check_committed()
        except BaseException as error:
            connection.close()
            with suppress(psycopg.Error):
                # Nothing is sent any more; the driver's own state is tidied up.
                context.__exit__(None, None, None)
            if isinstance(error, psycopg.Error):
                raise self.server.translated(error) from None
            raise

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """Take a connection of the pool, or a new one; wait if all are in use."""
        self._after_unseen_fork()
        turns = self._turns
        if not turns.acquire(timeout=self._lock_seconds):
            msg = (
                f"{self._limit} threads of this process use the ledger {self.place}; "
                f"waited {self._lock_seconds:g} s for one of them. The step did not "
                "run; try again."
            )
            waited = self._lock_seconds
            raise LedgerUnavailable(msg, ledger=self.place, waited=waited)
        connection: Connection | None = None
        try:
            connection = self._usable() or self.server.connect()
            self._busy.add(connection)
            yield connection
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        finally:
            if connection is not None:
                self._busy.discard(connection)
                if not connection.closed and self._pid == os.getpid():
                    with self._guard:
                        self._idle.append(connection)
            turns.release()

    def _usable(self) -> Connection | None:
        """Take an idle connection that the server has not closed meanwhile."""
        while True:
            with self._guard:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not is_stale(connection):
                return connection
            connection.close()

    def _after_unseen_fork(self) -> None:
        if self._pid != os.getpid():
            # A fork that Python did not make, and so did not tell of.
            self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """Leave the parent's connections to the parent."""
        inherited = [*self._idle, *self._busy]
        self._forget()
        for connection in inherited:
            abandon(connection)


def is_stale(connection: Connection) -> bool:
    """Say whether something came on an idle connection: an end, or a complaint."""
    with suppress(OSError, ValueError, psycopg.Error):
        waiting = select.poll()
        waiting.register(connection.pgconn.socket, select.POLLIN)
        return bool(waiting.poll(0))
    return True


def _pin(session: PostgresSession, connection: Connection, *, because: str) -> None:
    session.change(
        "pin_server",
        system_identifier=connection.system_identifier,
        since=now(),
        writer=writer(),
        because=because,
    )


#: All that may be open when this process forks.
_databases: WeakSet[PostgresDatabase] = WeakSet()


def _after_fork_in_child() -> None:
    for database in list(_databases):
        database.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
