"""The statements of a ledger, by name, for each database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from dpflow.ledger.journal import KINDS

#: Words for which PostgreSQL has others than SQLite.
_WORDS = (
    (r"json_each\((:\w+)\) AS (\w+)", r"unnest(CAST(\1 AS text[])) AS \2 (value)"),
    (r"json_each\((entry\.rows)\)", r"json_each(CAST(\1 AS json))"),
    (r" INDEXED BY \w+|,? STRICT|, WITHOUT ROWID", ""),
    (r"\bINTEGER\b", "bigint"),
    (r"\bTEXT\b", 'text COLLATE "C"'),
    (r"\binstr\(", "strpos("),
    (r"\bchar\(", "chr("),
    (r"(?<!:):(\w+)", r"%(\1)s"),
    (r"\?", "%s"),
)
_LISTS = {
    "{often}": [name for name, kind in KINDS.items() if kind.often],
    "{ends}": [name for name, kind in KINDS.items() if kind.ends is not None],
    "{operator}": [name for name, kind in KINDS.items() if kind.operator],
}


def named_statements(folder: str, name: str) -> dict[str, str]:
    """Return the statements of a SQL file by their names, with all kinds filled in."""
    text = files(folder).joinpath(f"{name}.sql").read_text("utf-8")
    for word, kinds in _LISTS.items():
        text = text.replace(word, ", ".join(f"'{kind}'" for kind in kinds))
    parts = [part.partition("\n") for part in text.split("-- name: ")[1:]]
    return {title.strip(): sql.strip().rstrip(";") for title, _, sql in parts}


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return a dialect's statements by name, with those that every dialect has."""
    shared = named_statements(__package__, "tables")
    for word, other in _WORDS if dialect == "postgres" else ():
        shared = {name: re.sub(word, other, sql) for name, sql in shared.items()}
    return {**shared, **named_statements(__package__, dialect)}
