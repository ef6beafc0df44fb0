"""Edits of a ledger's tables by hand, which something must notice.

Some are met by the next step on the dataset, for it reads what was edited, and what it
reads is checked. All of them are noticed by who audits the whole journal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Tamper(NamedTuple):
    """An edit by hand.

    Attributes:
        table: What is edited; all of it is put back afterwards.
        change: What is set there, and where.
        met: Whether the next step on the dataset must notice. If not, an auditor must.
    """

    table: str
    change: str
    met: bool = True

    @property
    def statement(self) -> str:
        """The edit in SQL."""
        if self.change.startswith("INSERT"):
            return self.change
        return f"UPDATE {self.table} SET {self.change}"


NEWEST = "WHERE number = (SELECT max(number) FROM entry)"
#: An entry that says something of the account and is not its last.
OLDER = """FROM entry WHERE number < account.entry
    AND json_extract(postings, '$."a#1"') IS NOT NULL ORDER BY number LIMIT 1"""
TAMPERS = {
    "settled": Tamper("account", "settled = '[0,0]'"),
    "held": Tamper("account", "held = '[0,0]'"),
    "an older entry": Tamper("account", "entry = entry - 1", met=False),
    "an older entry with its sums": Tamper(
        "account",
        f"""entry = (SELECT number {OLDER}),
        settled = (SELECT json_extract(postings, '$."a#1"[1]') {OLDER}),
        held = (SELECT json_extract(postings, '$."a#1"[2]') {OLDER})
        WHERE EXISTS (SELECT 1 {OLDER})""",
        met=False,
    ),
    "overdrawn": Tamper("account", "overdrawn = 1", met=False),
    "told": Tamper("account", """told = '{"0.5":1}'""", met=False),
    "a book's hash": Tamper("book", f"hash = '{'0' * 64}'"),
    "a book's number": Tamper("book", "number = number - 1"),
    "a book that was put back": Tamper(
        "book",
        """number = number - 1,
        hash = (SELECT hash FROM entry WHERE entry.number = book.number - 1)
        WHERE number > 1""",
        met=False,
    ),
    "a freeze": Tamper("book", """frozen = '{"who":"ann"}'""", met=False),
    "how many ran": Tamper("book", "ran = '{}'", met=False),
    "how many terms": Tamper("book", "terms = 2"),
    "a term's entry": Tamper("term", "entry = (SELECT max(number) FROM entry)"),
    "a raised budget": Tamper(
        "entry", "body = replace(body, '1e-9', '1') WHERE number = 1"
    ),
    "a body": Tamper("entry", f"body = replace(body, 'count', 'sum') {NEWEST}"),
    "a posting": Tamper("entry", f"postings = replace(postings, '0', '1') {NEWEST}"),
    "a kind": Tamper("entry", f"kind = 'void' {NEWEST}"),
    "a writer": Tamper("entry", f"writer = 'somebody' {NEWEST}"),
    "a time": Tamper("entry", f"at = 'never' {NEWEST}"),
    "an entry's hash": Tamper("entry", f"hash = '{'0' * 64}' {NEWEST}"),
    "an entry in the middle": Tamper("entry", "writer = 'x' WHERE number = 2", False),
    "what was held": Tamper("charge", "held = '{}'", met=False),
    "what was added": Tamper("charge", """added = '{"a#1":[1,0]}'""", met=False),
    "an owner": Tamper("charge", "owner = 'somebody'", met=False),
    "an end": Tamper("charge", "state = 'void'", met=False),
    "a key": Tamper("charge", "key = 'k'", met=False),
    "a release claimed again": Tamper("release", "state = 'claimed'", met=False),
    "another's release": Tamper(
        "release", "charge = (SELECT min(id) FROM charge)", met=False
    ),
    "another value": Tamper("release", "value = '0' WHERE value > ''", met=False),
    "a digest": Tamper("release", f"digest = '{'0' * 64}'", met=False),
    "what was granted": Tamper("granted", "most = '{}'", met=False),
    "a repair": Tamper("row", "INSERT INTO row VALUES ('epoch:', '[1]', NULL)", False),
    "a row of another": Tamper(
        "row",
        """value = (SELECT other.value FROM row AS other WHERE other.key >= 'charge:'
        AND other.key < 'charge;' AND other.key <> row.key LIMIT 1)
        WHERE key >= 'charge:' AND key < 'charge;'
        AND (SELECT count(*) FROM charge) > 1""",
        met=False,
    ),
}


@contextmanager
def edited(raw: Any, table: str) -> Iterator[None]:
    """Put a table back after it was edited."""
    # Without generated columns.
    names = ", ".join(
        name for _, name, *_ in raw.execute(f"PRAGMA table_info({table})")
    )
    rows = raw.execute(f"SELECT {names} FROM {table}").fetchall()
    triggers = raw.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall()
    for name, _ in triggers:
        raw.execute(f"DROP TRIGGER {name}")
    raw.execute("PRAGMA ignore_check_constraints = ON")
    try:
        yield
    finally:
        raw.execute(f"DELETE FROM {table}")
        for row in rows:
            marks = ", ".join("?" * len(row))
            raw.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)
        raw.execute("PRAGMA ignore_check_constraints = OFF")
        for _, sql in triggers:
            raw.execute(sql)
