"""Accounts as people read them: what is spent, reserved, forfeited and left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.settlement import gate_of
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
        dead = _held_by_the_dead(ledger, reading)
        return {book: _of_book(reading, book, part, dead) for book in books}


def _of_book(
    reading: Reading, book: str, part: str | None, dead: Mapping[str, list[Amounts]]
) -> BookAccounts:
    state, parts = load_parts(reading, book, part)
    gates = gates_of_book(state, book)
    facts = _Facts(
        state=state,
        dead=dead,
        closed=_closed(reading, book),
        opened={
            number: entry.body["term"]["gates"]
            for number, entry in openings(reading, book).items()
        },
    )
    views = sorted((facts.view(gate) for gate in gates), key=lambda view: view.id)
    return BookAccounts(state=state, accounts=tuple(views), parts=parts)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """All that is said of accounts.

    Attributes:
        dead: What processes hold on each account that have ended.
        closed: What was forfeited on each account.
        opened: By term, the gates that it was opened with.
    """

    state: State
    dead: Mapping[str, list[Amounts]]
    closed: Mapping[str, list[Amounts]]
    opened: Mapping[int, Mapping[str, Any]]

    def view(self, gate: Gate) -> AccountView:
        """Return an account as people read it."""
        zero = gate.rule.zero()
        ran = self.state.book(gate.dataset).ran.get(str(term_of(gate.id)), 0)
        return account_view(
            gate,
            dead=_total(zero, self.dead.get(gate.id, ())),
            closed=_total(zero, self.closed.get(gate.id, ())),
            charged=any(gate.used.amounts) or ran > 0,
            opened=self._opened(gate),
        )

    def _opened(self, gate: Gate) -> dict[str, str] | None:
        """Return the budget that a filter was opened with, as the journal tells."""
        if not isinstance(gate.rule, Filter):
            return None
        gates = self.opened.get(term_of(gate.id), {})
        place = f"flow/{gate.name}" if gate.kind == "flow" else gate.kind
        first = gates.get(place)
        rule = gate.rule if first is None else rule_of(first["rule"])
        assert isinstance(rule, Filter)
        return {"epsilon": number_text(rule.epsilon), "delta": number_text(rule.delta)}


def _held_by_the_dead(ledger: Ledger, reading: Reading) -> dict[str, list[Amounts]]:
    """Return the amounts on each account whose process has ended without settling."""
    found: dict[str, list[Amounts]] = {}
    for each in waiting(ledger, reading):
        for name, amount in each.charge.held.items() if not each.alive else ():
            found.setdefault(name, []).append(amount)
    return found


def _closed(reading: Reading, book: str) -> dict[str, list[Amounts]]:
    found: dict[str, list[Amounts]] = {}
    for entry in reading.rare(book, "forfeit"):
        for name, posting in entry.postings.items():
            found.setdefault(name, []).append(posting.amount)
    return found


def _total(zero: Tally, amounts: Iterable[Amounts]) -> Tally:
    for amount in amounts:
        zero = zero + Tally(amount)
    return zero
