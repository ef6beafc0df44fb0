"""The journals of all books, followed as one.

Each book numbers its own entries, and nothing orders those of two books. They are
followed in an order that keeps three rules: an entry comes after those before it in its
book; the entries of one change to a charge (its reserve, its adoption, its end) come
together in all its books; and an entry comes after those that it names as `after`.

Whatever the order, the rows are those that were stored. Books, terms, accounts and what
was granted are moved by entries of one book. So is each book's word in a claim. The
changes of a charge are in all its books, so that any of them orders two of these; a
draw locks the books of its preflight, and what was added by hand adds up. Charges with
one release key read the same datasets. A run collects refusals, whose order means
nothing, and an entry that begins or refuses a preflight names those before it. The
epoch is the highest one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Entry, entry_of
from dpflow.ledger.journal import KINDS, follow
from dpflow.ledger.rows import JournalError, Key, Row

#: Kinds that are written in all books of a charge at once.
TOGETHER = {"adopt", *(name for name, k in KINDS.items() if k.holds or k.ends)}
#: What following garbage raises, where its hashes fit.
_GARBAGE = (*UNREADABLE, RecursionError)


def chained(
    book: str, head: tuple[int, str], rows: Iterable[Sequence[Any]]
) -> Iterator[Entry]:
    """Yield the next entries of a book from their columns, and check each hash.

    Args:
        book: Its name.
        head: Number and hash of the entry before them.
        rows: The columns of each, and its hash.

    Raises:
        JournalError: If one is missing, or is not what was hashed.
    """
    number, previous = head
    for columns in rows:
        if columns[0] != book or columns[1] != number + 1:
            what = f"entry {number + 1} is missing or out of order"
            raise JournalError(what)
        yield entry_of(previous, columns[:8], columns[8])
        number, previous = number + 1, columns[8]


class Fold:
    """The rows that entries come to.

    Args:
        seen: Told of each entry before it is followed; it may refuse one.

    Attributes:
        heads: By book, number and hash of the newest entry that was read.
        bad: By book, the first entry that does not follow, and why; what comes after
            it in that book is left out.
    """

    def __init__(
        self,
        seen: Callable[[Mapping[Key, Row], Entry], None] | None = None,
    ) -> None:
        self.rows: dict[Key, Row] = {}
        self.heads: dict[str, tuple[int, str]] = {}
        self.numbers: dict[str, int] = {}
        self.bad: dict[str, tuple[int, str]] = {}
        self._seen = seen
        self._waiting: dict[str, deque[Entry]] = {}
        self._books: dict[str, tuple[str, ...]] = {}

    def add(self, book: str, entries: Iterable[Entry]) -> None:
        """Add the next entries of a book."""
        if book not in self.bad:
            self._waiting.setdefault(book, deque()).extend(entries)

    def read(self, book: str, page: Iterable[Sequence[Any]]) -> int:
        """Add the next entries of a book from their columns, and check each hash.

        From the first bad one on the book is given up; those before it are followed.

        Returns:
            How many there are before it.
        """
        number, previous = first, _ = self.heads.get(book, (0, ""))
        waiting = self._waiting.setdefault(book, deque())
        try:
            for entry in chained(book, (number, previous), page):
                waiting.append(entry)
                number, previous = entry.number, entry.hash
        except JournalError as problem:
            self.bad.setdefault(book, (number + 1, str(problem)))
        self.heads[book] = number, previous
        return number - first

    def is_waiting(self, book: str) -> bool:
        """Say whether entries of a book wait for those of others."""
        return bool(self._waiting.get(book))

    def advance(self) -> None:
        """Follow all entries that do not wait for others."""
        moved = True
        while moved:
            moved = False
            for book, waiting in self._waiting.items():
                while waiting:
                    entry = waiting[0]
                    if self._is_alone(entry):
                        self._follow(entry)
                    elif not self._may_come(book, entry):
                        break
                    moved = True

    def end(self) -> None:
        """Say of entries that wait in vain that they stand alone."""
        self.advance()
        for book, waiting in self._waiting.items():
            if waiting:
                entry = waiting[0]
                what = "it stands alone: what was written with it is in no other book"
                self.bad.setdefault(book, (entry.number, what))
                waiting.clear()

    def _is_alone(self, entry: Entry) -> bool:
        """Say quickly of most entries that nothing has to come before or with them."""
        _, _, kind, charge, postings, body, _, _, _ = entry
        if "after" in body:
            return False
        if kind != "reserve":
            return charge not in self._books
        return body.get("accounts") == [*postings]

    def _may_come(self, book: str, entry: Entry) -> bool:
        """Follow an entry, with those that belong to it, if none of them waits."""
        books: Iterable[str] | None = None
        if entry.kind in TOGETHER:
            try:
                books = self._together(entry)
            except _GARBAGE as error:
                self._give_up(book, entry, error)
                return True
        if books is None:
            books = (book,)
        heads = []
        for each in books:
            waiting = self._waiting.get(each)
            if waiting:
                head = waiting[0]
                if (head.charge, head.kind) != (entry.charge, entry.kind):
                    return False
                heads.append(head)
            elif each not in self.bad:
                return False
        if "after" in entry.body and not all(map(self._is_past, entry.body["after"])):
            return False
        for head in heads:
            self._follow(head)
        return True

    def _together(self, entry: Entry) -> tuple[str, ...] | None:
        """Return the books of an entry's charge; None if there is only its own."""
        charge = entry.charge or ""
        if entry.kind == "reserve":
            accounts = entry.body["accounts"]
            # In the order in which they were written: a release has the first.
            books = tuple(dict.fromkeys(name.partition("#")[0] for name in accounts))
            if entry.book not in books:
                what = f"it reserves on accounts of other books only: {accounts}"
                raise JournalError(what)
            if len(books) == 1:
                return None
            self._books[charge] = books
            return books
        return self._books.get(charge)

    def _is_past(self, place: tuple[str, int]) -> bool:
        book, number = place
        return book in self.bad or self.numbers.get(book, 0) >= number

    def _follow(self, entry: Entry) -> None:
        self._waiting[entry.book].popleft()
        rows = self.rows
        try:
            if self._seen is not None:
                self._seen(rows, entry)
            changes = follow(rows, entry)
        except _GARBAGE as error:
            self._give_up(entry.book, entry, error)
            return
        self.numbers[entry.book] = entry.number
        for key, row in changes.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row

    def _give_up(self, book: str, entry: Entry, error: Exception) -> None:
        what = str(error)
        if not isinstance(error, JournalError):
            what = f"it is no entry of its kind ({type(error).__name__})"
        self.bad[book] = (entry.number, what)
        self._waiting[book].clear()
