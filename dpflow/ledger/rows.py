"""Keys of the ledger and the content of each: frozen data and pure functions.

The row of a key is plain JSON; an entry that names the key has its row after the entry.
`docs/derivations/ledger.md` lists all keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any, NamedTuple
from urllib.parse import quote

from dpflow.ledger.entry import ACCOUNT, Amounts, Entry, Sums

NONE: Mapping[str, Any] = {}


class Book(NamedTuple):
    """A dataset or population.

    Attributes:
        terms: How many terms it has; the last one governs.
        frozen: Who froze it, why and when; None if it is open.
        flows: Those that were charged in the newest term.
    """

    name: str
    terms: int = 0
    frozen: Mapping[str, Any] | None = None
    flows: tuple[str, ...] = ()


class Term(NamedTuple):
    """A period of a book under one set of pinned fields.

    Attributes:
        entry: Number of the entry that opened it, or tightened it last.
        facts: The term in the body of that entry.
    """

    book: str
    number: int
    entry: int
    facts: Mapping[str, Any]

    @property
    def whole(self) -> str:
        """Id of the account of its whole dataset or population."""
        return f"{self.book}#{self.number}"


class Account(NamedTuple):
    """One tally.

    Attributes:
        entry: Number of the entry that named it last.
        overdrawn: Whether more was charged than its filter admits.
        alerts: Alerts of the account: thresholds of use, each with its entry.
    """

    id: str
    entry: int
    settled: Amounts
    held: Amounts
    overdrawn: bool = False
    alerts: Mapping[str, int] = NONE


class Charge(NamedTuple):
    """A step's claim on its accounts.

    Attributes:
        state: "open", "settled", "void" or "forfeited".
        owner: The process that holds it.
        key: The release that it makes, if it makes one.
        added: What was charged for it by an operator, by account.
        held: What it holds now, by account.
        made: The entry that reserved it.
        ended: The entry that ended it; None while it is open.
    """

    id: str
    state: str
    owner: str
    key: str | None
    added: Sums
    held: Sums
    made: Entry
    ended: Entry | None = None


class Release(NamedTuple):
    """A stored output, or the claim of the charge that makes it.

    Attributes:
        state: "claimed", "settled", "free" or "withdrawn".
        digest: Of the value, which the journal does not hold.
    """

    key: str
    charge: str
    state: str
    digest: str | None = None


class Run(NamedTuple):
    """A flow run that met a refusal.

    Attributes:
        refusals: How many it met.
        halted: Odometer accounts that refused a step of it.
        reservation: Always None: a part of the row's form.
        unheld: The same.
    """

    id: str
    refusals: int = 0
    halted: Sequence[str] = ()
    reservation: None = None
    unheld: None = None


# Keys


def account_key(account: str) -> str:
    """Return the key of an account."""
    return ACCOUNT + account


def term_key(book: str, number: int) -> str:
    """Return the key of a term; its facts are in the entry's body."""
    return f"term/{book}#{number}"


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return quote(name, "")


def granted_key(step: str, account: str) -> str:
    """Return the key of the largest amount that a step was granted on an account."""
    return f"granted/{_quoted(step)}/{account}"


def evidence_keys(digest: str | None, accounts: Iterable[str]) -> Iterator[str]:
    """Yield the keys of evidence in the terms of the accounts that it charges."""
    if digest is not None:
        yield from (f"evidence/{root}/{digest}" for root in roots_of(accounts))


# Accounts


def added_up(first: Sums, second: Sums) -> dict[str, Amounts]:
    """Return the sum of two, account by account."""
    found = dict(first)
    for name, amount in second.items():
        known = found.get(name)
        found[name] = amount if known is None else tuple(map(add, known, amount))
    return found


def sums_of_lists(sums: Mapping[str, Sequence[int]]) -> dict[str, Amounts]:
    """Return sums as JSON keeps them, with tuples for its lists."""
    return {name: tuple(amounts) for name, amounts in sums.items()}


@lru_cache(maxsize=4096)
def split(account: str) -> tuple[str, int, str, str, str]:
    """Return book, term, kind, name and partition of an account from its id.

    The term is 0 for a part of windows, which terms share.
    """
    book, _, place = account.partition("#")
    text, _, rest = place.partition("/")
    number, partition = int(text or 0), ""
    if rest.startswith("partition/"):
        partition, _, rest = rest.removeprefix("partition/").partition("/")
        if not rest:
            return book, number, "partition", partition, partition
    kind, _, name = rest.partition("/")
    if not kind:
        kind = "population" if book.startswith("population/") else "dataset"
    return book, number, kind, name, partition


def roots_of(accounts: Iterable[str]) -> list[str]:
    """Return the accounts that the whole of each account's term has."""
    terms = dict.fromkeys(split(name)[:2] for name in accounts)
    return [f"{book}#{number}" for book, number in terms if number]


def term_of(account: str) -> int:
    """Return the number of the term that an account belongs to."""
    return split(account)[1]


#: Kinds of gates that a flow adds, in the order of their decisions.
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


def may_return(body: Mapping[str, Any], added: Sums = NONE) -> bool:
    """Say whether a settlement may post less than its charge held.

    Args:
        body: Of the settlement.
        added: What was added to the charge before.
    """
    reported = body["outcome"] == "completed" and "reported" in body and not added
    return reported or body["outcome"] == "void"
