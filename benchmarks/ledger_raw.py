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
from dpflow.ledger.entry import Columns, entry_hash

#: What a charge's two transactions ask and write, by name; the same in both dialects.
_SQL = {
    "newest": "SELECT key, max(number) FROM tag WHERE key IN (:book_key, :term_key, "
    ":account_key, :charge_key) GROUP BY key",
    "entries": "SELECT entry.*, before.hash FROM entry LEFT JOIN entry AS before "
    "ON before.number = entry.number - 1 WHERE entry.number IN (1, :before)",
    "append": "INSERT INTO entry (number, kind, charge, rows, body, at, writer, hash) "
    "VALUES (:number, :kind, :charge, :rows, :body, :at, :writer, :hash)",
}
_ASKED = ("newest", "entries")
_LOCK = "SELECT ledger_id FROM take_turn()"

_Values = Mapping[str, Any]
#: Runs named statements in one transaction: first those that read, then those that
# write.
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
    """Give a function that writes a charge's entries to a ledger that has some.

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
    """Writes copies of the newest charge's entries, under new ids and numbers."""

    def __init__(self, transact: Transact, read: _Read, *, asks: bool) -> None:
        self._transact = transact
        self._asked = _ASKED if asks else ()
        names = ", ".join(Columns._fields)
        found = read(f"SELECT {names} FROM entry ORDER BY number DESC LIMIT 2")
        self._entries = [Columns(*row) for row in found[::-1]]
        self._head = found[0][0], found[0][-1]

    def write(self) -> None:
        """Write one charge."""
        charge = uuid.uuid4().hex
        for like in self._entries:
            (number, head), old = self._head, str(like.charge)
            rows = like.rows.replace(old, charge)
            columns = like._replace(number=number + 1, charge=charge, rows=rows)
            columns = columns._replace(hash=entry_hash(head, columns))
            values = {
                **columns._asdict(),
                "before": number,
                "book_key": "book/d0",
                "term_key": "term/d0#1",
                "account_key": "account/d0#1",
                "charge_key": f"charge/{charge}",
            }
            self._transact(self._asked, ("append",), values)
            self._head = columns.number, columns.hash
