"""A witness in a PostgreSQL database, which must not be the ledger's own.

Rows are raised in place, so that the witness does not grow with the charges but for
the hashes, which are thinned.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

from dpflow.exceptions import ConfigurationError
from dpflow.interrupts import contextmanager
from dpflow.ledger.tables.postgres_connection import (
    Connection,
    Server,
    session_statements,
)
from dpflow.ledger.tables.rows import amounts_text
from dpflow.ledger.witness.base import Accounts, Prove, Witness, list_proofs
from dpflow.ledger.witness.lines import Head, Line, Witnessed, WitnessedUse


def say_absent() -> FileNotFoundError:
    """Return the error of a place without a witness."""
    # An error without a number would pass for an interrupt.
    return FileNotFoundError(errno.ENOENT, "there is no witness")


class _WitnessServer(Server):
    keeps = "witness"
    lock_seconds = 20.0

    def translated(self, error: psycopg.Error) -> Exception:
        """Return the error of a place that has no witness, or does not answer."""
        if isinstance(error, psycopg.errors.UndefinedTable):
            return say_absent()
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
        #: Lines of ends, which are written with the next line.
        self._ends: list[Line] = []

    def _read(self, datasets: Sequence[str], accounts: Accounts) -> Witnessed:
        names = {"datasets": [*datasets], "accounts": [*accounts()]}
        with self._connected() as connection, connection.pipeline():
            there = self._ask(connection, "read_ledger")
            heads = self._ask(connection, "read_heads", **names)
            uses = self._ask(connection, "read_uses", **names)
            if not there.fetchall():
                raise say_absent()
            return _witnessed(heads.fetchall(), uses.fetchall())

    def _read_all(self) -> Witnessed:
        with self._connected() as connection:
            if not self._ask(connection, "read_ledger").fetchall():
                raise say_absent()
            heads, uses, people, hashes = (
                self._ask(connection, f"read_all_{name}").fetchall()
                for name in ("heads", "uses", "people", "hashes")
            )
        state = _witnessed(heads, uses)
        state.people = {name: (number, newest) for name, number, newest in people}
        for dataset, number, digest in hashes:
            state.hashes.setdefault(dataset, {})[number] = digest
        return state

    def _record(self, lines: Sequence[Line], prove: Prove, *, synced: bool) -> None:
        if not synced:
            # Only so many: a process that ends charges only writes them, too.
            self._ends.extend(lines)
            if len(self._ends) < _MOST_ENDS:
                return
            lines = []
        every = [*self._ends, *lines]
        names = sorted({line.dataset for line in every})
        with self._turn() as connection:
            there = self._ask(connection, "read_ledger")
            found = self._ask(connection, "lock_heads", datasets=names)
            if not there.fetchall():
                raise say_absent()
            state = _witnessed(found.fetchall(), [])
            self.check_epochs(state.heads, lines)
            proofs = list_proofs(state.heads, every)
            forked = self.find_fork(proofs, every, prove)
            if forked is not None:
                head = state.heads[forked]._replace(forked=True)
                self._put_head(connection, forked, head)
            else:
                self._put(connection, state, every)
        if forked is not None:
            raise self.say_forked(forked)
        self._ends = []

    def _put(
        self, connection: Connection, state: Witnessed, lines: Sequence[Line]
    ) -> None:
        """Raise rows by lines."""
        for line in lines:
            state.add(line)
            if line.epoch < state.heads[line.dataset].epoch:
                continue
            place = {"dataset": line.dataset, "number": line.number}
            self._ask(connection, "put_hash", **place, hash=line.hash)
            self._ask(connection, "thin_hashes", **place)
            for name, newest in line.people.items():
                row = {"account": name, "number": line.number, "newest": newest}
                anew = line.kind == "repair"
                self._ask(connection, "put_people", **row, anew=anew)
        for dataset, head in state.heads.items():
            self._put_head(connection, dataset, head)
        for name, use in state.uses.items():
            text = amounts_text(use.used)
            row = {"account": name, "epoch": use.epoch, "version": use.version}
            self._ask(connection, "put_use", **row, used=text)

    def _put_head(self, connection: Connection, dataset: str, head: Head) -> None:
        self._ask(connection, "put_head", dataset=dataset, **head._asdict())

    def _begin(self, state: Witnessed, *, anew: bool) -> None:
        with self._connected() as connection, connection.transaction():
            (there,) = connection.execute(_statements()["has_table"]).fetchall()
            if there != (True,):
                connection.execute(_statements()["schema"], prepare=False)
            self._ask(connection, "lock_ledger")
            if self._ask(connection, "read_ledger").fetchall() and not anew:
                raise self.refuse_second()
            for statement in _statements()["forget_ledger"].split(b";\n"):
                connection.execute(statement, {"ledger": self.ledger})
            self._ask(connection, "begin_ledger")
            state.thin()
            for dataset, head in state.heads.items():
                self._put_head(connection, dataset, head)
                for number, digest in state.hashes.get(dataset, {}).items():
                    row = {"dataset": dataset, "number": number, "hash": digest}
                    self._ask(connection, "put_hash", **row)
            for name, use in state.uses.items():
                row = {"account": name, "epoch": use.epoch, "version": use.version}
                self._ask(connection, "put_use", **row, used=amounts_text(use.used))
            for name, (number, newest) in state.people.items():
                row = {"account": name, "number": number, "newest": newest}
                self._ask(connection, "put_people", **row, anew=True)

    def _ask(self, connection: Connection, statement: str, **values: Any) -> Any:
        values["ledger"] = self.ledger
        return connection.execute(_statements()[statement], values)

    @contextmanager
    def _turn(self) -> Iterator[Connection]:
        """Run a block in a transaction whose commit lasts.

        The server's settings are read back: they may have changed since the connection
        began.
        """
        with self._connected() as connection, connection.pipeline():
            connection.execute(b"BEGIN")
            durable = connection.execute(session_statements()["durable"])
            yield connection
            self._server.check_durable(durable.fetchall()[0])
            connection.execute(b"COMMIT")

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
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


#: Lines of ends that wait for the next line.
_MOST_ENDS = 100


def _witnessed(heads: Sequence[Any], uses: Sequence[Any]) -> Witnessed:
    return Witnessed(
        heads={row[0]: Head(*row[1:]) for row in heads},
        uses={
            name: WitnessedUse(epoch, version, tuple(json.loads(used)))
            for name, epoch, version, used in uses
        },
    )


@cache
def _statements() -> Mapping[str, bytes]:
    text = files(__package__).joinpath("postgres.sql").read_text("utf-8")
    named = {}
    for part in text.split("-- name: ")[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        named[title.strip()] = "\n".join(lines).strip().encode()
    return named
