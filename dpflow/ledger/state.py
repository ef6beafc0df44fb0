"""What keys of the ledger are at one time: frozen reads.

A state holds the keys that were loaded and nothing else. Reading another key raises an
error, for a key that was not loaded would look like one that no entry names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpflow.ledger.entry import ACCOUNT, Amounts, Entry, JournalError
from dpflow.ledger.rows import (
    NONE,
    Account,
    Book,
    Charge,
    Release,
    Run,
    Term,
    account_key,
    granted_key,
    split,
    sums_of_lists,
    term_key,
)


def whole_book(book: str) -> str:
    """Return what stands for the keys of all accounts of a book."""
    return f"account/{book}#*"


@dataclass(slots=True)
class State:
    """The newest entry and row of each key that was loaded.

    Attributes:
        rows: Row of each key.
        numbers: Number of the entry that named the key last.
        entries: Those entries, and others that were loaded, by number.
        made: The entries that reserved the charges, by charge.
        ends: The entries that ended them.
        values: Stored values, by release key.
        loaded: Keys that no entry names if they are not among the rows.
        head: Number and hash of the newest entry.
        alive: Which owners of open charges still run.
        whole: Whether every key of the ledger is here.
        missing: In a trial, collects the keys that are not loaded; they read as absent.
    """

    rows: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)
    made: dict[str, Entry] = field(default_factory=dict)
    ends: dict[str, Entry] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    loaded: set[str] = field(default_factory=set)
    head: tuple[int, str] = (0, "")
    alive: Collection[str] = frozenset()
    whole: bool = False
    missing: set[str] | None = None

    def copy(self) -> State:
        """Return a state that can be written to without changing this one."""
        dicts = self.rows, self.numbers, self.entries, self.made, self.ends, self.values
        fields: Any = [each.copy() for each in dicts]
        fields += self.loaded, self.head, self.alive, self.whole, self.missing
        return State(*fields)

    def add(self, entry: Entry) -> None:
        """Add the next entry."""
        self.rows.update(entry.rows)
        self.numbers.update(dict.fromkeys(entry.rows, entry.number))
        self.entries[entry.number] = entry
        self.head = entry.number, entry.hash
        charge = entry.charge
        if entry.kind == "withdraw":
            self.values.pop(entry.body["release"], None)
        if charge is None:
            return
        row = entry.rows.get(f"charge/{charge}")
        if entry.kind == "reserve":
            self.made[charge] = entry
            self.values.pop(str(entry.body.get("key")), None)
        elif row is not None and entry.kind != "adjust":
            self.ends[charge] = entry

    def row(self, key: str) -> Any:
        """Return what a key is; None if no entry names it.

        Raises:
            JournalError: If it was not loaded.
        """
        row = self.rows.get(key)
        is_here = row is not None or self.whole or key in self.loaded
        if not (is_here or self._is_absent(key)):
            if self.missing is None:
                what = f"{key} was not loaded"
                raise JournalError(what)
            self.missing.add(key)
        return row

    def _is_absent(self, key: str) -> bool:
        """Say whether all keys like this one were loaded, or cannot be there yet.

        A term that was opened on this state has no account yet.
        """
        kind, _, account = key.partition("/")
        if kind == "granted":
            account = account.partition("/")[2]
        elif kind != "account":
            return False
        book, number = split(account)[:2]
        if kind == "account" and whole_book(book) in self.loaded:
            return True
        opened = self.numbers.get(term_key(book, number), 0)
        opening = self.entries.get(opened)
        new = term_key(book, number) not in self.loaded
        return new and opening is not None and opening.kind == "open"

    def book(self, name: str) -> Book:
        """Return a book; one that was never opened has no terms."""
        row = self.row(f"book/{name}")
        if row is None:
            return Book(name)
        return Book(name, row["term"], row["frozen"], tuple(row["flows"]))

    def newest(self, book: str) -> Term | None:
        """Return the term that governs a book; None if nothing was applied yet."""
        return self.term(book, 0)

    def term(self, book: str, number: int) -> Term | None:
        """Return a term; None if it was never opened. Number 0 is the newest."""
        number = number or self.book(book).terms
        key = term_key(book, number)
        if not number or self.row(key) is None:
            return None
        entry = self.numbers[key]
        return Term(book, number, entry, self.entries[entry].body["term"])

    def terms(self, book: str) -> list[Term]:
        """Return the terms of a book, oldest first."""
        numbers = range(1, self.book(book).terms + 1)
        return [term for n in numbers if (term := self.term(book, n)) is not None]

    def account(self, name: str) -> Account | None:
        """Return an account; None before its first entry."""
        key = account_key(name)
        row = self.row(key)
        if row is None:
            return None
        _, settled, held, *flags = row
        sums = tuple(settled), tuple(held)
        return Account(name, self.numbers[key], *sums, **(flags[0] if flags else NONE))

    def accounts(self, book: str) -> Iterator[Account]:
        """Yield the accounts of a book that were loaded."""
        prefix = account_key(f"{book}#")
        if self.missing is not None and whole_book(book) not in self.loaded:
            self.missing.add(whole_book(book))
        for key in self.rows:
            if key.startswith(prefix):
                account = self.account(key[len(ACCOUNT) :])
                if account is not None:
                    yield account

    def charge(self, name: str | None) -> Charge | None:
        """Return a charge; None if it does not exist."""
        row = None if name is None else self.row(f"charge/{name}")
        if name is None or row is None:
            return None
        made = self.made[name]
        held = made.amounts if row["state"] == "open" else {}
        added = sums_of_lists(row.get("added", NONE))
        fixed = row["state"], row["owner"], row["key"]
        return Charge(name, *fixed, added, held, made, self.ends.get(name))

    def release(self, key: str | None) -> Release | None:
        """Return a release or its claim; None without either."""
        row = None if key is None else self.row(f"release/{key}")
        if key is None or row is None or row["state"] == "free":
            return None
        return Release(key, **row)

    def run(self, name: str) -> Run:
        """Return a flow run; one that no entry names met no refusal."""
        return Run(name, **(self.row(f"run/{name}") or NONE))

    def granted(self, step: str, account: str) -> Amounts | None:
        """Return the largest amount that a step was granted on an account."""
        row = self.row(granted_key(step, account))
        return None if row is None else tuple(row)

    def claimed(self, source: str) -> Mapping[str, str]:
        """Return the books that claim a source, each with its population."""
        return self.row(f"claim/{source}") or NONE

    @property
    def repairs(self) -> int:
        """How many repairs the ledger had."""
        return self.row("repairs") or 0


def charge_keys(state: State, name: str) -> Iterator[str]:
    """Yield the keys of a charge and of its release."""
    yield f"charge/{name}"
    row = state.rows.get(f"charge/{name}")
    if row is not None and row["key"] is not None:
        yield f"release/{row['key']}"
