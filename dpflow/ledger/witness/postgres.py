"""A witness in a PostgreSQL database, which must not be the ledger's own.

Rows are only ever added. Now and then a process adds a row with fewer lines, which
stand for all that it has compared with the ledger, so that the next process reads less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import psycopg

from dpflow.exceptions import ConfigurationError, DpflowError, LedgerUnavailable
from dpflow.ledger.storage.postgres_connection import Connection, Server, sql_of
from dpflow.ledger.storage.sql import named_statements
from dpflow.ledger.witness.base import Stored, Witness
from dpflow.ledger.witness.lines import KEPT, Line, compacted

_READ_COMMITTED = "ISOLATION LEVEL READ COMMITTED READ WRITE"


class _End(NamedTuple):
    """The newest row that was read, and its epoch."""

    epoch: int
    number: int


class _WitnessServer(Server):
    keeps = "witness"
    lock_seconds = 20.0

    def translated(self, error: psycopg.Error) -> DpflowError:
        """Return the error of the server's message alone."""
        return LedgerUnavailable(self.clean(error))


class PostgresWitness(Witness):
    """The witness of one ledger in a schema `dpflow_witness` of a database.

    Args:
        url: `postgresql://user:password@host:port/database`.
        ledger_url: Of the ledger, if it is on PostgreSQL, too.
        ledger: Id of the ledger.

    Raises:
        ConfigurationError: If a URL cannot be read.
    """

    def __init__(self, url: str, ledger_url: str | None, ledger: str) -> None:
        self._server = _WitnessServer(url)
        super().__init__(self._server.place, ledger)
        #: The ledger's server, until it was compared with the witness's.
        self._ledger: Server | None = None
        if ledger_url is not None:
            self._ledger = Server(ledger_url)
        #: From which number on compaction is due.
        self._due = 0

    def read(self, header: str | None, end: _End | None) -> Stored:
        """Return the lines of the newest epoch after an end, in one trip."""
        with self._connected() as connection:
            rows = self._lines(connection, None if end is None else end.number)
        if not rows:
            raise FileNotFoundError
        first = rows[0][0] if end is None else end.number
        if [row[0] for row in rows] != [*range(first, first + len(rows))]:
            what = f"lines are missing after number {first}"
            raise OSError(what)
        texts, newest = list[str](), None if end is None else end.epoch
        # The row of the end was read before.
        for number, epoch, content in rows[end is not None :]:
            if epoch is None:
                texts.append(content)
                continue
            self._due = number + max(KEPT, content.count("\n"))
            # Rows of the same epoch have fewer lines, all of which were read.
            if epoch != newest:
                newest, (header, *texts) = epoch, content.split("\n")
        assert header is not None
        assert newest is not None
        return header, texts, _End(newest, rows[-1][0])

    def write(self, texts: Sequence[str], end: _End | None) -> _End | None:
        """Append lines; they are numbered under a lock, so that no reader skips one."""
        with self._connected() as connection:
            rows = self._locked(connection, self.ledger, "append", texts=[*texts])
            if not rows:
                raise FileNotFoundError
            numbers = sorted(number for (number,) in rows)
            if end is None or numbers[0] != end.number + 1:
                return None
            end = _End(end.epoch, numbers[-1])
            if end.number >= self._due:
                # Damage is for the next reader.
                with suppress(psycopg.Error, ValueError):
                    self._compact(connection)
                self._due = end.number + KEPT
            return end

    def begin(self, texts: Sequence[str]) -> bool:
        """Begin an epoch, all or nothing; make the tables if there are none."""
        with self._connected() as connection:
            with connection.transaction():
                connection.execute(_statements()["lock"], [""])
                tables = connection.execute(_statements()["has_tables"]).fetchone()
                if tables != (True,):
                    connection.execute(_statements()["schema"], prepare=False)
            values = self._beginning(texts, again=False)
            return bool(self._locked(connection, self.ledger, "begin", **values))

    def first_claim(self, source: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""
        with self._connected() as connection:
            lock = f"source {source}"
            return str(self._locked(connection, lock, "claim", source=source)[0][0])

    def _compact(self, connection: Connection) -> None:
        """Add a row that stands for all rows before it."""
        with connection.transaction():
            connection.execute(f"SET TRANSACTION {_READ_COMMITTED}")
            connection.execute(_statements()["lock"], [self.ledger])
            rows = self._lines(connection, None)
            texts = "\n".join(content for _, _, content in rows).split("\n")
            values = self._beginning(compacted(texts, self.ledger), again=True)
            connection.execute(_statements()["begin"], values)

    def _beginning(self, texts: Sequence[str], *, again: bool) -> dict[str, Any]:
        """Return the row of a header and lines; `again` for an epoch that has begun."""
        epoch, content = Line.from_text(texts[0], self.ledger).number, "\n".join(texts)
        row = {"ledger": self.ledger, "epoch": epoch, "content": content}
        return {**row, "again": again}

    def _lines(self, connection: Connection, number: int | None) -> list[Any]:
        values = {"ledger": self.ledger, "number": number}
        return connection.execute(_statements()["lines"], values).fetchall()

    def _locked(
        self, connection: Connection, lock: str, name: str, **values: Any
    ) -> list[Any]:
        """Run a statement in a transaction that keeps other writers away.

        The server's settings are read back: they may have changed since the connection
        began.
        """
        with connection.pipeline() as pipeline:
            connection.execute(f"BEGIN {_READ_COMMITTED}")
            connection.execute(_statements()["lock"], [lock])
            durable = connection.execute(sql_of()["durable"])
            values["ledger"] = self.ledger
            answer = connection.execute(_statements()[name], values)
            pipeline.sync()
            self._server.check_durable(durable.fetchall()[0])
            connection.execute("COMMIT")
        return answer.fetchall()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Give the connection to a block; after an error it is never used again."""
        try:
            connection = self._server.open()
            self._check_place(connection)
            yield connection
        except BaseException as error:
            self._server.drop()
            if isinstance(error, psycopg.errors.UndefinedTable):
                raise FileNotFoundError from None
            if isinstance(error, psycopg.Error):
                raise OSError(self._server.clean(error)) from None
            raise

    def _check_place(self, connection: Connection) -> None:
        """Refuse a witness in the ledger's own database."""
        if self._ledger is None:
            return
        with self._ledger.connect() as other:
            name = "system_identifier"
            same = connection.facts[name] == other.facts[name]
            same = same and connection.info.dbname == other.info.dbname
        if same:
            msg = (
                f"the witness {self.place} is in the ledger's own database: one "
                "restore would bring both back, and nothing would show it. Set "
                "DPFLOW_WITNESS to another database, best on another server, or to a "
                "folder."
            )
            raise ConfigurationError(msg)
        self._ledger = None


@cache
def _statements() -> Mapping[str, bytes]:
    statements = named_statements("dpflow.ledger.witness", "postgres")
    return {name: sql.encode() for name, sql in statements.items()}
