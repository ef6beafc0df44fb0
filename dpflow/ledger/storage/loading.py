"""Which rows a command's keys lead to, and that each is what the journal says.

Rows are read in rounds: those that keys name, those that these lead to, and so on. Then
come the entries that moved them last. A row that is not there, that came instead of
another, or that stands before or behind an entry that was read is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import le
from typing import Any, ClassVar

from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.model import Keys, Reach, State
from dpflow.ledger.rows import (
    EPOCH,
    Account,
    Amounts,
    Book,
    Charge,
    JournalError,
    Key,
    MostGranted,
    Release,
    Row,
    Run,
    Sums,
    Term,
    name_of_term,
)
from dpflow.ledger.storage.base import Place

#: A row with its key, and the output that is kept with a release.
Found = tuple[Key, Row, str | None]
#: Reads those of some rows that are there.
ReadRows = Callable[[Collection[Key]], Iterable[Found]]
#: Returns the ids of a book's accounts.
Accounts = Callable[[str], Iterable[str]]
#: Reads entries: those of the second set only prove something, without their bodies.
ReadEntries = Callable[[set[Place], set[Place]], Mapping[Place, Entry]]


class Loading:
    """Collects the rows of some keys.

    Args:
        keys: What a command needs.
        read: Reads rows.
        accounts: Returns the ids of accounts, for a book of which all are needed.
        entries: Reads entries.
    """

    def __init__(
        self, keys: Keys, read: ReadRows, accounts: Accounts, entries: ReadEntries
    ) -> None:
        self._keys = keys
        self._read, self._accounts, self._read_entries = read, accounts, entries
        self._rows: dict[Key, Row] = {}
        self._values: dict[str, str] = {}
        self._entries: dict[Place, Entry] = {}
        self._asked: set[Key] = set()
        #: Of what was asked, that which must be there.
        self._needed: set[Key] = set()
        #: Charges of which all is needed that their end moves.
        self._deep = set(keys.charges)
        #: Entries that are shown, and those that only prove what a row says.
        self._shown: set[Place] = set()
        self._proofs: set[Place] = set(keys.entries)

    def state(self) -> State:
        """Return the rows with the entries of charges.

        Raises:
            JournalError: If a row or an entry is not what it should be.
        """
        rows = self._rows
        self._collect()
        for key in self._needed - rows.keys():
            what = f"{key[0]} {key[1]!r} is not there"
            raise JournalError(what)
        known = self._entries
        wanted_now = self._shown - known.keys()
        known.update(
            self._read_entries(wanted_now, self._proofs - wanted_now - known.keys())
        )
        self._check()
        shown = self._shown.union(self._keys.entries)
        entries = {place: known[place] for place in shown if place in known}
        return State(
            rows=rows,
            entries=entries,
            values=self._values,
            looked_for=self._asked,
            whole=self._keys.whole,
        )

    def guess(self) -> tuple[Collection[Key], Collection[Place]]:
        """Return which rows and entries are read if every row is as `read` says."""
        with suppress(JournalError):
            self._collect()
        return self._asked, self._shown | self._proofs

    def _collect(self) -> None:
        """Read rows in rounds, until they lead to no further ones."""
        wanted: Collection[Key] = _named(self._keys)
        rows, asked = self._rows, self._asked
        while wanted:
            asked.update(wanted)
            more: dict[Key, None] = {}
            for key, row, value in self._read(wanted):
                rows[key] = row
                if value is not None:
                    self._values[key[1]] = value
                follow = self.FOLLOW.get(key[0])
                if follow is not None and (keys := follow(self, row)):
                    more.update(dict.fromkeys(keys))
            wanted = [key for key in more if key not in asked]

    # What rows lead to, and which entries are behind them

    def _must(self, key: Key) -> tuple[Key]:
        """Return a key whose row must be there."""
        self._needed.add(key)
        return (key,)

    def _of_book(self, book: Book) -> Iterator[Key]:
        """Yield its newest term, or all of them, and accounts of it."""
        name, terms, keys = book.name, book.terms, self._keys
        self._proofs.add((name, book.number))
        if not 0 <= terms <= book.number:
            what = f"book {name!r} has fewer entries than its {terms} terms"
            raise JournalError(what)
        every = name in keys.whole or name in keys.terms
        if every or name in keys.books:
            for number in range(1 if every else max(terms, 1), terms + 1):
                yield from self._must(("term", name, str(number)))
        if name in keys.terms:
            for number in range(1, terms + 1):
                yield ("account", f"{name}#{number}")
        if name in keys.whole:
            yield from (("account", each) for each in self._accounts(name))
        base = f"{name}#{terms}"
        for place in keys.gates.get(name, ()):
            yield ("account", f"{base}/{place}" if place else base)

    def _of_term(self, term: Term) -> tuple[Key, ...]:
        self._shown.add((term.book, term.entry))
        return ()

    def _of_account(self, account: Account) -> tuple[Key, ...]:
        self._proofs.add((account.book, account.entry))
        return ()

    def _of_release(self, release: Release) -> tuple[Key, ...]:
        if release.key not in self._keys.releases:
            return ()
        return self._must(("charge", release.charge))

    def _of_run(self, run: Run) -> tuple[Key, ...]:
        if run.unheld is not None:
            self._shown.add(run.unheld)
        if run.preflight is None:
            return ()
        self._deep.add(run.preflight)
        return self._must(("charge", run.preflight))

    def _of_charge(self, charge: Charge) -> Iterator[Key]:
        """Yield its release, and what its end moves, if that is within reach."""
        for book, numbers in charge.places.items():
            self._shown.update((book, each) for each in numbers if each)
        if charge.key is not None:
            yield ("release", charge.key)
        if charge.id not in self._deep or self._keys.reach < Reach.ACCOUNTS:
            return
        for book in charge.places:
            yield from self._must(("book", book))
        for name in charge.held or self._posted(charge):
            yield from self._must(("account", name))
            if self._keys.reach >= Reach.TERMS:
                book, _, _ = name.partition("#")
                yield from self._must(("term", book, name_of_term(name)))

    def _posted(self, charge: Charge) -> Iterator[str]:
        """Yield the accounts of a charge that ended: only its entries name them."""
        places = {(book, made) for book, (made, _) in charge.places.items()}
        self._entries.update(self._read_entries(places, set()))
        for place in places:
            yield from self._entry(*place).postings

    def _entry(self, book: str, number: int) -> Entry:
        found = self._entries.get((book, number))
        if found is None:
            what = f"entry {number} of book {book!r} is not there"
            raise JournalError(what)
        return found

    # That they are what the journal says

    def _check(self) -> None:
        """Compare all rows with all entries that were read."""
        for key, row in self._rows.items():
            check = self.CHECK.get(key[0])
            if check is not None:
                check(self, row)
        for (_, number), entry in self._entries.items():
            self._check_there(entry.postings, number)

    def _check_there(self, names: Iterable[str], number: int = 0) -> None:
        """Refuse accounts that are gone, or as they were before an entry moved them."""
        for name in names:
            key = ("account", name)
            row = self._rows.get(key)
            if row is None and (key in self._asked or self._is_whole(name)):
                what = f"account {name!r} is not there"
                raise JournalError(what)
            if isinstance(row, Account) and row.entry < number:
                what = f"account {name!r} is not as entry {number} left it"
                raise JournalError(what)

    def _is_whole(self, account: str) -> bool:
        """Say whether every account of its book was asked for."""
        return account.partition("#")[0] in self._keys.whole

    def _check_book(self, row: Book) -> None:
        if self._entry(row.name, row.number).hash != row.hash:
            what = f"the end of book {row.name!r} is not its entry {row.number}"
            raise JournalError(what)

    def _check_run(self, row: Run) -> None:
        if row.unheld and self._entry(*row.unheld).body.get("covers") != row.id:
            what = f"flow run {row.id!r} is not what its entry says"
            raise JournalError(what)

    def _check_account(self, row: Account) -> None:
        posting = self._entry(row.book, row.entry).postings.get(row.id)
        if posting is None or posting[1:] != (row.settled, row.held):
            what = f"account {row.id!r} is not what entry {row.entry} says"
            raise JournalError(what)
        book = self._rows.get(("book", row.book))
        if not isinstance(book, Book) or row.entry > book.number:
            what = f"book {row.book!r} is as it was before account {row.id!r} moved"
            raise JournalError(what)

    def _check_granted(self, row: MostGranted) -> None:
        self._check_there(row.most)

    def _check_term(self, row: Term) -> None:
        """Give a term what it pins, which is in its entry."""
        told = self._entry(row.book, row.entry).body.get("term")
        if told is None or told.get("number") != row.number:
            what = f"term {row.number} of {row.book!r} is not what its entry says"
            raise JournalError(what)
        key = ("term", row.book, str(row.number))
        self._rows[key] = Term(row.book, row.number, row.entry, told)

    def _check_charge(self, row: Charge) -> None:
        made: dict[str, Amounts] = {}
        for book, (first, last) in row.places.items():
            entry = self._entry(book, first)
            ended = self._entry(book, last) if last else entry
            state = KINDS[ended.kind].ends if last else "open"
            body = entry.body
            # Another process may have taken a preflight over.
            owner = row.owner if row.covers is None else body.get("owner")
            if (
                (entry.kind, entry.charge, ended.charge) != ("reserve", row.id, row.id)
                or state != row.state
                or body.get("covers") != row.covers
                or body.get("key") != row.key
                or body.get("owner") != owner
            ):
                what = f"charge {row.id} is not what its entries say"
                raise JournalError(what)
            if row.state == "open":
                made |= {name: each.amount for name, each in entry.postings.items()}
        # What a run's steps drew of its preflight is not in the entry that made it.
        if row.held != made and (row.covers is None or not _is_part(row.held, made)):
            what = f"charge {row.id} does not hold what its entries say"
            raise JournalError(what)

    def _check_release(self, row: Release) -> None:
        # Another charge with its key leads to a release without the one that made it.
        charge = self._rows.get(("charge", row.charge))
        if row.state == "claimed" or not isinstance(charge, Charge):
            return
        _, ended = charge.places.get(row.book, (0, 0))
        entry = self._entries.get((row.book, ended))
        if row.digest != (None if entry is None else entry.body.get("digest")):
            what = f"release {row.key} is not what the entries of its charge say"
            raise JournalError(what)

    #: By kind: what a row leads to, and what is checked of it.
    FOLLOW: ClassVar[Mapping[str, Callable[[Any, Any], Iterable[Key]]]] = {
        "book": _of_book,
        "term": _of_term,
        "account": _of_account,
        "charge": _of_charge,
        "release": _of_release,
        "run": _of_run,
    }
    CHECK: ClassVar[Mapping[str, Callable[[Any, Any], None]]] = {
        "book": _check_book,
        "term": _check_term,
        "account": _check_account,
        "charge": _check_charge,
        "release": _check_release,
        "run": _check_run,
        "granted": _check_granted,
    }


def _is_part(held: Sums, made: Sums) -> bool:
    return held.keys() == made.keys() and all(
        len(held[name]) == len(amount) and all(map(le, held[name], amount))
        for name, amount in made.items()
    )


def _named(keys: Keys) -> dict[Key, None]:
    """Return the keys of the rows that are named."""
    found: list[Key] = [EPOCH]
    found += [("book", name) for name in (*keys.books, *keys.whole, *keys.terms)]
    found += [("account", name) for name in keys.accounts]
    found += [("charge", name) for name in keys.charges]
    found += [("release", name) for name in keys.releases]
    found += [("run", name) for name in keys.runs]
    found += [("granted", *pair) for pair in keys.granted]
    found += [("claim", name) for name in keys.claims]
    return dict.fromkeys(found)
