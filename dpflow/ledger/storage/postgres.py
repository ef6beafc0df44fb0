"""The ledger in a PostgreSQL database, for workers on many machines.

Every transaction is READ COMMITTED and locks its books' rows, in the order of their
names, before it reads: a statement after that sees all that was committed before. A
connection is used by one thread at a time, never across a fork, and never again after
an error.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import psycopg

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger.storage.base import (
    SCHEMA_VERSION,
    Identity,
    another_version,
    check_writer,
    read_only_error,
)
from dpflow.ledger.storage.postgres_connection import (
    Connection,
    Server,
    abandon,
    is_stale,
)
from dpflow.ledger.storage.postgres_pipeline import Wire
from dpflow.ledger.storage.postgres_transaction import Snapshot, Trips
from dpflow.ledger.storage.row_texts import statements

_LOCK_SECONDS = 30.0
_CONNECTIONS = 4


class PostgresStorage:
    """A ledger in a schema `dpflow` of a PostgreSQL database.

    Args:
        url: `postgresql://user:password@host:port/database`.
        lock_seconds: How long to wait for other writers.
        connections: How many threads of this process may use the ledger at once.
        read_only: Refuse every write, whatever the role may do.

    Raises:
        ConfigurationError: If the URL cannot be read.
    """

    #: Others write other books meanwhile.
    exclusive = False

    def __init__(
        self,
        url: str,
        *,
        lock_seconds: float = _LOCK_SECONDS,
        connections: int = _CONNECTIONS,
        read_only: bool = False,
    ) -> None:
        self.server = Server(url, lock_seconds=lock_seconds)
        self.place = self.server.place
        self._lock_seconds = lock_seconds
        self._limit = connections
        self._read_only = read_only
        self._identity: Identity | None = None
        self._forget()
        _storages.add(self)

    def _forget(self) -> None:
        self._turns = threading.BoundedSemaphore(self._limit)
        self._guard = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._pid = os.getpid()

    @classmethod
    def create(cls, url: str, identity: Identity, secret: bytes) -> PostgresStorage:
        """Make the schema `dpflow` with its tables in an existing database.

        Raises:
            ConfigurationError: If there is one already.
            LedgerUnavailable: If the server is out of reach or not durable.
        """
        storage = cls(url)
        with storage.borrowed() as connection:
            if connection.has_ledger:
                msg = (
                    f"there is a ledger at {storage.place} already; a ledger is never "
                    "overwritten"
                )
                raise ConfigurationError(msg)
            with storage._plainly(connection):
                sql = statements("postgres")
                connection.execute(sql["schema"].encode(), prepare=False)
                connection.execute(
                    sql["create_ledger"].encode(),
                    {
                        "ledger_id": identity.ledger,
                        "version": SCHEMA_VERSION,
                        "secret": secret.hex(),
                        "at": identity.created_at,
                        "environment": identity.environment,
                    },
                )
            connection.has_ledger = connection.has_books = True
        storage._identity = identity
        return storage

    @property
    def identity(self) -> Identity:
        """Which ledger it is, as `Storage.identity` says."""
        if self._identity is None:
            with self._open() as connection, self._plainly(connection):
                self._identity = self._found(connection)
        return self._identity

    @property
    def unwritable(self) -> LedgerUnavailable | None:
        """Why nothing may be written; a role's rights are the server's to tell."""
        return read_only_error(self.place) if self._read_only else None

    @contextmanager
    def write(self) -> Iterator[Trips]:
        """Run a block in one transaction, whose first load locks its books.

        Raises:
            LedgerUnavailable: If it cannot be had now, or its outcome is unknown.
        """
        if (why := self.unwritable) is not None:
            raise why
        identity = self.identity
        with self._open() as connection, self._poisoned(connection):
            with self._pipelined(connection) as wire:
                within = Trips(wire, self.server, identity)
                yield within
                within.commit()
            within.check_committed()

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        """Run a block that reads one consistent state; the right to read will do."""
        identity = self.identity
        with self._open() as connection, self._pipelined(connection) as wire:
            yield Snapshot(wire, self.server, identity)
            wire.send("commit", b"COMMIT")

    def close(self) -> None:
        """Close the connections that nobody uses; a later call opens new ones."""
        self._after_unseen_fork()
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

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

    def _found(self, connection: Connection) -> Identity:
        """Read which ledger is there."""
        sql = statements("postgres")
        if not connection.has_books:
            raise another_version(self.place)
        rows = connection.execute(sql["identity"].encode()).fetchall()
        if len(rows) != 1:
            msg = f"{self.place} is no ledger: its identity row is missing"
            raise LedgerCorrupt(msg, ledger=self.place)
        ((ledger, environment, created_at, needed),) = rows
        check_writer(self.place, needed)
        return Identity(ledger, environment, created_at)

    @contextmanager
    def _plainly(self, connection: Connection) -> Iterator[None]:
        """Run a block in one transaction, a trip for each statement."""
        with self._poisoned(connection), connection.transaction():
            yield

    def wire(self, connection: Connection) -> Wire:
        """Return what statements are sent by."""
        return Wire(connection)

    @contextmanager
    def _pipelined(self, connection: Connection) -> Iterator[Wire]:
        """Run a block whose statements are sent together, until an answer is due."""
        with self._poisoned(connection):
            wire = self.wire(connection)
            yield wire
            wire.wait()
            wire.end()

    @contextmanager
    def _poisoned(self, connection: Connection) -> Iterator[None]:
        """After an error close the connection, and its transaction with it.

        Whether a commit without an answer happened is for who asked to look up.
        """
        try:
            yield
        except BaseException as error:
            connection.close()
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


#: All that may be open when this process forks.
_storages: WeakSet[PostgresStorage] = WeakSet()


def _after_fork_in_child() -> None:
    for storage in list(_storages):
        storage.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
