"""What is asked of the ledger, on which state, and what comes of it: frozen data.

Deciding does no input or output. A command has everything that its decision needs, the
state has every row that it may meet, and the decision is an answer with the entries
that say all of what it changes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.base import Outcome
from dpflow.accounting.rules.rule import Rule, lower_thresholds
from dpflow.ledger.entry import Entry
from dpflow.ledger.journal import next_entry
from dpflow.ledger.records import Request
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
    name_in_part,
    name_of_term,
)
from dpflow.policy import Policy
from dpflow.solving import before_solving

T = TypeVar("T")
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
        gates = {**self.gates}
        for book, places in other.gates.items():
            gates[book] = _both(gates.get(book, ()), places)
        return Keys(
            books=tuple(sorted(_both(self.books, other.books))),
            gates=gates,
            charges=_both(self.charges, other.charges),
            releases=_both(self.releases, other.releases),
            runs=_both(self.runs, other.runs),
            granted=_both(self.granted, other.granted),
            claims=_both(self.claims, other.claims),
            whole=_both(self.whole, other.whole),
            terms=_both(self.terms, other.terms),
            accounts=_both(self.accounts, other.accounts),
            entries=_both(self.entries, other.entries),
            reach=max(self.reach, other.reach),
        )


def _both(first: tuple[T, ...], second: tuple[T, ...]) -> tuple[T, ...]:
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

    def book(self, name: str) -> Book:
        """Return a book; one that nobody opened has no terms."""
        found = self.rows.get(("book", name))
        return found if isinstance(found, Book) else Book(name)

    def newest(self, book: str) -> Term | None:
        """Return the term that governs a book; None if nothing was applied yet."""
        return self.term(book, self.book(book).terms)

    def term(self, book: str, number: int) -> Term | None:
        """Return a term; None if it was not loaded."""
        found = self.rows.get(("term", book, str(number)))
        return found if isinstance(found, Term) else None

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

    def charge(self, name: str) -> Charge | None:
        """Return a charge; None if nobody made it."""
        found = self.rows.get(("charge", name))
        return found if isinstance(found, Charge) else None

    def release(self, key: str | None) -> Release | None:
        """Return a release or its claim; None if there is none."""
        found = self.rows.get(("release", key or ""))
        return found if isinstance(found, Release) else None

    def run(self, name: str | None) -> Run:
        """Return what is known of a flow run."""
        found = self.rows.get(("run", name or ""))
        return found if isinstance(found, Run) else Run(name or "")

    def granted(self, step: str, account: str) -> Amounts | None:
        """Return the most that a step was ever granted on an account."""
        book, _, _ = account.partition("#")
        found = self.rows.get(("granted", book, name_in_part(step, account)))
        return found.most.get(account) if isinstance(found, MostGranted) else None

    def claim(self, name: str) -> Claim | None:
        """Return who used a name; None if nobody did."""
        found = self.rows.get(("claim", name))
        return found if isinstance(found, Claim) else None

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
class Command:
    """What is asked of the ledger.

    Attributes:
        at: The time, a label.
        writer: Who writes.
        facts: Who decides, with which code, for the journal.
        again: Whether it was sent before, so that it may have come through already.
        guarded: Whether it is decided only while the witness agrees with the ledger.
    """

    guarded: ClassVar[bool] = False

    at: str
    writer: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False

    @property
    def keys(self) -> Keys:
        """The rows that its decision needs."""
        return Keys()

    @property
    def reads(self) -> Sequence[Policy]:
        """The policies of the datasets that a step reads."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve(Command):
    """Hold a step's worst case, or find its release.

    Attributes:
        applies: Whether a policy that nothing was charged under is applied by it.
    """

    guarded: ClassVar[bool] = True

    request: Request
    applies: bool = True

    @property
    def reads(self) -> Sequence[Policy]:
        """Those of the request."""
        return self.request.policies

    @property
    def keys(self) -> Keys:
        """The accounts of every gate, the release, the runs, what was granted."""
        request = self.request
        steps = request.planned or (request,)
        gates: dict[str, tuple[str, ...]] = {}
        for step in steps:
            for policy in (*step.policies, *step.populations):
                known = gates.get(policy.dataset, ())
                gates[policy.dataset] = _both(known, places_of(policy, step))
        runs = (request.covers, *request.preflights, request.flow_run)
        around = (*runs, *request.enclosing_runs)
        sources = [p.source for p in request.policies if p.source is not None]
        return Keys(
            books=tuple(sorted(gates)),
            gates=gates,
            charges=(request.reservation,),
            releases=() if request.release_key is None else (request.release_key,),
            runs=tuple(dict.fromkeys(run for run in around if run is not None)),
            granted=tuple(
                dict.fromkeys(
                    (book, name_in_part(request.step, f"{book}#0/{place}"))
                    for book in sorted(gates)
                    for place in gates[book]
                )
            ),
            claims=tuple(f"source {source}" for source in sources),
            # A new preflight may end the one before.
            reach=Reach.ENTRIES if request.covers is None else Reach.ACCOUNTS,
        )


def places_of(policy: Policy, request: Request) -> tuple[str, ...]:
    """Return what may follow a term's number in the ids of a step's accounts."""
    flow = request.flow
    of_flow = [] if flow is None else [f"flow/{flow}", f"odometer/{flow}"]
    if policy.partition is None:
        reserved = any(share.reserved for share in policy.flows.values())
        return ("", *of_flow, *(["others"] if reserved else []))
    parts = [f"partition/{name}" for name in request.partitions]
    inside = [f"{part}/{each}" for part in parts for each in of_flow]
    return ("", *parts, *inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class End(Command):
    """End a charge: settle, void, forfeit or seal it.

    Attributes:
        charge: Its id.
        kind: "settle", "void", "forfeit" or "seal".
        owner: This process; empty for an operator.
        body: Further facts, such as the outcome and the digest of the value.
        reported: Number of sub-steps that ran, or cell of the mechanism's output.
        value: The encoded output; None keeps nothing to replay.
    """

    charge: str
    kind: str
    owner: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    reported: Outcome | None = None
    value: str | None = None

    @property
    def keys(self) -> Keys:
        """The charge with all that it holds; what returns is for its rules to say."""
        priced = self.reported is not None or self.kind == "void"
        reach = Reach.TERMS if priced else Reach.ACCOUNTS
        return Keys(charges=(self.charge,), reach=reach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Command):
    """End the preflight of a flow run, and return what no step drew."""

    run: str
    owner: str
    outcome: str

    @property
    def keys(self) -> Keys:
        """The run with the charge that holds it."""
        return Keys(runs=(self.run,), reach=Reach.ACCOUNTS)


def keys_of(commands: Sequence[Command]) -> Keys:
    """Return the rows that several commands need."""
    keys = commands[0].keys
    for command in commands[1:]:
        keys = keys.and_of(command.keys)
    return keys


def owners_met(state: State, commands: Iterable[Command]) -> set[str]:
    """Return the owners of open charges that the decision about commands may meet."""
    names: list[str | None] = []
    for command in commands:
        if isinstance(command, Reserve):
            kept = state.release(command.request.release_key)
            names.append(None if kept is None else kept.charge)
            names.append(state.run(command.request.covers).preflight)
        elif isinstance(command, End) and command.kind == "forfeit":
            names.append(command.charge)
    charges = (state.charge(name) for name in names if name is not None)
    return {c.owner for c in charges if c is not None and c.state == "open"}


# What comes of it


class Decision(NamedTuple):
    """An answer, and the entries that say all of what it changes.

    Attributes:
        state: After the entries, for the next decision.
        changes: The rows that the entries change; None takes one away.
        earlier: The entries of a charge that was granted when it was asked for first:
            whether the witness was told of them then is not known.
    """

    answer: Any
    state: State
    entries: Sequence[Entry] = ()
    changes: Mapping[Key, Row | None] = _NOTHING
    earlier: Sequence[Entry] = ()


@dataclass(slots=True)
class Pen:
    """Writes entries one after another, each on the state after the one before."""

    state: State
    command: Command
    entries: list[Entry] = field(default_factory=list)
    changes: Changes = field(default_factory=dict)

    def write(
        self,
        book: str,
        kind: str,
        amounts: Sums,
        body: Mapping[str, Any],
        *,
        charge: str | None = None,
    ) -> Entry:
        """Write the next entry of a book."""
        for name in body.get("claims", ()):
            # What others said of a name that was not loaded would be lost.
            assert name in self.command.keys.claims, name
        entry, made = next_entry(
            self.state.rows,
            book,
            kind,
            amounts,
            body,
            charge=charge,
            at=self.command.at,
            writer=self.command.writer,
        )
        self.state = self.state.after(made, entry)
        self.changes |= made
        self.entries.append(entry)
        return entry

    def keep(self, key: str, value: str) -> None:
        """Keep the value of a release that was settled, for all that come after."""
        values = {**self.state.values, key: value}
        self.state = replace(self.state, values=values)

    def decided(self, answer: Any, earlier: Sequence[Entry] = ()) -> Decision:
        """Return an answer with what was written."""
        return Decision(answer, self.state, self.entries, self.changes, earlier)


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
