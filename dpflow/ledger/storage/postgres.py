"""The ledger in a PostgreSQL database, for workers on many machines.

A transaction that writes has the ledger for itself, as in a file: it takes the ledger's
turn before it reads. A process has one connection, used by one thread at a time, never
across a fork, and never again after an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg

from dpflow.exceptions import (
    ConfigurationError,
)
from dpflow.ledger.storage.base import (
    SCHEMA_VERSION,
    Identity,
    another_version,
    identity_of,
)
from dpflow.ledger.storage.postgres_connection import Connection, Server, Session
from dpflow.ledger.storage.postgres_transaction import (
    READING,
    WRITING,
    PostgresTables,
    Seen,
    sql_of,
)
from dpflow.ledger.storage.transaction import Storage

_LOCK_SECONDS = 30.0


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
        lock_seconds: float = _LOCK_SECONDS,
        read_only: bool = False,
    ) -> None:
        self.server = Server(url, lock_seconds=lock_seconds)
        super().__init__(self.server.place, lock_seconds, read_only=read_only)
        self._seen: Seen = {}
        self._session = Session(self.server)

    @classmethod
    def create(cls, url: str, identity: Identity, secret: bytes) -> PostgresStorage:
        """Make the schema `dpflow` with its tables in an existing database.

        Raises:
            ConfigurationError: If there is one already.
            LedgerUnavailable: If the server is out of reach or not durable.
        """
        storage = cls(url)
        sql = sql_of(shows_values=True)
        values = {"version": SCHEMA_VERSION, "secret": secret.hex()}
        with storage.server.connect() as connection:
            if connection.has_ledger:
                msg = (
                    f"there is a ledger at {storage.place} already; a ledger is never "
                    "overwritten"
                )
                raise ConfigurationError(msg)
            try:
                with connection.transaction():
                    connection.execute(sql["schema"], prepare=False)
                    connection.execute(
                        sql["create_ledger"], {**identity._asdict(), **values}
                    )
            except psycopg.Error as error:
                raise storage.server.translated(error) from None
        storage._identity = identity
        return storage

    def _writing(self) -> AbstractContextManager[PostgresTables]:
        return self._transaction(WRITING)

    def read(self) -> AbstractContextManager[PostgresTables]:
        """Run a block that reads one consistent state; the right to read will do."""
        return self._transaction(READING)

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
            connection = self._open()
            try:
                if self._identity is None:
                    self._identity = self._found(connection)
                with connection.pipeline() as pipeline:
                    within = PostgresTables(
                        connection,
                        pipeline.sync,
                        server=self.server,
                        identity=self._identity,
                        begin=begin,
                        seen=self._seen,
                    )
                    yield within
                    within.end()
                within.check_committed()
            except BaseException as error:
                # Whether a commit without an answer happened is for who asked to look
                # up.
                connection.close()
                if isinstance(error, psycopg.Error):
                    raise self.server.translated(error) from None
                raise

    def _open(self) -> Connection:
        """Return the connection to a database that has a ledger."""
        connection = self._session.open()
        if not connection.has_ledger:
            # There may be one at the next call.
            self._session.drop()
            raise self.server.no_ledger()
        return connection

    def _found(self, connection: Connection) -> Identity:
        """Read which ledger is there."""
        if not connection.has_books:
            raise another_version(self.place)
        sql = sql_of(shows_values=False)["whole_identity"]
        return identity_of(connection.execute(sql).fetchall(), self.place)
