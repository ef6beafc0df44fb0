"""Statements can be read without Python, and rows of all tables by one mechanism."""

from __future__ import annotations

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from dpflow.ledger.opening import create_ledger
from dpflow.ledger.tables.postgres import PostgresDatabase
from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    ChargeDataset,
    DamagedRow,
    Dataset,
    Entry,
    Evidence,
    Held,
    PeopleStore,
    Release,
    Run,
    Source,
    Term,
    form_of,
    name_columns,
    read_row,
)
from dpflow.ledger.tables.sqlite import MemoryDatabase, forget_memory, make_tables
from dpflow.ledger.tables.statements import read_statements, statements
from dpflow.ledger.tables.transaction import Identity
from tests.ledger.support import granted
from tests.tables import read_tables

FILES = ("schema", "statements", "sqlite", "postgres", "audit")
SCRIPTS = {"tables", "rules", "make_schema"}


@pytest.mark.parametrize("name", FILES)
def test_statements_keep_the_rules(name):
    """No `SELECT *`, no `REPLACE`, no literal with a colon, one statement each."""
    for title, text in read_statements(name).items():
        assert text.endswith(";"), title
        assert not re.search(r"SELECT \*|OR REPLACE", text), title
        literals = re.findall(r"'([^']*)'", text)
        assert title in SCRIPTS or not any(":" in text for text in literals), title
        assert text.count(";") == 1 or title in SCRIPTS, title


def test_databases_have_the_same_statements():
    """What differs has one name in both files."""
    ours, theirs = read_statements("sqlite"), read_statements("postgres")
    names = "lock_all lock_datasets make_schema queue_for_datasets read_durability"
    more = {*names.split(), "stop_steps", "wait_shortly"}
    assert theirs.keys() - ours.keys() == more
    assert ours.keys() <= theirs.keys()


def test_sqlite_prepares_each_statement():
    """Names of tables and columns exist, and the parameters are named."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    make_tables(connection, Identity("x", None, "t"), b"0", 1)
    for title, text in statements("sqlite").items():
        if title not in SCRIPTS:
            values = dict.fromkeys(re.findall(r":(\w+)", text), "[]")
            connection.execute(f"EXPLAIN {text}", values)


def test_postgres_prepares_each_statement(postgres_url):
    """The same on a server."""
    PostgresDatabase.create(postgres_url, Identity("x", None, "t"), b"0").close()
    options = "-c search_path=dpflow"
    with psycopg.connect(postgres_url, options=options, autocommit=True) as session:
        for title, text in statements("postgres").items():
            if title in SCRIPTS or text.startswith("LOCK"):
                continue
            names = dict.fromkeys(re.findall(r"%\((\w+)\)s", text))
            numbered = text.rstrip(";")
            for number, name in enumerate(names, 1):
                numbered = numbered.replace(f"%({name})s", f"${number}")
            session.execute(f"PREPARE try AS {numbered}".encode())
            session.execute(b"DEALLOCATE try")


@pytest.mark.parametrize("edit", read_tables(__file__))
def test_the_journal_is_only_appended(edit):
    """Also for REPLACE, for a number that does not follow, and for a released value."""
    ledger = create_ledger("memory://appended")
    ledger.settle(granted(ledger, key="k"), value="1")
    with pytest.raises(sqlite3.IntegrityError):
        MemoryDatabase("appended").connection.execute(edit)
    forget_memory("memory://appended")


BIG = 10**40
REQUEST = {"cost": {"é": "ü"}, "accounts": ["a#1", "a#1/flow/f"]}
AMOUNTS = {"a#1": Held((1, BIG), 3), "a#1/flow/f": Held((2,), 1, (0,), (BIG,))}
WHOLE: list[Any] = [
    Dataset("a", 1, 2, {"who": "w", "at": "t"}, 1, 4, 9, "h"),
    Account("a#1", (BIG, 0), (1, 2), 3, "0.5", 1),
    Charge("c", "open", "o", "l", "s", "f", "r", "k", REQUEST, AMOUNTS, [1]),
    ChargeDataset("a", 1, "c", 2, "f", "s"),
    Release("k", "t", "a", "s", "c", "settled", "d", {"x": None}, {"length": 2}, "1"),
    Run("r", "a", "f", 2, ("a#1", "a#1/odometer/f"), 1),
    Evidence("a", 1, "d", 2),
    Source("s", "a", "population/p"),
    PeopleStore("a#1", "c", "c"),
    Entry("a", 1, "t", "w", "open", "x", "c", "s", "f", "r", "{}", "{}", "h"),
    Term("a", 1, 2, {"pinned": {"dataset": "a"}}),
]
#: The same with null wherever a table has it.
EMPTY: list[Any] = [
    Dataset("a"),
    Account("a#1", (0,), (0,)),
    Charge("c", "void", "o", None, "s", None, None, None, REQUEST, {}),
    ChargeDataset("a", 1, "c", None, None, "s"),
    Release("k", "t", "a", "s", "c", "free"),
    Run("r", "a", None),
    Source("s", "a", None),
    Entry("a", 1, "t", "w", "open", "x", None, None, None, None, "{}", "{}", "h"),
]
MARKED = [row for row in WHOLE if "mark" in name_columns(row)]


def name_kind(row: Any) -> str:
    """Return the name of a row's kind."""
    return type(row).__name__


@pytest.mark.parametrize("row", [*WHOLE, *EMPTY], ids=name_kind)
def test_a_row_is_read_as_it_was_written(row, monkeypatch):
    """By its writer, and alike by another process, which remembers none of its rows.

    In the same order as well: what is printed depends on no process's memory.
    """
    columns = name_columns(row)
    remembered = read_row(type(row), [*columns.values()])
    monkeypatch.setattr("dpflow.ledger.tables.rows._proved", {})
    read = read_row(type(row), [*columns.values()])
    assert read == row
    assert type(read) is type(row)
    assert name_columns(read) == columns
    assert repr(remembered) == repr(read)


@pytest.mark.storages("memory", "sqlite")
def test_threads_use_one_ledger(ledger):
    """A connection serves the threads of its process, each in its turn."""
    with ThreadPoolExecutor(2) as threads:
        assert len({*threads.map(partial(granted, ledger), ["0.1"] * 4)}) == 4


@pytest.mark.parametrize("row", WHOLE, ids=name_kind)
def test_columns_are_the_fields_in_their_order(row):
    """What is no JSON stands in the column of its name, or of its place in a term."""
    numbers = {number for number, *_ in form_of(type(row)).codecs}
    for number, (name, value) in enumerate(name_columns(row).items()):
        if name != "mark" and number not in numbers:
            assert value == row[number]
            assert type(row) is Term or row._fields[number] == name


def test_marked_rows_are_those_that_steps_read():
    """Accounts, charges and datasets have marks."""
    assert [*map(name_kind, MARKED)] == ["Dataset", "Account", "Charge"]


@pytest.mark.parametrize("row", MARKED, ids=name_kind)
def test_an_edit_of_any_column_is_noticed(row):
    """A process notices it although it wrote the row itself."""
    columns = [*name_columns(row).values()]
    for number, value in enumerate(columns):
        edited = [*columns]
        edited[number] = value + 1 if isinstance(value, int) else None
        with pytest.raises(DamagedRow):
            read_row(type(row), edited)
