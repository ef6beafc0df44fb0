"""Withdrawal of a release by its name, unless no new draw would fit."""

from __future__ import annotations

from dataclasses import replace

from dpflow.accounting.costs.base import cost_from_description
from dpflow.exceptions import InvalidCost, ReleaseError, UnsupportedCost
from dpflow.interrupts import suppress
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.suggestions import in_windows
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.views.reading import Reading, open_reading
from dpflow.ledger.views.releases import KeptRelease, named_release


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
        The release, and True if the budget admits a new draw.

    Raises:
        ReleaseError: If there is not exactly one, or no value to delete; or if no new
            draw fits, without `anyway`.
    """
    with open_reading(ledger) as reading:
        release = named_release(reading, name)
        fits = admits_again(reading, release.row.charge)
    row = release.row
    if release.state == "settled" and not (fits or anyway):
        msg = (
            f"release {name!r} was not withdrawn: the budget of {release.dataset} "
            f"admits no new draw of step {release.step!r} at its cost, so that there "
            "would be no number at all. Write --anyway to delete the value even so."
        )
        raise ReleaseError(msg)
    if not ledger.withdraw(row.key, digest=row.digest, reason=reason):
        msg = (
            f"release {name!r} is {release.state}, so there is no value to delete. "
            "`dpflow releases list` shows the state of each release."
        )
        raise ReleaseError(msg)
    return replace(release, state="withdrawn", size=None), fits


def admits_again(reading: Reading, charge: str) -> bool:
    """Return True if the newest terms admit another charge like an earlier one."""
    request = reading.requests([charge])[charge]
    units, sizes = request.get("units", {}), {}
    for account in request["accounts"]:
        dataset, _, *kind = split(account)
        sizes[dataset, *kind] = int(units.get(account, 1))
    pairs = []
    with suppress(InvalidCost, UnsupportedCost):
        cost = cost_from_description(request["cost"])
        for dataset in {dataset for dataset, *_ in sizes}:
            for gate in reading.newest_gates(dataset).values():
                size = sizes.get((dataset, gate.kind, gate.name, gate.partition))
                if size is not None:
                    pairs.append((gate, gate._replace(size=size).price(cost)))
        return all(gate.admits(amount) for gate, amount in in_windows(pairs))
    return False
