"""Where datasets stand: their newest terms and accounts, and how the files differ.

The ledger's pinned copy of a policy governs, so reports name it first; the
files only speak for datasets that the ledger does not know yet. Reading a ledger
needs no policy file, so that a broken one hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.exceptions import UnknownDataset
from dpflow.ledger.decision.gates import announced_gates
from dpflow.ledger.decision.terms import agrees, may_be_replaced
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import all_terms
from dpflow.ledger.records import AccountView
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.accounts import (
    Forfeits,
    account_view,
    forfeits,
    term_accounts,
)
from dpflow.policy import Policy, PolicySet
from dpflow.policy.pinned import difference_lines
from dpflow.policy.types import did_you_mean

#: State of an account that the first step of its flow will open.
NOT_OPENED = "not opened"
_ORDER = ("dataset", "flow", "partition", "population", "odometer", "others")


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
