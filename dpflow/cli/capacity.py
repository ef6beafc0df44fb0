"""How many steps of one kind a gate admits."""

from __future__ import annotations

from dpflow.accounting.costs import Cost
from dpflow.exceptions import UnsupportedCost
from dpflow.ledger.account import Account
from dpflow.workload import count_admitted, times


def steps_that_fit(gate: Account, cost: Cost) -> int | None:
    """Count the identical steps that a gate admits from where it stands.

    Args:
        gate: The account whose rule decides, alone.
        cost: What each step does.

    Returns:
        The count, or None if there is no end to them.

    Raises:
        UnsupportedCost: If the gate has no price for the cost.
    """
    price = gate.price(cost)

    return count_admitted(lambda steps: gate.admits(times(price, steps)))


def is_priced(gate: Account, cost: Cost) -> bool:
    """Say whether a gate has a price for a cost."""
    try:
        # An odometer that halts nothing counts what it cannot price.
        gate.rule.price(cost)
    except UnsupportedCost:
        return False
    return True
