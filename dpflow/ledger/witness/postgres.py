"""A witness in a PostgreSQL database, which must not be the ledger's own.

Rows are only ever added. Now and then a process adds a row with fewer lines, which
stand for all that it has compared with the ledger, so that the next process reads less.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import psycopg

from dpflow.exceptions import ConfigurationError
from dpflow.interrupts import contextmanager
from dpflow.ledger.storage.postgres_connection import Connection, Server, sql_of
from dpflow.ledger.storage.tables import named_statements
from dpflow.ledger.witness.base import Change, End, Line, Stored, Witness


class _WitnessServer(Server):
    keeps = "witness"
    lock_seconds = 20.0

    def translated(self, error: psycopg.Error) -> Exception:
        """Return the error of a place that has no witness, or does not answer."""
        if isinstance(error, psycopg.errors.UndefinedTable):
            return _not_begun()
        return OSError(errno.EIO, self.clean(error))


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
        self._ledger = None if ledger_url is None else Server(ledger_url)

    def read(self, end: End | None) -> Stored:
        """Return the lines after an end, in one trip."""
        with self._connected() as connection:
            rows = self._rows(connection, end)
        if not rows:
            raise _not_begun()
        first = end.at if end is not None else rows[0][0]
        if [row[0] for row in rows] != [*range(first, first + len(rows))]:
            what = f"lines are missing after number {first}"
            raise OSError(errno.EIO, what)
        texts, anew = list[str](), False
        # The row of the end was read before.
        for number, epoch, content in rows[end is not None :]:
            if epoch is None and end is not None:
                texts.append(content)
                end = end._replace(at=number, lines=end.lines + 1)
                continue
            mark, lines = epoch, content.split("\n")
            # Rows of the same epoch have fewer lines, all of which were read.
            if end is None or end.mark != mark:
                texts, anew = lines, True
            end = End(mark, number, len(lines))
        assert end is not None
        return texts, anew, end

    def write(self, texts: Sequence[str], end: End | None) -> End | None:
        """Append lines; they are numbered under a lock, so that no reader skips one."""
        with self._turn(self.ledger) as connection:
            values = {"ledger": self.ledger, "texts": [*texts]}
            rows = connection.execute(_statements()["append"], values).fetchall()
            if not rows:
                raise _not_begun()
        numbers = sorted(number for (number,) in rows)
        if end is None or numbers[0] != end.at + 1:
            return None
        return end._replace(at=numbers[-1], lines=end.lines + len(rows))

    def rewrite(self, change: Change) -> None:
        """Add a row that stands for all rows before it; make the table if need be."""
        with self._turn("") as connection:
            there = connection.execute(_statements()["has_table"]).fetchone()
            if there != (True,):
                for statement in _statements()["schema"].split(b";\n"):
                    connection.execute(statement, prepare=False)
            connection.execute(_statements()["lock"], [self.ledger])
            old = [text for *_, text in self._rows(connection, None)]
            texts = change("\n".join(old).split("\n") if old else None)
            epoch = Line.from_text(texts[0], self.ledger).number
            row = {"ledger": self.ledger, "epoch": epoch, "content": "\n".join(texts)}
            connection.execute(_statements()["begin"], row)

    def _rows(self, connection: Connection, end: End | None) -> list[Any]:
        values = {"ledger": self.ledger, "number": None if end is None else end.at}
        return connection.execute(_statements()["lines"], values).fetchall()

    @contextmanager
    def _turn(self, lock: str) -> Iterator[Connection]:
        """Run a block in a transaction that keeps other writers away.

        The server's settings are read back: they may have changed since the connection
        began.
        """
        with self._connected() as connection, connection.pipeline():
            connection.execute("BEGIN")
            connection.execute(_statements()["lock"], [lock])
            durable = connection.execute(sql_of()["durable"])
            yield connection
            self._server.check_durable(durable.fetchall()[0])
            connection.execute("COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Give the connection to a block, unless it leads to the ledger's database."""
        with self._server.session() as connection:
            if self._ledger is not None:
                with self._ledger.connect() as other:
                    both = [
                        (c.facts["system_identifier"], c.info.dbname)
                        for c in (connection, other)
                    ]
                if both[0] == both[1]:
                    msg = (
                        f"the witness {self.place} is in the ledger's own database: "
                        "one restore would bring both back, and nothing would show "
                        "it. Set DPFLOW_WITNESS to another database, best on another "
                        "server, or to a folder."
                    )
                    raise ConfigurationError(msg)
                self._ledger = None
            yield connection


def _not_begun() -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


@cache
def _statements() -> Mapping[str, bytes]:
    statements = named_statements("dpflow.ledger.witness", "postgres")
    return {name: sql.encode() for name, sql in statements.items()}
