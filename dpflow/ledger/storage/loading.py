"""What a command's keys lead to in a SQL ledger, read in two statements and checked.

The first brings the rows, the second the entries that moved them last. Two more are
asked only for what just these entries tell: the accounts of a charge that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dpflow.ledger.entry import Entry
from dpflow.ledger.model import Keys, Reach, State
from dpflow.ledger.rows import (
    EPOCH,
    Book,
    Charge,
    Granted,
    JournalError,
    Key,
    Release,
    Row,
    Run,
    key_of,
    name_of_term,
)
from dpflow.ledger.storage.base import Place, contradiction, disagreement
from dpflow.ledger.storage.columns import (
    Columns,
    account_of,
    book_of,
    charge_of,
    row_of,
    term_of,
)

#: A part of the first statement with its parameters: single names, or pairs.
Part = tuple[str, Sequence[Any]]
#: Asks several parts at once.
Ask = Callable[[Sequence[Part]], Iterable[Columns]]
#: Reads entries: those that only prove something come without their bodies.
ReadEntries = Callable[[set[Place], set[Place]], Mapping[Place, Entry]]


class Loading:
    """Collects the rows of some keys.

    Args:
        keys: What a command needs.
        ask: Runs the first statement.
        read: Runs the second.
    """

    def __init__(self, keys: Keys, ask: Ask, read: ReadEntries) -> None:
        self._keys, self._ask, self._read = keys, ask, read
        self.rows: dict[Key, Row] = {}
        self.values: dict[str, str] = {}
        self.ledger: tuple[str, int] | None = None
        self._entries: dict[Place, Entry] = {}
        self._terms: dict[tuple[str, int], int] = {}
        #: Entries that are shown, and those that only prove what a row says.
        self._shown: set[Place] = set(keys.entries)
        self._proofs: set[Place] = set()
        #: Entries that were read with their bodies.
        self._bodies: set[Place] = set()

    def state(self) -> State:
        """Return the rows with the entries of charges.

        Raises:
            JournalError: If a row or an entry is not what it should be.
        """
        self._take(parts_of(self._keys))
        if self.ledger is None:
            what = "the ledger's identity row is missing"
            raise JournalError(what)
        reached, rows = self._reached(), self.rows
        further = self._further(reached)
        if further:
            self._take(further)
        self._check_keys(reached)
        for row in rows.values():
            wrong = disagreement(row, self._entry)
            if wrong is not None:
                raise JournalError(wrong)
        wrong = contradiction(rows, self._entries)
        if wrong is not None:
            raise JournalError(wrong)
        known = self._entries
        shown = {place: known[place] for place in self._shown if place in known}
        return State(rows=rows, entries=shown, values=self.values)

    def _take(self, parts: Sequence[Part]) -> None:
        """Read rows, and then the entries behind them."""
        for columns in self._ask(parts):
            self._note(columns)
        wanted = self._shown - self._bodies
        self._bodies |= wanted
        proofs = self._proofs - self._entries.keys() - wanted
        if wanted or proofs:
            self._entries.update(self._read(wanted, proofs))
        for (book, number), entry in self._terms.items():
            term = term_of((book, number, entry), self._entry)
            self.rows["term", book, str(number)] = term

    def _note(self, columns: Columns) -> None:
        """Keep a row, and what entries are behind it."""
        kind, rows = columns[0], self.rows
        if kind == "account":
            account = account_of(columns[1:8])
            rows["account", account.id] = account
            self._proofs.add((account.book, account.entry))
        elif kind == "book":
            book = book_of(columns[1:7])
            rows["book", book.name] = book
            self._proofs.add((book.name, book.number))
            if columns[8] is not None:
                self._term(book.name, columns[7], columns[8])
            elif self._lacks_term(book):
                what = f"term {book.terms} of {book.name!r} is not there"
                raise JournalError(what)
        elif kind == "charge":
            charge = charge_of(columns[1:])
            rows["charge", charge.id] = charge
            for name, numbers in charge.places.items():
                self._shown.update((name, number) for number in numbers if number)
        elif kind == "release":
            release = Release(*columns[1:6])
            rows["release", release.key] = release
            if columns[6] is not None:
                self.values[release.key] = columns[6]
        else:
            self._note_other(kind, columns)

    def _note_other(self, kind: str, columns: Columns) -> None:
        if kind == "epoch":
            self.ledger = columns[2:4]
        if kind == "term":
            self._term(*columns[1:4])
            return
        row = row_of(columns, self._entry)
        self.rows[key_of(row)] = row
        if isinstance(row, Run) and row.unheld is not None:
            self._shown.add(row.unheld)

    def _lacks_term(self, book: Book) -> bool:
        """Say whether a book came without its newest term, which was asked for."""
        asked = book.terms > 0 and book.name in self._keys.books
        return asked and (book.name, book.terms) not in self._terms

    def _term(self, book: str, number: int, entry: int) -> None:
        self._terms[book, number] = entry
        # It holds what the term pinned.
        self._shown.add((book, entry))

    def _entry(self, book: str, number: int) -> Entry:
        found = self._entries.get((book, number))
        if found is None:
            what = f"entry {number} of book {book!r} is not there"
            raise JournalError(what)
        return found

    # What charges lead to

    def _charges(self) -> list[Charge]:
        """Return the charges that keys name, or that hold runs which they name."""
        names = list(self._keys.charges)
        for name in self._keys.runs:
            run = self.rows.get(("run", name))
            if isinstance(run, Run) and run.preflight is not None:
                names.append(run.preflight)
        found = (self.rows.get(("charge", name)) for name in names)
        return [row for row in found if isinstance(row, Charge)]

    def _reached(self) -> set[Key]:
        """Return the keys of all that charges lead to and that must be there."""
        found: set[Key] = set()
        reach = self._keys.reach
        for charge in self._charges() if reach >= Reach.ACCOUNTS else ():
            for book, (made, _) in charge.places.items():
                found.add(("book", book))
                for account in self._entry(book, made).postings:
                    found.add(("account", account))
                    if reach >= Reach.TERMS:
                        found.add(("term", book, name_of_term(account)))
        return found

    def _further(self, reached: set[Key]) -> list[Part]:
        """Return what charges lead to that the first statement did not bring."""
        kinds: dict[str, list[Any]] = {}
        claimed = {("release", c.key) for c in self._charges() if c.key is not None}
        for key in (reached | claimed) - self.rows.keys():
            kind, name, *number = key
            one = (name, int(number[0])) if number else name
            kinds.setdefault(f"load_{kind}", []).append(one)
        return sorted(kinds.items())

    # What came is what was asked for

    def _check_keys(self, reached: set[Key]) -> None:
        """Refuse rows that nobody asked for, and the lack of those that must be there.

        Where pages are out of order, SQLite's search ends at some other row, or at
        none, and does not look at its key again.
        """
        rows, may = self.rows, self._asked()
        for key in reached - rows.keys():
            what = f"{key[0]} {key[1]!r} is not there"
            raise JournalError(what)
        for key in rows.keys() - may - reached:
            if key[0] not in ("term", "account") or not self._is_whole(key[1]):
                what = f"another {key[0]} came than the one that was asked for"
                raise JournalError(what)
        absent = may - rows.keys()
        gone = {key[1] for key in absent if key[0] == "account"}
        if gone and (lost := gone & self._posted()):
            what = f"account {min(lost)!r} is not there"
            raise JournalError(what)

    def _asked(self) -> set[Key]:
        """Return the keys of rows that may be there."""
        keys, rows = self._keys, self.rows
        asked: set[tuple[str, ...]] = {EPOCH}
        # A book brings its newest term along, whatever leads to it.
        books = [row for row in rows.values() if isinstance(row, Book)]
        asked.update(("term", row.name, str(row.terms)) for row in books)
        for book in (*keys.books, *keys.whole):
            asked.add(("book", book))
            row = rows.get(("book", book))
            if isinstance(row, Book):
                base = f"{book}#{row.terms}"
                for place in keys.gates.get(book, ()):
                    asked.add(("account", f"{base}/{place}" if place else base))
        asked.update(("charge", name) for name in keys.charges)
        for name in keys.releases:
            asked.add(("release", name))
            release = rows.get(("release", name))
            if isinstance(release, Release):
                asked.add(("charge", release.charge))
        asked.update(("run", name) for name in keys.runs)
        for charge in self._charges():
            asked.add(("charge", charge.id))
            asked.add(("release", charge.key or ""))
        asked.update(("granted", *pair) for pair in keys.granted)
        asked.update(("claim", name) for name in keys.claims)
        return asked

    def _is_whole(self, name: str) -> bool:
        return name.partition("#")[0] in self._keys.whole

    def _posted(self) -> set[str]:
        """Return accounts that exist, for something that was found names them."""
        found = {name for each in self._entries.values() for name in each.postings}
        for row in self.rows.values():
            if isinstance(row, Granted):
                found.update(row.most)
        return found


def parts_of(keys: Keys) -> list[Part]:
    """Return what the first statement asks for some keys."""
    found: list[Part] = [("load_ledger", ())]
    books = tuple(dict.fromkeys((*keys.books, *keys.whole)))
    gates = [
        (book, f"/{place}" if place else "")
        for book, places in keys.gates.items()
        for place in places
    ]
    moved = keys.charges if keys.reach >= Reach.ACCOUNTS else ()
    named: tuple[Part, ...] = (
        ("load_book", books),
        ("load_gate", gates),
        ("load_term_of_book", keys.whole),
        ("load_account_of_book", keys.whole),
        ("load_charge", keys.charges),
        ("load_release_of_charge", moved),
        ("load_book_of_charge", moved),
        ("load_account_of_charge", moved),
        ("load_release", keys.releases),
        ("load_charge_of_release", keys.releases),
        ("load_run", keys.runs),
        ("load_charge_of_run", keys.runs),
        ("load_granted", keys.granted),
        ("load_claim", keys.claims),
    )
    found += (part for part in named if part[1])
    return found
