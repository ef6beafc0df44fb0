"""Commands to the ledger and their decisions.

Deciding does no input or output. A command holds its parameters, the state holds every
key that the decision reads, and the decision is an answer with its entries.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.rules.rule import Rule, lower_thresholds
from dpflow.accounting.solving import before_solving
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.entry import Entry, Sums, written
from dpflow.ledger.journal import after
from dpflow.ledger.rows import (
    account_key,
    roots_of,
    split,
    term_key,
)
from dpflow.ledger.state import State
from dpflow.periods import part_at, place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(ABC):
    """Command to the ledger, with its decision.

    Attributes:
        at: The time, a label.
        writer: User and host, or the login of the database.
        facts: User and code version, for the journal.
        applies: Whether a step with it opens a term under its policy.
        again: Whether this is the second sending, so that the first may have succeeded.
        guarded: Whether it is decided only while the witness agrees with the ledger.
        resent: Whether it is sent again where its outcome is unknown.
        continues: Whether the ledger must have the newest entry that this process saw.
    """

    guarded: ClassVar[bool] = False
    resent: ClassVar[bool] = True
    continues: ClassVar[bool] = True

    at: str = ""
    writer: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    applies: bool = True
    again: bool = False

    def keys(self, state: State) -> Iterable[str]:
        """Return the keys to load, as far as the loaded keys determine them.

        Default: a trial of the decision, in which a key that is not loaded reads as
        absent. What the trial does not reach so is read in the next one.
        """
        missing: set[str] = set()
        with suppress(Exception):
            self.decide(replace(state, missing=missing))
        return missing

    def charges_met(self, _: State) -> Iterable[str | None]:
        """Return charges whose decision depends on whether their owner runs."""
        return ()

    @abstractmethod
    def decide(self, state: State) -> Decision:
        """Return the decision, without input or output.

        Raises:
            DpflowError: If it cannot be decided; then it contributes nothing.
        """


class Decision:
    """An answer and its entries.

    Attributes:
        state: State after the entries, for the next decision.
        command: The command.
        answer: The answer, which may be an error.
        entries: New entries, each on the state after the one before.
        kept: By release key, values to keep; None for those to drop.
        earlier: Entries of an earlier grant of the same command, which the witness may
            lack.
    """

    def __init__(self, state: State, command: Command, answer: Any = None) -> None:
        self.state = state.copy()
        self.command = command
        self.answer = answer
        self.entries: list[Entry] = []
        self.kept: dict[str, str | None] = {}
        self.earlier: Sequence[Entry] = ()

    def write(
        self,
        kind: str,
        amounts: Sums,
        body: Mapping[str, Any],
        *,
        charge: str | None = None,
    ) -> Entry:
        """Write the next entry, with the user and code of the command."""
        command, (number, previous) = self.command, self.state.head
        facts = {**command.facts, **body}
        draft = Entry(
            number + 1, kind, charge, facts, command.at, command.writer, amounts
        )
        entry = written(previous, draft, after(self.state, draft))
        self.state.add(entry)
        self.entries.append(entry)
        if kind == "withdraw" or (kind == "reserve" and "key" in facts):
            # A claim drops the value that was kept under its key.
            self.kept[facts["release" if kind == "withdraw" else "key"]] = None
        return entry

    def keep(self, key: str, value: str) -> None:
        """Keep the value of a settled release for later steps."""
        self.state.values[key] = self.kept[key] = value

    def answered(self, answer: Any, earlier: Sequence[Entry] = ()) -> Decision:
        """Set the answer and return the decision."""
        self.answer, self.earlier = answer, earlier
        return self


# Keys that belong together


@lru_cache(maxsize=512)
def accounts_near(
    account: str, length: int, ahead: int = 0
) -> tuple[tuple[int, str], ...]:
    """Return places and accounts of all parts that share a window with a part.

    None for an account of no part by time; a step that names one is refused.

    Args:
        account: Of the part, or of a flow in it.
        length: Number of parts of a window.
        ahead: Number of further parts, after those.
    """
    part, (book, _, rest) = split(account)[4], account.partition("#")
    number, _, rest = rest.partition("/")
    tail = rest[len(f"partition/{part}") :]
    try:
        place = place_of(part)
    except without_interrupts(ValueError, TypeError):
        return ()
    places = range(place - length + 1, place + length + ahead)
    parts = ((each, part_at(part, each)) for each in places)
    begin = f"{book}#{number}/partition/"
    return tuple((each, f"{begin}{name}{tail}") for each, name in parts if name)


def newest_terms(state: State, *books: str) -> Iterator[str]:
    """Yield the keys of books and of their newest terms."""
    for book in books:
        yield f"book/{book}"
        yield term_key(book, _terms(state, book))


def all_terms(state: State, *books: str) -> Iterator[str]:
    """Yield the keys of books, of their terms, and of each term's whole account."""
    for book in books:
        yield f"book/{book}"
        for number in range(1, _terms(state, book) + 1):
            yield term_key(book, number)
            yield f"account/{book}#{number}"


def _terms(state: State, book: str) -> int:
    """Return how many terms a book has; most have one."""
    row = state.rows.get(f"book/{book}") or {"term": 1}
    return max(int(row["term"]), 1)


def terms_of_accounts(state: State, accounts: Iterable[str]) -> Iterator[str]:
    """Yield the keys of the books and terms of accounts, and of each term's whole."""
    names = [*accounts]
    # The newest term governs the parts of windows.
    yield from newest_terms(state, *{split(n)[0] for n in names if not split(n)[1]})
    for root in roots_of(names):
        yield f"term/{root}"
        yield f"book/{split(root)[0]}"
        yield account_key(root)


# Gates as a term pins them


@lru_cache(maxsize=512)
def rule_of(text: str) -> Rule:
    """Make a rule from its pinned text.

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
