"""Tables and their columns, as `schema.sql` has them, for copies of a whole ledger."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

#: Columns that no export shows.
SECRETS = {"release": {"value", "arguments"}}


class TableColumns(NamedTuple):
    """A table: its columns, and those of its key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


@cache
def tables() -> dict[str, TableColumns]:
    """Return the tables by name."""
    script = files("dpflow.ledger.tables").joinpath("schema.sql").read_text("utf-8")
    by_name = {}
    for name, body in re.findall(
        r"CREATE TABLE (\w+) \(\n(.*?)\n\)", script, flags=re.DOTALL
    ):
        columns = re.findall(r"^    ([a-z_]+) [A-Z]", body, flags=re.MULTILINE)
        several = re.search(r"PRIMARY KEY \((.*?)\)", body)
        key = several[1].split(", ") if several else columns[:1]
        by_name[name] = TableColumns(name, tuple(columns), tuple(key))
    return by_name


#: Tables of which a copy is made, in the order in which they are filled.
TABLES = *(name for name in tables() if name not in ("ledger", "journal")), "journal"
