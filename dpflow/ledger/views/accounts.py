"""Accounts as people read them: what is spent, reserved, forfeited and left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, State, rule_of
from dpflow.ledger.records import AccountView
from dpflow.ledger.rows import Account, Amounts, split
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.charges import account_of_term, openings
from dpflow.ledger.views.parts import load_accounts, load_parts
from dpflow.ledger.views.reservations import waiting
from dpflow.policy.population import population_of
from dpflow.rounding import number_text


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
NO_ACCOUNTS = BookAccounts(state=State(rows={}), accounts=(), parts=0)


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
        dead = _sums(
            held
            for each in waiting(ledger, reading)
            if not each.alive
            for held in each.charge.held.items()
        )
        return {book: _of_book(reading, book, part, dead) for book in books}


def _of_book(
    reading: Reading, book: str, part: str | None, dead: Mapping[str, Tally]
) -> BookAccounts:
    state, parts = load_parts(reading, book, part)
    forfeits = reading.rare(book, "forfeit")
    closed = _sums(
        (name, posting.amount)
        for entry in forfeits
        for name, posting in entry.postings.items()
    )
    opened, ran = openings(reading, book), state.book(book).ran
    views = [
        account_view(
            gate,
            dead=dead.get(gate.id),
            closed=closed.get(gate.id),
            charged=any(gate.used.amounts) or ran.get(str(term_of(gate.id)), 0) > 0,
            opened=_opened(gate, opened.get(term_of(gate.id))),
        )
        for gate in gates_of_book(state, book)
    ]
    return BookAccounts(state=state, accounts=tuple(views), parts=parts)


def _sums(found: Iterable[tuple[str, Amounts]]) -> dict[str, Tally]:
    """Add amounts up by account."""
    sums: dict[str, Tally] = {}
    for name, amount in found:
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


def gates_of_book(state: State, book: str) -> list[Gate]:
    """Return the gates of all terms of a book, whole and charged ones.

    Args:
        state: With every term and account of the book.
        book: Its name.
    """
    newest = state.book(book).terms
    names = {account_of_term(term) for term in state.terms(book)}
    names |= {
        row.id
        for row in state.rows.values()
        if isinstance(row, Account) and row.book == book
    }
    return [_standing(state, name, newest) for name in sorted(names)]


def standing_gates(
    ledger: Ledger, dataset: str, names: Collection[str] | None = None
) -> dict[str, Gate]:
    """Return gates of a dataset's newest term and of its population's, by account.

    Args:
        ledger: The ledger to read.
        dataset: The dataset.
        names: Only the gates of these accounts. Default: all.
    """
    with ledger.storage.read() as reading:
        term = reading.load(Keys(books=(dataset,))).newest(dataset)
        above = None if term is None else population_of(term.facts["pinned"])
        found: dict[str, Gate] = {}
        for book in filter(None, (dataset, above)):
            if names is None:
                state = reading.load(Keys(whole=(book,)))
            else:
                own = [name for name in names if name.partition("#")[0] == book]
                state = load_accounts(reading, book, own)
            found |= current_gates(state, book)
    return {k: g for k, g in found.items() if names is None or k in names}


def current_gates(state: State, book: str) -> dict[str, Gate]:
    """Return the gates of a book's newest term, by the ids of their accounts.

    Args:
        state: With every term and account of the book.
        book: Its name.
    """
    newest = state.book(book).terms
    gates = gates_of_book(state, book)
    return {gate.id: gate for gate in gates if term_of(gate.id) == newest}


def _standing(state: State, name: str, newest: int) -> Gate:
    gate = gate_of(state, name, 1)
    if gate.state == "frozen" and term_of(name) != newest:
        # What is frozen is the term that governs.
        row = state.account(name)
        overdrawn = row is not None and row.overdrawn
        return gate._replace(state="overdrawn" if overdrawn else "open")
    return gate


def term_of(account: str) -> int:
    """Return the number of the term that an account belongs to."""
    return split(account)[1]


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
    rule = gate.rule
    dead, closed = dead or rule.zero(), closed or rule.zero()
    budget = rule.limit if isinstance(rule, Filter) else None
    left = gate.left()
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
