"""The best adaptive adversary against the first rules, move by move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import pytest

from dpflow import ApproxDP, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS, from_units
from tests.adversaries.loosened import MP, heads, loosened, real, true_delta

# -- adaptive adversaries ----------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """Something that the adversary may run, and what it declares.

    Args:
        cost: The declared cost, which the mechanism really has.
        loss: Epsilon of its randomized response in tenths; 0 for none.
        leak: Probability with which it reveals everything.
    """

    cost: Cost
    loss: int
    leak: Fraction = Fraction(0)


def response(tenths: int) -> Move:
    """Return randomized response with an epsilon of so many tenths."""
    return Move(PureDP(epsilon=Fraction(tenths, 10)), tenths)


def leak(delta: Fraction) -> Move:
    """Return "reveal everything with probability delta", which is (0, delta)-DP."""
    return Move(ApproxDP(epsilon="1e-12", delta=delta), 0, delta)


def worst_delta(
    epsilon: Fraction,
    menu: list[Move],
    admits: Callable[[tuple[int, ...]], bool],
) -> Any:
    """Return the exact delta at epsilon of the best adaptive adversary.

    Args:
        epsilon: Where delta is taken.
        menu: What the adversary may run after each answer.
        admits: Whether the rule admits so many of each move.
    """

    @cache
    def value(counts: tuple[int, ...], loss: int) -> Any:
        rest = epsilon - Fraction(loss, 10)
        best = 1 - MP.exp(real(rest)) if rest < 0 else MP.mpf(0)
        for index, move in enumerate(menu):
            after = tuple(n + (i == index) for i, n in enumerate(counts))
            if not admits(after):
                continue
            future = value(after, loss + move.loss)
            if move.loss:
                chance = heads(Fraction(move.loss, 10))
                future *= chance
                future += (1 - chance) * value(after, loss - move.loss)
            lost = real(move.leak)
            best = max(best, lost + (1 - lost) * future)
        return best

    return value((0,) * len(menu), 0)


def dpflow_admits(rule: Filter, menu: list[Move]) -> Callable:
    """Return the decision of a rule of dpflow; what has no price is never admitted."""
    prices: list[Tally | None] = []
    for move in menu:
        try:
            prices.append(rule.price(move.cost))
        except UnsupportedCost:
            prices.append(None)

    def admits(counts: tuple[int, ...]) -> bool:
        tally = rule.zero()
        for price, count in zip(prices, counts, strict=True):
            if price is None and count:
                return False
            for _ in range(count):
                tally = tally + price
        return rule.admits(tally)

    return admits


def natural_admits(epsilon: Fraction, delta: Any, menu: list[Move]) -> Callable:
    """Return the natural filter: admit while the exact delta of what ran is in budget.

    This is what a PLD accountant does when it is used step by step; it is no filter.
    """

    @cache
    def admits(counts: tuple[int, ...]) -> bool:
        hidden, costs = MP.mpf(1), []
        for move, count in zip(menu, counts, strict=True):
            hidden *= (1 - real(move.leak)) ** count
            costs += [move.cost] * count if move.loss else []
        leaked = 1 - hidden + hidden * true_delta(epsilon, costs)
        return leaked <= delta * (1 + MP.mpf(10) ** -40)

    return admits


ONE = Fraction(1)
NATURAL_DELTA = (
    heads(Fraction("0.5")) * heads(Fraction("0.6")) * (1 - MP.exp(MP.mpf(-1) / 10))
)
#: Delta of the two-round counterexample, rounded up to whole units of a tally.
DELTA = from_units(int(MP.ceil(NATURAL_DELTA * UNITS)))
TWO_BRANCHES = [response(5), response(6), leak(DELTA)]
FIRST_RULES = {
    "basic": make_filter("basic", epsilon=1, delta=DELTA),
    "gdp": make_filter("gdp", epsilon=1, delta=DELTA),
    **{
        f"zcdp {conversion} {part}0%": make_filter(
            "zcdp",
            epsilon=1,
            delta=DELTA,
            delta_loss=DELTA * part / 10,
            conversion=conversion,
        )
        for part in (1, 5, 9, 10)
        for conversion in ("tight", "classic")
    },
}
every_rule = pytest.mark.parametrize("rule", FIRST_RULES.values(), ids=FIRST_RULES)


def test_the_natural_filter_is_caught():
    """Both branches compose to exactly delta, and together they leak 1.38 deltas."""
    natural = natural_admits(ONE, real(DELTA), TWO_BRANCHES)
    assert natural((1, 1, 0))
    assert natural((1, 0, 1))
    assert not natural((1, 1, 1))
    leaked = worst_delta(ONE, TWO_BRANCHES, natural)
    assert abs(real(DELTA) - MP.mpf("0.038245346")) < 1e-9
    assert abs(leaked - MP.mpf("0.052684520")) < 1e-9
    assert leaked == pytest.approx(real(DELTA) * (2 - heads(Fraction("0.5"))))


@every_rule
def test_no_rule_admits_both_branches(rule):
    """After the first answer, a rule of dpflow has room for one branch at most."""
    admits = dpflow_admits(rule, TWO_BRANCHES)
    assert not (admits((1, 1, 0)) and admits((1, 0, 1)))


@every_rule
def test_the_two_branch_adversary_stays_below_delta(rule):
    """Whatever the adversary picks after each answer, the leak is at most delta."""
    leaked = worst_delta(ONE, TWO_BRANCHES, dpflow_admits(rule, TWO_BRANCHES))
    assert leaked <= real(DELTA)


@every_rule
def test_the_best_adversary_with_a_larger_menu_stays_below_delta(rule):
    """More kinds of steps, smaller leaks, any order and any length: at most delta."""
    menu = [response(1), response(3), response(7), leak(DELTA / 2)]
    leaked = worst_delta(ONE, menu, dpflow_admits(rule, menu))
    assert 0 < leaked <= real(DELTA)


def test_the_audit_of_adaptive_adversaries_is_sharp():
    """A basic filter is really filled: the adversary reaches all of its delta."""
    menu = [response(1), response(3), leak(DELTA)]
    rule = make_filter("basic", epsilon=1, delta=DELTA)
    assert dpflow_admits(rule, TWO_BRANCHES)((1, 0, 1))
    leaked = worst_delta(ONE, menu, dpflow_admits(rule, menu))
    assert abs(leaked - real(DELTA)) < 1e-40
    loose = loosened(make_filter("basic", epsilon=1, delta=DELTA), Fraction(11, 10))
    assert worst_delta(ONE, menu, dpflow_admits(loose, menu)) > real(DELTA)
