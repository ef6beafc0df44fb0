"""What is asked of the ledger, on which state, and what comes of it: frozen data.

Deciding does no input or output. A command has everything that its decision needs, the
state has every row that it may meet, and the decision is an answer with the entries
that say all of what it changes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache, reduce
from typing import Any, ClassVar, NamedTuple, TypeVar

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.rules.rule import Rule, lower_thresholds
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import next_entry
from dpflow.ledger.rows import (
    Account,
    Amounts,
    Book,
    Changes,
    Charge,
    Claim,
    JournalError,
    Key,
    MostGranted,
    Release,
    Row,
    Rows,
    Run,
    Sums,
    Term,
    book_of,
    name_in_part,
    name_of_term,
    run_of,
)
from dpflow.policy import Policy
from dpflow.solving import before_solving

T = TypeVar("T")
R = TypeVar("R", bound=Row)
_NOTHING: Mapping[Any, Any] = {}


class Reach(IntEnum):
    """How much is read of the charges that keys lead to, beside their entries.

    Attributes:
        ENTRIES: Their releases.
        ACCOUNTS: The books and accounts that their end moves as well.
        TERMS: The terms of these accounts as well.
    """

    ENTRIES = 0
    ACCOUNTS = 1
    TERMS = 2


class Keys(NamedTuple):
    """The rows that a command needs, by their names.

    Attributes:
        books: What is locked; their newest terms are read.
        gates: By book, the accounts of the newest term, by what follows its number.
        charges: Ids of charges.
        releases: Release keys, with the charges that made them and their entries.
        runs: Flow runs, with their preflights.
        granted: What a step was granted before, as (book, `name_in_part`).
        claims: Names that are used once.
        whole: Books of which every term and account is needed.
        terms: Books of which every term is needed, each with the account of its whole.
        accounts: Accounts by their ids, each of a book that is named otherwise.
        entries: Further entries, as (book, number), without their bodies; one that is
            not there is left out.
        reach: How much is read of the charges and preflights.
    """

    books: tuple[str, ...] = ()
    gates: Mapping[str, tuple[str, ...]] = _NOTHING
    charges: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    granted: tuple[tuple[str, str], ...] = ()
    claims: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    entries: tuple[tuple[str, int], ...] = ()
    reach: Reach = Reach.TERMS

    def and_of(self, other: Keys) -> Keys:
        """Return the keys of both."""
        fields: dict[str, Any] = {
            name: both(mine, its)
            for name, mine, its in zip(self._fields, self, other, strict=True)
            if isinstance(mine, tuple) and isinstance(its, tuple)
        }
        fields["books"] = tuple(sorted(fields["books"]))
        fields["gates"] = {
            book: both(self.gates.get(book, ()), other.gates.get(book, ()))
            for book in (*self.gates, *other.gates)
        }
        return Keys(**fields, reach=max(self.reach, other.reach))


def both(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
    """Return what is in one of two, each once."""
    if not first or not second:
        return first or second
    return tuple(dict.fromkeys((*first, *second)))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Every row that a decision may meet, each checked against its journal.

    Attributes:
        entries: Those that begin or moved the charges last, by book and number.
        values: Kept values, by release key.
        alive: Which owners of open charges still run.
        looked_for: Keys whose rows are not there if they are not here.
        whole: Books of which every account is here.
    """

    rows: Rows
    entries: Mapping[tuple[str, int], Entry] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    alive: Collection[str] = frozenset()
    looked_for: Collection[Key] = frozenset()
    whole: Collection[str] = frozenset()

    def _row(self, kind: type[R], *key: str) -> R | None:
        found = self.rows.get(key)
        return found if isinstance(found, kind) else None

    def book(self, name: str) -> Book:
        """Return a book; one that nobody opened has no terms."""
        return book_of(self.rows, name)

    def newest(self, book: str) -> Term | None:
        """Return the term that governs a book; None if nothing was applied yet."""
        return self.term(book, self.book(book).terms)

    def term(self, book: str, number: int) -> Term | None:
        """Return a term; None if it was not loaded."""
        return self._row(Term, "term", book, str(number))

    def terms(self, book: str) -> list[Term]:
        """Return the terms of a book that were loaded, oldest first."""
        numbers = range(1, self.book(book).terms + 1)
        return [term for n in numbers if (term := self.term(book, n)) is not None]

    def account(self, name: str) -> Account | None:
        """Return an account; None before its first entry.

        Raises:
            JournalError: If nobody looked for it: it would be taken for a new one.
        """
        key = ("account", name)
        found = self.rows.get(key)
        if isinstance(found, Account):
            return found
        book = name.partition("#")[0]
        known = key in self.looked_for or book in self.whole
        # A term that is opened now has none yet.
        if not known and ("term", book, name_of_term(name)) in self.looked_for:
            what = f"account {name!r} was not looked for"
            raise JournalError(what)
        return None

    def charge(self, name: str | None) -> Charge | None:
        """Return a charge; None if nobody made it."""
        return self._row(Charge, "charge", name or "")

    def release(self, key: str | None) -> Release | None:
        """Return a release or its claim; None if there is none."""
        return self._row(Release, "release", key or "")

    def run(self, name: str | None) -> Run:
        """Return what is known of a flow run."""
        return run_of(self.rows, name or "")

    def preflight(self, run: str | None) -> Charge | None:
        """Return the newest preflight of a flow run; None if it has none."""
        return self.charge(self.run(run).preflight)

    def granted(self, step: str, account: str) -> Amounts | None:
        """Return the most that a step was ever granted on an account."""
        book, _, _ = account.partition("#")
        found = self._row(MostGranted, "granted", book, name_in_part(step, account))
        return None if found is None else found.most.get(account)

    def claimed(self, name: str) -> Mapping[str, str]:
        """Return what each book said when it used a name."""
        found = self._row(Claim, "claim", name)
        return _NOTHING if found is None else found.by

    def made(self, charge: Charge, book: str) -> Entry:
        """Return the entry that reserved a charge in a book."""
        return self.entries[book, charge.places[book][0]]

    def all_made(self, charge: Charge) -> list[Entry]:
        """Return the entries that reserved a charge, by their books' names."""
        return [self.made(charge, book) for book in sorted(charge.places)]

    def ended(self, charge: Charge, book: str) -> Entry | None:
        """Return the entry that ended a charge in a book; None if it is open."""
        return self.entries.get((book, charge.places[book][1]))

    def after(self, changes: Changes, entry: Entry) -> State:
        """Return the state with an entry's changes; a changed release has no value."""
        rows, values = dict(self.rows), self.values
        for key, row in changes.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
            if isinstance(row, Release) and row.key in values:
                values = {name: values[name] for name in values if name != row.key}
        entries = {**self.entries, (entry.book, entry.number): entry}
        return replace(self, rows=rows, entries=entries, values=values)


# Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(ABC):
    """What is asked of the ledger, and how that is decided.

    Attributes:
        at: The time, a label.
        writer: Who writes.
        facts: Who decides, with which code, for the journal.
        applies: Whether a policy that nothing was charged under is applied by it.
        again: Whether it was sent before, so that it may have come through already.
        guarded: Whether it is decided only while the witness agrees with the ledger.
    """

    guarded: ClassVar[bool] = False

    at: str = ""
    writer: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    applies: bool = True
    again: bool = False

    @property
    @abstractmethod
    def keys(self) -> Keys:
        """The rows that its decision needs."""

    @property
    def reads(self) -> Sequence[Policy]:
        """The policies of the datasets that a step reads."""
        return ()

    def charges_met(self, _: State) -> Iterable[str | None]:
        """Return charges whose owners' end would change the decision."""
        return ()

    @abstractmethod
    def decide(self, state: State) -> Decision:
        """Answer the command, without input or output.

        Raises:
            DpflowError: If it cannot be decided; then it contributes nothing.
        """


def keys_of(commands: Sequence[Command]) -> Keys:
    """Return the rows that several commands need."""
    return reduce(Keys.and_of, [command.keys for command in commands])


# What comes of it


@dataclass(slots=True)
class Decision:
    """An answer, and the entries that say all of what it changes.

    Attributes:
        state: After the entries, for the next decision.
        command: What is decided.
        entries: Written one after another, each on the state after the one before.
        changes: The rows that the entries change; None takes one away.
        earlier: The entries of a charge that was granted when it was asked for first:
            whether the witness was told of them then is not known.
    """

    state: State
    command: Command
    answer: Any = None
    entries: list[Entry] = field(default_factory=list)
    changes: Changes = field(default_factory=dict)
    earlier: Sequence[Entry] = ()

    def write(
        self,
        book: str,
        kind: str,
        amounts: Sums,
        body: Mapping[str, Any],
        *,
        charge: str | None = None,
    ) -> Entry:
        """Write the next entry of a book, which also says who sent the command."""
        for name in body.get("claims", ()):
            # What others said of a name that was not loaded would be lost.
            assert name in self.command.keys.claims, name
        entry, made = next_entry(
            self.state.rows,
            book,
            kind,
            amounts,
            {**self.command.facts, **body},
            charge=charge,
            at=self.command.at,
            writer=self.command.writer,
        )
        self.state = self.state.after(made, entry)
        self.changes |= made
        self.entries.append(entry)
        return entry

    def write_all(
        self, charge: Charge, kind: str, amounts: Sums, body: Mapping[str, Any]
    ) -> None:
        """Write what happens to a charge in each of its books."""
        for book in sorted(charge.places):
            here = {n: a for n, a in amounts.items() if n.partition("#")[0] == book}
            self.write(book, kind, here, body, charge=charge.id)

    def keep(self, key: str, value: str) -> None:
        """Keep the value of a release that was settled, for all that come after."""
        values = {**self.state.values, key: value}
        self.state = replace(self.state, values=values)

    def answered(self, answer: Any, earlier: Sequence[Entry] = ()) -> Decision:
        """Answer the command with what was written."""
        self.answer, self.earlier = answer, earlier
        return self


# Gates as a term pins them


@lru_cache(maxsize=512)
def rule_of(text: str) -> Rule:
    """Make a rule from the text that was pinned for it.

    A threshold is the pinned or the newly solved one, whichever is lower: a later
    solver cannot raise what a term was opened with.
    """
    before_solving(lambda: rule_of(text))
    pinned = json.loads(text)
    thresholds = pinned.pop("thresholds", None)
    if pinned.pop("role") != "filter":
        return make_odometer(**pinned)
    rule = make_filter(**pinned)
    if thresholds is not None:
        lower_thresholds(rule, thresholds)
    return rule
