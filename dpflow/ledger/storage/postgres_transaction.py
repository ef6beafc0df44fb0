"""One transaction of a ledger in PostgreSQL: a trip to load, and a trip to store.

Statements are sent together and answered in order. What a transaction reads is asked
behind the locks of its books in one trip; what it writes goes with the COMMIT in the
second, and the server refuses to commit if a row that no book's lock keeps was written
by somebody else since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import EPOCH, Book, Changes, Key, Rows
from dpflow.ledger.storage.base import Identity, Place
from dpflow.ledger.storage.loading import Found
from dpflow.ledger.storage.postgres_connection import Durable, Server
from dpflow.ledger.storage.postgres_pipeline import Answer, Wire
from dpflow.ledger.storage.row_texts import (
    entry_texts,
    key_of_text,
    key_text,
    row_of,
    row_text,
    row_texts,
    statements,
)
from dpflow.ledger.storage.transaction import Reading, Transaction

_Columns = tuple[Any, ...]

#: How often a load begins anew because what it leads to moved before it was locked.
_LOADS = 5


class Snapshot(Reading):
    """A consistent state of the ledger.

    Args:
        wire: Outside a transaction; one of its own begins with this.
        server: Whose it is.
        identity: Of the ledger that was opened.
    """

    begin = ("begin_reading", b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def __init__(self, wire: Wire, server: Server, identity: Identity) -> None:
        super().__init__(server.place, identity)
        self._server = server
        self._wire = wire
        self._sql = _statements()
        wire.send(*self.begin)

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked."""
        asked = self._send("load", **_asked(keys))
        self.wait()
        return self._state(keys, asked.fetchall())

    def wait(self) -> None:
        """Wait until all that was sent is answered."""
        self._wire.wait()

    def _state(self, keys: Keys, found: list[_Columns]) -> State:
        """Return what one trip brought, checked; what it has not is not there."""
        self._check([row for row in found if row[0] == "ledger"])
        rows = {key_of_text(row[1]): row for row in found if row[0] == "row"}
        entries = {(row[1], int(row[2])): row for row in found if row[0] == "entry"}

        def read(wanted: Collection[Key]) -> Iterable[Found]:
            for key in wanted:
                if key in rows:
                    _, _, value, output, *_ = rows[key]
                    row = row_of(key, value)
                    # A book without an entry is there to be locked.
                    if not isinstance(row, Book) or row.number:
                        yield key, row, output

        def proved(shown: set[Place], proofs: set[Place]) -> Mapping[Place, Entry]:
            return {
                (book, number): self._entry(
                    (book, number, *entries[book, number][3:]),
                    body=(book, number) in shown,
                )
                for book, number in entries.keys() & (shown | proofs)
            }

        def accounts(book: str) -> Iterable[str]:
            ids = (key[1] for key in rows if key[0] == "account")
            return [name for name in ids if name.startswith(f"{book}#")]

        return self._loaded(keys, read, accounts, proved)

    def _check(self, rows: Sequence[_Columns]) -> None:
        """Refuse another ledger than the one that was opened."""
        self._check_identity((rows[0][1], int(rows[0][2])) if len(rows) == 1 else None)

    def _proved(self, shown: set[Place], proofs: set[Place]) -> dict[Place, Entry]:
        wanted = [*shown, *proofs]
        books = _array(book for book, _ in wanted)
        numbers = _array(str(number) for _, number in wanted)
        found = self._ask("entries", books=books, numbers=numbers)
        return {row[:2]: self._entry(row, body=row[:2] in shown) for row in found}

    def _send(self, name: str, **values: object) -> Answer:
        sql, names = self._sql[name]
        return self._wire.send(name, sql, [values[each] for each in names])

    def _ask(self, name: str, **values: object) -> Answer:
        asked = self._send(name, **values)
        self.wait()
        return asked


class Trips(Snapshot, Transaction):
    """A transaction that decides: it loads behind locks, and stores once.

    Attributes:
        stored: Whether there is something to commit.
    """

    #: The rest is set for the session when it is opened.
    begin = ("begin", b"BEGIN")

    def __init__(self, wire: Wire, server: Server, identity: Identity) -> None:
        super().__init__(wire, server, identity)
        self.stored = False
        self._locked: set[Key] | None = None
        self._versions: set[str] = set()
        self._ending: Answer | None = None

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked; lock their books."""
        asked = _asked(keys)
        for _ in range(_LOADS):
            found = self._behind_locks(asked, keys)
            state = self._state(keys, found)
            if self._holds(keys, state.rows):
                self._versions |= {row[4] for row in found if row[0] == "row"}
                return state
            # Locks are taken in one order only, and so all of them anew.
            self._wire.send("rollback", b"ROLLBACK")
            self._wire.send(*self.begin)
            self._locked = None
        msg = (
            f"what was asked of the ledger {self.place} was moved by others whenever "
            "it was about to be locked; the step did not run"
        )
        raise LedgerUnavailable(msg, ledger=self.place)

    def _behind_locks(self, asked: Mapping[str, object], keys: Keys) -> list[_Columns]:
        locks = None
        if self._locked is None:
            if keys.books or keys.whole or keys.terms:
                # Only a row can be locked; a new book has none.
                self._send("make_books", **asked)
            deep = keys.reach and (keys.charges or keys.runs)
            locks = self._send("lock_charges" if deep else "lock", **asked)
            if keys.runs:
                self._send("lock_runs", **asked)
        load = self._send("load", **asked)
        self.wait()
        if locks is not None:
            self._locked = {key_of_text(text) for (text,) in locks.fetchall()}
        return load.fetchall()

    def _holds(self, keys: Keys, rows: Rows) -> bool:
        """Say whether all books are locked whose rows a decision may move.

        A charge may have been made meanwhile, or a run taken over by another one.
        """
        named = {("book", n) for n in (*keys.books, *keys.whole, *keys.terms)}
        needed = named | {key for key in rows if key[0] == "book"}
        return needed <= (self._locked or set())

    def _check(self, rows: Sequence[_Columns]) -> None:
        super()._check(rows)
        ((_, _, _, commit, fsync, full_pages, recovers, *_),) = rows
        self._server.check_durable(
            Durable(commit, fsync, full_pages, recovers == "true")
        )

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them, with the commit."""
        if not entries:
            return
        held = self._locked or set()
        if self.stored or not all(("book", entry.book) in held for entry in entries):
            msg = "a transaction stores once, and only entries of books that it locked"
            raise ValueError(msg)
        self.stored = True
        self._send(
            "store",
            entries=json.dumps(entry_texts(entries)),
            rows=json.dumps(row_texts(changes, values)),
            gone=_array(key_text(key) for key, row in changes.items() if row is None),
            versions=_array(self._versions),
        )

    def commit(self) -> None:
        """Ask to commit what was stored; the answer comes when the wire ends."""
        # Where a change failed, the server skips all that was sent after it.
        if self.stored:
            self._ending = self._wire.send("commit", b"COMMIT")
        else:
            self._wire.send("rollback", b"ROLLBACK")

    def check_committed(self) -> None:
        """Check that the transaction did commit.

        Raises:
            LedgerUnavailable: If the server rolled back instead.
        """
        told = self._ending and self._ending.status
        if self.stored and told != "COMMIT":
            msg = (
                f"the ledger {self.place} did not commit but answered {told}; nothing "
                "was charged"
            )
            raise LedgerUnavailable(msg, ledger=self.place)


def _asked(keys: Keys) -> dict[str, object]:
    """Return the parameters of `load`: keys as their texts."""
    books = dict.fromkeys((*keys.books, *keys.whole, *keys.terms))
    gates = [
        (book, f"/{place}" if place else "")
        for book, places in keys.gates.items()
        for place in places
    ]
    charges = [key_text(("charge", name)) for name in keys.charges]
    releases = [key_text(("release", name)) for name in keys.releases]
    runs = [key_text(("run", name)) for name in keys.runs]
    granted = [key_text(("granted", *pair)) for pair in keys.granted]
    claims = [key_text(("claim", name)) for name in keys.claims]
    return {
        "books": _array(key_text(("book", name)) for name in books),
        "blanks": _array(row_text(Book(name)) for name in books),
        "keys": _array((*releases, *runs, *granted, *claims, key_text(EPOCH))),
        "charges": _array(charges),
        "releases": _array(releases),
        "runs": _array(runs),
        "gate_books": _array(key_text(("book", book)) for book, _ in gates),
        "gate_places": _array(place for _, place in gates),
        "whole": _array(keys.whole),
        "terms": _array((*keys.whole, *keys.terms)),
        "accounts": _array(key_text(("account", name)) for name in keys.accounts),
        "entry_books": _array(book for book, _ in keys.entries),
        "entry_numbers": _array(str(number) for _, number in keys.entries),
        "reach": int(keys.reach),
    }


def _array(texts: Iterable[str]) -> str:
    """Write an array as PostgreSQL reads it."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


_PARAMETER = re.compile(r":(\w+)")


@cache
def _statements() -> dict[str, tuple[bytes, tuple[str, ...]]]:
    """Return each statement as the server takes it, and its parameters in order."""
    found = {}
    for name, sql in statements("postgres").items():
        names = tuple(dict.fromkeys(_PARAMETER.findall(sql)))
        numbers = {each: f"${number}" for number, each in enumerate(names, 1)}
        text = _PARAMETER.sub(lambda part: numbers[part[1]], sql)  # noqa: B023
        found[name] = (text.encode(), names)
    return found
