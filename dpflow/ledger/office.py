"""Operators' commands that read the ledger first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpflow.accounting.costs.base import cost_from_description
from dpflow.exceptions import InvalidCost, ReleaseError, UnsupportedCost
from dpflow.interrupts import suppress
from dpflow.ledger.decision import policy_changes
from dpflow.ledger.decision.fitting import in_windows
from dpflow.ledger.decision.office import Withdraw
from dpflow.ledger.decision.policy_changes import Apply, Proposal
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.rows import split
from dpflow.ledger.state import charge_keys
from dpflow.ledger.storage.tables import Reading
from dpflow.ledger.views.accounts import load_book, newest_gates
from dpflow.ledger.views.releases import KeptRelease, named_release
from dpflow.policy import Policy


def withdraw_release(
    ledger: Ledger, name: str, *, reason: str, anyway: bool = False
) -> tuple[KeptRelease, bool]:
    """Delete the value of a release; its digest and its charge stay.

    Args:
        ledger: The ledger.
        name: Its release key, or its id or the start of that.
        reason: Why, for the journal.
        anyway: Delete it even if the budget admits no new draw at its cost.

    Returns:
        The release, and whether the budget admits a new draw.

    Raises:
        ReleaseError: If there is not exactly one, or no value to delete; or if no new
            draw fits, without `anyway`.
    """
    with ledger.storage.read() as reading:
        release = named_release(reading, name)
        fits = _admits_again(reading, release.row.charge)
    row = release.row
    if release.state == "settled" and not (fits or anyway):
        msg = (
            f"release {name!r} was not withdrawn: the budget of {release.dataset} "
            f"admits no new draw of step {release.step!r} at its cost, so that there "
            "would be no number at all. Write --anyway to delete the value even so."
        )
        raise ReleaseError(msg)
    if not ledger.ask(Withdraw(key=row.key, digest=row.digest, reason=reason)):
        msg = (
            f"release {name!r} is {release.state}, so there is no value to delete. "
            "`dpflow releases list` shows the state of each release."
        )
        raise ReleaseError(msg)
    return replace(release, state="withdrawn", size=None), fits


def _admits_again(reading: Reading, name: str) -> bool:
    """Say whether the newest terms admit another charge like an earlier one."""
    made = reading.load(lambda state: charge_keys(state, name)).made[name]
    sizes = {}
    for account in made.amounts:
        book, _, *place = split(account)
        sizes[book, *place] = int(made.body.get("units", {}).get(account, 1))
    pairs = []
    with suppress(InvalidCost, UnsupportedCost):
        cost = cost_from_description(made.body["cost"])
        for book in {book for book, *_ in sizes}:
            for gate in newest_gates(reading, book).values():
                size = sizes.get((book, gate.kind, gate.name, gate.partition))
                if size is not None:
                    pairs.append((gate, gate._replace(size=size).price(cost)))
        return all(gate.admits(amount) for gate, amount in in_windows(pairs))
    return False


def propose(ledger: Ledger, policy: Policy) -> Proposal:
    """Say what applying a policy would do; nothing is written."""
    with ledger.storage.read() as reading:
        return policy_changes.propose(load_book(reading, policy.dataset), policy)


def apply_policy(ledger: Ledger, policy: Policy, **wish: Any) -> Proposal:
    """Make a policy the ledger's own copy, which governs from then on.

    Args:
        ledger: The ledger.
        policy: The file.
        **wish: Further fields of `Apply`: `reason`, `new_term`, `raise_lifetime`.

    Raises:
        PolicyChanged: If only a new term can hold the policy, without `new_term`.
        PolicyNotApplied: If the lifetime or a freeze forbids it.
        ConfigurationError: If another dataset has its source.
    """
    with ledger.storage.read() as reading:
        forgotten = ledger.watch.forgotten(reading, policy.dataset)
    command = Apply(policy=policy, forgotten=forgotten, **wish)
    applied: Proposal = ledger.ask(command)
    return applied
