"""A witness in a PostgreSQL database, which must not be the ledger's own.

Rows are raised in place, under the locks of their datasets, so that the witness does
not grow with the charges but for the hashes, which are thinned.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import psycopg

from dpflow.exceptions import ConfigurationError
from dpflow.interrupts import contextmanager
from dpflow.ledger.tables.errors import is_postgres
from dpflow.ledger.tables.postgres_connection import Connection, Server
from dpflow.ledger.tables.postgres_pipeline import StatementPipeline
from dpflow.ledger.tables.statements import SQL, read_statements
from dpflow.ledger.witness.base import Accounts, Prove, Witness
from dpflow.ledger.witness.lines import Line, Row, Witnessed


class _WitnessServer(Server):
    keeps = "witness"
    lock_seconds = 20.0

    def translate_error(self, error: psycopg.Error) -> Exception:
        """Return the error of a place that has no witness, or does not answer."""
        if isinstance(error, psycopg.errors.UndefinedTable):
            return FileNotFoundError(errno.ENOENT, _ABSENT)
        return OSError(errno.EIO, self.clean(error))


class PostgresWitness(Witness):
    """The witness of one ledger in a schema `dpflow_witness` of a database.

    Args:
        url: `postgresql://user:password@host:port/database`.
        ledger_url: URL of the ledger, if it is on PostgreSQL, too.
        ledger: Id of the ledger.

    Raises:
        ConfigurationError: If a URL cannot be read.
    """

    #: Ends wait for the next line: each line alone is a trip.
    most_ends = 100

    def __init__(self, url: str, ledger_url: str | None, ledger: str) -> None:
        self._server = _WitnessServer(url)
        super().__init__(self._server.address, ledger)
        #: The ledger's server, until it was compared with the witness's.
        self._ledger = None if ledger_url is None else Server(ledger_url)

    def check_apart(self, ledger_url: str) -> None:
        """Refuse the witness's own database as a place of the ledger."""
        if is_postgres(ledger_url):
            ledger = Server(ledger_url)
            with ledger.connect():
                pass  # One that does not answer is not the witness.
            self._call(self._compare_to, ledger)

    def _compare_to(self, ledger: Server) -> None:
        with self._server.session() as connection:
            self._compare_databases(connection, ledger)

    def _load(self, datasets: Sequence[str] | None, accounts: Accounts) -> Witnessed:
        with self._connect() as connection:
            pipeline = StatementPipeline(connection)
            if datasets is None:
                self._add(pipeline, "read_all")
            else:
                self._add_reading(pipeline, [*datasets, *accounts()])
            (answer,) = pipeline.collect()
            state = _state_of(pipeline.rows(answer))
            pipeline.leave()
        return state

    def _add_reading(self, pipeline: StatementPipeline, names: Sequence[str]) -> None:
        """Ask for all rows with some names but for the hashes."""
        self._add(pipeline, "read_rows", names=[*names, ""])

    def _raise(
        self, lines: Sequence[Line], prove: Prove, *, synced: bool
    ) -> Sequence[Line]:
        del synced
        datasets = sorted({line.dataset for line in lines})
        names = [name for x in lines for name in (*x.accounts, *x.people)]
        with self._connect() as connection:
            pipeline = StatementPipeline(connection)
            pipeline.add(b"BEGIN")
            pipeline.add(SQL["durable"])
            for name in datasets:
                self._add(pipeline, "lock", name=name)
            self._add_reading(pipeline, [*datasets, *names])
            _, settings, *_, rows = pipeline.collect()
            # They may have changed since the connection began.
            self._server.check_durable(*pipeline.rows(settings))
            state = _state_of(pipeline.rows(rows))
            before = {*state.rows()}
            written = self._choose(state, lines, (), prove)
            for line in written:
                state.add(line)
            for row in {*state.rows()} - before:
                self._add_row(pipeline, row)
            for name, hashes in state.hashes.items():
                self._add(pipeline, "thin", name=name, number=max(hashes))
            pipeline.end(b"COMMIT")
        return written

    def _add_row(self, pipeline: StatementPipeline, row: Row) -> None:
        self._add(pipeline, "put", **dict(zip(_COLUMNS, row, strict=True)))

    def _begin(self, state: Witnessed, *, anew: bool) -> None:
        with self._connect() as connection:
            if connection.execute(_statements()["find_table"]).fetchall() == [(None,)]:
                connection.execute(_statements()["schema"], prepare=False)
            pipeline = StatementPipeline(connection)
            pipeline.add(b"BEGIN")
            self._add(pipeline, "lock", name="")
            self._add(pipeline, "read_all")
            *_, answer = pipeline.collect()
            if answer.ntuples and not anew:
                raise self.refuse_second()
            self._add(pipeline, "forget")
            for row in (("ledger", "", 0, "0"), *state.rows()):
                self._add_row(pipeline, row)
            pipeline.end(b"COMMIT")

    def _add(self, pipeline: StatementPipeline, title: str, **values: Any) -> None:
        pipeline.add(_statements()[title], {"ledger": self.ledger, **values})

    @contextmanager
    def _connect(self) -> Iterator[Connection]:
        """Give the connection to a block, unless it leads to the ledger's database."""
        with self._server.session() as connection:
            if self._ledger is not None:
                self._compare_databases(connection, self._ledger)
                self._ledger = None
            yield connection

    def _compare_databases(self, connection: Connection, ledger: Server) -> None:
        """Refuse a witness in the ledger's own database."""
        with ledger.connect() as other:
            both = [
                (c.properties["system_identifier"], c.info.dbname)
                for c in (connection, other)
            ]
        if both[0] == both[1]:
            msg = (
                f"the witness {self.address} is in the ledger's own database: "
                "one restore would bring both back, and nothing would show "
                "it. Set DPFLOW_WITNESS to another database, best on another "
                "server, or to a folder."
            )
            raise ConfigurationError(msg)


_ABSENT = "there is no witness"
_COLUMNS = ("kind", "name", "number", "value")


def _state_of(rows: Sequence[Row]) -> Witnessed:
    """Return what rows hold, one of which says that the witness was begun."""
    state = Witnessed()
    for row in rows:
        state.put(row)
    if not any(row[0] == "ledger" for row in rows):
        # An error without a number would pass for an interrupt.
        raise FileNotFoundError(errno.ENOENT, _ABSENT)
    return state


@cache
def _statements() -> Mapping[str, bytes]:
    texts = read_statements("postgres", "witness")
    return {name: text.encode() for name, text in texts.items()}
