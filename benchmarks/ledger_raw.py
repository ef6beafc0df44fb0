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
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

#: What a charge's two transactions ask and write, by name; the same in both dialects.
_SQL = {
    "book": "SELECT * FROM book JOIN term ON term.book = name AND term.number = terms "
    "WHERE name = :book",
    "account": "SELECT * FROM account WHERE id = :account",
    "charge": "SELECT * FROM charge WHERE id = :charge",
    "entries": "SELECT entry.*, before.hash FROM entry LEFT JOIN entry AS before "
    "ON before.book = entry.book AND before.number = entry.number - 1 "
    "WHERE entry.book = :book AND entry.number IN (1, :before)",
    "append": "INSERT INTO entry (book, number, kind, charge, postings, body, at, "
    "writer, hash) VALUES (:book, :number, :kind, :charge, :postings, :body, :at, "
    ":writer, :hash)",
    "move_book": "UPDATE book SET number = :number, hash = :hash WHERE name = :book",
    "move_account": "UPDATE account SET entry = :number, settled = :settled, "
    "held = :held WHERE id = :account",
    "open_charge": "INSERT INTO charge (id, state, owner, places, held, added, epoch) "
    "VALUES (:charge, 'open', :owner, :places, :holds, '{}', 0)",
    "end_charge": "UPDATE charge SET state = 'settled', places = :places, held = '{}' "
    "WHERE id = :charge",
}
_ASKED = ("charge", "book", "account", "entries")
_LOCK = "SELECT name FROM book WHERE name = :book FOR UPDATE"

_Values = Mapping[str, Any]
#: Runs named statements in one transaction: first those asked, then those that write.
Transact = Callable[[Sequence[str], Sequence[str], _Values], None]


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
    opened = _of_file(url) if url.startswith("sqlite") else _of_server(url)
    with opened as (transact, read):
        pair = _Pair(transact, read, asks=asks)
        yield pair.write


_Read = Callable[[str], list[tuple[Any, ...]]]


@contextlib.contextmanager
def _of_file(url: str) -> Iterator[tuple[Transact, _Read]]:
    with contextlib.closing(_durable(Path(url.removeprefix("sqlite:///")))) as raw:

        def transact(
            asked: Sequence[str], written: Sequence[str], values: _Values
        ) -> None:
            raw.execute("BEGIN IMMEDIATE")
            for name in asked:
                raw.execute(_SQL[name], values).fetchall()
            for name in written:
                raw.execute(_SQL[name], values)
            raw.execute("COMMIT")

        yield transact, lambda sql: raw.execute(sql).fetchall()


@contextlib.contextmanager
def _of_server(url: str) -> Iterator[tuple[Transact, _Read]]:
    named = {
        name: re.sub(r":(\w+)", r"%(\1)s", sql).encode()
        for name, sql in {**_SQL, "lock": _LOCK}.items()
    }
    options = "-c search_path=dpflow"
    with psycopg.connect(url, autocommit=True, options=options) as raw:

        def transact(
            asked: Sequence[str], written: Sequence[str], values: _Values
        ) -> None:
            with raw.pipeline():
                raw.execute(b"BEGIN")
                if asked:
                    raw.execute(named["lock"], values)
                    for answer in [raw.execute(named[name], values) for name in asked]:
                        answer.fetchall()
                for name in written:
                    raw.execute(named[name], values)
                raw.execute(b"COMMIT")

        yield transact, lambda sql: raw.execute(sql.encode()).fetchall()


class _Pair:
    """Writes copies of the newest charge's rows, under new ids and numbers."""

    def __init__(self, transact: Transact, read: _Read, *, asks: bool) -> None:
        self._transact = transact
        self._asked = _ASKED if asks else ()
        columns = "kind, postings, body, at, writer, hash, number"
        sql = f"SELECT {columns} FROM entry ORDER BY number DESC LIMIT 2"
        found = [dict(zip(columns.split(", "), row, strict=True)) for row in read(sql)]
        self._entries = found[::-1]
        ((self._owner,),) = read("SELECT owner FROM charge LIMIT 1")
        self._number = found[0]["number"]

    def write(self) -> None:
        """Write one charge."""
        charge = uuid.uuid4().hex
        ways = (("open_charge", 0), ("end_charge", self._number + 2))
        for entry, (moved, ended) in zip(self._entries, ways, strict=True):
            self._number += 1
            made = self._number - (ended > 0)
            values = {
                **entry,
                "book": "d0",
                "account": "d0#1",
                "charge": charge,
                "owner": self._owner,
                "number": self._number,
                "before": self._number - 1,
                "settled": "[1000000000000000000000000000000,0]",
                "held": "[1000000000000000000000000000000,0]",
                "holds": '{"d0#1":[1000000000000000000000000000000,0]}',
                "places": f'{{"d0":[{made},{ended}]}}',
            }
            self._transact(
                self._asked, ("append", "move_book", "move_account", moved), values
            )
