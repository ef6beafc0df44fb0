"""A ledger's rows as tables with columns, so that tests say what they read and edit.

The ledger keeps each row as one text by its key. Here are views, for one connection,
that show its fields and write what is set in them back into that text, whatever it is.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg

#: The fields of each kind, in order; those in capitals are JSON, not texts or numbers.
TABLES = {
    "book": "name number hash FROZEN RAN terms",
    "term": "book number entry",
    "account": "id book entry SETTLED HELD overdrawn TOLD",
    "charge": "id state owner PLACES HELD ADDED covers key epoch",
    "release": "key charge book state digest",
    "run": "id REFUSED HALTED preflight UNHELD",
    "granted": "book step MOST",
    "claim": "name SAID",
}
#: How many fields are the names of a row.
_TWO = ("term", "granted")


def show_columns(
    connection: sqlite3.Connection, *statements: str
) -> sqlite3.Connection:
    """Make the views of a SQLite ledger in a connection to it, if it is one.

    Args:
        connection: Where they are made, for as long as it lasts.
        statements: What is to run; without any, all views are made.
    """
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'row'")
    if found.fetchone():
        for table, writes in _wanted(statements):
            for sql in _of_sqlite(table, writes=writes):
                connection.execute(sql)
    return connection


def _wanted(statements: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Return which tables statements name, and whether they may write them.

    Views are dear to make, more than what most tests ask of them.
    """
    if not statements:
        return [(table, True) for table in TABLES]
    words = set(re.findall(r"\w+", " ".join(statements)))
    writes = not all(each.startswith("SELECT") for each in statements)
    return [(table, writes) for table in TABLES if table in words]


def _of_sqlite(table: str, *, writes: bool) -> Iterator[str]:
    fields = TABLES[table].split()
    shown = [_shown_in_sqlite(each, at) for at, each in enumerate(fields)]
    more = ", output AS value" if table == "release" else ""
    yield (
        f"CREATE TEMP VIEW {table} AS SELECT {', '.join(shown)}{more} "
        f"FROM main.row WHERE key > '{table}:' AND key < '{table};'"
    )
    if not writes:
        return
    names = fields[: 2 if table in _TWO else 1]
    old, new = (
        f"'{table}:' || " + " || '#' || ".join(f"{when}.{each}" for each in names)
        for when in ("OLD", "NEW")
    )
    values = " || ',' || ".join(_told_to_sqlite(each) for each in fields)
    output = "NEW.value" if table == "release" else "NULL"
    yield (
        f"CREATE TEMP TRIGGER {table}_u INSTEAD OF UPDATE ON {table} BEGIN "
        f"UPDATE row SET key = {new}, value = '[' || {values} || ']', "
        f"output = {output} WHERE key = {old}; END"
    )
    yield (
        f"CREATE TEMP TRIGGER {table}_d INSTEAD OF DELETE ON {table} BEGIN "
        f"DELETE FROM row WHERE key = {old}; END"
    )
    yield (
        f"CREATE TEMP TRIGGER {table}_i INSTEAD OF INSERT ON {table} BEGIN "
        "INSERT INTO row (key, value, output) "
        f"VALUES ({new}, '[' || {values} || ']', {output}); END"
    )


def _shown_in_sqlite(field: str, at: int) -> str:
    if field.isupper():
        return f"nullif(value -> {at}, 'null') AS {field.lower()}"
    return f"value ->> {at} AS {field}"


def _told_to_sqlite(field: str) -> str:
    if field.isupper():
        return f"coalesce(NEW.{field.lower()}, 'null')"
    if field == "overdrawn":
        return "iif(NEW.overdrawn, 'true', 'false')"
    return f"json_quote(NEW.{field})"


def show_columns_of_postgres(
    connection: psycopg.Connection[Any], *statements: str
) -> None:
    """Make the views of a PostgreSQL ledger in a session, as those of a file."""
    for table, writes in _wanted(statements):
        for sql in _of_postgres(table, writes=writes):
            connection.execute(sql.encode())


def _of_postgres(table: str, *, writes: bool) -> Iterator[str]:
    fields = TABLES[table].split()
    shown = [_shown_in_postgres(each, at) for at, each in enumerate(fields)]
    more = ", output AS value" if table == "release" else ""
    yield (
        f"CREATE TEMP VIEW {table} AS SELECT {', '.join(shown)}{more} "
        f"FROM dpflow.row WHERE key > '{table}:' AND key < '{table};'"
    )
    if not writes:
        return
    names = fields[: 2 if table in _TWO else 1]
    old, new = (
        f"'{table}:' || " + " || '#' || ".join(f"{when}.{each}" for each in names)
        for when in ("OLD", "NEW")
    )
    values = " || ',' || ".join(_told_to_postgres(each) for each in fields)
    kept = ", output = NEW.value" if table == "release" else ""
    output = "NEW.value" if table == "release" else "NULL"
    yield (
        f"CREATE FUNCTION pg_temp.{table}_w() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF TG_OP = 'DELETE' THEN "
        f"DELETE FROM dpflow.row WHERE key = {old}; RETURN OLD; "
        f"ELSIF TG_OP = 'UPDATE' THEN UPDATE dpflow.row SET "
        f"value = '[' || {values} || ']'{kept} WHERE key = {old}; "
        f"IF NOT FOUND THEN RETURN NULL; END IF; "
        f"IF {new} <> {old} THEN "
        f"UPDATE dpflow.row SET key = {new} WHERE key = {old}; END IF; "
        f"ELSE INSERT INTO dpflow.row (key, value, output) VALUES "
        f"({new}, '[' || {values} || ']', {output}); END IF; RETURN NEW; END $$"
    )
    yield (
        f"CREATE TRIGGER {table}_w INSTEAD OF INSERT OR UPDATE OR DELETE ON "
        f"{table} FOR EACH ROW EXECUTE FUNCTION pg_temp.{table}_w()"
    )


def _shown_in_postgres(field: str, at: int) -> str:
    text = f"CAST(value AS json) ->> {at}"
    if field.isupper():
        return f"{text} AS {field.lower()}"
    if field in ("number", "entry", "terms", "epoch"):
        return f"CAST({text} AS bigint) AS {field}"
    if field == "overdrawn":
        return f"CAST(CAST({text} AS boolean) AS int) AS {field}"
    return f'({text}) COLLATE "C" AS {field}'


def _told_to_postgres(field: str) -> str:
    if field.isupper():
        return f"coalesce(NEW.{field.lower()}, 'null')"
    if field == "overdrawn":
        return "CASE WHEN NEW.overdrawn = 1 THEN 'true' ELSE 'false' END"
    return f"coalesce(CAST(to_json(NEW.{field}) AS text), 'null')"
