"""Terms, accounts and open reservations as people read them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.policy_changes import term_views
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.entry import Amounts
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import all_terms, newest_terms, rule_of
from dpflow.ledger.records import AccountView, OpenReservation, TermView
from dpflow.ledger.rows import Charge, Term, account_key, split, term_of
from dpflow.ledger.state import State, whole_book
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.charges import read_charges
from dpflow.policy.population import population_of
from dpflow.rounding import number_text

#: Amounts by account.
_Sums = Mapping[str, Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookAccounts:
    """The terms of a dataset or population, and its accounts.

    Attributes:
        state: Every term, and the accounts that were read.
        accounts: Those that were read, in the order of their ids.
        parts: Number of parts with an account.
    """

    state: State
    accounts: tuple[AccountView, ...]
    parts: int


#: Of a dataset that the ledger does not know.
NO_ACCOUNTS = BookAccounts(state=State(whole=True), accounts=(), parts=0)


def accounts(ledger: Ledger, dataset: str | None = None) -> list[AccountView]:
    """Return the accounts of one dataset or of all, with the forfeited apart."""
    found = book_accounts(ledger, dataset).values()
    views = (view for each in found for view in each.accounts)
    return sorted(views, key=lambda view: view.id)


def book_accounts(
    ledger: Ledger, dataset: str | None = None, part: str | None = None
) -> dict[str, BookAccounts]:
    """Return the terms and accounts of one dataset or of all, by its name.

    Args:
        ledger: The ledger to read.
        dataset: Only this one.
        part: Only this part of a divided dataset.
    """
    with ledger.storage.read() as reading:
        books = reading.books() if dataset is None else [dataset]
        # What processes hold that have ended.
        dead = _sums(c.held for c, alive in waiting(ledger, reading) if not alive)
        closed = _sums(entry.amounts for entry in reading.rare("forfeit"))
        return {book: _of_book(reading, book, part, dead, closed) for book in books}


def _of_book(
    reading: Reading, book: str, part: str | None, dead: _Sums, closed: _Sums
) -> BookAccounts:
    state, parts = load_parts(reading, book, part)
    opened = {
        entry.body["term"]["number"]: entry.body["term"]["gates"]
        for entry in reading.naming(reading.names(f"term/{book}#"))
        if entry.kind == "open"
    }
    views = [
        account_view(
            gate,
            dead=dead.get(gate.id),
            closed=closed.get(gate.id),
            charged=state.account(f"{book}#{term}") is not None,
            opened=_opened(gate, opened.get(term, {})),
        )
        for gate in gates_of_book(state, book)
        for term in [term_of(gate.id)]
    ]
    return BookAccounts(state=state, accounts=tuple(views), parts=parts)


def _sums(found: Iterable[Mapping[str, Amounts]]) -> dict[str, Tally]:
    """Add amounts up by account."""
    sums: dict[str, Tally] = {}
    for amounts in found:
        for name, amount in amounts.items():
            sums[name] = sums.get(name, Tally((0,) * len(amount))) + Tally(amount)
    return sums


def _opened(gate: Gate, gates: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the budget that a filter was opened with, as the journal tells."""
    first = gates.get(f"flow/{gate.name}" if gate.kind == "flow" else gate.kind)
    rule = gate.rule if first is None else rule_of(first["rule"])
    if not isinstance(rule, Filter):
        return None
    return {"epsilon": number_text(rule.epsilon), "delta": number_text(rule.delta)}


def standing_gates(
    ledger: Ledger, dataset: str, names: Collection[str] | None = None
) -> dict[str, Gate]:
    """Return gates of a dataset's newest term and of its population's, by account.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        names: Only the gates of these accounts. Default: all.
    """
    found: dict[str, Gate] = {}
    with ledger.storage.read() as reading:
        term = governing(reading, dataset)
        above = None if term is None else population_of(term.facts["pinned"])
        for book in filter(None, (dataset, above)):
            found |= current_gates(load_book(reading, book, names), book)
    return {k: g for k, g in found.items() if names is None or k in names}


def current_gates(state: State, book: str) -> dict[str, Gate]:
    """Return the gates of a book's newest term, by the ids of their accounts."""
    newest = state.book(book).terms
    gates = gates_of_book(state, book)
    return {gate.id: gate for gate in gates if term_of(gate.id) == newest}


def account_view(
    gate: Gate,
    *,
    dead: Tally | None = None,
    closed: Tally | None = None,
    charged: bool = False,
    opened: Mapping[str, str] | None = None,
) -> AccountView:
    """Return an account as people read it.

    Args:
        gate: Its gate, as it stands; one of no ledger has no id and no term.
        dead: What processes hold on it that have ended. Default: nothing.
        closed: What was forfeited on it. Default: nothing.
        charged: Whether a step may have read data under it.
        opened: The budget that a filter was opened with, as the journal tells.
    """
    rule, left = gate.rule, gate.left()
    dead, closed = dead or rule.zero(), closed or rule.zero()
    budget = rule.limit if isinstance(rule, Filter) else None
    return AccountView(
        id=gate.id,
        dataset=gate.dataset,
        term=term_of(gate.id) if gate.id else 0,
        kind=gate.kind,
        name=gate.name,
        theorem=rule.theorem,
        state=gate.state,
        parameters=rule.parameters(),
        epsilon=number_text(rule.epsilon) if isinstance(rule, Filter) else None,
        delta=number_text(rule.delta) if isinstance(rule, Filter | Odometer) else "0",
        budget=None if budget is None else rule.named(budget),
        spent=rule.named(gate.settled - closed),
        reserved=rule.named(gate.held - dead),
        forfeited=rule.named(dead + closed),
        left=None if left is None else rule.named(left),
        used_fraction=gate.used_share(gate.used),
        reading=rule.read(gate.used) if isinstance(rule, Odometer) else None,
        halt_at=None if gate.halt is None else number_text(gate.halt),
        charged=charged,
        opened=opened,
        gate=gate,
    )


# Terms


def terms(ledger: Ledger, dataset: str) -> list[TermView]:
    """Return the terms of a dataset, oldest first."""
    with ledger.storage.read() as reading:
        state = load_book(reading, dataset, overdrawn(reading))
        return list(term_views(state, dataset))


def newest_term(ledger: Ledger, dataset: str) -> Term | None:
    """Return the term that governs a dataset; None if nothing was applied yet."""
    with ledger.storage.read() as reading:
        return governing(reading, dataset)


def governing(reading: Reading, book: str) -> Term | None:
    """Return the term that governs a book; None if nothing was applied yet."""
    return reading.load(lambda state: newest_terms(state, book)).newest(book)


# Gates


def load_book(reading: Reading, book: str, names: Iterable[str] | None = None) -> State:
    """Read every term of a book, and its accounts.

    Args:
        reading: The ledger.
        book: The dataset or population.
        names: Only these accounts, and those of the whole. Default: all.
    """
    keys = [whole_book(book)]
    if names is not None:
        keys = [account_key(name) for name in names if split(name)[0] == book]
    return reading.load(lambda state: (*all_terms(state, book), *keys))


def load_parts(
    reading: Reading, book: str, part: str | None = None
) -> tuple[State, int]:
    """Read every term of a book, and its accounts: all, or those of one part.

    An account of which more was charged by hand than it admits is always read: it
    breaks what is promised of all parts.

    Returns:
        The state, and the number of parts with an account.

    Raises:
        ConfigurationError: If the part has no account.
    """
    ids = {name: partition_of(name) for name in reading.accounts(book)}
    parts = {*ids.values()} - {""}
    if part is None:
        return load_book(reading, book), len(parts)
    if part not in parts:
        msg = (
            f"nothing was charged to a part {part!r} of dataset {book!r}. Its whole "
            f"budget remains. `dpflow status {shlex.quote(book)} --details` shows the "
            "fullest parts."
        )
        raise ConfigurationError(msg)
    names = [name for name, of in ids.items() if of in {"", part}]
    return load_book(reading, book, [*names, *overdrawn(reading)]), len(parts)


def gate_now(state: State, name: str) -> Gate:
    """Return the gate of an account; what is frozen is the term that governs."""
    gate, row = gate_of(state, name, 1), state.account(name)
    if gate.state == "frozen" and term_of(name) != state.book(gate.dataset).terms:
        overdrawn = row is not None and row.overdrawn
        return gate._replace(state="overdrawn" if overdrawn else "open")
    return gate


def gates_of_book(state: State, book: str) -> list[Gate]:
    """Return the gates of all terms of a book, whole and charged ones."""
    names = {f"{book}#{term.number}" for term in state.terms(book)}
    names |= {account.id for account in state.accounts(book)}
    return [gate_now(state, name) for name in sorted(names)]


def gates_by_name(reading: Reading, names: Iterable[str]) -> dict[str, Gate]:
    """Return the gates of accounts of whatever books, by their ids."""
    books: dict[str, list[str]] = {}
    for name in names:
        books.setdefault(split(name)[0], []).append(name)
    states = {book: load_book(reading, book, own) for book, own in books.items()}
    return {n: gate_now(states[book], n) for book, own in books.items() for n in own}


def partition_of(account: str) -> str:
    """Return the partition that an account's id speaks of; empty if of none."""
    # An edited ledger can hold any text.
    _, kind, part, *_ = (*account.partition("#")[2].split("/", 3), "", "", "")
    return part if kind == "partition" else ""


def overdrawn(reading: Reading) -> set[str]:
    """Return the ids of accounts that were left overdrawn, as the journal tells."""
    told = (e.body.get("overdrawn", ()) for e in reading.rare("adjust", "repair"))
    return {name for names in told for name in names}


# Open reservations


def waiting(ledger: Ledger, reading: Reading) -> list[tuple[Charge, bool]]:
    """Return the charges that nobody has settled, and who of their owners runs.

    Args:
        ledger: The ledger, which knows who runs.
        reading: Of the ledger.

    Returns:
        The oldest first.
    """
    names, alive = reading.open_charges(), cache(ledger.owners.alive)
    found = filter(None, map(read_charges(reading, names).charge, names))
    ordered = sorted(found, key=lambda each: each.made.number)
    return [(each, alive(each.owner)) for each in ordered]


def open_reservations(ledger: Ledger) -> list[OpenReservation]:
    """Return the charges that nobody has settled, oldest first."""
    with ledger.storage.read() as reading:
        found = waiting(ledger, reading)
        held = {name for each, _ in found if each.covers for name in each.held}
        gates = gates_by_name(reading, held)
    return [
        OpenReservation(
            reservation=each.id,
            step=each.made.body["step"],
            accounts=tuple(each.made.body["accounts"]),
            cost=each.made.body["cost"],
            body=each.made.body,
            alive=alive,
            at=each.made.at,
            covers=each.covers,
            undrawn={
                name: gates[name].rule.named(Tally(amount))
                for name, amount in each.held.items()
                if each.covers is not None
            },
        )
        for each, alive in found
    ]
