"""What is asked of a ledger's tables, whatever their dialect."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from operator import attrgetter
from typing import Any

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.entry import Columns, Entry, entry_of
from dpflow.ledger.rows import JournalError, Release
from dpflow.ledger.storage.base import Place, damaged

#: Reads an entry from the hash before it, its columns and its own hash.
ReadColumns = Callable[[str, Columns, str], Entry]

_PAGE = 1000
#: So many entries are read at once by who checks all of them.
_MOST = 4000


class Questions(ABC):
    """What may be read within a transaction, but the rows of keys.

    Attributes:
        place: The ledger, for messages.
    """

    place: str

    def books(self) -> list[str]:
        """Return the names of all books, sorted."""
        return [name for (name,) in self._ask("books")]

    def entries(self, places: Iterable[Place]) -> dict[Place, Entry]:
        """Return those of some entries that are there, hashes checked."""
        return self._entries(sorted(set(places)))

    def after(self, book: str, number: int = 0) -> Iterator[Entry]:
        """Yield the entries of a book after a number, oldest first, hashes checked.

        Raises:
            LedgerCorrupt: If one is not what was hashed, or is missing.
        """
        previous = self._hash_of(book, number)
        while True:
            asked = {"book": book, "after": number, "limit": _PAGE}
            found = self._ask("after", **asked).fetchall()
            for columns in found:
                if columns[:2] != (book, number + 1):
                    what = f"entry {number + 1} of book {book!r} is not there"
                    raise damaged(what, self.place)
                yield self._entry(previous, columns)
                number, previous = columns[1], columns[8]
            if len(found) < _PAGE:
                return

    def newest(self, book: str, before: int | None = None) -> Iterator[Entry]:
        """Yield the entries of a book before a number, newest first, hashes checked."""
        yield from self._backwards("newest", book, before)

    def rare(self, book: str, *kinds: str) -> Iterator[Entry]:
        """Yield a book's entries of other kinds than `COMMON`, or of some of these."""
        if not kinds:
            yield from self._backwards("rare", book, None)
            return
        found = [self._backwards("rare_of_kind", book, None, kind) for kind in kinds]
        yield from merge(*found, key=attrgetter("number"), reverse=True)

    def open_charges(self) -> list[str]:
        """Return the ids of all charges that did not end, sorted."""
        return [name for (name,) in self._ask("open_charges")]

    def releases(self) -> list[tuple[Release, int | None]]:
        """Return every release with the length of its value, if it is kept."""
        return [(Release(*row[:5]), row[5]) for row in self._ask("releases")]

    def page(self, book: str, number: int) -> list[tuple[Any, ...]]:
        """Return the next entries of a book after a number, as they are kept."""
        found: list[tuple[Any, ...]]
        found = self._ask("after", book=book, after=number, limit=_MOST).fetchall()
        return found

    def kept(
        self, kind: str, above: str = "", limit: int = _PAGE
    ) -> list[tuple[Any, ...]]:
        """Return rows of a kind as they are kept, by their first column."""
        found: list[tuple[Any, ...]]
        found = self._ask(f"kept_{kind}", above=above, limit=limit).fetchall()
        return found

    def secret(self) -> bytes:
        """Return what release keys are made with."""
        ((text,),) = self._ask("secret").fetchall()
        return bytes.fromhex(text)

    def _backwards(
        self, name: str, book: str, before: int | None, *kind: str
    ) -> Iterator[Entry]:
        while True:
            asked: dict[str, Any] = {"book": book, "before": before, "limit": _PAGE}
            if kind:
                (asked["kind"],) = kind
            found = self._ask(name, **asked).fetchall()
            for columns in found:
                if columns[0] != book or kind not in ((), columns[2:3]):
                    what = f"an entry of book {columns[0]!r} is among those of {book!r}"
                    raise damaged(what, self.place)
                yield self._entry(columns[9] or "", columns)
                before = columns[1]
            if len(found) < _PAGE:
                return

    def _hash_of(self, book: str, number: int) -> str:
        """Return the hash of an entry; empty for what is before the first."""
        found = self.entries([(book, number)]) if number else {}
        if number and not found:
            what = f"entry {number} of book {book!r} is not there"
            raise damaged(what, self.place)
        return found[book, number].hash if number else ""

    def _entries(self, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], Entry]:
        rows = self._ask("entries", wanted=json.dumps(wanted)) if wanted else []
        return {(row[0], row[1]): self._entry(row[9], row) for row in rows}

    def _entry(
        self, previous: str, columns: tuple[Any, ...], read: ReadColumns = entry_of
    ) -> Entry:
        try:
            return read(previous, Columns(*columns[:8]), columns[8])
        except JournalError as error:
            what = f"entry {columns[1]} of book {columns[0]!r}: {error}"
            raise damaged(what, self.place) from error

    @abstractmethod
    def _ask(self, name: str, **parameters: Any) -> Any:
        """Run a statement and return its rows."""

    def _damaged(self, what: str) -> LedgerCorrupt:
        return damaged(what, self.place)
