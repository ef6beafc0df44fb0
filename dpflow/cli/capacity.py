"""How many steps of one kind a gate admits."""

from __future__ import annotations

from dpflow.accounting.costs import Cost
from dpflow.accounting.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.ledger.account import Account

#: A gate that admits so many steps is said to have no end.
_NO_END = 10**12


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

    def admits(steps: int) -> bool:
        return gate.admits(Tally(tuple(steps * amount for amount in price.amounts)))

    # Gates are monotone: double until one refuses, then halve the interval.
    low, high = 0, 1
    while admits(high):
        low, high = high, 2 * high
        if low > _NO_END:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admits(middle) else (low, middle)
    return low


def is_priced(gate: Account, cost: Cost) -> bool:
    """Say whether a gate has a price for a cost."""
    try:
        # An odometer that halts nothing counts what it cannot price.
        gate.rule.price(cost)
    except UnsupportedCost:
        return False
    return True
