"""Where datasets stand: their terms, their accounts, and how the files differ.

The ledger's pinned copy of a policy governs, so it is told wherever there is one; the
files only speak for datasets that the ledger does not know yet. Reading a ledger
needs no policy file, so that a broken one hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpflow.exceptions import UnknownDataset
from dpflow.ledger.decision.announced import announced_gates
from dpflow.ledger.decision.terms import agrees, may_be_replaced
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import AccountView
from dpflow.ledger.rows import Term
from dpflow.ledger.views.accounts import NO_ACCOUNTS, account_view, book_accounts
from dpflow.policy import Policy, PolicySet
from dpflow.policy.pinned import difference_lines
from dpflow.policy.types import did_you_mean

#: States of an account that the first step of its flow will open, and of an open one
#: of an earlier term.
NOT_OPENED, ENDED = "not opened", "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a dataset stands in one term.

    Attributes:
        term: None if the ledger does not know the dataset yet.
        pinned: The policy's guarantee-relevant fields; the ledger's copy if there is
            one. None for an earlier term, whose copy is history.
        accounts: Opened ones and those that the policy announces.
        parts: Number of parts with an account.
        differences: How the policy file differs from the ledger's copy.
        replaceable: Whether the next step applies a file that differs by itself.
    """

    dataset: str
    term: int | None
    pinned: Mapping[str, Any] | None
    accounts: tuple[AccountView, ...]
    parts: int = 0
    differences: tuple[str, ...] = ()
    replaceable: bool = True

    @property
    def untouched(self) -> bool:
        """Whether nothing was ever charged here."""
        return all(is_untouched(view) for view in self.accounts)


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
    """
    books = book_accounts(ledger, dataset, part)
    opened = {name: book for name, book in books.items() if book.accounts}
    wanted = sorted(opened.keys() | policies.keys()) if dataset is None else [dataset]
    found: list[Standing] = []
    if dataset is not None and dataset not in opened:
        check_dataset(ledger, policies, dataset)
    for name in wanted:
        policy = policies.get(name)
        book = opened.get(name, NO_ACCOUNTS)
        known = book.state.terms(name)
        term = known[-1] if known else None
        pins = {each.number: each.facts["pinned"] for each in known}
        views = [view for view in book.accounts if not _is_switch(view, pins)]
        fields = policies[name].pinned() if term is None else term.facts["pinned"]
        number = None if term is None else term.number
        found += _earlier_terms(views, number, book.parts)
        current = [view for view in views if view.term == number]
        found.append(
            Standing(
                dataset=name,
                term=number,
                pinned=fields,
                accounts=tuple(
                    sorted([*current, *_announced(fields, current)], key=_order)
                ),
                parts=book.parts,
                differences=_differences(term, policy) if term and policy else (),
                replaceable=term is None or may_be_replaced(book.state, term),
            )
        )
    return found


def _differences(term: Term, policy: Policy) -> tuple[str, ...]:
    if agrees(term, policy):
        return ()
    return tuple(difference_lines(term.facts["declared"], policy.declared()))


def _is_switch(view: AccountView, pins: Mapping[int, Mapping[str, Any]]) -> bool:
    """Say whether an account has no budget: it opens and freezes a divided dataset."""
    pinned = pins.get(view.term, {})
    divided = "partition" in pinned and "whole" not in pinned
    return view.kind == "dataset" and divided and is_untouched(view)


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


def is_untouched(view: AccountView) -> bool:
    """Say whether nothing was charged to an account."""
    charged = (view.spent, view.reserved, view.forfeited)
    return all(text == "0" for amounts in charged for text in amounts.values())


def _announced(
    pinned: Mapping[str, Any], opened: list[AccountView]
) -> Iterator[AccountView]:
    """Yield the accounts that a policy announces and no step has opened yet."""
    known = {(view.kind, view.name) for view in opened}
    for gate in announced_gates(pinned):
        if (gate.kind, gate.name) not in known:
            yield account_view(gate._replace(state=NOT_OPENED))


def _earlier_terms(
    views: list[AccountView], term: int | None, parts: int
) -> Iterator[Standing]:
    """Yield the terms before this one in which anything was charged."""
    for number in sorted({view.term for view in views} - {term}):
        ended = tuple(
            replace(view, state=ENDED if view.state == "open" else view.state)
            for view in views
            if view.term == number
        )
        standing = Standing(
            dataset=views[0].dataset,
            term=number,
            pinned=None,
            accounts=ended,
            parts=parts,
        )
        if not standing.untouched:
            yield standing


def _order(view: AccountView) -> tuple[int, str, str]:
    kinds = ("dataset", "flow", "partition", "population", "odometer")
    place = kinds.index(view.kind) if view.kind in kinds else len(kinds)
    return place, view.name, view.id
