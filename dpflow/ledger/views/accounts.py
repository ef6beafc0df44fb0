"""Accounts as people read them: what is spent, reserved, forfeited and left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.entry import Amounts, Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import rule_of
from dpflow.ledger.records import AccountView
from dpflow.ledger.rows import term_of
from dpflow.ledger.state import State
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.charges import openings
from dpflow.ledger.views.parts import gates_of_book, load_book, load_parts
from dpflow.ledger.views.reservations import waiting
from dpflow.ledger.views.terms import governing
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
    opened, views = openings(reading, book), []
    for gate in gates_of_book(state, book):
        term = term_of(gate.id)
        views.append(
            account_view(
                gate,
                dead=dead.get(gate.id),
                closed=closed.get(gate.id),
                charged=state.account(f"{book}#{term}") is not None,
                opened=_opened(gate, opened.get(term)),
            )
        )
    return BookAccounts(state=state, accounts=tuple(views), parts=parts)


def _sums(found: Iterable[Mapping[str, Amounts]]) -> dict[str, Tally]:
    """Add amounts up by account."""
    sums: dict[str, Tally] = {}
    for amounts in found:
        for name, amount in amounts.items():
            sums[name] = sums.get(name, Tally((0,) * len(amount))) + Tally(amount)
    return sums


def _opened(gate: Gate, opening: Entry | None) -> dict[str, str] | None:
    """Return the budget that a filter was opened with, as the journal tells."""
    if not isinstance(gate.rule, Filter):
        return None
    gates = {} if opening is None else opening.body["term"]["gates"]
    first = gates.get(f"flow/{gate.name}" if gate.kind == "flow" else gate.kind)
    rule = gate.rule if first is None else rule_of(first["rule"])
    assert isinstance(rule, Filter)
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
