"""How much of a budget the shares of its flows can use together.

Epsilons of shares do not add up to the budget's: what adds up is the theorem's own
currency, such as mu squared, and in it shares of 2.5 and 0.5 are less than one of 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import MOST_TIMES, Repeated
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.forecast.counts import WorkloadStep, times
from dpflow.forecast.workload import rounds_admitted

#: Steps that are small beside any budget, for theorems whose thresholds do not add up:
#: each share has an order of its own, or there are several members.
_SMALL: Sequence[Cost] = (
    Gaussian(sensitivity=1, noise_multiplier=1000),
    PureDP(epsilon="0.0001"),
)


def reach_of_shares(pinned: Mapping[str, Any]) -> float | None:
    """Return the part of a dataset's budget that the flows' shares can use.

    Args:
        pinned: What `Policy.pinned` returned, from the file or from the ledger.

    Returns:
        Above 1 if they can use more than there is; None if no flow has a share, or if
        no step tells.
    """
    shares = [
        make_filter(**share["filter"])
        for share in pinned["flows"].values()
        if share.get("filter") is not None
    ]
    return _reach(make_filter(**pinned["filter"]), shares) if shares else None


def _reach(whole: Filter, shares: Sequence[Filter]) -> float | None:
    if all(_options(share) == _options(whole) for share in shares):
        limits = [share.limit for share in shares if share.limit is not None]
        if len(limits) == len(shares):
            return whole.used_fraction(sum(limits, whole.zero()))
    for cost in _SMALL:
        try:
            found = [_used(whole, share, cost) for share in shares]
        except (UnsupportedCost, InvalidCost):
            continue
        used = [tally for tally in found if tally is not None]
        if len(used) == len(shares):
            return whole.used_fraction(sum(used, whole.zero()))
    return None


def _options(rule: Filter) -> dict[str, Any]:
    """Return what makes a currency: all parameters but the budget."""
    own = rule.parameters()
    return {k: v for k, v in own.items() if k not in ("epsilon", "delta")}


def _used(whole: Filter, share: Filter, cost: Cost) -> Tally | None:
    """Return what the budget is charged for all steps that a share admits."""
    count = rounds_admitted(share, (WorkloadStep(cost),))
    if count is None:
        return None
    if whole.steady or not count:
        return times(whole.price(cost), count)
    return whole.price(Repeated(cost, min(count, MOST_TIMES)))
