"""The statements of a ledger, by name, for each database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from dpflow.ledger.journal import KINDS

#: What PostgreSQL has other words for than SQLite.
_WORDS = (
    (r"json_each\((:\w+)\) AS (\w+)", r"unnest(CAST(\1 AS text[])) AS \2 (value)"),
    (r"json_each\((entry\.rows)\)", r"json_each(CAST(\1 AS json))"),
    (r" INDEXED BY \w+", ""),
    (r"\binstr\(", "strpos("),
    (r"(?<!:):(\w+)", r"%(\1)s"),
)
_LISTS = {
    "{often}": [name for name, kind in KINDS.items() if kind.often],
    "{ends}": [name for name, kind in KINDS.items() if kind.ends is not None],
    "{operator}": [name for name, kind in KINDS.items() if kind.operator],
}


def named_statements(folder: str, *names: str) -> dict[str, str]:
    """Return the statements of SQL files by their names, with all kinds filled in."""
    texts = (files(folder).joinpath(f"{name}.sql").read_text("utf-8") for name in names)
    parts = [p.partition("\n") for text in texts for p in text.split("-- name: ")[1:]]
    found = {name.strip(): sql.strip().rstrip(";") for name, _, sql in parts}
    for word, kinds in _LISTS.items():
        kinds_text = ", ".join(f"'{kind}'" for kind in kinds)
        found = {name: sql.replace(word, kinds_text) for name, sql in found.items()}
    return found


@cache
def statements(dialect: str) -> Mapping[str, str]:
    """Return a dialect's statements by name, beside those of every dialect."""
    found = named_statements("dpflow.ledger.storage", "questions", dialect)
    if dialect == "sqlite":
        return found
    own = named_statements("dpflow.ledger.storage", dialect)
    shared = {name: sql for name, sql in found.items() if name not in own}
    for word, other in _WORDS:
        shared = {name: re.sub(word, other, sql) for name, sql in shared.items()}
    return {**own, **shared}
