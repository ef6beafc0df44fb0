"""Statements of a ledger by name, from the files of SQL next to this module."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

#: A parameter, and no cast such as `::regclass`.
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
#: A list in SQLite's words.
_LIST = re.compile(r"IN \(\s*SELECT value FROM json_each\((:[a-z_]+)\)\s*\)")
#: A field of a document in SQLite's words.
_FIELD = re.compile(r"json_extract\(([a-z.]+), '\$\.([a-z_]+)'\)")
#: Words of SQLite, and what they are called on PostgreSQL.
_TYPES = (
    (r"\bINTEGER\b", "bigint"),
    (r"\bTEXT\b", 'text COLLATE "C"'),
    (r" STRICT(, WITHOUT ROWID)?;", ";"),
)


def read_statements(name: str) -> dict[str, str]:
    """Return the statements of a file by their names."""
    file = files("dpflow.ledger.tables").joinpath(f"{name}.sql")
    return split_statements(file.read_text("utf-8"))


def split_statements(text: str) -> dict[str, str]:
    """Return the statements of a text by their names."""
    statements = {}
    for part in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        statements[title.strip()] = "\n".join(lines).strip()
    return statements


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return all statements of a database, "sqlite" or "postgres", by name."""
    named = read_statements("schema")
    if dialect == "postgres":
        for pattern, word in _TYPES:
            named["tables"] = re.sub(pattern, word, named["tables"])
    for name in ("statements", "audit", "views", dialect):
        named |= read_statements(name)
    if dialect == "postgres":
        return {name: write_for_postgres(text) for name, text in named.items()}
    return named


def write_for_postgres(text: str) -> str:
    """Return a statement in SQLite's words in those of PostgreSQL and its driver."""
    text = _FIELD.sub(r"dpflow.json_text(\1, '\2')", _LIST.sub(r"= ANY(\1)", text))
    return _PARAMETER.sub(r"%(\1)s", text)
