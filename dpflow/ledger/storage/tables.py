"""The tables of a ledger: what is read and written within a transaction."""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from dpflow.ledger.damage import UNREADABLE, damaged
from dpflow.ledger.entry import Columns, Entry, JournalError, entry_of
from dpflow.ledger.journal import KINDS
from dpflow.ledger.state import State
from dpflow.ledger.storage.base import VERSION, Identity, identity_in
from dpflow.ledger.storage.sql import statements

#: Says which keys to load, as far as those that were loaded tell.
Needs = Callable[[State], Iterable[str]]
_PAGE = 500
#: A page is at most about so many characters long.
_PAGE_TEXT = 8 * 2**20
#: Above every number of an entry.
ENDLESS = 2**62


class Reading(ABC):
    """One consistent state of a ledger, while its block runs.

    Args:
        place: The ledger, for messages.
        opened: Identity of the ledger that was opened, if any.
    """

    def __init__(self, place: str, opened: Identity | None) -> None:
        self.place = place
        self._identity = opened
        self._head: tuple[int, str] | None = None

    def load(
        self, needs: Needs, *, numbers: Iterable[int] = (), before: int = ENDLESS
    ) -> State:
        """Return what some keys are.

        Args:
            needs: Returns them; asked again until it names no further ones. A key that
                ends with * stands for all that begin so, and #NUMBER for an entry.
            numbers: Further entries; those that are not there are left out.
            before: What they were before this entry.

        Raises:
            LedgerCorrupt: If something is not what it should be.
        """
        state, more = State(), [f"#{number}" for number in numbers]
        try:
            wanted = [*dict.fromkeys((*more, *needs(state)))]
            while True:
                self._fetch(state, self._expanded(wanted), before)
                state.asked.update(wanted)
                wanted = [
                    k for k in dict.fromkeys(needs(state)) if k not in state.asked
                ]
                if not wanted:
                    return state
        except (JournalError, *UNREADABLE) as error:
            what = str(error) if isinstance(error, JournalError) else f"{error!r:.80}"
            raise damaged(what, self.place) from error

    def _expanded(self, wanted: Iterable[str]) -> list[str]:
        """Return keys, with all that those ending with * stand for."""
        found: list[str] = []
        for key in wanted:
            found += self.names(key[:-1]) if key.endswith("*") else [key]
        return found

    def _fetch(self, state: State, wanted: Sequence[str], before: int) -> None:
        """Add what keys are to a state, all in one trip."""
        names = [key for key in wanted if not key.startswith("#")]
        numbers = [key[1:] for key in wanted if key.startswith("#")]
        charges = [k.removeprefix("charge/") for k in names if k.startswith("charge/")]
        keys = [k.removeprefix("release/") for k in names if k.startswith("release/")]
        told = {"names": names, "numbers": numbers, "charges": charges}
        newest, entries, values = self.ask_all(
            [
                ("newest", {"names": names, "before": before}),
                ("told", {**told, "before": before}),
                ("values", {"names": keys}),
            ]
        )
        state.head, known = self.head(), frozenset(names)
        for entry in map(self._entry, entries):
            state.entries[entry.number] = entry
            if entry.charge is not None and f"charge/{entry.charge}" in known:
                if entry.kind == "reserve":
                    state.made[entry.charge] = entry
                elif (kind := KINDS.get(entry.kind)) and kind.ends:
                    state.ends[entry.charge] = entry
        for key, number in newest:
            if number is None:
                continue
            if key not in known or key not in state.entries[number].rows:
                what = f"entry {number} does not name {key}"
                raise JournalError(what)
            state.rows[key] = state.entries[number].rows[key]
            state.numbers[key] = number
        state.values |= {key: value for key, value in values if value is not None}

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

    def _started(self, identity: list[Any], head: list[Any]) -> None:
        """Take the answers to the first questions of a transaction.

        Raises:
            LedgerCorrupt: If another ledger is in the place of the one that was opened.
            LedgerUnavailable: If another version made it.
        """
        self._identity = identity_in(identity, self.place, self._identity)
        self._head = head[0] if head else (0, self._identity.first)

    # Entries

    def entries(self, numbers: Iterable[int]) -> Mapping[int, Entry]:
        """Return those of some entries that are there, hashes checked."""
        return self.load(lambda _: (), numbers=numbers).entries

    def after(
        self, number: int = 0, until: int = ENDLESS, previous: str | None = None
    ) -> Iterator[Entry]:
        """Yield the entries after a number, oldest first, hashes checked.

        Args:
            number: Of the entry before them.
            until: The number of the last of them.
            previous: The hash of the entry before them, where it is known.

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
        """Return the next entries after a number, as they are kept; unchecked."""
        return self.ask("page", after=number, limit=limit)

    def hash_of(self, number: int) -> str:
        """Return the hash of an entry; of none, what the first is chained to."""
        if number == 0:
            return self.identity.first
        found = self.entries([number])
        if number not in found:
            what = f"entry {number} is not there"
            raise damaged(what, self.place)
        return found[number].hash

    def naming(self, keys: Iterable[str], *, before: int = ENDLESS) -> Iterator[Entry]:
        """Yield the entries that name one of some keys, newest first."""
        each = [
            self._numbers("numbers_down", key, before) for key in dict.fromkeys(keys)
        ]
        yield from self._told(_once(merge(*each, reverse=True)))

    def naming_after(self, keys: Iterable[str], after: int = 0) -> Iterator[Entry]:
        """Yield the entries after a number that name one of some keys, oldest first."""
        each = [self._numbers("numbers_up", key, after) for key in dict.fromkeys(keys)]
        yield from self._told(_once(merge(*each)))

    def rare(self, *kinds: str) -> Iterator[Entry]:
        """Yield the entries of kinds that no step writes as a rule, newest first."""
        each = [self._numbers("rare", kind, ENDLESS) for kind in kinds or _RARE]
        yield from self._told(merge(*each, reverse=True))

    def _numbers(self, question: str, key: str, end: int) -> Iterator[int]:
        """Yield the numbers of entries with a key or kind, page by page."""
        name = "kind" if question == "rare" else "key"
        side = "after" if question == "numbers_up" else "before"
        while True:
            found = self.ask(question, **{name: key, side: end, "limit": _PAGE})
            yield from (number for (number,) in found)
            if len(found) < _PAGE:
                return
            end = found[-1][0]

    def _told(self, numbers: Iterator[int]) -> Iterator[Entry]:
        """Yield entries in the order of their numbers."""
        size = 8
        while some := list(islice(numbers, size)):
            found = self.entries(some)
            for number in some:
                if number not in found:
                    what = f"entry {number} is named and not there"
                    raise damaged(what, self.place)
                yield found[number]
            size = min(2 * size, _PAGE)

    # Names

    def names(self, prefix: str) -> list[str]:
        """Return the keys that begin with a text, sorted."""
        last = f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
        return [key for (key,) in self.ask("names", first=prefix, last=last)]

    def books(self) -> list[str]:
        """Return the names of all books, sorted."""
        return [key.removeprefix("book/") for key in self.names("book/")]

    def accounts(self, book: str) -> list[str]:
        """Return the ids of a book's accounts in all of its terms."""
        found = self.names(f"account/{book}#")
        return [key.removeprefix("account/") for key in found]

    def open_charges(self) -> list[str]:
        """Return the ids of all charges that did not end, sorted."""
        return sorted(charge for (charge,) in self.ask("open_charges"))

    # Kept values

    def sizes(self, keys: Iterable[str]) -> dict[str, int | None]:
        """Return the length of those values that are kept, by release key.

        The length is None for who may not read values.
        """
        return dict(self.ask("sizes", names=[*keys]))

    def kept(self, above: str = "") -> list[tuple[str, str | None, str | None]]:
        """Return the next kept values above a release key, sorted by it.

        Each comes with the rows of the newest entry about it, as text.
        """
        return self.ask("kept", above=above, limit=_PAGE)

    def secret(self) -> bytes:
        """Return what release keys are made with; who only reads may not have it."""
        ((text,),) = self.ask("secret")
        return bytes.fromhex(text)

    def ask(self, name: str, **parameters: Any) -> list[Any]:
        """Run a statement and return its rows."""
        return self.ask_all([(name, parameters)])[0]

    def _entry(self, columns: tuple[Any, ...]) -> Entry:
        """Read an entry from its columns and the hash before."""
        try:
            return entry_of((*columns[:8], columns[8] or self.identity.first))
        except JournalError as error:
            what = f"entry {columns[0]}: {error}"
            raise damaged(what, self.place) from error

    @abstractmethod
    def ask_all(
        self, questions: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[list[Any]]:
        """Run statements, all in one trip, and return the rows of each."""


class Transaction(Reading):
    """A state that nobody else changes, and what is written on it."""

    @abstractmethod
    def append(
        self, entries: Sequence[Columns], kept: Mapping[str, str | None]
    ) -> None:
        """Append entries; keep values by release key, or drop those that are None."""


class SqliteTables(Transaction):
    """A ledger within one transaction of a SQLite connection.

    Args:
        connection: In a transaction, and durable.
        place: The ledger, for messages.
        opened: Identity of the ledger that was opened, if any.
    """

    def __init__(
        self, connection: sqlite3.Connection, place: str, opened: Identity | None
    ) -> None:
        super().__init__(place, opened)
        self.connection = connection

    def append(
        self, entries: Sequence[Columns], kept: Mapping[str, str | None]
    ) -> None:
        """Append entries; keep values by release key, or drop those that are None."""
        sql, execute = statements("sqlite"), self.connection.execute
        for columns in entries:
            execute(sql["new_entry"], columns)
        for key, value in kept.items():
            execute(sql["drop_value"], (key,))
            if value is not None:
                execute(sql["keep_value"], (key, value))

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Copy the whole ledger, its log included, as this transaction sees it."""
        self.connection.backup(target)

    def ask_all(
        self, questions: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[list[Any]]:
        """Run statements and return the rows of each."""
        sql, execute = statements("sqlite"), self.connection.execute
        if self._head is None:
            first = (execute(sql[name]).fetchall() for name in ("identity", "head"))
            self._started(*first)
        found = []
        for name, parameters in questions:
            values = {
                key: json.dumps(value) if isinstance(value, list) else value
                for key, value in parameters.items()
            }
            found.append(execute(sql[name], values).fetchall())
        return found


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


def _once(numbers: Iterator[int]) -> Iterator[int]:
    last = None
    for number in numbers:
        if number != last:
            yield number
        last = number


_RARE = [name for name, kind in KINDS.items() if not kind.often]
