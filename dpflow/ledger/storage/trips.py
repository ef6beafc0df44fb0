"""One transaction of a ledger in PostgreSQL: a trip to load, and a trip to store.

Statements are sent together and answered in order. What a transaction reads is asked
behind the locks of its books in one trip; what it writes goes with the COMMIT in the
second, and the server refuses to commit if a row that no book's lock keeps was written
by somebody else since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Entry, columns_of, entry_of, proof_of
from dpflow.ledger.model import Keys, State
from dpflow.ledger.rows import Changes, Epoch, JournalError, Rows, epoch_of
from dpflow.ledger.storage.base import Identity, Place, another_ledger, check_writer
from dpflow.ledger.storage.columns import columns_of_row, statements
from dpflow.ledger.storage.loading import Loading, Part
from dpflow.ledger.storage.questions import Questions
from dpflow.ledger.storage.server import Durable, Server
from dpflow.ledger.storage.wire import Answer, Wire

_Columns = tuple[Any, ...]

#: How often a load begins anew because what it leads to moved before it was locked.
_LOADS = 5
#: Kinds of rows that nearly every charge writes, and those that few do.
_OFTEN = ("book", "account", "charge", "release", "granted")
_SELDOM = ("term", "run", "claim")
#: Where a row's version is, for what no book's lock keeps.
_VERSION = 13

# A UNION has numbers and texts in columns of their own: numbers from 1, texts from 5.
_IN_ORDER: Mapping[str, itemgetter[Any]] = {
    "epoch": itemgetter(0, 1, 5, 2),
    "book": itemgetter(0, 5, 1, 6, 7, 8, 2, 3, 4),
    "term": itemgetter(0, 5, 1, 2),
    "account": itemgetter(0, 5, 6, 1, 7, 8, 2, 9),
    "charge": itemgetter(0, 5, 6, 7, 8, 9, 10, 11, 12, 1),
    "release": itemgetter(0, 5, 6, 7, 8, 9, 10),
    "run": itemgetter(0, 5, 6, 7, 8, 9),
    "granted": itemgetter(0, 5, 6, 7),
    "claim": itemgetter(0, 5, 6),
    "entry": itemgetter(5, 1, 6, 7, 8, 9, 10, 11, 12),
}


class Snapshot(Questions):
    """A consistent state of the ledger.

    Args:
        wire: Outside a transaction; one of its own begins with this.
        server: Whose it is.
        identity: Of the ledger that was opened.
    """

    begin = ("begin_reading", b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def __init__(self, wire: Wire, server: Server, identity: Identity) -> None:
        self.place = server.place
        self._server = server
        self._identity = identity
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
        """Return what one trip brought, checked."""
        entries = {(row[5], row[1]): row for row in found if row[0] == "entry"}
        rows = [_IN_ORDER[row[0]](row) for row in found if row[0] != "entry"]

        def ask(_: Sequence[Part]) -> list[_Columns]:
            """Return all rows, once: what they do not have is not there."""
            told = rows[:]
            rows.clear()
            return told

        def read(shown: set[Place], proofs: set[Place]) -> dict[Place, Entry]:
            return {
                place: self._entry(
                    entries[place][13],
                    _IN_ORDER["entry"](entries[place]),
                    entry_of if place in shown else proof_of,
                )
                for place in entries.keys() & (shown | proofs)
            }

        self._check([row for row in found if row[0] == "epoch"])
        try:
            return Loading(keys, ask, read).state()
        except (JournalError, *UNREADABLE) as error:
            what = str(error) if isinstance(error, JournalError) else f"{error!r:.80}"
            raise self._damaged(what) from error

    def _check(self, rows: Sequence[_Columns]) -> None:
        """Refuse another ledger than the one that was opened."""
        if len(rows) != 1:
            what = f"{self.place} is no ledger: its identity row is missing"
            raise self._damaged(what)
        (row,) = rows
        check_writer(self.place, row[2])
        if row[5] != self._identity.ledger:
            raise another_ledger(self.place, self._identity.ledger, row[5])

    def _entries(self, wanted: list[Place]) -> dict[Place, Entry]:
        books = _array(book for book, _ in wanted)
        numbers = _array(str(number) for _, number in wanted)
        found = self._ask("entries", books=books, numbers=numbers)
        return {(row[0], row[1]): self._entry(row[9], row) for row in found}

    def _send(self, name: str, **values: object) -> Answer:
        sql, names = self._sql[name]
        return self._wire.send(name, sql, [values[each] for each in names])

    def _ask(self, name: str, **values: object) -> Answer:
        asked = self._send(name, **values)
        self.wait()
        return asked


class Trips(Snapshot):
    """A transaction that decides: it loads behind locks, and stores once.

    Attributes:
        stored: Whether there is something to commit.
    """

    #: The rest is set for the session when it is opened.
    begin = ("begin", b"BEGIN")

    def __init__(self, wire: Wire, server: Server, identity: Identity) -> None:
        super().__init__(wire, server, identity)
        self.stored = False
        self._locked: set[str] | None = None
        self._versions: set[str] = set()
        self._epoch = 0
        self._ending: Answer | None = None

    def load(self, keys: Keys) -> State:
        """Return every row that the keys lead to, checked; lock their books."""
        asked = _asked(keys)
        for _ in range(_LOADS):
            found = self._behind_locks(asked, keys)
            state = self._state(keys, found)
            if self._holds(keys, state.rows):
                self._versions |= {row[_VERSION] for row in found if row[0] != "entry"}
                self._epoch = epoch_of(state.rows)
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
            if keys.books or keys.whole:
                # Only a row can be locked; a new book has none.
                self._send("make_books", **asked)
            deep = keys.reach and (keys.charges or keys.runs)
            locks = self._send("lock_charges" if deep else "lock", **asked)
            if keys.runs:
                self._send("lock_runs", **asked)
        load = self._send("load", **asked)
        self.wait()
        if locks is not None:
            self._locked = {name for (name,) in locks.fetchall()}
        return load.fetchall()

    def _holds(self, keys: Keys, rows: Rows) -> bool:
        """Say whether all books are locked whose rows a decision may move.

        A charge may have been made meanwhile, or a run taken over by another one.
        """
        needed = {*keys.books, *keys.whole, *(k[1] for k in rows if k[0] == "book")}
        return needed <= (self._locked or set())

    def _check(self, rows: Sequence[_Columns]) -> None:
        super()._check(rows)
        ((_, _, _, timeline, pinned, _, identifier, *told),) = rows
        commit, fsync, full_pages, recovers = told[:4]
        self._server.check_durable(
            Durable(commit, fsync, full_pages, recovers == "true")
        )
        found = (self._wire.system_identifier, timeline)
        self._server.check_pinned((identifier, pinned), found)

    def store(
        self, changes: Changes, entries: Sequence[Entry], values: Mapping[str, str]
    ) -> None:
        """Write entries, and the rows that follow from them, with the commit."""
        if not entries:
            return
        held = self._locked or set()
        if self.stored or not all(entry.book in held for entry in entries):
            msg = "a transaction stores once, and only entries of books that it locked"
            raise ValueError(msg)
        self.stored = True
        versions = f"{{{','.join(filter(None, self._versions))}}}"
        kinds: dict[str, list[_Columns]] = {name: [] for name in (*_OFTEN, *_SELDOM)}
        for key, row in changes.items():
            if row is None:
                self._send("drop_release", key=key[1], versions=versions)
            elif isinstance(row, Epoch):
                self._send("epoch", epoch=row.number, before=self._epoch)
            else:
                kinds[key[0]].append(columns_of_row(row, values))
        for kind in _SELDOM:
            if kinds[kind]:
                rows = json.dumps(kinds[kind])
                more = {} if kind == "term" else {"versions": versions}
                self._send(kind, rows=rows, **more)
        often = {kind: json.dumps(kinds[kind]) for kind in _OFTEN}
        told = json.dumps([(*columns_of(entry), entry.hash) for entry in entries])
        self._send("store", entry=told, versions=versions, **often)

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
    """Return the parameters of `load`."""
    gates = [
        (book, f"/{place}" if place else "")
        for book, places in keys.gates.items()
        for place in places
    ]
    return {
        "books": _array([*keys.books, *keys.whole]),
        "gate_books": _array([book for book, _ in gates]),
        "gate_places": _array([place for _, place in gates]),
        "charges": _array(keys.charges),
        "releases": _array(keys.releases),
        "runs": _array(keys.runs),
        "granted_books": _array([book for book, _ in keys.granted]),
        "granted_steps": _array([step for _, step in keys.granted]),
        "claims": _array(keys.claims),
        "whole": _array(keys.whole),
        "entry_books": _array([book for book, _ in keys.entries]),
        "entry_numbers": _array([str(number) for _, number in keys.entries]),
        "reach": int(keys.reach),
    }


def _array(texts: Iterable[str]) -> str:
    """Write an array as PostgreSQL reads it."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


_PARAMETER = re.compile(r"%\((\w+)\)s")


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
