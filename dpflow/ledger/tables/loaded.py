"""Rows that a decision reads: frozen data, without a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    ChargeDataset,
    Dataset,
    Entry,
    Evidence,
    PeopleStore,
    Release,
    Run,
    Source,
    Term,
)

#: Terms that a process remembers, by dataset and number.
Terms = dict[tuple[str, int], Term]


@dataclass(slots=True)
class Rows:
    """Rows that a decision reads; a row that is absent there is absent in the ledger.

    Attributes:
        datasets: Locked datasets and populations.
        known_terms: Terms, those of the datasets among them.
        account_rows: Accounts by id.
        charge: The charge that the command names.
        charge_datasets: Its datasets.
        release: The release of the request's key.
        release_charge: The charge that makes or made it.
        claimant_is_alive: True if the process that claims the release still runs.
        runs: Flow runs by id and dataset.
        earlier_amounts: Amounts of the newest charges of the step.
        claims: By source, the datasets that claim it, with their populations.
        sources: Rows of sources by name.
        evidence: Where an evidence was charged before.
        people: Stores of people by account.
        sent: Entries of an earlier sending of the same command.
        forgotten: Accounts of whole terms that the witness knows to have been charged.
        read_ids: Ids of the accounts that were read, there or not.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    known_terms: Terms = field(default_factory=dict)
    account_rows: dict[str, Account] = field(default_factory=dict)
    charge: Charge | None = None
    charge_datasets: Sequence[ChargeDataset] = ()
    release: Release | None = None
    release_charge: Charge | None = None
    claimant_is_alive: bool = False
    runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    earlier_amounts: Sequence[Mapping[str, Any]] = ()
    claims: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    evidence: Sequence[Evidence] = ()
    people: Mapping[str, PeopleStore] = field(default_factory=dict)
    sent: Sequence[Entry] = ()
    forgotten: Sequence[str] = ()
    read_ids: set[str] = field(default_factory=set)

    # In the shape that gates, windows and lifetimes read.

    def book(self, name: str) -> Dataset:
        """Return a dataset; one that was never opened has no terms."""
        return self.datasets.get(name) or Dataset(name)

    def newest(self, name: str) -> Term | None:
        """Return the term that governs a dataset; None before the first one."""
        return self.known_terms.get((name, self.book(name).term))

    def term(self, name: str, number: int) -> Term | None:
        """Return a term; None if it was never opened. Number 0 is the newest."""
        number = number or self.book(name).term
        return self.known_terms.get((name, number))

    def terms(self, name: str) -> list[Term]:
        """Return the terms of a dataset, oldest first."""
        numbers = range(1, self.book(name).term + 1)
        return [term for n in numbers if (term := self.term(name, n)) is not None]

    def account(self, name: str) -> Account | None:
        """Return an account; None before its first entry."""
        return self.account_rows.get(name)

    def accounts(self, name: str) -> Iterator[Account]:
        """Yield the accounts of a dataset that were loaded."""
        for account in self.account_rows.values():
            if split(account.id)[0] == name:
                yield account

    def with_term(self, dataset: Dataset, term: Term) -> Rows:
        """Return the rows after a term was opened or tightened."""
        datasets = {**self.datasets, dataset.name: dataset}
        known_terms = {**self.known_terms, (term.book, term.number): term}
        return replace(self, datasets=datasets, known_terms=known_terms)


def sum_amounts(first: Amounts, second: Amounts | None) -> Amounts:
    """Return the sum of amounts, component by component."""
    if second is None:
        return first
    return tuple(a + b for a, b in zip(first, second, strict=True))
