"""Terms, accounts and open reservations as people read them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.policy_changes import term_views
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.entry import ACCOUNT, Amounts
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import all_terms, newest_terms, terms_of_accounts
from dpflow.ledger.records import AccountView, AlertView, OpenReservation, TermView
from dpflow.ledger.rows import Charge, Term, account_key, term_of
from dpflow.ledger.state import State, whole_book
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.charges import read_charges
from dpflow.policy.population import population_of
from dpflow.rounding import number_text


def accounts(ledger: Ledger, dataset: str | None = None) -> list[AccountView]:
    """Return the accounts of newest terms, of one dataset or of all."""
    with ledger.storage.read() as reading:
        books = reading.books() if dataset is None else [dataset]
        forfeits = Forfeits.read(ledger, reading)
        return [
            view for book in books for view in book_accounts(reading, book, forfeits)
        ]


@dataclass(frozen=True, slots=True)
class Forfeits:
    """Amounts by account that no step will settle.

    Attributes:
        held: Held by processes that have ended.
        settled: Posted in full by an operator.
    """

    held: Mapping[str, Tally]
    settled: Mapping[str, Tally]

    @classmethod
    def read(cls, ledger: Ledger, reading: Reading) -> Forfeits:
        """Read the forfeits of all accounts."""
        held = (c.held for c, alive in waiting(ledger, reading) if not alive)
        settled = (entry.amounts for entry in reading.rare("forfeit"))
        return cls(_sums(held), _sums(settled))


def _sums(charges: Iterable[Mapping[str, Amounts]]) -> dict[str, Tally]:
    """Add amounts up by account."""
    sums: dict[str, Tally] = {}
    for amounts in charges:
        for name, amount in amounts.items():
            sums[name] = sums.get(name, Tally((0,) * len(amount))) + Tally(amount)
    return sums


def book_accounts(
    reading: Reading, book: str, forfeits: Forfeits, part: str | None = None
) -> list[AccountView]:
    """Return the accounts of a book's newest term.

    An overdrawn account is read with every part: it breaks the guarantee of all parts.

    Args:
        reading: Of the ledger.
        book: The dataset or population.
        forfeits: Of the ledger.
        part: Only this part of a divided dataset, and the accounts of no part.

    Raises:
        ConfigurationError: If the part has no account.
    """
    term = governing(reading, book)
    if term is None:
        return []
    pinned = term.facts["pinned"]
    gates = term_gates(reading, term.whole)
    charged = gates[term.whole].row is not None
    if "partition" in pinned and "whole" not in pinned:
        # The account has no budget: it only opens and freezes the dataset.
        del gates[term.whole]
    if part is not None and all(gate.partition != part for gate in gates.values()):
        msg = (
            f"nothing was charged to a part {part!r} of dataset {book!r}. Its whole "
            f"budget remains. `dpflow status {shlex.quote(book)} --details` shows the "
            "fullest parts."
        )
        raise ConfigurationError(msg)
    return [
        account_view(
            gate,
            dead=forfeits.held.get(name),
            closed=forfeits.settled.get(name),
            charged=charged,
        )
        for name, gate in gates.items()
        if part is None
        or gate.partition in ("", part)
        or (gate.row is not None and gate.row.overdrawn)
    ]


def account_view(
    gate: Gate,
    *,
    dead: Tally | None = None,
    closed: Tally | None = None,
    charged: bool = False,
) -> AccountView:
    """Return an account as people read it.

    Args:
        gate: Its gate, as it stands; one of no ledger has no id and no term.
        dead: Amount that ended processes hold on it. Default: nothing.
        closed: Amount that was forfeited on it. Default: nothing.
        charged: Whether a step may have read data under it.
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
        gate=gate,
    )


def alerts(ledger: Ledger, dataset: str) -> list[AlertView]:
    """Return the thresholds that accounts of a newest term reached, newest first."""
    with ledger.storage.read() as reading:
        term = governing(reading, dataset)
        gates = {} if term is None else term_gates(reading, term.whole)
        reached = [
            (number, threshold, account)
            for account, gate in gates.items()
            if gate.row is not None
            for threshold, number in gate.row.told.items()
        ]
        entries = reading.entries(number for number, *_ in reached)
    return [
        AlertView(account=account, threshold=threshold, at=entries[number].at)
        for number, threshold, account in sorted(reached, reverse=True)
    ]


# Terms


def terms(ledger: Ledger, dataset: str) -> list[TermView]:
    """Return the terms of a dataset, oldest first."""
    with ledger.storage.read() as reading:
        # Of the accounts of parts, only overdrawn ones matter.
        raised = (e.body.get("overdrawn", ()) for e in reading.rare("adjust", "repair"))
        keys = [account_key(name) for names in raised for name in names]
        state = reading.load(lambda state: (*all_terms(state, dataset), *keys))
    return list(term_views(state, dataset))


def newest_term(ledger: Ledger, dataset: str) -> Term | None:
    """Return the term that governs a dataset; None if nothing was applied yet."""
    with ledger.storage.read() as reading:
        return governing(reading, dataset)


def governing(reading: Reading, book: str) -> Term | None:
    """Return the term that governs a book; None if nothing was applied yet."""
    return reading.load(lambda state: newest_terms(state, book)).newest(book)


def newest_wholes(reading: Reading, dataset: str) -> list[str]:
    """Return the ids of the newest terms of a dataset and of its population."""
    term = governing(reading, dataset)
    population = None if term is None else population_of(term.facts["pinned"])
    above = None if population is None else governing(reading, population)
    return [each.whole for each in (term, above) if each]


def load_book(reading: Reading, book: str) -> State:
    """Read every term and account of a book."""
    return reading.load(lambda state: (*all_terms(state, book), whole_book(book)))


# Gates


def standing_gates(ledger: Ledger, dataset: str) -> dict[str, Gate]:
    """Return the gates of newest terms, of a dataset and its population."""
    gates: dict[str, Gate] = {}
    with ledger.storage.read() as reading:
        for whole in newest_wholes(reading, dataset):
            gates |= term_gates(reading, whole)
    return gates


def term_gates(reading: Reading, whole: str) -> dict[str, Gate]:
    """Return the gates of a term: that of the whole, and those of charged accounts."""
    keys = reading.names(account_key(f"{whole}/"))
    return gates_by_name(reading, [whole, *(key[len(ACCOUNT) :] for key in keys)])


def gates_by_name(reading: Reading, names: Iterable[str]) -> dict[str, Gate]:
    """Return the gates of accounts by their ids."""
    names = [*names]
    keys = (*terms_of_accounts(names), *map(account_key, names))
    state = reading.load(lambda _: keys)
    return {name: gate_of(state, name, 1) for name in names}


# Open reservations


def waiting(ledger: Ledger, reading: Reading) -> list[tuple[Charge, bool]]:
    """Return the open charges, oldest first, and whether their owners run.

    Args:
        ledger: The ledger, which knows the running owners.
        reading: Of the ledger.
    """
    names, alive = reading.open_charges(), cache(ledger.owners.alive)
    charges = filter(None, map(read_charges(reading, names).charge, names))
    ordered = sorted(charges, key=lambda charge: charge.made.number)
    return [(charge, alive(charge.owner)) for charge in ordered]


def open_reservations(ledger: Ledger) -> list[OpenReservation]:
    """Return the charges that no process has settled, oldest first."""
    with ledger.storage.read() as reading:
        charges = waiting(ledger, reading)
        runs = [charge for charge, _ in charges if charge.covers]
        gates = gates_by_name(reading, {name for run in runs for name in run.held})
    return [
        OpenReservation(
            reservation=charge.id,
            body=charge.made.body,
            alive=alive,
            at=charge.made.at,
            undrawn={
                name: gates[name].rule.named(Tally(amount))
                for name, amount in charge.held.items()
                if charge.covers is not None
            },
        )
        for charge, alive in charges
    ]
