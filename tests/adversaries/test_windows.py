"""An adversary for windows of two parts, who also chooses the parts of a record.

Parts arrive one by one. Before each the adversary decides, by all outputs so far, if
the user has rows in it, within one window. Every step is randomized response, whose
loss grows with the number of its parts that hold such rows. The value of the game is a
finite sum of maxima: the exact delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

from dpflow import PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.windows import fullest_window, part_price

LENGTH, PARTS = 2, 4
STEPS = [(p,) for p in range(PARTS)] + [(p, p + 1) for p in range(PARTS - 1)]
#: From the amounts of accounts and a step's parts to the amounts after it, or None.
Charge = Callable[[tuple[Tally, ...], Sequence[int]], tuple[Tally, ...] | None]


def by_parts(rule: Filter, cost: PureDP) -> Charge:
    """Charge as shipped: an account for each part, compared in windows."""
    prices = {size: part_price(rule, cost, size) for size in (1, 2)}

    def charge(accounts, step):
        after = [
            amount + prices[len(step)] if part in step else amount
            for part, amount in enumerate(accounts)
        ]
        sums = (fullest_window(dict(enumerate(after)), p, LENGTH) for p in step)
        return tuple(after) if all(map(rule.admits, sums)) else None

    return charge


def by_windows(rule: Filter, cost: PureDP, units: Callable[[int, int], int]) -> Charge:
    """Charge each window for a number of units, given the step's parts in and out."""

    def charge(accounts, step):
        after = list(accounts)
        for window in range(PARTS - 1):
            inside = sum(part in (window, window + 1) for part in step)
            if count := units(inside, len(step) - inside):
                epsilon = count * cost.epsilon
                after[window] += rule.price(PureDP(epsilon=epsilon))
                if not rule.admits(after[window]):
                    return None
        return tuple(after)

    return charge


def value(charge: Charge, rule: Filter, loss: float) -> float:
    """Return the largest delta that the adversary reaches, over the promised one."""
    charged, epsilon = cache(charge), float(rule.epsilon)

    @cache
    def best(rows: tuple[int, ...], accounts: tuple[Tally, ...], lost: int) -> float:
        now = len(rows) - 1
        reached = max(0.0, -math.expm1(epsilon - lost * loss))
        if now < PARTS - 1:
            first = rows.index(1) if 1 in rows else now
            for more in (0, 1) if now + 1 - first < LENGTH else (0,):
                reached = max(reached, best((*rows, more), accounts, lost))
        for step in STEPS:
            units = sum(rows[part] for part in step if part <= now)
            after = charged(accounts, step) if units and step[-1] <= now else None
            if after is not None:
                up = 1 / (1 + math.exp(-units * loss))
                higher = best(rows, after, lost + units)
                lower = best(rows, after, lost - units)
                reached = max(reached, up * higher + (1 - up) * lower)
        return reached

    start = (rule.zero(),) * PARTS
    return max(best((first,), start, 0) for first in (0, 1)) / float(rule.delta)


def played(kind: Callable[..., Charge], *more, epsilon, step) -> float:
    """Play against a way to charge, with steps of a given epsilon."""
    rule = make_filter("zcdp", epsilon=epsilon, delta="0.05")
    charge = kind(rule, PureDP(epsilon=step), *more)
    return value(charge, rule, float(Fraction(step)))


def test_no_choice_of_parts_exceeds_the_budget():
    """A record's parts and all steps depend on outputs; delta stays below its bound."""
    assert 0.3 < played(by_parts, epsilon=2, step="0.285") < 1
    # As by the price of a group on each window that shares a part with the step.
    literal = played(by_windows, lambda inside, _: inside, epsilon=1, step="0.217")
    assert literal == played(by_parts, epsilon=1, step="0.217") < 1


def test_charging_only_windows_that_contain_a_step_is_caught():
    """Steps that reach out of the record's window would be free on it."""
    contained = lambda inside, outside: 0 if outside else inside
    assert played(by_windows, contained, epsilon=2, step="0.285") > 1.05


def test_a_window_without_the_price_of_a_group_is_caught():
    """A record with rows in both parts of a step loses more than that of one part."""
    single = lambda inside, _: min(inside, 1)
    assert played(by_windows, single, epsilon=1, step="0.217") > 4
