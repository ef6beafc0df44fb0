"""A ledger in a PostgreSQL database, for workers on many machines.

A transaction locks the rows of its datasets. Its statements are sent together, each
trip in one message: one locks and reads, and one writes and commits. A process has
one connection, used by one thread at a time, never across a fork, and never again after
an error of the server's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from dpflow.exceptions import ConfigurationError, DpflowError, LedgerUnavailable
from dpflow.interrupts import contextmanager, suppress
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import refuse_version_4, unavailable, unusable
from dpflow.ledger.tables.postgres_connection import Server, SessionOwners
from dpflow.ledger.tables.postgres_pipeline import StatementPipeline
from dpflow.ledger.tables.sqlite import ledger_row
from dpflow.ledger.tables.statements import SQL
from dpflow.ledger.tables.transaction import (
    ConflictingSource,
    Identity,
    Questions,
    Transaction,
)

#: Number of triggers that are enabled in a whole ledger.
_TRIGGERS = 4
_WRITING = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: Bytes of statements without answers after which they are sent.
_MOST_UNSENT = 2**20
#: Errors that a migration of the tables causes in an older process.
_MIGRATED = ("42703", "42P01", "0A000")


class PostgresTransaction(Transaction):
    """One transaction of a connection to PostgreSQL, in a pipeline."""

    _first = (("read_ledger", {}), ("read_durability", {}))

    def run(self, questions: Questions) -> list[list[Any]]:
        """Run statements, all in one trip, and return the rows of each."""
        questions = [*questions]
        for name, values in questions:
            self._pipeline.add(SQL[name], values)
        answers = self._pipeline.collect()
        before = len(answers) - len(questions)
        return [self._pipeline.rows(answer) for answer in answers[before:]]

    def send(self, questions: Questions) -> None:
        """Send statements, whose errors come with the next trip."""
        for name, parameters in questions:
            if self.is_of_copy and name == "freeze_dataset":
                # The functions come last.
                name = "put_dataset"  # noqa: PLW2901
            self._pipeline.add(SQL[name], parameters)
            if self._pipeline.size > _MOST_UNSENT:
                self._pipeline.collect()

    def _look(self, answers: list[list[Any]]) -> None:
        super()._look(answers)
        *settings, role, triggers, unlogged = answers[1][0]
        self._database.server.check_durable(settings)
        if self.is_of_copy:
            # The triggers come last.
            return
        problem = ""
        if role != "origin":
            problem = f"has session_replication_role = {role}, so no trigger checks"
        elif triggers != _TRIGGERS:
            problem = f"has {triggers} of its {_TRIGGERS} triggers enabled"
        elif unlogged:
            problem = f"has {unlogged} tables that are unlogged or have row security"
        if problem:
            advice = (
                "Nothing was charged. An owner of the tables has to undo that; then "
                "run `dpflow ledger verify`."
            )
            raise unavailable(self.address, f"{problem}. {advice}")


class PostgresDatabase(Database):
    """A ledger in a schema `dpflow` of a PostgreSQL database.

    Args:
        url: `postgresql://user:password@host:port/database`.
        read_only: Refuse every write, whatever the role may do.

    Raises:
        ConfigurationError: If the URL cannot be read.
    """

    _errors = (psycopg.Error,)
    has_server = True

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.server = Server(url)
        super().__init__(self.server.address, read_only=read_only)
        self._url = url

    @classmethod
    def create(
        cls, url: str, identity: Identity, secret: bytes, *, complete: int = 1
    ) -> PostgresDatabase:
        """Make the schema `dpflow` with its tables in an existing database.

        Raises:
            ConfigurationError: If there is one already.
            LedgerUnavailable: If the server is out of reach or not durable.
        """
        database = cls(url)
        row = ledger_row(identity, secret, complete)
        with database._alone(), database.server.connect() as connection:
            try:
                with connection.transaction():
                    for name in ("make_schema", "tables"):
                        connection.execute(SQL[name], prepare=False)
                    connection.execute(SQL["insert_ledger"], row)
                    if complete:
                        connection.execute(SQL["rules"], prepare=False)
            except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
                name = database.address
                msg = f"a ledger is at {name} already, and none is overwritten"
                raise ConfigurationError(msg) from None
        return database

    @property
    def writer(self) -> str | None:
        """The login, which the database compares with the writer of each entry."""
        if self.server.login is None:
            with self._alone():
                self.server.open()
        return self.server.login

    def transaction(self) -> AbstractContextManager[PostgresTransaction]:
        """Run a block in one transaction; what it stored goes if it raises."""
        return self._begun(_WRITING)

    def snapshot(self) -> AbstractContextManager[PostgresTransaction]:
        """Run a block that reads one consistent state; the right to read will do."""
        return self._begun(_READING)

    def remove(self) -> None:
        """Remove the schema of an unfinished copy."""
        with self._alone(), self.server.connect() as connection:
            connection.execute(b"DROP SCHEMA dpflow CASCADE")
        self.close()
        self.opened = None

    def complete(self) -> None:
        """Make the triggers of a copy that is filled, and let steps use it."""
        with (
            self._alone(),
            self.server.connect() as connection,
            connection.transaction(),
        ):
            connection.execute(SQL["rules"], prepare=False)
            connection.execute(SQL["complete_ledger"])

    @contextmanager
    def _begun(self, begin: bytes) -> Iterator[PostgresTransaction]:
        with self._alone():
            connection = self.server.open()
            pipeline = StatementPipeline(connection)
            try:
                pipeline.add(begin)
                yield PostgresTransaction(self, connection, pipeline)
                if (ended := pipeline.end(b"COMMIT")) != b"COMMIT":
                    text = f"the server answered {ended!r} to a COMMIT"
                    raise unusable(text, self.address)
            except BaseException as error:
                if not isinstance(error, DpflowError):
                    # The caller looks up whether a commit without an answer happened.
                    connection.close()
                with suppress(psycopg.Error):
                    pipeline.end(b"ROLLBACK")
                if isinstance(error, psycopg.errors.UniqueViolation) and (
                    error.diag.table_name == "source"
                ):
                    raise ConflictingSource from None
                raise

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

    def _translate_error(self, error: Any, waited: float) -> Exception:  # noqa: ARG002
        if error.sqlstate == "42703" and self.opened is None:
            return refuse_version_4(self.address)
        if error.sqlstate in _MIGRATED and self.opened is not None:
            return self._say_version(error)
        if isinstance(error, psycopg.errors.UndefinedTable) and self._is_denied():
            return self.server.deny("it has no right to the schema dpflow")
        return self.server.translate_error(error)

    def _is_denied(self) -> bool:
        """Return True if the login sees no tables where there may be some."""
        with suppress(psycopg.Error):
            ((count,),) = self.server.open().execute(SQL["is_denied"])
            return bool(count)
        return False

    def _say_version(self, error: psycopg.Error) -> Exception:
        """Return the error for tables that another version may have changed."""
        with suppress(psycopg.Error, IndexError):
            connection = self.server.open()
            ((_, version, *_),) = connection.execute(SQL["read_ledger"])
            msg = (
                f"the tables of the ledger {self.address} were changed: it has version "
                f"{version} now. Nothing was charged. Start this process again, with "
                "the dpflow of that version."
            )
            return LedgerUnavailable(msg, ledger=self.address)
        return self.server.translate_error(error)
