"""Each file of SQL can be read without Python, and each statement is one statement."""

from __future__ import annotations

import re
import sqlite3

import pytest

from dpflow.ledger.tables.sqlite import MemoryDatabase, make_tables
from dpflow.ledger.tables.statements import read_statements, statements
from dpflow.ledger.tables.transaction import Identity

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
    locks = {"lock_datasets", "lock_all", "stop_steps", "wait_shortly"}
    assert theirs.keys() - ours.keys() == {"make_schema", "read_durability", *locks}
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
    import psycopg

    from dpflow.ledger.tables.postgres import PostgresDatabase

    PostgresDatabase.create(postgres_url, Identity("x", None, "t"), b"0").close()
    options = "-c search_path=dpflow"
    with psycopg.connect(postgres_url, options=options, autocommit=True) as session:
        for title, text in statements("postgres").items():
            if title in SCRIPTS or text.startswith("LOCK"):
                continue
            names = dict.fromkeys(re.findall(r"%\((\w+)\)s", text))
            numbered = text.rstrip(";")
            for place, name in enumerate(names, 1):
                numbered = numbered.replace(f"%({name})s", f"${place}")
            session.execute(f"PREPARE try AS {numbered}".encode())
            session.execute(b"DEALLOCATE try")


def test_the_journal_is_only_appended():
    """Also for REPLACE, for a number that does not follow, and for a released value."""
    edits = [
        "UPDATE journal SET body = '{}'",
        "DELETE FROM journal",
        (
            "INSERT INTO journal SELECT dataset, 9, at, writer, kind, command, charge, "
            "step, flow, run, postings, body, hash FROM journal"
        ),
        "UPDATE release SET value = '2'",
        "UPDATE release SET value = NULL, state = 'settled'",
    ]
    setup = [
        "INSERT INTO dataset VALUES ('a', 0, 0, NULL, 0, 0, 0, 'h', 'm')",
        (
            "INSERT INTO journal VALUES ('a', 1, 't', {writer}, 'refuse', 'c', NULL, "
            "NULL, NULL, NULL, '{{}}', '{{}}', 'h')"
        ),
        "UPDATE dataset SET number = 1",
        (
            "INSERT INTO release VALUES ('k', 'k', 'a', 's', 'c', 'settled', 'd', "
            "NULL, NULL, '1')"
        ),
    ]
    name = "only-appended"
    MemoryDatabase.create(name, Identity("x", None, "t"), b"0")
    connection = MemoryDatabase(name).connection
    for sql in setup:
        connection.execute(sql.format(writer="'w'"))
    replace = "INSERT OR REPLACE INTO journal SELECT * FROM journal"
    for sql in (*edits, replace):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(sql)
