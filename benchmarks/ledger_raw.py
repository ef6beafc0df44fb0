"""What a raw driver needs for what a charge writes: the limits of a ledger's speed.

Three of them, each with the ledger's durability and without any witness:

    bytes    two commits of as many bytes as a charge's, in one row of a table
    rows     two commits of the very rows of a charge, into the ledger's own tables
    checked  as `rows`, and the questions that any checked charge has to ask first

On PostgreSQL the rows of a transaction are sent in one pipelined trip, and the
questions in one before it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
from dpflow.ledger.database import statements
from dpflow.ledger.postgres_server import postgres_statements
from psycopg.rows import dict_row

#: What a charge asks before it reserves, and before it settles.
_BEFORE_RESERVE = ("read_reservation", "newest_term", "read_account", "newest_entries")
_BEFORE_SETTLE = (
    "read_reservation",
    "read_account",
    "newest_entries",
    "reserved_amount",
)

_Run = Callable[[str, Mapping[str, Any]], Any]
_Statement = tuple[str, Mapping[str, Any]]
Transact = Callable[[list[_Statement], list[_Statement]], None]


@contextlib.contextmanager
def of_bytes(url: str, size: int) -> Iterator[Callable[[], None]]:
    """Give a function that commits half of so many bytes, twice."""
    body = os.urandom(size // 2)
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///")).with_suffix(".raw")
        with contextlib.closing(_durable(path)) as raw:
            raw.execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, body BLOB)")

            def write() -> None:
                for _ in range(2):
                    raw.execute("BEGIN IMMEDIATE")
                    raw.execute("INSERT INTO raw (body) VALUES (?)", (body,))
                    raw.execute("COMMIT")

            yield write
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE raw (id bigserial, body bytea)")

        def write_to_server() -> None:
            for _ in range(2):
                connection.execute("INSERT INTO raw (body) VALUES (%s)", (body,))

        yield write_to_server


def _durable(path: Path) -> sqlite3.Connection:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.row_factory = sqlite3.Row
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    return raw


@contextlib.contextmanager
def of_rows(url: str, *, asks: bool) -> Iterator[Callable[[], None]]:
    """Give a function that writes a charge's rows to a ledger that has some.

    Args:
        url: A ledger of its own: what is written is no valid history.
        asks: Whether it asks what a checked charge asks first.
    """
    with _transactions(url) as (transact, run):
        pair = _Pair(transact, run, asks=asks)
        yield pair.write


def _transactions(url: str) -> AbstractContextManager[tuple[Transact, _Run]]:
    return _of_file(url) if url.startswith("sqlite") else _of_server(url)


@contextlib.contextmanager
def _of_file(url: str) -> Iterator[tuple[Transact, _Run]]:
    sql = statements()
    with contextlib.closing(_durable(Path(url.removeprefix("sqlite:///")))) as raw:

        def run(name: str, values: Mapping[str, Any]) -> list[Any]:
            return raw.execute(sql.get(name, name), values).fetchall()

        def transact(asked: list[_Statement], written: list[_Statement]) -> None:
            raw.execute("BEGIN IMMEDIATE")
            for name, values in asked:
                raw.execute(sql[name], values).fetchall()
            for name, values in written:
                raw.execute(sql[name], values)
            raw.execute("COMMIT")

        yield transact, run


@contextlib.contextmanager
def _of_server(url: str) -> Iterator[tuple[Transact, _Run]]:
    sql = {name: text.encode() for name, text in postgres_statements().items()}
    options = "-c search_path=dpflow"
    with psycopg.connect(
        url, autocommit=True, row_factory=dict_row, options=options
    ) as raw:

        def run(name: str, values: Mapping[str, Any]) -> list[Any]:
            return raw.execute(sql.get(name, name.encode()), values).fetchall()

        def transact(asked: list[_Statement], written: list[_Statement]) -> None:
            with raw.pipeline():
                raw.execute(b"BEGIN")
                if asked:
                    raw.execute(sql["lock"], {"names": ["d0"]})
                    for answer in [raw.execute(sql[n], values) for n, values in asked]:
                        answer.fetchall()
                for name, values in written:
                    raw.execute(sql[name], values)
                raw.execute(b"COMMIT")

        yield transact, run


class _Pair:
    """Writes copies of the newest charge's rows, under new ids and numbers."""

    def __init__(self, transact: Transact, run: _Run, *, asks: bool) -> None:
        self._transact, self._asks = transact, asks
        (account,) = run("read_account", {"id": "d0#1"})
        settled, held = run("newest_entries", {"account": "d0#1"})
        (charge,) = run("read_reservation", {"id": settled["reservation"]})
        self._account, self._charge = dict(account), dict(charge)
        self._entries = dict(held), dict(settled)

    def write(self) -> None:
        """Write one charge."""
        own = uuid.uuid4().hex
        where = {"id": own, "account": "d0#1", "dataset": "d0", "reservation": own}
        opened = ("open_reservation", {**self._charge, "id": own})
        closed = ("close_reservation", {"id": own, "state": "settled"})
        asked = (_BEFORE_RESERVE, _BEFORE_SETTLE)
        firsts = (opened, closed)
        for first, entry, names in zip(firsts, self._entries, asked, strict=True):
            account = self._account
            before, account["seq"] = account["seq"], account["seq"] + 1
            numbers = {"seq": account["seq"], "reservation": own}
            appended = ("append_entry", {**entry, **numbers})
            moved = ("move_account", {**account, "before": before})
            questions = [("read_ledger", {}), *((n, _asked(n, where)) for n in names)]
            self._transact(questions if self._asks else [], [first, appended, moved])


def _asked(name: str, where: Mapping[str, str]) -> Mapping[str, str]:
    return {**where, "id": "d0#1"} if name == "read_account" else where
