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


def amend(ledger: Ledger, reservation: str, cost: Cost, *, reason: str) -> list[Posted]:
    """Charge what a step cost more than was reserved for it.

    Args:
        ledger: The ledger.
        reservation: The step's; it may have ended, also as void.
        cost: What the step truly did.
        reason: How that was found out, for the journal.

    Raises:
        ReservationConflict: If that is no more than was charged: nothing is lowered.
        UnsupportedCost: If the theorem of an account has no price for the cost, or
            that does not hold under the relation of its term.
    """
    command = Amend(charge=reservation, cost=cost, reason=reason, **ledger.label())
    return list(ledger.ask(command))


def import_prior(
    ledger: Ledger,
    policy: Policy,
    cost: Cost,
    *,
    reason: str,
    evidence: str,
    populations: tuple[Policy, ...] = (),
    partitions: tuple[str, ...] = (),
) -> list[Posted]:
    """Charge what was spent on a dataset before dpflow governed it; irreversible.

    Args:
        ledger: The ledger.
        policy: The dataset's.
        cost: All that was spent; `Composed` and `Repeated` hold several steps.
        reason: What it was, for the journal.
        evidence: The sha256 of what proves it.
        populations: Of the population that the dataset belongs to.
        partitions: Which parts of a divided dataset it was spent on.

    Raises:
        ConfigurationError: If this evidence was charged before, or the parts are not
            said.
        UnsupportedCost: If the theorem has no price for the cost.
        PolicyChanged: If the policy file differs from what the ledger pinned.
    """
    request = Request(
        reservation=uuid.uuid4().hex,
        owner="operator",
        policies=(policy,),
        populations=populations,
        cost=cost,
        step="spent before dpflow",
        partitions=partitions,
    )
    command = Prior(
        request=request,
        reason=reason,
        evidence=evidence,
        applies=ledger.conditions.applies_policies,
        **ledger.label(),
    )
    return list(ledger.ask(command))


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
