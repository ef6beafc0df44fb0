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
import json
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from dpflow.ledger.entry import canonical

#: What a charge's two transactions ask and write, by name; the same in both dialects.
_SQL = {
    "rows": "SELECT key, value FROM row WHERE key IN (:book_key, :term_key, "
    ":account_key, :charge_key)",
    "entries": "SELECT entry.*, before.hash FROM entry LEFT JOIN entry AS before "
    "ON before.book = entry.book AND before.number = entry.number - 1 "
    "WHERE entry.book = :book AND entry.number IN (1, :before)",
    "append": "INSERT INTO entry (book, number, kind, charge, postings, body, at, "
    "writer, hash) VALUES (:book, :number, :kind, :charge, :postings, :body, :at, "
    ":writer, :hash)",
    "move": "INSERT INTO row (key, value) VALUES (:book_key, :book_row), "
    "(:account_key, :account_row), (:charge_key, :charge_row) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
}
_ASKED = ("rows", "entries")
_LOCK = "SELECT key FROM row WHERE key = :book_key FOR UPDATE"

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
        self._number = found[0]["number"]
        rows = dict(read("SELECT key, value FROM row"))
        self._book, self._account, self._charge = (
            json.loads(next(rows[key] for key in rows if key.startswith(kind)))
            for kind in ("book:d0", "account:d0#1", "charge:")
        )

    def write(self) -> None:
        """Write one charge."""
        charge = uuid.uuid4().hex
        amounts = [10**30, 0]
        ways = (("open", 0, {"d0#1": amounts}), ("settled", self._number + 2, {}))
        for entry, (state, ended, held) in zip(self._entries, ways, strict=True):
            self._number += 1
            made = self._number - (ended > 0)
            self._book[1:3] = self._number, entry["hash"]
            self._account[2:5] = self._number, amounts, amounts
            self._charge[:2] = charge, state
            self._charge[3:5] = {"d0": [made, ended]}, held
            values = {
                **entry,
                "book": "d0",
                "charge": charge,
                "number": self._number,
                "before": self._number - 1,
                "book_key": "book:d0",
                "term_key": "term:d0#1",
                "account_key": "account:d0#1",
                "charge_key": f"charge:{charge}",
                "book_row": canonical(self._book),
                "account_row": canonical(self._account),
                "charge_row": canonical(self._charge),
            }
            self._transact(self._asked, ("append", "move"), values)
