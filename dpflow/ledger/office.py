"""What people do to a ledger by hand: each is one command to it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import ReleaseError
from dpflow.ledger.decision import policy_changes
from dpflow.ledger.decision.terms import is_charged
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, State
from dpflow.ledger.office_records import (
    Amend,
    Applied,
    Apply,
    Freeze,
    Posted,
    Prior,
    Proposal,
    Resume,
    Wish,
    Withdraw,
)
from dpflow.ledger.records import Request
from dpflow.ledger.views.refusals import refusals
from dpflow.ledger.views.releases import KeptRelease, named_release
from dpflow.policy import Policy

if TYPE_CHECKING:
    from dpflow.ledger.storage.transaction import Reading

# Freezing


def freeze(ledger: Ledger, dataset: str, *, who: str, reason: str) -> tuple[str, ...]:
    """Refuse everything on a dataset or population; steps that run already may end.

    Anyone may freeze. Freezing twice changes nothing.

    Returns:
        The accounts that were frozen.

    Raises:
        PolicyNotApplied: If no policy of the dataset was applied yet.
    """
    command = Freeze(book=dataset, who=who, reason=reason, **ledger.label())
    frozen: tuple[str, ...] = ledger.ask(command)
    return frozen


def unfreeze(ledger: Ledger, dataset: str, *, who: str, reason: str) -> tuple[str, ...]:
    """End a freeze.

    Returns:
        The accounts that were unfrozen.

    Raises:
        PolicyNotApplied: If no policy of the dataset was applied yet.
    """
    label = ledger.label()
    command = Freeze(book=dataset, who=who, reason=reason, unfreeze=True, **label)
    unfrozen: tuple[str, ...] = ledger.ask(command)
    return unfrozen


def freeze_of(ledger: Ledger, dataset: str) -> Mapping[str, Any] | None:
    """Return who froze a dataset and why; None if it is not frozen."""
    with ledger.storage.read() as reading:
        return reading.load(Keys(books=(dataset,))).book(dataset).frozen


def resume(ledger: Ledger, flow: str, *, who: str) -> None:
    """Note that a flow's schedule was resumed, in each book that refused a step."""
    books = {each.book for each in refusals(ledger) if each.body.get("flow") == flow}
    if books:
        names = tuple(sorted(books))
        ledger.ask(Resume(books=names, flow=flow, who=who, **ledger.label()))


# Charging by hand


def charge_by_hand(
    ledger: Ledger,
    spent_on: Policy | str,
    cost: Cost,
    *,
    reason: str,
    evidence: str | None = None,
    dataset: str | None = None,
    flow: str | None = None,
    partitions: tuple[str, ...] = (),
    populations: tuple[Policy, ...] = (),
) -> list[Posted]:
    """Charge prior spending on a dataset, or raise a step's charge; irreversible.

    Each account that a step posted to is raised by the difference between its corrected
    cost and its charge. Accounts may be overdrawn.

    Args:
        ledger: The ledger.
        spent_on: Policy of the dataset, or the id of a reservation, ended or not.
        cost: All that was spent; `Composed` and `Repeated` hold several steps.
        reason: Why, for the journal.
        evidence: The sha256 of a file that proves it.
        dataset: With a reservation, one that its step read.
        flow: With a policy, the flow whose share was spent.
        partitions: With a policy, the parts of a divided dataset that were read.
        populations: With a policy, the population that the dataset belongs to.

    Raises:
        ConfigurationError: If a term was charged with this evidence before, or no part
            of a divided dataset is named.
        ReservationConflict: If the cost is not above the reservation's charge.
        UnsupportedCost: If the theorem of an account has no price for the cost.
        PolicyChanged: If the policy file differs from what the ledger pinned.
    """
    facts = {"reason": reason, "evidence": evidence, **ledger.label()}
    if isinstance(spent_on, str):
        command = Amend(charge=spent_on, cost=cost, dataset=dataset, **facts)
        return list(ledger.ask(command))
    request = Request(
        reservation=uuid.uuid4().hex,
        owner="operator",
        policies=(spent_on,),
        populations=populations,
        cost=cost,
        step="spent before dpflow",
        flow=flow,
        partitions=partitions,
    )
    applies = ledger.conditions.applies_policies
    return list(ledger.ask(Prior(request=request, applies=applies, **facts)))


def withdraw_release(ledger: Ledger, name: str, *, reason: str) -> KeptRelease:
    """Delete the value of a release; its digest and its charge stay.

    Raises:
        ReleaseError: If there is none or more than one, or no value to delete.
    """
    with ledger.storage.read() as reading:
        row, found = named_release(reading, name)
    command = Withdraw(
        key=row.key,
        book=row.book,
        digest=row.digest,
        reason=reason,
        **ledger.label(),
    )
    if not ledger.ask(command):
        msg = (
            f"release {name!r} is {found.state}, so there is no value to delete. "
            "`dpflow releases list` shows the state of each release."
        )
        raise ReleaseError(msg)
    return replace(found, state="withdrawn", size=None)


# Policies


def propose(ledger: Ledger, policy: Policy) -> Proposal:
    """Say what applying a policy would do; nothing is written."""
    with ledger.storage.read() as reading:
        return policy_changes.propose(_whole(reading, policy.dataset), policy)


def apply_policy(ledger: Ledger, policy: Policy, wish: Wish) -> Applied:
    """Make a policy the ledger's own copy, which governs from then on.

    Raises:
        PolicyChanged: If only a new term can hold the policy, and none was asked for.
        PolicyNotApplied: If the lifetime or a freeze forbids it.
        ConfigurationError: If another dataset has its source.
    """
    book = policy.dataset
    forgotten: tuple[str, ...] = ()
    with ledger.storage.read() as reading:
        state = _whole(reading, book)
        if not all(is_charged(state, term) for term in state.terms(book)):
            forgotten = tuple(ledger.watch.forgotten(reading, book))
    named = (term.facts["pinned"].get("source") for term in state.terms(book))
    command = Apply(
        policy=policy,
        wish=wish,
        forgotten=forgotten,
        sources=tuple(dict.fromkeys(name for name in named if name is not None)),
        **ledger.label(),
    )
    applied: Applied = ledger.ask(command)
    return applied


def _whole(reading: Reading, book: str) -> State:
    return reading.load(Keys(books=(book,), whole=(book,)))
