"""The tables of a ledger, and their statements for each database.

Everything here is read or written within a transaction.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from heapq import merge
from importlib.resources import files
from itertools import chain, groupby, islice
from typing import Any

from dpflow.exceptions import LedgerCorrupt, LedgerUnavailable
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.entry import Entry, JournalError, canonical, draft_of, entry_of
from dpflow.ledger.journal import KINDS
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import UNREADABLE, VERSION, Identity, damaged

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
#: `seal` is a part of the form of the indexes, and no kind.
_LISTS = {
    "{often}": ["reserve", "settle", "void", "seal", "pay"],
    "{ends}": ["settle", "void", "forfeit", "seal"],
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


#: Says which keys to load, as far as those that were loaded tell.
Needs = Callable[[State], Iterable[str]]
#: Reads an entry from its columns and the hash before.
Read = Callable[[tuple[Any, ...]], Entry]
#: Entries by number.
Entries = Mapping[int, Entry]
#: Names of statements, with their parameters.
Questions = Sequence[tuple[str, Mapping[str, Any]]]
_PAGE = 500
#: More keys or entries than these are not remembered.
_MOST = 2000
#: Most characters of a page, roughly.
_PAGE_TEXT = 8 * 2**20
#: Above every number of an entry.
ENDLESS = 2**62


class Reading:
    """One consistent state of a ledger, while its block runs.

    Args:
        connection: Of the database, in a transaction, and durable.
        place: The ledger, for messages.
        opened: Identity of the ledger that was opened, if any.
        newest: What this process saw and wrote, which says what to load first.
        sql: The statements of the database by name.
    """

    #: The question that begins every transaction.
    _first = "identity"

    def __init__(
        self,
        connection: Any,
        place: str,
        opened: Identity | None,
        newest: State | None = None,
        sql: Mapping[str, Any] | None = None,
    ) -> None:
        self.place, self.connection = place, connection
        self._identity, self._newest = opened, newest
        self._sql = sql or statements("sqlite")
        self._head: tuple[int, str] | None = None
        #: By key, the number of the newest entry that the database has.
        self.tagged: dict[str, int | None] = {}

    def load(
        self, needs: Needs, *, numbers: Iterable[int] = (), before: int = ENDLESS
    ) -> State:
        """Return what some keys are.

        Args:
            needs: Returns them; called again until it names no further ones. A key that
                ends with * stands for all that begin so, and #NUMBER for an entry.
            numbers: Further entries; absent ones are omitted.
            before: What they were before this entry.

        Raises:
            LedgerCorrupt: If something is not what it should be.
        """
        state, more = State(), [f"#{number}" for number in numbers]
        newest = self._newest if before == ENDLESS else None
        if newest is not None:
            # As the keys were at the last load, which saves a trip.
            with suppress(JournalError, *UNREADABLE):
                more += needs(newest)
        try:
            if newest is None or not more:
                more += needs(state)
            while wanted := [k for k in dict.fromkeys(more) if k not in state.loaded]:
                self._fetch(state, wanted, before)
                state.loaded.update(wanted)
                state.head = self.head()
                more = [*needs(state)]
        except without_interrupts(JournalError, *UNREADABLE) as error:
            what = str(error) if isinstance(error, JournalError) else f"{error!r:.80}"
            raise damaged(what, self.place) from error
        if newest is not None:
            for name in ("rows", "numbers", "entries", "made", "ends"):
                remembered = getattr(newest, name)
                if len(remembered) > _MOST:
                    remembered.clear()
                remembered |= getattr(state, name)
        return state

    def _fetch(self, state: State, wanted: Iterable[str], before: int) -> None:
        """Add what keys are to a state, all in one trip."""
        keys: list[str] = []
        for key in wanted:
            keys += self.names(key[:-1]) if key.endswith("*") else [key]
        numbers, charges, releases = (
            [key.removeprefix(start) for key in keys if key.startswith(start)]
            for start in ("#", "charge/", "release/")
        )
        names = [key for key in keys if not key.startswith("#")]
        question = {"names": names, "before": before}
        tagged, entries, *values = self.ask_all(
            [
                ("newest", question),
                ("entries", {**question, "numbers": numbers, "charges": charges}),
                *([("values", {"names": releases})] if releases else []),
            ]
        )
        loaded = {*charges}
        if before == ENDLESS:
            self.tagged.update(tagged)
        for entry in map(self._entry, entries):
            state.entries[entry.number] = entry
            if entry.charge in loaded:
                if entry.kind == "reserve":
                    state.made[entry.charge] = entry
                elif (kind := KINDS.get(entry.kind)) and kind.ends:
                    state.ends[entry.charge] = entry
        for key, number in tagged:
            if number is None:
                continue
            if key not in state.entries[number].rows:
                what = f"entry {number} does not name {key}"
                raise JournalError(what)
            state.rows[key] = state.entries[number].rows[key]
            state.numbers[key] = number
        state.values |= {k: value for k, value in chain(*values) if value is not None}

    def head(self) -> tuple[int, str]:
        """Return number and hash of the newest entry."""
        if self._head is None:
            self.ask_all([])
        assert self._head is not None
        return self._head

    @property
    def identity(self) -> Identity:
        """Which ledger it is."""
        self.head()
        assert self._identity is not None
        return self._identity

    # Entries

    def entries(self, numbers: Iterable[int], read: Read = entry_of) -> Entries:
        """Return those of some entries that are there, hashes checked."""
        where = {"names": [], "charges": [], "before": ENDLESS}
        some = self.ask("entries", numbers=[*map(str, numbers)], **where)
        return {columns[0]: self._entry(columns, read) for columns in some}

    def after(
        self, number: int = 0, until: int = ENDLESS, previous: str | None = None
    ) -> Iterator[Entry]:
        """Yield the entries after a number, oldest first, hashes checked.

        Args:
            number: Of the entry before them.
            until: The number of the last of them.
            previous: The hash of the entry before them, if it was read.

        Raises:
            LedgerCorrupt: If one is not what was hashed, or is missing.
        """
        previous, limit = previous or self.hash_of(number), _PAGE
        while number < until:
            size = min(limit, until - number)
            page = self.page(number, size)
            for columns in page:
                if columns[0] != number + 1:
                    what = f"entry {number + 1} is not there"
                    raise damaged(what, self.place)
                yield self._entry((*columns, previous))
                number, previous = columns[0], columns[7]
            if len(page) < size:
                return
            limit = smaller(limit, page)

    def page(self, number: int, limit: int = _PAGE) -> list[tuple[Any, ...]]:
        """Return the next entries after a number, as the database has them."""
        return self.ask("page", after=number, limit=limit)

    def hash_of(self, number: int) -> str:
        """Return the hash of an entry; of none, what the first is chained to."""
        if number == 0:
            return self.identity.first
        return self._drafts([number])[0].hash

    def naming(self, keys: Iterable[str]) -> Iterator[Entry]:
        """Yield the entries that name one of some keys, newest first, without rows."""
        return self._listed("numbers_down", keys)

    def naming_after(self, keys: Iterable[str], after: int = 0) -> Iterator[Entry]:
        """Yield those after a number, oldest first, without rows."""
        return self._listed("numbers_up", keys, after)

    def rare(self, *kinds: str) -> Iterator[Entry]:
        """Yield the entries of kinds that steps write rarely, without rows."""
        return self._listed("rare", kinds)

    def _listed(
        self, question: str, names: Iterable[str], end: int = ENDLESS
    ) -> Iterator[Entry]:
        """Yield the entries with one of some keys or kinds, each once."""
        pages = [self._numbers(question, name, end) for name in {*names}]
        numbers = merge(*pages, reverse=question != "numbers_up")
        once, size = (number for number, _ in groupby(numbers)), 8
        while some := list(islice(once, size)):
            yield from self._drafts(some)
            size = min(2 * size, _PAGE)

    def _numbers(self, question: str, name: str, end: int) -> Iterator[int]:
        """Yield the numbers of entries with a key or kind, page by page."""
        while page := self.ask(question, key=name, end=end, limit=_PAGE):
            yield from (number for (number,) in page)
            if len(page) < _PAGE:
                return
            end = page[-1][0]

    def whole(self, drafts: Iterable[Entry]) -> Iterator[Entry]:
        """Yield entries that were read without rows, with them."""
        left = iter(drafts)
        while page := [draft.number for draft in islice(left, 64)]:
            entries = self.entries(page)
            yield from (entries[number] for number in page)

    def _drafts(self, numbers: Sequence[int]) -> list[Entry]:
        """Return some entries in the order of their numbers, without rows and text."""
        entries = self.entries(numbers, draft_of)
        for number in numbers:
            if number not in entries:
                what = f"entry {number} is not there"
                raise damaged(what, self.place)
        return [Entry(*entries[number][:9]) for number in numbers]

    # Names

    def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with a text, sorted."""
        last = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
        return [key for (key,) in self.ask("names", first=prefix, last=last)]

    def books(self) -> list[str]:
        """Return the names of all books, sorted."""
        return [key.removeprefix("book/") for key in self.names("book/")]

    def open_charges(self) -> list[str]:
        """Return the ids of all charges that did not end, sorted."""
        return sorted(charge for (charge,) in self.ask("open_charges"))

    # Kept values

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the length of the stored values, by release key.

        A login that may not read values gets None.
        """
        return dict(self.ask("sizes", names=[*keys]))

    def kept(self, above: str = "") -> list[tuple[str, str | None, str | None]]:
        """Return the next stored values above a release key, sorted by it.

        Each comes with the rows of the newest entry about it, as text.
        """
        return self.ask("kept", above=above, limit=_PAGE)

    def secret(self) -> bytes:
        """Return the secret of release keys; a reader's login may not have it."""
        ((text,),) = self.ask("secret")
        return bytes.fromhex(text)

    def ask(self, name: str, **parameters: Any) -> list[Any]:
        """Run a statement and return its rows."""
        return self.ask_all([(name, parameters)])[0]

    def _entry(self, columns: tuple[Any, ...], read: Read = entry_of) -> Entry:
        """Read an entry from its columns and the hash before."""
        try:
            return read((*columns[:8], columns[8] or self.identity.first))
        except without_interrupts(*UNREADABLE) as error:
            what = f"entry {columns[0]}: {error}"
            raise damaged(what, self.place) from error

    def ask_all(self, questions: Questions) -> list[list[Any]]:
        """Run statements, all in one trip, and return the rows of each."""
        if self._head is not None:
            return self._run(questions)
        begin = [(self._first, {}), ("head", {}), *questions]
        identity, head, *answers = self._run(begin)
        self._identity = self._identified(identity)
        self._head = head[0] if head else (0, self._identity.first)
        return answers

    def _identified(self, rows: list[Any]) -> Identity:
        """Read the answer to the first question.

        Raises:
            LedgerCorrupt: If another ledger is in the place of the one that was opened.
            LedgerUnavailable: If it is of another version.
        """
        if len(rows) != 1:
            what = "its identity row is missing"
            raise damaged(what, self.place)
        *facts, version = rows[0]
        if version != VERSION:
            msg = (
                f"the ledger {self.place} has the tables of another version of dpflow, "
                "which this version cannot read. Use that version, or make a new "
                "ledger with `dpflow ledger init` and charge the prior spending there."
            )
            raise LedgerUnavailable(msg, ledger=self.place)
        identity = Identity(*facts)
        if self._identity not in (None, identity):
            msg = (
                f"the ledger {self.place} is another ledger than before: its id is "
                f"{identity.ledger}. Nothing was charged. Restore the first."
            )
            raise LedgerCorrupt(msg, ledger=self.place)
        return identity

    def _run(self, questions: Questions) -> list[list[Any]]:
        """Run statements, and return the rows of each."""
        answers = []
        for name, parameters in questions:
            values = {
                key: canonical(value) if isinstance(value, list) else value
                for key, value in parameters.items()
            }
            cursor = self.connection.execute(self._sql[name], values)
            answers.append(cursor.fetchall())
        return answers


class Transaction(Reading):
    """A state that no other process changes, and what is written on it."""

    def append(self, entries: Sequence[Entry], kept: Mapping[str, str | None]) -> None:
        """Append entries; keep values by release key, or drop those that are None."""
        execute = self.connection.execute
        for entry in entries:
            execute(self._sql["new_entry"], entry.columns)
            if self._newest is not None:
                self._newest.add(entry)
        for key, value in kept.items():
            execute(self._sql["drop_value"], (key,))
            if value is not None:
                execute(self._sql["keep_value"], (key, value))


def make_tables(
    connection: sqlite3.Connection, identity: Identity, secret: bytes
) -> None:
    """Make the tables of a new ledger and enter its identity, within a transaction."""
    sql = statements("sqlite")
    # A semicolon within a trigger ends no line.
    for statement in f"{sql['tables']};\n{sql['rules']}".split(";\n"):
        connection.execute(statement)
    values = {**identity._asdict(), "version": VERSION, "secret": secret.hex()}
    connection.execute(sql["create_ledger"], values)


def smaller(limit: int, page: Sequence[Sequence[Any]]) -> int:
    """Return how many entries the next page may have, after one of this length."""
    text = sum(len(columns[3]) + len(columns[4]) for columns in page)
    return max(1, min(_PAGE, limit * _PAGE_TEXT // max(text, 1)))
