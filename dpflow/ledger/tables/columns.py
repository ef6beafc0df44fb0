"""Tables and their columns, as `schema.sql` has them, for copies of a whole ledger."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from dpflow.ledger.tables.statements import read_statements

#: Tables of which a copy is made, in the order in which they are filled.
TABLES = (
    "dataset",
    "term",
    "source",
    "account",
    "charge",
    "charge_dataset",
    "release",
    "run",
    "evidence",
    "people_store",
    "journal",
)
#: Columns that no export shows.
SECRETS = {"release": {"value", "arguments"}}


class Table(NamedTuple):
    """A table: its columns, and those of its key."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]

    def select_page(self, parameter: str) -> str:
        """Return the statement that reads the next page behind a key."""
        keys = ", ".join(self.key)
        after = ", ".join(parameter.format(name) for name in self.key)
        return (
            f"SELECT {', '.join(self.columns)} FROM {self.name} "  # noqa: S608
            f"WHERE ({keys}) > ({after}) ORDER BY {keys} "
            f"LIMIT {parameter.format('limit')}"
        )

    def select_first(self, parameter: str) -> str:
        """Return the statement that reads the first page."""
        return (
            f"SELECT {', '.join(self.columns)} FROM {self.name} "  # noqa: S608
            f"ORDER BY {', '.join(self.key)} LIMIT {parameter.format('limit')}"
        )

    def insert(self, parameter: str) -> str:
        """Return the statement that writes a row."""
        values = ", ".join(map(parameter.format, self.columns))
        names = ", ".join(self.columns)
        return f"INSERT INTO {self.name} ({names}) VALUES ({values})"  # noqa: S608


@cache
def tables() -> dict[str, Table]:
    """Return the tables by name."""
    script = read_statements("schema")["tables"]
    found = {}
    for name, body in re.findall(
        r"CREATE TABLE (\w+) \(\n(.*?)\n\)", script, flags=re.DOTALL
    ):
        columns = re.findall(r"^    ([a-z_]+) [A-Z]", body, flags=re.MULTILINE)
        several = re.search(r"PRIMARY KEY \((.*?)\)", body)
        key = several[1].split(", ") if several else columns[:1]
        found[name] = Table(name, tuple(columns), tuple(key))
    return found
