"""The rows of a ledger: what its journals say so far of each thing, frozen.

A ledger is nothing but the fold of `journal.follow` over its entries, and these rows
are what the fold makes. They need the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any, NamedTuple

Amounts = tuple[int, ...]
#: What is asked of each account, or held there.
Sums = Mapping[str, Amounts]

Key = tuple[str, ...]
_NONE: Mapping[str, Any] = {}


class JournalError(ValueError):
    """An entry that does not follow from those before it."""


class Book(NamedTuple):
    """A dataset or population.

    Attributes:
        number: Of its newest entry.
        hash: Of that entry.
        frozen: Who froze it, why and when; None if it is open.
        ran: By term, how many charges may have read data: those that were given back
            do not count. Also a mark for each flow that was ever charged in a term.
        terms: How many terms it has; the last one governs.
    """

    name: str
    number: int = 0
    hash: str = ""
    frozen: Mapping[str, Any] | None = None
    ran: Mapping[str, int] = _NONE
    terms: int = 0


class Term(NamedTuple):
    """A stretch of a book's life under one set of pinned fields.

    Attributes:
        entry: Number of the entry that opened it, or tightened it last.
        facts: What that entry says of it, whole.
    """

    book: str
    number: int
    entry: int
    facts: Mapping[str, Any]


class Account(NamedTuple):
    """One tally.

    Attributes:
        entry: Number of the entry that moved it last.
        overdrawn: Whether more was charged than its filter admits.
        told: Thresholds of use that were told, with the entries that told them.
    """

    id: str
    book: str
    entry: int
    settled: Amounts
    held: Amounts
    overdrawn: bool = False
    told: Mapping[str, int] = _NONE


class Charge(NamedTuple):
    """A step's claim on its accounts, or a flow run's on all of its steps.

    Attributes:
        state: "open", "settled", "void", "forfeited" or "sealed".
        owner: The process that holds it.
        places: By book, the entry that reserved it and the one that ended it, or 0.
        held: What it holds now, by account.
        added: What was charged for it by hand, by account.
        covers: The flow run that it holds, if it is a preflight.
        key: The release that it makes, if it makes one.
        epoch: How many repairs the ledger had when it was made.
    """

    id: str
    state: str
    owner: str
    places: Mapping[str, tuple[int, int]]
    held: Sums
    added: Sums = _NONE
    covers: str | None = None
    key: str | None = None
    epoch: int = 0


class Release(NamedTuple):
    """A kept output, or the claim of the charge that makes it.

    Attributes:
        state: "claimed", "settled" or "withdrawn".
        book: Where the entries of its charge are.
        digest: Of the value, which the journal does not hold.
    """

    key: str
    charge: str
    book: str
    state: str
    digest: str | None = None


class Run(NamedTuple):
    """A flow run that met a refusal, or holds a preflight.

    Attributes:
        refused: The entries that refused, with whether the run was the charged one.
        halted: Odometer accounts that refused a step of it.
        preflight: The newest charge that holds it.
        unheld: The entry that refused its preflight, if none holds it since.
    """

    id: str
    refused: tuple[tuple[str, int, bool], ...] = ()
    halted: tuple[str, ...] = ()
    preflight: str | None = None
    unheld: tuple[str, int] | None = None


class MostGranted(NamedTuple):
    """The most that a step was ever granted, by account.

    A divided dataset has one for each part, so that a step reads its own parts' only:
    `step` is then `name_in_part`.
    """

    book: str
    step: str
    most: Sums


class Claim(NamedTuple):
    """A name that few may use: a source, a grant, the evidence of prior spending.

    Attributes:
        by: What each book said when it used the name.
    """

    name: str
    by: Mapping[str, str]


class Epoch(NamedTuple):
    """How many repairs the ledger had."""

    number: int = 0


Row = Book | Term | Account | Charge | Release | Run | MostGranted | Claim | Epoch
Rows = Mapping[Key, Row]
#: Rows that an entry changes; None takes one away.
Changes = dict[Key, Row | None]

EPOCH: Key = ("epoch",)


def added_up(first: Sums, second: Sums) -> dict[str, Amounts]:
    """Return the sum of two, account by account."""
    found = dict(first)
    for name, amount in second.items():
        known = found.get(name)
        found[name] = amount if known is None else tuple(map(add, known, amount))
    return found


def sums_of_lists(found: Mapping[str, Sequence[int]]) -> dict[str, Amounts]:
    """Return sums as JSON keeps them, with tuples for its lists."""
    return {name: tuple(amounts) for name, amounts in found.items()}


@lru_cache(maxsize=4096)
def split(account: str) -> tuple[str, int, str, str, str]:
    """Return book, term, kind, name and partition of an account, as its id tells."""
    book, _, place = account.partition("#")
    number, _, rest = place.partition("/")
    partition = ""
    if rest.startswith("partition/"):
        partition, _, rest = rest.removeprefix("partition/").partition("/")
        if not rest:
            return book, int(number), "partition", partition, partition
    kind, _, name = rest.partition("/")
    if not kind:
        kind = "population" if book.startswith("population/") else "dataset"
    return book, int(number), kind, name, partition


def name_in_part(step: str, account: str) -> str:
    """Return the name under which the most is kept that a step had on an account."""
    part = split(account)[4]
    # Should two such names be the same text, one row has the accounts of both.
    return f"{part}/{step}" if part else step


@lru_cache(maxsize=10_000)
def name_of_term(account: str) -> str:
    """Return the number of the term that an account belongs to, as text."""
    return account.partition("#")[2].partition("/")[0]


def flow_mark(term: int, flow: str) -> str:
    """Return what stands in `Book.ran` for a flow that was charged in a term."""
    return f"{term}/{flow}"


def book_of(rows: Rows, name: str) -> Book:
    """Return a book; a new one has no entry yet."""
    found = rows.get(("book", name))
    return found if isinstance(found, Book) else Book(name)


def charge_of(rows: Rows, name: str | None) -> Charge:
    """Return a charge.

    Raises:
        JournalError: If nobody made it.
    """
    found = rows.get(("charge", name or ""))
    if not isinstance(found, Charge):
        what = f"it is about charge {name}, which nobody made"
        raise JournalError(what)
    return found


def run_of(rows: Rows, name: str) -> Run:
    """Return what is known of a flow run."""
    found = rows.get(("run", name))
    return found if isinstance(found, Run) else Run(name)


def epoch_of(rows: Rows) -> int:
    """Return how many repairs the ledger had."""
    found = rows.get(EPOCH)
    return found.number if isinstance(found, Epoch) else 0


#: Kinds of gates that a flow adds, in the order in which they are asked.
OF_FLOW = ("flow", "odometer")


def gate_in(gates: Mapping[str, Any], kind: str, name: str) -> Any:
    """Return what a term says of an account's gate; None if it asks for none."""
    place = f"{kind}/{name}" if kind in OF_FLOW else kind
    if place not in gates and kind == "odometer":
        place = kind
    return gates.get(place)


#: The numbers of a gate's rule, with its role, and where it halts.
Asked = tuple[Mapping[str, Any], str | None]


def asked_for(pinned: Mapping[str, Any], kind: str, name: str) -> Asked | None:
    """Return the rule and halt that a copy asks for; None if it asks for no gate.

    The one place that says which rule a policy means for which account.
    """
    share = pinned["flows"].get(name, {}) if kind in OF_FLOW else {}
    if kind == "odometer":
        numbers = share.get("odometer", pinned["odometer"])
        halt = share.get("halt_at_epsilon")
        return None if numbers is None else ({"role": "odometer", **numbers}, halt)
    numbers = share.get("filter") if kind == "flow" else pinned["filter"]
    if kind == "others":
        numbers = pinned.get("others")
    if kind == "dataset":
        # All partitions by time together have a cap of their own, if any.
        numbers = pinned.get("whole") or numbers
    return None if numbers is None else ({"role": "filter", **numbers}, None)
