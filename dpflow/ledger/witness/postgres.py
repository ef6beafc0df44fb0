"""Witnesses in a PostgreSQL database, which must not be the ledger's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import psycopg

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerUnavailable,
)
from dpflow.ledger.storage.postgres_connection import (
    Connection,
    Durable,
    Server,
    Session,
)
from dpflow.ledger.witness.lines import Found, LogError, NotBegun
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
        return LedgerUnavailable(self.clean(error) or "no answer")


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
        self._ledger = None
        if ledger_url is not None:
            self._ledger = Server(ledger_url, lock_seconds=_LOCK_SECONDS)
        self.place = self._server.place
        self._session = Session(self._server)
        self._apart = self._ledger is None

    def read(self, ledger: str, header: str, end: LogEnd | None) -> Found:
        """Return the lines of the newest epoch after an end; one trip, as a rule."""

        def ask(connection: Connection) -> Found:
            def rows() -> list[tuple[int, int, str]]:
                asked = {"ledger": ledger, "epoch": known.epoch, "above": known.number}
                return list(_run(connection, "read", **asked))

            known = end or LogEnd(0, 0)
            found = rows()
            if known.number and found and found[0][2] != header:
                known = LogEnd(0, 0)
                found = rows()
            if not found:
                raise NotBegun
            (epoch, first, text), *lines = found
            above = known.number if epoch == known.epoch else 0
            numbers = [number for _, number, _ in lines]
            if first or numbers != list(range(above + 1, above + 1 + len(numbers))):
                msg = f"lines are missing after number {above}"
                raise LogError(msg)
            texts = [content for _, _, content in lines]
            return Found(text, texts, LogEnd(epoch, above + len(texts)))

        return self._asked(ask)

    def begin(
        self, ledger: str, epoch: int, header: str, lines: Sequence[tuple[str, str]]
    ) -> bool:
        """Begin an epoch, in one transaction; make the tables if there are none."""

        def ask(connection: Connection) -> bool:
            with connection.transaction():
                self._lock(connection, "")
                (has_tables,) = _run(connection, "exists").fetchone()
                if not has_tables:
                    connection.execute(_statements()["schema"].encode(), prepare=False)
                every = [("", header), *lines]
                made = _run(
                    connection,
                    "begin",
                    ledger=ledger,
                    epoch=epoch,
                    **_arrays(every),
                )
                return bool(made.rowcount == len(every))

        return self._asked(ask)

    def append(
        self, ledger: str, lines: Sequence[tuple[str, str]], end: LogEnd | None
    ) -> LogEnd | None:
        """Append lines; they are numbered under a lock, so that no reader skips one."""

        def ask(connection: Connection) -> LogEnd | None:
            with connection.transaction():
                self._lock(connection, ledger)
                told = _run(connection, "append", ledger=ledger, **_arrays(lines))
                places = sorted(told.fetchall())
            if len(places) != len(lines):
                raise NotBegun
            before = LogEnd(places[0][0], places[0][1] - 1)
            return LogEnd(*places[-1]) if before == end else None

        return self._asked(ask)

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source; this one, if none had."""

        def ask(connection: Connection) -> str:
            with connection.transaction():
                self._lock(connection, f"source {source}")
                _run(connection, "claim_source", source=source, ledger=ledger)
                row = _run(connection, "read_source", source=source).fetchone()
                assert row is not None
                return str(row[0])

        return self._asked(ask)

    def _lock(self, connection: Connection, name: str) -> None:
        """Keep other writers away; the settings may be others than at the connect."""
        row = _run(connection, "lock", name=name).fetchone()
        assert row is not None
        self._server.check_durable(Durable(*row[:4]))

    def _asked(self, ask: Callable[[Connection], _Answer]) -> _Answer:
        """Ask while no other thread does: not within another's transaction."""

        def alone() -> _Answer:
            with self._open() as connection:
                return ask(connection)

        return self._alone.run(alone, _THREAD_SECONDS)

    @contextmanager
    def _open(self) -> Iterator[Connection]:
        """Lend the connection; after an error it is never used again."""
        try:
            yield self._connected()
        except psycopg.errors.UndefinedTable:
            self._session.drop()
            raise NotBegun from None
        except psycopg.Error as error:
            self._session.drop()
            raise LogError(self._server.clean(error) or "no answer") from None
        except LedgerUnavailable as error:
            self._session.drop()
            raise LogError(error.message) from None
        except BaseException:
            self._session.drop()
            raise

    def _connected(self) -> Connection:
        connection = self._session.open()
        if not self._apart:
            self._check_apart(connection)
        return connection

    def _check_apart(self, connection: Connection) -> None:
        """Refuse the ledger's own database: one restore would bring back both."""
        assert self._ledger is not None
        with self._ledger.connect() as other:
            same = connection.system_identifier == other.system_identifier
            same = same and connection.info.dbname == other.info.dbname
        if same:
            connection.close()
            msg = (
                f"the witness {self.place} is in the ledger's own database: one "
                "restore would bring both back, and nothing would tell. Set "
                "DPFLOW_WITNESS to another database, best on another server, or to a "
                "folder."
            )
            raise ConfigurationError(msg)
        self._apart = True


def _run(connection: Connection, statement: str, **values: object) -> Any:
    return connection.execute(_statements()[statement].encode(), values)


@cache
def _statements() -> Mapping[str, str]:
    text = files("dpflow.ledger.witness").joinpath("postgres.sql").read_text("utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name.strip(): sql.strip().rstrip(";") for name, _, sql in parts}


def _arrays(lines: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    return {
        "books": [book for book, _ in lines],
        "texts": [text for _, text in lines],
    }
