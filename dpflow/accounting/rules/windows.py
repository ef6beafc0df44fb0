"""Windows of consecutive parts: the amount of each part, and the fullest window.

One account for each part is enough for all windows that contain the part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from dpflow.accounting.costs.base import Cost, Outcome
from dpflow.accounting.costs.composed import OfSteps
from dpflow.accounting.costs.refined import Refined
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.rdp_mixture import RdpMixtureFilter
from dpflow.accounting.rules.rule import Filter, Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost


def guards_windows(rule: Rule) -> bool:
    """Return True if a filter may compare sums over windows with its budget.

    Its prices belong to the step alone, and it admits each tally below an admitted one.
    """
    alone = rule.steady and not (rule.lists_steps or rule.per_person)
    return alone and (rule.adds_up or isinstance(rule, RdpMixtureFilter))


def has_delta(rule: Rule, price: Tally) -> bool:
    """Return True if a price spends a part of the rule's delta for steps."""
    named = zip(rule.components, price.amounts, strict=True)
    return isinstance(rule, Filter) and any(a for n, a in named if n == "delta")


def part_price(
    rule: Rule, cost: Cost, most: int, outcome: Outcome | None = None
) -> Tally:
    """Return what a step is charged on the account of each part that it reads.

    A user with rows in m of the step's parts loses the price of a group of m. Each of
    these parts is charged at least a part in m of it, so that their sum covers it.

    Source: docs/derivations/ledger.md#windows.

    Assumes: `most` bounds the number of the step's parts in every window that contains
    the part.

    Rounding: up.

    Checked by: tests/accounting/rules/test_windows.py, tests/adversaries.

    Args:
        rule: A filter that guards windows.
        cost: Of the step, for the rows of one user in one part.
        most: The largest number m, at least 1.
        outcome: Sub-steps that ran, or cell of the output. Default: the worst case.

    Raises:
        UnsupportedCost: If no theorem prices such a group, or if parts of the step
            could lose a delta at different times.
    """
    sizes = range(1, most + 1)
    prices = [rule.price_realised(group_cost(cost, m), outcome) for m in sizes]
    if isinstance(cost, OfSteps | Refined) and has_delta(rule, prices[0]):
        msg = (
            f"{cost!r} has a delta and several releases, between which further rows "
            "may arrive in other parts of a window. Declare one step for each "
            "release, or noise without a delta."
        )
        raise UnsupportedCost(msg, mechanism=cost.mechanism)
    shares = (
        Tally(tuple(-(-amount // m) for amount in price.amounts))
        for m, price in zip(sizes, prices, strict=True)
    )
    return reduce(Tally.highest, shares)


def fullest_window(amounts: Mapping[int, Tally], position: int, length: int) -> Tally:
    """Return the largest sum over consecutive parts that include a given part.

    Of several components each has its own largest sum, which is at least as safe.

    Source: docs/derivations/ledger.md#windows.

    Assumes: a part without an amount was never charged.

    Rounding: exact.

    Checked by: tests/accounting/rules/test_windows.py.

    Args:
        amounts: Amount of each charged part, by its position in the calendar; that of
            the given part is among them.
        position: Position of the given part.
        length: Number of consecutive parts.
    """
    zero = amounts[position].times(0)
    reach = range(position - length + 1, position + length)
    near = [amounts.get(neighbour, zero) for neighbour in reach]
    total = reduce(Tally.__add__, near[:length])
    largest = total
    for first, last in zip(near, near[length:], strict=False):
        total = total + last - first
        largest = largest.highest(total)
    return largest


def most_in_window(positions: Sequence[int], position: int, length: int) -> int:
    """Return how many positions one window that contains a given position contains.

    Args:
        positions: Positions of a step's parts, each once.
        position: One of the positions.
        length: Number of consecutive parts of a window.
    """
    starts = (start for start in positions if position - length < start <= position)
    return max(sum(s <= other < s + length for other in positions) for s in starts)
