"""Statements of a ledger by name, from the files of SQL next to this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from dpflow.ledger.tables.columns import tables

#: A parameter, and no cast such as `::regclass`.
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
#: A list in SQLite's words.
_LIST = re.compile(r"IN \(\s*SELECT value FROM json_each\((:[a-z_]+)\)\s*\)")
#: A field of a document in SQLite's words.
_FIELD = re.compile(r"json_extract\(([a-z.]+), '\$\.([a-z_]+)'\)")
#: A part that several statements share.
_PART = re.compile(r"\{([a-z_]+)\}")
#: Tables whose rows are replaced in full.
REPLACED = ("dataset", "term", "account", "release", "run")
#: Words of SQLite, and what they are called on PostgreSQL.
_TYPES = (
    (r"\bINTEGER\b", "bigint"),
    (r"\bTEXT\b", 'text COLLATE "C"'),
    (r" STRICT(, WITHOUT ROWID)?;", ";"),
)


def read_statements(name: str, package: str = "tables") -> dict[str, str]:
    """Return the statements of a file by their names."""
    file = files("dpflow.ledger").joinpath(package, f"{name}.sql")
    statements, text = {}, file.read_text("utf-8")
    for part in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        statements[title.strip()] = "\n".join(lines).strip()
    return statements


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return all statements of a database, "sqlite" or "postgres", by name."""
    named, only = write_statements(), ["sessions"] if dialect == "postgres" else []
    parts = write_parts() | named
    for name in ("schema", "statements", "audit", "views", dialect, *only):
        named |= read_statements(name)
    named = {
        name: _PART.sub(lambda word: parts[word[1]], text)
        for name, text in named.items()
    }
    if dialect == "postgres":
        for pattern, word in _TYPES:
            named["tables"] = re.sub(pattern, word, named["tables"])
        return {name: write_for_postgres(text) for name, text in named.items()}
    return named


def write_statements() -> dict[str, str]:
    """Return the statements that write a row of a table with all its columns.

    `insert_TABLE` adds a new row; `put_TABLE` also replaces the row of the same key.
    """
    named = {}
    for name, table in tables().items():
        columns, values = ", ".join(table.columns), ", :".join(table.columns)
        insert = f"INSERT INTO {name} ({columns}) VALUES (:{values})"  # noqa: S608
        named[f"insert_{name}"] = insert
        if name in REPLACED:
            others = [c for c in table.columns if c not in table.key]
            changes = ", ".join(f"{column} = excluded.{column}" for column in others)
            key = ", ".join(table.key)
            conflict = f"ON CONFLICT ({key}) DO UPDATE SET {changes}"
            named[f"put_{name}"] = f"{insert} {conflict}"
    return named


def write_parts() -> dict[str, str]:
    """Return what words in braces stand for.

    They are the columns of each table, and joins with the entries that begin and end
    a charge in a dataset; further ones are the statements of `write_statements`.
    """
    parts = {
        name: ", ".join(f"{name}.{column}" for column in table.columns)
        for name, table in tables().items()
    }
    for name, number in (("made", "reserve_number"), ("ended", "end_number")):
        condition = f"{name}.dataset = part.dataset AND {name}.number = part.{number}"
        parts[name] = f"journal AS {name} ON {condition}"
    return parts


def write_for_postgres(text: str) -> str:
    """Return a statement in SQLite's words in those of PostgreSQL and its driver."""
    text = _FIELD.sub(r"dpflow.json_text(\1, '\2')", _LIST.sub(r"= ANY(\1)", text))
    return _PARAMETER.sub(r"%(\1)s", text)


class PostgresStatements(dict[str, bytes]):
    """Statements as the driver has them, by name or by a text in SQLite's words."""

    def __missing__(self, name: str) -> bytes:
        text = statements("postgres").get(name) or write_for_postgres(name)
        self[name] = text.encode()
        return self[name]


SQL = PostgresStatements()
