"""What a raw driver needs for a charge: the limits of a ledger's speed.

Two of them, each with the ledger's durability and without any witness:

    bytes    two commits of as many bytes as a charge's, in one row of a table
    rows     two commits of the rows of a charge, behind the reads that it needs

On PostgreSQL the statements of a transaction are sent in two pipelined trips.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

#: Tables like those of a ledger with three accounts.
_TABLES = (
    "CREATE TABLE raw_dataset (name TEXT PRIMARY KEY, number INTEGER, hash TEXT)",
    "CREATE TABLE raw_account (id TEXT PRIMARY KEY, body TEXT)",
    "CREATE TABLE raw_charge (id TEXT PRIMARY KEY, body TEXT)",
    "CREATE TABLE raw_journal (number INTEGER PRIMARY KEY, body TEXT, hash TEXT)",
    "INSERT INTO raw_dataset VALUES ('d', 0, '')",
    "INSERT INTO raw_account VALUES ('a', ''), ('b', ''), ('c', '')",
)
_READS = (
    "SELECT number, hash FROM raw_dataset WHERE name = 'd'",
    "SELECT id, body FROM raw_account WHERE id IN ('a', 'b', 'c')",
)
_AMOUNTS, _REQUEST, _HASH = "[1234567890]" * 12, "request " * 80, "0" * 64


@contextlib.contextmanager
def of_bytes(url: str, size: int) -> Iterator[Callable[[], None]]:
    """Give a function that commits half of so many bytes, twice."""
    body = os.urandom(size // 2).hex()[: size // 2]
    with _opened(url) as transact:
        transact([], [("CREATE TABLE raw (id TEXT, body TEXT)", ())])

        def write() -> None:
            for _ in range(2):
                transact([], [("INSERT INTO raw (body) VALUES (?)", (body,))])

        yield write


def make_rows(url: str) -> None:
    """Make the tables of `of_rows`."""
    with _opened(url) as transact:
        transact([], [(statement, ()) for statement in _TABLES])


@contextlib.contextmanager
def of_rows(url: str) -> Iterator[Callable[[], None]]:
    """Give a function that writes rows like those of a reserve and its settle."""
    head, accounts = _READS
    # SQLite locks the file.
    reads = (head if url.startswith("sqlite") else f"{head} FOR UPDATE", accounts)
    with _opened(url) as transact:

        def write() -> None:
            name = uuid.uuid4().hex
            begin = ("INSERT INTO raw_charge VALUES (?, ?)", (name, _REQUEST))
            end = ("UPDATE raw_charge SET body = ? WHERE id = ?", ("", name))
            changes = [
                ("UPDATE raw_account SET body = ? WHERE id = ?", (_AMOUNTS, account))
                for account in "abc"
            ]
            entry = (
                "INSERT INTO raw_journal SELECT number, ?, hash FROM raw_dataset",
                (_AMOUNTS,),
            )
            dataset = ("UPDATE raw_dataset SET number = number + 1, hash = ?", (_HASH,))
            for charge in (begin, end):
                transact(reads, [charge, *changes, entry, dataset])

        yield write


Reads = Sequence[str]
Writes = Sequence[tuple[str, tuple[Any, ...]]]
_Transact = Callable[[Reads, Writes], None]


@contextlib.contextmanager
def _opened(url: str) -> Iterator[_Transact]:
    """Give a function that reads and writes in one durable transaction."""
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///")).with_suffix(".raw")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("PRAGMA journal_mode = WAL")
            raw.execute("PRAGMA synchronous = FULL")

            def transact(reads: Reads, writes: Writes) -> None:
                raw.execute("BEGIN IMMEDIATE")
                for statement in reads:
                    raw.execute(statement).fetchall()
                for statement, values in writes:
                    raw.execute(statement, values)
                raw.execute("COMMIT")

            yield transact
        return
    with psycopg.connect(url, autocommit=True) as server:

        def send(reads: Reads, writes: Writes) -> None:
            with server.pipeline() as pipeline:
                server.execute(b"BEGIN")
                asked = [server.execute(text.encode()) for text in reads]
                pipeline.sync()
                for cursor in asked:
                    cursor.fetchall()
                for statement, values in writes:
                    server.execute(statement.replace("?", "%s").encode(), values)
                server.execute(b"COMMIT")

        yield send
