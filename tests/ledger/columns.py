"""What keys of a ledger are now, as tables with columns: views for tests that read.

Each view has the newest row of its keys; `entry` and `kept` are the tables themselves.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg

#: By table: where its keys begin, the name of the rest of the key, and its fields; the
#: fields of an account are those of a list.
TABLES = {
    "book": ("book/", "name", "term frozen flows"),
    "term": ("term/", "name", ""),
    "account": ("account/", "id", "amount settled held flags"),
    "charge": ("charge/", "id", "state owner key run repairs added"),
    "release": ("release/", "key", "charge state digest"),
    "run": ("run/", "id", "refusals halted reservation unheld"),
    "granted": ("granted/", "name", ""),
    "claim": ("claim/", "name", ""),
}


def show_columns(
    connection: sqlite3.Connection, *statements: str
) -> sqlite3.Connection:
    """Make the views of a SQLite ledger in a connection to it, if it is one."""
    cursor = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'tag'")
    if cursor.fetchone():
        for sql in _views(statements, "main", "value ->> {}"):
            connection.execute(sql)
    return connection


def show_columns_of_postgres(
    connection: psycopg.Connection[Any], *statements: str
) -> None:
    """Make the views of a PostgreSQL ledger in a session, as those of a file."""
    for sql in _views(statements, "dpflow", "(value ->> {})"):
        connection.execute(sql.encode())


def _views(statements: tuple[str, ...], schema: str, shown: str) -> Iterator[str]:
    words = set(re.findall(r"\w+", " ".join(statements))) if statements else TABLES
    row = "CAST(entry.rows AS json) -> newest.key"
    if schema == "main":
        row = "(SELECT json_each.value FROM json_each(entry.rows) WHERE json_each.key"
        row += " = newest.key)"
    for table, (prefix, name, fields) in TABLES.items():
        if table not in words:
            continue
        each = [
            f"{shown.format(at if table == 'account' else repr(field))} AS {field}"
            for at, field in enumerate(fields.split())
        ]
        kept = (
            f"(SELECT kept.value FROM {schema}.kept WHERE kept.key = shown.id) AS value"
        )
        more = [kept] if table == "release" else []
        columns = ", ".join([f"shown.id AS {name}", "number AS entry", *each, *more])
        yield (
            f"CREATE TEMP VIEW {table} AS SELECT {columns} FROM ("
            f"SELECT substr(newest.key, {len(prefix) + 1}) AS id, newest.number, "
            f"{row} AS value FROM (SELECT key, max(number) AS number FROM {schema}.tag "
            f"WHERE key LIKE '{prefix}%' GROUP BY key) AS newest "
            f"JOIN {schema}.entry AS entry ON entry.number = newest.number) AS shown"
        )
