"""What a settled charge posts, given how its step came out."""

from __future__ import annotations

import json

from dpflow.accounting.costs import cost_from_description
from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Odometer, Outcome
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.ledger.account import Account
from dpflow.ledger.database import Row


def realised(
    account: Account, row: Row, reserved: Tally, reported: Outcome | None
) -> Tally:
    """Return what a settled charge posts: all of it, unless the theorem gives back."""
    if reported is None:
        return reserved
    cost, rule = cost_from_description(json.loads(row["cost"])), account.rule
    try:
        if account.price(cost) != reserved:
            # Reserved for more than one unit at once, or by an older solver.
            return reserved
        if isinstance(rule, Odometer) and account.halt is None:
            posted = rule.charge_realised(cost, reported)
        else:
            posted = rule.price_realised(cost, reported)
    except (InvalidCost, UnsupportedCost):
        return reserved
    return posted if posted.fits_within(reserved) else reserved
