"""One transaction of a ledger in PostgreSQL: a trip to load, and a trip to store.

Statements are sent together, in the driver's pipeline. The first trip begins the
transaction, takes the ledger's turn, and reads what the keys led to at the last load;
what they lead to now and was not read then is read in further trips.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import psycopg

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Changes, Key, Row
from dpflow.ledger.storage.base import Identity
from dpflow.ledger.storage.loading import Found, Loading
from dpflow.ledger.storage.postgres_connection import Connection, Durable, Server
from dpflow.ledger.storage.row_texts import (
    entry_texts,
    key_text,
    place_text,
    row_texts,
    statements,
)
from dpflow.ledger.storage.transaction import Transaction

#: Rows as they were last seen, which say what to read in the first trip.
Seen = dict[Key, Row]
#: More of them are forgotten.
_MOST_SEEN = 10_000
#: How a transaction begins, and its first statement. What comes behind the one that
#: waits for the turn sees all that was committed before.
READING = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "identity")
WRITING = ("BEGIN ISOLATION LEVEL READ COMMITTED", "turn")


class PostgresTables(Transaction):
    """A ledger within one transaction of a connection.

    Args:
        connection: Outside a transaction, in a pipeline; the first trip begins one.
        sync: Waits for the answers to all that was sent.
        server: Whose it is.
        identity: Of the ledger that was opened.
        begin: `READING` or `WRITING`.
        seen: Rows as the process saw them last.
    """

    def __init__(
        self,
        connection: Connection,
        sync: Callable[[], None],
        *,
        server: Server,
        identity: Identity,
        begin: tuple[str, str],
        seen: Seen,
    ) -> None:
        super().__init__(server.place, identity)
        self._execute, self._sync = connection.execute, sync
        self._server, self._seen = server, seen
        self._sql = sql_of(shows_values=connection.shows_values)
        self._begin: tuple[str, str] | None = begin
        #: By statement and name, what the first trip brought; None if it is not there.
        self._read: dict[tuple[str, str], tuple[Any, ...] | None] = {}
        self._stored: dict[str, Any] | None = None
        self._ended: psycopg.Cursor[Any] | None = None

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        rows, entries = Loading(keys, self._known, lambda _: (), lambda *_: {}).guess()
        names = [key_text(key) for key in rows]
        places = [place_text(place) for place in entries]
        asked = {"rows": names, "entries": places}
        self._read = dict.fromkeys((name, key) for name in asked for key in asked[name])
        for row in self._ask("load", names=names, places=places):
            if row[1] is None:
                self._read["rows", row[0]] = row[2:5]
            else:
                self._read["entries", place_text(row[:2])] = row
        state = self._loaded(keys)
        self._remember(state.rows)
        return state

    def _known(self, wanted: Collection[Key]) -> Iterable[Found]:
        return [(k, self._seen[k], None) for k in wanted if k in self._seen]

    def _remember(self, rows: Mapping[Key, Row]) -> None:
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        self._seen.update(rows)

    def _named(self, name: str, names: list[str]) -> list[tuple[Any, ...]]:
        rest = [each for each in names if (name, each) not in self._read]
        found = super()._named(name, rest)
        return found + [row for each in names if (row := self._read.get((name, each)))]

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them, with the commit."""
        if self._stored is not None:
            msg = "a transaction stores once"
            raise ValueError(msg)
        if self._begin is not None:
            self._ask("identity")
        self._remember({k: row for k, row in changes.items() if row is not None})
        self._stored = {
            "entries": json.dumps(entry_texts(entries)),
            "rows": json.dumps(row_texts(changes, values)),
            "gone": [key_text(key) for key, row in changes.items() if row is None],
        }

    def end(self) -> None:
        """Send what was stored with a commit, if there is anything."""
        if self._stored is not None:
            self._execute(self._sql["store"], self._stored)
            self._ended = self._execute("COMMIT")
        elif self._begin is None:
            self._execute("ROLLBACK")

    def check_committed(self) -> None:
        """Check that what was stored is committed.

        Raises:
            LedgerUnavailable: If the server rolled back instead.
        """
        if self._ended is not None and self._ended.statusmessage != "COMMIT":
            msg = (
                f"the ledger {self.place} did not commit but answered "
                f"{self._ended.statusmessage}; nothing was charged"
            )
            raise LedgerUnavailable(msg, ledger=self.place)

    def _ask(self, name: str, **parameters: Any) -> list[Any]:
        """Run a statement, behind those that begin the transaction."""
        execute, begin = self._execute, self._begin
        if begin is not None:
            execute(begin[0])
            first = execute(self._sql[begin[1]])
        asked = execute(self._sql[name], parameters)
        self._sync()
        if begin is not None:
            found = first.fetchall()
            self._check_identity([row[:2] for row in found])
            self._server.check_durable(Durable(*found[0][2:]))
            self._begin = None
        return asked.fetchall()


#: What PostgreSQL has other words for than SQLite.
_WORDS = (
    (r"json_each\((:\w+)\) AS (\w+)", r"unnest(CAST(\1 AS text[])) AS \2 (value)"),
    (r" INDEXED BY \w+", ""),
    (r"\binstr\(", "strpos("),
    (r":(\w+)", r"%(\1)s"),
)


@cache
def sql_of(*, shows_values: bool) -> Mapping[str, bytes]:
    """Return the statements; who may not read released values is shown none."""
    found = dict(statements("postgres"))
    # Rows and entries at once.
    entries = found["entries"].replace(":names", ":places")
    rows = found["rows_among_entries"].replace("(rows)", f"({found['rows']})")
    found["load"] = f"{rows} UNION ALL {entries}"
    if not shows_values:
        found = {
            k: v.replace("row.output", "CAST(NULL AS text)") for k, v in found.items()
        }
    for word, other in _WORDS:
        found = {name: re.sub(word, other, sql) for name, sql in found.items()}
    return {name: sql.encode() for name, sql in found.items()}
