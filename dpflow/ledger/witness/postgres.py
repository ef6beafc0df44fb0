"""Witnesses in a PostgreSQL database, which must not be the ledger's own.

Lines are only ever added. Now and then a process adds a summary of those that it has
compared with the ledger, so that the next one to start reads fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, TypeVar

import psycopg

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerUnavailable,
)
from dpflow.ledger.storage.postgres_connection import (
    Connection,
    Server,
    Session,
    sql_of,
)
from dpflow.ledger.storage.sql import named_statements
from dpflow.ledger.witness.lines import (
    KEPT,
    Found,
    Header,
    Line,
    LogError,
    NotBegun,
    compacted,
)
from dpflow.locks import Lock

_LOCK_SECONDS = 20.0
#: How long a thread waits for the others of its process.
_THREAD_SECONDS = 60.0
_Answer = TypeVar("_Answer")


class LogEnd(NamedTuple):
    """Up to where the lines of an epoch were read."""

    epoch: int
    number: int


class _WitnessServer(Server):
    keeps = "witness"

    def translated(self, error: psycopg.Error) -> DpflowError:
        """Tell what the server said; there is no ledger to speak of."""
        return LedgerUnavailable(self.clean(error))


class PostgresLog:
    """The log in a schema `dpflow_witness` of a database.

    One connection per object, used by one thread at a time and never across a fork.

    Args:
        url: `postgresql://user:password@host:port/database`.
        ledger_url: Of the ledger, if it is on PostgreSQL too.

    Raises:
        ConfigurationError: If a URL cannot be read.
    """

    advice = "Restore it"

    def __init__(self, url: str, ledger_url: str | None = None) -> None:
        self._alone = Lock()
        self._server = _WitnessServer(url, lock_seconds=_LOCK_SECONDS)
        #: The ledger's server, until it is known to be another one.
        self._ledger: Server | None = None
        if ledger_url is not None:
            self._ledger = Server(ledger_url, lock_seconds=_LOCK_SECONDS)
        self.place = self._server.place
        self._session = Session(self._server)
        #: From which number on a summary is due, by ledger.
        self._due: dict[str, int] = {}

    def read(self, ledger: str, header: str, end: LogEnd | None) -> Found:
        """Return the lines of the newest epoch after an end; one trip, as a rule."""

        def ask(connection: Connection) -> Found:
            def after(number: int) -> list[Any]:
                return _run(connection, "lines", ledger=ledger, number=number)

            texts = [header]
            number, rows = (0, []) if end is None else (end.number, after(end.number))
            if end is None or not rows or rows[0][0] != end.epoch:
                summary = _run(connection, "summary", ledger=ledger)
                number, texts = 0, []
                if summary:
                    number, texts = summary[0][1], summary[0][2].split("\n")
                rows = after(number)
                if summary and (not rows or rows[0][0] != summary[0][0]):
                    number, texts, rows = 0, [], after(0)
            if not rows:
                raise NotBegun
            if [row[1] for row in rows] != [*range(number, number + len(rows))]:
                msg = f"lines are missing after number {number}"
                raise LogError(msg)
            # The row of the end was read before, but for a header.
            texts += [row[2] for row in rows[bool(texts) :]]
            return Found(texts[0], texts[1:], LogEnd(*rows[-1][:2]))

        return self._asked(ask)

    def begin(self, ledger: str, epoch: int, header: str, lines: Sequence[str]) -> bool:
        """Begin an epoch, all or nothing; make the tables if there are none."""

        def ask(connection: Connection) -> bool:
            with connection.transaction():
                connection.execute(_statements()["lock"], [""])
                if _run(connection, "has_tables") != [(True,)]:
                    connection.execute(_statements()["schema"], prepare=False)
            texts = [header, *lines]
            values = {"ledger": ledger, "epoch": epoch, "texts": texts}
            return len(self._locked(connection, ledger, "begin", values)) == len(texts)

        return self._asked(ask)

    def append(
        self, ledger: str, lines: Sequence[str], end: LogEnd | None
    ) -> LogEnd | None:
        """Append lines; they are numbered under a lock, so that no reader skips one."""

        def ask(connection: Connection) -> LogEnd | None:
            values = {"ledger": ledger, "texts": [*lines]}
            told = sorted(self._locked(connection, ledger, "append", values))
            if len(told) != len(lines):
                raise NotBegun
            if end is not None and end.number >= self._due.get(ledger, KEPT):
                with suppress(psycopg.Error):
                    self._summarise(connection, ledger, end)
            epoch, number = told[0]
            return LogEnd(*told[-1]) if end == (epoch, number - 1) else None

        return self._asked(ask)

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""

        def ask(connection: Connection) -> str:
            values, name = {"source": source, "ledger": ledger}, f"source {source}"
            return str(self._locked(connection, name, "claim", values)[0][0])

        return self._asked(ask)

    def _locked(
        self, connection: Connection, lock: str, name: str, values: Mapping[str, Any]
    ) -> list[Any]:
        """Run a statement in a transaction that keeps other writers away.

        The server's settings are read back: they may be others than at the connect.
        """
        with connection.pipeline() as pipeline:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            connection.execute(_statements()["lock"], [lock])
            durable = connection.execute(sql_of()["durable"])
            answer = connection.execute(_statements()[name], values)
            pipeline.sync()
            self._server.check_durable(durable.fetchall()[0])
            connection.execute("COMMIT")
        return answer.fetchall()

    def _summarise(self, connection: Connection, ledger: str, end: LogEnd) -> None:
        """Add a summary of the lines up to an end, all compared with the ledger."""
        texts, first = list[str](), 0
        for epoch, number, content in _run(connection, "summary", ledger=ledger):
            if epoch == end.epoch:
                texts, first = content.split("\n")[1:], number
        self._due[ledger] = first + max(KEPT, len(texts))
        if end.number < self._due[ledger]:
            return
        rows = _run(connection, "lines", ledger=ledger, number=first + 1)
        texts += [text for _, number, text in rows if number <= end.number]
        lines = [Line.from_text(text, ledger) for text in texts]
        if None in lines or not rows or rows[0][0] != end.epoch:
            # The next to read them says so.
            return
        fewer = compacted([line for line in lines if line is not None])
        header = Header(ledger=ledger, epoch=end.epoch, whole=False).to_text()
        content = header + "".join(line.to_text(ledger) for line in fewer)
        values = {"ledger": ledger, **end._asdict(), "content": content[:-1]}
        connection.execute(_statements()["summarise"], values)
        self._due[ledger] = end.number + max(KEPT, len(fewer))

    def _asked(self, ask: Callable[[Connection], _Answer]) -> _Answer:
        """Ask while no other thread does; after an error, never on this connection."""

        def alone() -> _Answer:
            try:
                return ask(self._connected())
            except BaseException as error:
                self._session.drop()
                if isinstance(error, psycopg.errors.UndefinedTable):
                    raise NotBegun from None
                if isinstance(error, psycopg.Error):
                    raise LogError(self._server.clean(error)) from None
                if isinstance(error, LedgerUnavailable):
                    raise LogError(error.message) from None
                raise

        return self._alone.run(alone, _THREAD_SECONDS)

    def _connected(self) -> Connection:
        """Return a connection to another database than the ledger's own."""
        connection = self._session.open()
        if self._ledger is not None:
            with self._ledger.connect() as other:
                name = "system_identifier"
                same = connection.facts[name] == other.facts[name]
                same = same and connection.info.dbname == other.info.dbname
            if same:
                msg = (
                    f"the witness {self.place} is in the ledger's own database: one "
                    "restore would bring both back, and nothing would tell. Set "
                    "DPFLOW_WITNESS to another database, best on another server, or to "
                    "a folder."
                )
                raise ConfigurationError(msg)
            self._ledger = None
        return connection


def _run(connection: Connection, name: str, **values: Any) -> list[Any]:
    return connection.execute(_statements()[name], values).fetchall()


@cache
def _statements() -> Mapping[str, bytes]:
    found = named_statements("dpflow.ledger.witness", "postgres")
    return {name: sql.encode() for name, sql in found.items()}
