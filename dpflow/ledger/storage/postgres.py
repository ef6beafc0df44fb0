"""The ledger in a PostgreSQL database, for workers on many machines.

A transaction that writes has the ledger for itself, as in a file: it takes the ledger's
turn before it reads. Its statements are sent together, in the driver's pipeline: one
trip begins the transaction and loads what the keys led to at the last load, and one
appends and commits. A process has one connection, used by one thread at a time, never
across a fork, and never again after an error of the server's.

An owner of reservations holds an advisory lock under its name in a session of its own.
The server drops the lock when the session ends: with the process, or with the network.
In the second case the process still works while it looks dead. That gives nothing
back: its charges stay held in full, a run that takes over its release key is charged
anew, and its late settlement posts its own charge and leaves the release to the other.
At its next reservation it takes the same name's lock again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from dpflow.exceptions import ConfigurationError, DpflowError
from dpflow.interrupts import contextmanager, suppress
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import VERSION, Identity, busy, unusable
from dpflow.ledger.storage.owners import Liveness, names_here
from dpflow.ledger.storage.postgres_connection import Connection, Server, sql_of
from dpflow.ledger.storage.storage import Storage
from dpflow.ledger.storage.tables import Questions, Transaction
from dpflow.locks import TurnQueue

#: dpflow itself never takes such a lock.
_ADVICE = " once pg_terminate_backend has ended it (mode 'ExclusiveLock' in pg_locks)"


class SessionOwners(Liveness):
    """The owners of one ledger, as locks in its database.

    Args:
        server: Of the ledger, in a session of its own.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        # A server that does not answer holds up no other ledger's owners.
        self._lock = TurnQueue()
        #: The connection in which the lock of the name was taken.
        self._holder: Connection | None = None

    def _mine(self) -> str:
        name = super()._mine()
        with self._session():
            return name

    def _is_held(self, owner: str) -> bool:
        with self._session() as connection:
            answer = connection.execute(sql_of()["owner_alive"], _key(owner))
            return answer.fetchone() is not None

    def _give_up(self) -> None:
        super()._give_up()
        self._server.drop()

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        """Give a session that has the lock of this process's name, if it has one."""
        with self._server.session() as connection:
            if connection is not self._holder and self._name in names_here:
                # Shared, so that a session that the server has not given up is no
                # obstacle.
                try:
                    connection.execute(sql_of()["take_owner"], _key(self._name))
                except psycopg.errors.LockNotAvailable:
                    holder = "session, under the name of this process,"
                    place, waited = self._server.place, self._server.lock_seconds
                    raise busy(place, holder, waited, _ADVICE) from None
                self._holder = connection
            yield connection


def _key(owner: str) -> dict[str, int]:
    """Return the number of an owner's lock."""
    return {"key": int.from_bytes(bytes.fromhex(owner)[:8], signed=True)}


#: How a transaction begins, and its first question. What comes behind the one that
#: waits for the turn sees all that was committed before.
_READING = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "identity")
_WRITING = ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", "turn")


class PostgresStorage(Storage):
    """A ledger in a schema `dpflow` of a PostgreSQL database.

    Args:
        url: `postgresql://user:password@host:port/database`.
        read_only: Refuse every write, whatever the role may do.

    Raises:
        ConfigurationError: If the URL cannot be read.
    """

    _errors = (psycopg.Error,)

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.server = Server(url)
        super().__init__(self.server.place, read_only=read_only)
        self._url = url

    @classmethod
    def create(cls, url: str, identity: Identity, secret: bytes) -> PostgresStorage:
        """Make the schema `dpflow` with its tables in an existing database.

        Raises:
            ConfigurationError: If there is one already.
            LedgerUnavailable: If the server is out of reach or not durable.
        """
        storage, sql = cls(url), sql_of()
        values = {**identity._asdict(), "version": VERSION, "secret": secret.hex()}
        with storage._alone(), storage.server.connect() as connection:
            try:
                with connection.transaction():
                    for name in ("make_schema", "tables", "rules"):
                        connection.execute(sql[name], prepare=False)
                    connection.execute(sql["create_ledger"], values)
            except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
                msg = f"a ledger is at {storage.place} already, and none is overwritten"
                raise ConfigurationError(msg) from None
        return storage

    @property
    def writer(self) -> str | None:
        """The login, which the database compares with the writer of each entry."""
        return self.server.login

    def write(self) -> AbstractContextManager[Transaction]:
        """Run a block in one transaction; what it stored goes if it raises."""
        return self._transaction(_WRITING, self._newest)

    def read(self) -> AbstractContextManager[Transaction]:
        """Run a block that reads one consistent state; the right to read will do."""
        return self._transaction(_READING)

    def owners(self) -> SessionOwners:
        """Return an owner of charges, which is seen by its lock in the database."""
        return SessionOwners(Server(self._url))

    def close(self) -> None:
        """Close the connection; a later call opens it again.

        Raises:
            LedgerUnavailable: If another thread was in a transaction for too long.
        """
        with self._alone():
            self.server.drop()

    @contextmanager
    def _transaction(
        self, begin: tuple[str, str], newest: State | None = None
    ) -> Iterator[Transaction]:
        with self._alone():
            connection = self.server.open()
            try:
                with connection.pipeline() as pipeline:
                    connection.execute(begin[0])
                    yield _Tables(self, connection, pipeline, begin[1], newest)
                    ended = connection.execute("COMMIT")
                if ended.statusmessage != "COMMIT":
                    text = f"the server answered {ended.statusmessage} to a COMMIT"
                    raise unusable(text, self.place)
            except BaseException as error:
                if not isinstance(error, DpflowError):
                    # The caller looks up whether a commit without an answer happened.
                    connection.close()
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                raise

    def _translated(self, error: Any, waited: float) -> Exception:  # noqa: ARG002
        return self.server.translated(error)


class _Tables(Transaction):
    """A ledger within one transaction of a connection, in a pipeline."""

    def __init__(
        self,
        storage: PostgresStorage,
        connection: Connection,
        pipeline: psycopg.Pipeline,
        first: str,
        newest: State | None,
    ) -> None:
        sql = sql_of(shows_values=connection.facts["shows_values"])
        super().__init__(connection, storage.place, storage.opened, newest, sql)
        self._server, self._pipeline, self._first = storage.server, pipeline, first

    def _run(self, questions: Questions) -> list[list[Any]]:
        execute = self.connection.execute
        cursors = [execute(self._sql[name], values) for name, values in questions]
        self._pipeline.sync()
        return [cursor.fetchall() for cursor in cursors]

    def _identified(self, rows: list[Any]) -> Identity:
        identity = super()._identified([row[:4] for row in rows])
        self._server.check_durable(rows[0][4:])
        return identity
