"""Datasets, terms, accounts and open reservations as people read them.

The ledger's pinned copy of a policy governs, so reports name it first; the
files only speak for datasets that the ledger does not know yet. Reading a ledger
needs no policy file, so that a broken one hides nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import takewhile
from typing import Any

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, UnknownDataset
from dpflow.ledger.decision.fitting import with_rests
from dpflow.ledger.decision.gates import Gate, announced_gates
from dpflow.ledger.decision.lifetime import term_views
from dpflow.ledger.decision.settlement import gate_of
from dpflow.ledger.decision.terms import agrees, may_be_replaced
from dpflow.ledger.entry import ACCOUNT, Sums
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import all_terms, newest_terms, terms_of_accounts
from dpflow.ledger.records import AccountView, AlertView, OpenReservation, TermView
from dpflow.ledger.rows import Charge, Term, account_key, added_up, split, term_of
from dpflow.ledger.state import State, charge_keys, whole_book
from dpflow.ledger.storage.tables import ENDLESS, Reading
from dpflow.policy import Policy, PolicySet
from dpflow.policy.pinned import difference_lines
from dpflow.policy.population import population_of
from dpflow.policy.types import did_you_mean
from dpflow.rounding import number_text

#: Amounts by account that no step settles: those that ended processes hold, and those
#: that an operator closed.
Forfeits = tuple[Sums, Sums]
#: State of an account that the first step of its flow will open.
NOT_OPENED = "not opened"
_ORDER = ("dataset", "flow", "partition", "population", "odometer", "others")


def accounts(ledger: Ledger, dataset: str | None = None) -> list[AccountView]:
    """Return the accounts of newest terms, of one dataset or of all."""
    with ledger.storage.read() as reading:
        ended = forfeits(ledger, reading)
        books = reading.books() if dataset is None else [dataset]
        terms = filter(None, (governing(reading, book) for book in books))
        return [view for t in terms for view in term_accounts(reading, t, ended)]


def forfeits(ledger: Ledger, reading: Reading) -> Forfeits:
    """Read the forfeits of all accounts."""
    held = (charge.held for charge, alive in waiting(ledger, reading) if not alive)
    closed = (entry.amounts for entry in reading.rare("forfeit"))
    return reduce(added_up, held, {}), reduce(added_up, closed, {})


def term_accounts(
    reading: Reading, term: Term, ended: Forfeits, part: str | None = None
) -> list[AccountView]:
    """Return the accounts of a term.

    An overdrawn account is read with every part: it breaks the guarantee of all parts.

    Args:
        reading: Of the ledger.
        term: The term.
        ended: Forfeits of the ledger.
        part: Only this part of a divided dataset, and the accounts of no part.

    Raises:
        ConfigurationError: If the part has no account.
    """
    pinned, gates = term.facts["pinned"], term_gates(reading, term.whole)
    charged = gates[term.whole].row is not None
    if "partition" in pinned and "whole" not in pinned:
        # The account has no budget: it only opens and freezes the dataset.
        del gates[term.whole]
    if part is not None and all(gate.partition != part for gate in gates.values()):
        msg = (
            f"nothing was charged to a part {part!r} of dataset {term.book!r}. Its "
            f"whole budget remains. `dpflow status {shlex.quote(term.book)} --details` "
            "shows the fullest parts."
        )
        raise ConfigurationError(msg)
    return [
        account_view(gate, ended, charged=charged)
        for gate in gates.values()
        if part is None
        or gate.partition in ("", part)
        or (gate.row is not None and gate.row.overdrawn)
    ]


def account_view(
    gate: Gate, ended: Forfeits = ({}, {}), *, charged: bool = False
) -> AccountView:
    """Return an account as people read it.

    Args:
        gate: Its gate, as it stands; one of no ledger has no id and no term.
        ended: Forfeits of the ledger.
        charged: Whether a step may have read data under it.
    """
    rule, left = gate.rule, gate.left()
    nothing = rule.zero().amounts
    dead, closed = (Tally(amounts.get(gate.id, nothing)) for amounts in ended)
    settled = rule.zero() if gate.row is None else Tally(gate.row.settled)
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
        spent=rule.named(settled - closed),
        reserved=rule.named(gate.used - settled - dead),
        forfeited=rule.named(dead + closed),
        left=None if left is None else rule.named(left),
        used_fraction=gate.used_share(gate.total),
        reading=rule.read(gate.used) if isinstance(rule, Odometer) else None,
        halt_at=None if gate.halt is None else number_text(gate.halt),
        charged=charged,
        gate=gate,
    )


def alerts(ledger: Ledger, dataset: str) -> list[AlertView]:
    """Return the thresholds that accounts of a newest term reached, newest first."""
    with ledger.storage.read() as reading:
        reached = [
            (number, threshold, account)
            for account, gate in newest_gates(reading, dataset).items()
            if gate.row is not None
            for threshold, number in gate.row.alerts.items()
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
        return list(term_views(load_terms(reading, dataset), dataset))


def load_terms(reading: Reading, dataset: str, before: int = ENDLESS) -> State:
    """Read every term of a dataset, as it was before an entry."""
    # Of the accounts of parts, only overdrawn ones matter.
    raised = (e.body.get("overdrawn", ()) for e in reading.rare("adjust", "repair"))
    keys = [account_key(name) for names in raised for name in names]
    return reading.load(lambda s: (*all_terms(s, dataset), *keys), before=before)


def promise(
    ledger: Ledger, dataset: str, number: int = ENDLESS
) -> tuple[tuple[int, str], list[Term], Sequence[TermView], str]:
    """Return the promise of a dataset at an entry, or at the newest before it.

    Returns:
        Number and hash of the entry; the terms, oldest first, with their facts and as
        people read them; the day of the first release in UTC.

    Raises:
        ConfigurationError: If the dataset had no release at that entry.
    """
    with ledger.storage.read() as reading:
        number = min(number, reading.head()[0])
        state = load_terms(reading, dataset, number + 1)
        terms, views = state.terms(dataset), term_views(state, dataset)
        entries = reading.naming_after([account_key(term.whole) for term in terms])
        for entry in takewhile(lambda entry: entry.number <= number, entries):
            if (entry.kind, entry.body.get("outcome")) == ("settle", "completed"):
                return (number, reading.hash_of(number)), terms, views, entry.at[:10]
    msg = (
        f"the ledger has no release from dataset {dataset!r} up to entry {number}. So "
        f"there is no promise to show. `dpflow history {dataset}` lists its steps."
    )
    raise ConfigurationError(msg)


def newest_term(ledger: Ledger, dataset: str) -> Term | None:
    """Return the term that governs a dataset; None if nothing was applied yet."""
    with ledger.storage.read() as reading:
        return governing(reading, dataset)


def governing(reading: Reading, book: str) -> Term | None:
    """Return the term that governs a book; None if nothing was applied yet."""
    return reading.load(lambda state: newest_terms(state, book)).newest(book)


def newest_terms_of(reading: Reading, dataset: str) -> list[Term]:
    """Return the newest terms of a dataset and of its population."""
    term = governing(reading, dataset)
    population = None if term is None else population_of(term.facts["pinned"])
    above = None if population is None else governing(reading, population)
    return [each for each in (term, above) if each]


def load_book(reading: Reading, book: str) -> State:
    """Read every term and account of a book."""
    return reading.load(lambda state: (*all_terms(state, book), whole_book(book)))


# Gates


def standing_gates(ledger: Ledger, dataset: str) -> dict[str, Gate]:
    """Return the gates of newest terms, of a dataset and its population."""
    with ledger.storage.read() as reading:
        books = (term.book for term in newest_terms_of(reading, dataset))
        return {k: g for b in books for k, g in newest_gates(reading, b).items()}


def newest_gates(reading: Reading, book: str) -> dict[str, Gate]:
    """Return the gates of a book's newest term."""
    term = governing(reading, book)
    return {} if term is None else term_gates(reading, term.whole)


def term_gates(reading: Reading, whole: str) -> dict[str, Gate]:
    """Return the gates of a term: that of the whole, and those of charged accounts."""
    # Parts of windows belong to all terms.
    book = split(whole)[0]
    keys = [
        k for at in (whole, f"{book}#") for k in reading.names(account_key(f"{at}/"))
    ]
    gates = gates_by_name(reading, [whole, *(key[len(ACCOUNT) :] for key in keys)])
    return {gate.id: gate for gate in with_rests(gates.values())}


def gates_by_name(reading: Reading, names: Iterable[str]) -> dict[str, Gate]:
    """Return the gates of accounts by their ids."""
    names = [*names]
    keys = [*map(account_key, names)]
    state = reading.load(lambda state: (*terms_of_accounts(state, names), *keys))
    return {name: gate_of(state, name, 1) for name in names}


# Open reservations


def waiting(ledger: Ledger, reading: Reading) -> list[tuple[Charge, bool]]:
    """Return the open charges, oldest first, and whether their owners run."""
    names, alive = reading.open_charges(), cache(ledger.owners.alive)
    state = reading.load(lambda s: (key for n in names for key in charge_keys(s, n)))
    charges = filter(None, map(state.charge, names))
    ordered = sorted(charges, key=lambda charge: charge.made.number)
    return [(charge, alive(charge.owner)) for charge in ordered]


def open_reservations(ledger: Ledger) -> list[OpenReservation]:
    """Return the charges that no process has settled, oldest first."""
    with ledger.storage.read() as reading:
        charges = waiting(ledger, reading)
    return [
        OpenReservation(
            reservation=charge.id,
            body=charge.made.body,
            alive=alive,
            at=charge.made.at,
        )
        for charge, alive in charges
    ]


# Standings of datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a dataset stands in its newest term.

    Attributes:
        term: None if the ledger does not know the dataset yet.
        pinned: The policy's guarantee-relevant fields: the ledger's copy if there is
            one.
        accounts: Opened ones and those that the policy announces.
        parts: Number of parts with an account; 0 where one part was read.
        differences: How the policy file differs from the ledger's copy.
        replaceable: Whether the next step applies a file that differs.
    """

    dataset: str
    term: int | None
    pinned: Mapping[str, Any]
    accounts: tuple[AccountView, ...]
    parts: int
    differences: tuple[str, ...]
    replaceable: bool


def standings(
    ledger: Ledger,
    policies: PolicySet,
    dataset: str | None = None,
    part: str | None = None,
) -> list[Standing]:
    """Return where each dataset stands, or one of them.

    Args:
        ledger: The ledger to read.
        policies: Of the project.
        dataset: Only this one.
        part: Only this part of the dataset.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows the dataset.
        ConfigurationError: If the part has no account.
    """
    names = known_datasets(ledger, policies)
    if dataset is not None:
        check_dataset(ledger, policies, dataset)
        names = {dataset}
    with ledger.storage.read() as reading:
        ended = forfeits(ledger, reading)
        return [
            _standing(reading, name, policies.get(name), ended, part)
            for name in sorted(names)
        ]


def _standing(
    reading: Reading,
    dataset: str,
    policy: Policy | None,
    ended: Forfeits,
    part: str | None,
) -> Standing:
    state = reading.load(lambda state: all_terms(state, dataset))
    term, opened = state.newest(dataset), list[AccountView]()
    differences: tuple[str, ...] = ()
    if term is None:
        assert policy is not None
        pinned = policy.pinned()
    else:
        pinned = term.facts["pinned"]
        opened = term_accounts(reading, term, ended, part)
        if policy is not None and not agrees(term, policy):
            copy = term.facts["declared"]
            differences = tuple(difference_lines(copy, policy.declared()))
    parts = {view.gate.partition for view in opened if part is None} - {""}
    known = {(view.kind, view.name) for view in opened}
    announced = [
        account_view(gate._replace(state=NOT_OPENED))
        for gate in announced_gates(pinned)
        if (gate.kind, gate.name) not in known
    ]
    accounts = sorted(
        (*opened, *announced),
        key=lambda view: (_ORDER.index(view.kind), view.name, view.id),
    )
    return Standing(
        dataset=dataset,
        term=None if term is None else term.number,
        pinned=pinned,
        accounts=tuple(accounts),
        parts=len(parts),
        differences=differences,
        replaceable=term is None or may_be_replaced(state, term),
    )


def known_datasets(ledger: Ledger, policies: PolicySet) -> set[str]:
    """Return the datasets that the ledger or a policy knows."""
    with ledger.storage.read() as reading:
        return {*reading.books(), *policies}


def check_dataset(ledger: Ledger, policies: PolicySet, dataset: str) -> None:
    """Refuse a dataset that neither the ledger nor a policy knows.

    Raises:
        UnknownDataset: It is one.
    """
    known = known_datasets(ledger, policies)
    if dataset not in known:
        hint = did_you_mean(dataset, known)
        msg = f"neither the ledger nor a policy knows the dataset {dataset!r}. {hint}"
        raise UnknownDataset(msg, dataset=dataset, known=sorted(known), hint=hint)
