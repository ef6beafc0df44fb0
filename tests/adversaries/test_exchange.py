"""Exact audits of a plan with exchange: an adversary who swaps by what it sees.

Steps are randomized responses that reveal everything with some probability, so the
value of the game is a finite sum of maxima.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from typing import Any

import pytest

from dpflow.accounting.costs.notions import ApproxDP
from dpflow.accounting.fixed.optimal import fixed_delta
from dpflow.accounting.fixed.plan import PlanFilter
from dpflow.accounting.rules.tally import Tally

Counts = tuple[int, ...]
Price = Callable[[ApproxDP, Counts], Counts]


def step(epsilon: str, delta: str = "0") -> ApproxDP:
    """Return a randomized response that reveals with probability delta."""
    return ApproxDP(epsilon=epsilon, delta=delta)


def game(
    menu: Sequence[ApproxDP], limits: Counts, price: Price, epsilon: float
) -> float:
    """Return the largest delta at epsilon of an adversary who picks each next step."""

    @cache
    def best(counts: Counts, loss: Fraction) -> float:
        found = max(0.0, -math.expm1(epsilon - float(loss)))
        for cost in menu:
            later = tuple(map(int.__add__, counts, price(cost, counts)))
            if any(map(int.__gt__, later, limits)):
                continue
            lost, top = float(cost.delta), 1 / (1 + math.exp(-float(cost.epsilon)))
            shown = top * best(later, loss + cost.epsilon)
            shown += (1 - top) * best(later, loss - cost.epsilon)
            found = max(found, lost + (1 - lost) * shown)
        return found

    return best((0,) * len(limits), Fraction(0))


#: A plan, and steps that it does not have.
CASES: dict[str, tuple[tuple[tuple[ApproxDP, int], ...], tuple[ApproxDP, ...]]] = {
    "pure": (((step("0.2"), 7), (step("0.5"), 2)), (step("0.3"), step("0.15"))),
    "small": (((step("0.1"), 12),), (step("0.18"), step("0.05"))),
    "with delta": (
        ((step("0.3", "0.01"), 6), (step("0.4"), 3)),
        (step("0.4", "0.02"), step("0.5"), step("0.1", "0.005")),
    ),
}
#: Executions too few: without a delta two, for a tie of two tells nothing.
CHEAPER = {"pure": 2, "small": 2, "with delta": 1}


@cache
def ruled(name: str) -> tuple[PlanFilter, list[ApproxDP], Counts]:
    """Return the plan of a case, its whole menu and its limits."""
    lines, others = CASES[name]
    steps: list[dict[str, Any]] = [{"cost": c, "times": n} for c, n in lines]
    rule = PlanFilter(
        epsilon=20, delta="0.5", steps=steps, accountant="kov", exchange=True
    )
    return rule, [*(cost for cost, _ in lines), *others], rule.thresholds


@cache
def taken(name: str, cost: ApproxDP, counts: Counts) -> Counts:
    """Return what a step takes in the plan of a case."""
    return ruled(name)[0].price(cost, Tally(counts)).amounts


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("epsilon", ["0", "0.2", "0.5", "0.9", "1.5"])
def test_swapping_by_outputs_gains_nothing(name: str, epsilon: str) -> None:
    """The plan's own delta is reached, by what is planned, and not passed."""
    _, menu, limits = ruled(name)
    claimed = float(fixed_delta(CASES[name][0], Fraction(epsilon)))
    price = partial(taken, name)
    found = game(menu, limits, price, float(epsilon))
    assert found == pytest.approx(claimed, rel=1e-12)
    unplanned = game(menu[len(limits) :], limits, price, float(epsilon))
    assert unplanned <= claimed * (1 + 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_rate_that_is_too_cheap_is_caught(name: str) -> None:
    """The same game, with fewer executions taken for each exchange."""
    _, menu, limits = ruled(name)

    def price(cost: ApproxDP, counts: Counts) -> Counts:
        right = taken(name, cost, counts)
        cheaper = max(sum(right) - CHEAPER[name], 1)
        return tuple(min(n, cheaper) for n in right)

    caught = []
    for epsilon in ("0", "0.2", "0.5", "0.9"):
        claimed = float(fixed_delta(CASES[name][0], Fraction(epsilon)))
        caught.append(game(menu, limits, price, float(epsilon)) / claimed)
    assert max(caught) > 1.015
