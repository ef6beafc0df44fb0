"""Adversaries against the RDP odometers, played out exactly.

The stopping-time adversary repeats one randomized response until its loss exceeds the
reading. The choosing adversary also picks the size of each step from the outputs so
far; backward induction gives its best probability. Only non-negative terms are added,
so the floats are within a relative 1e-10.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpflow.accounting import Odometer, make_odometer
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.curves.prices import renyi
from dpflow.accounting.rules.tally import Tally

ORDERS = ["1.5", 2, 3, 4, 6, 8, 16, 32]
ROUNDING = 1e-10


def crossing(epsilon: Fraction, readings: list[float]) -> float:
    """Return the probability that the loss ever exceeds its reading."""
    up = 1 / (1 + math.exp(-epsilon))
    state, crossed = np.ones(1), 0.0
    for steps, bound in enumerate(readings, start=1):
        moved = np.zeros(len(state) + 1)
        moved[1:] = up * state
        moved[:-1] += (1 - up) * state
        # The loss is (2 tops - steps) epsilon; compare it exactly.
        cut = math.floor((Fraction(bound) / epsilon + steps) / 2) + 1
        crossed += float(moved[max(cut, 0) :].sum())
        state = moved[: max(cut, 0)]
        if not len(state):
            break
    return crossed * (1 + ROUNDING)


def readings_of(rule: Odometer, epsilon: Fraction, steps: int) -> list[float]:
    """Return the readings after 1, 2, ... equal steps."""
    price = rule.price(PureDP(epsilon=epsilon)).amounts
    return [
        rule.read(Tally(tuple(n * amount for amount in price)))
        for n in range(1, steps + 1)
    ]


#: Theorem, options, and the least share of delta that the adversary reaches somewhere.
RULES = [
    ("rdp", {"order": 8}, 0.8),
    ("rdp", {"order": 3}, 0.9),
    ("rdp", {"orders": ORDERS}, 0.7),
    ("rdp-doubling", {"orders": ORDERS}, 0.03),
    ("rdp-doubling", {"orders": [4]}, 0.08),
]
SETTINGS = [("0.5", 1000, "0.05"), ("0.1", 2000, "0.05"), ("0.1", 2000, "0.01")]


@pytest.mark.parametrize(("theorem", "options", "share"), RULES)
def test_the_stopping_time_adversary_stays_below_delta(theorem, options, share):
    """In every setting; the audit is sharp, for in some it comes near."""
    realised = []
    for epsilon, steps, delta in SETTINGS:
        rule = make_odometer(theorem, delta=delta, **options)
        unit = Fraction(epsilon)
        realised.append(crossing(unit, readings_of(rule, unit, steps)) / float(delta))
    assert max(realised) <= 1
    assert max(realised) >= share


def single(order: Fraction, epsilon: Fraction) -> float:
    """Return the divergence of one step."""
    return float(renyi(PureDP(epsilon=epsilon), order))


def full_delta_at_every_order(epsilon: Fraction, steps: int, delta: float):
    """Return the mistake: the smallest single reading, each at the whole delta."""
    orders = [Fraction(order) for order in ORDERS]
    idle = [math.log(1 / delta) / float(order - 1) for order in orders]
    price = [single(order, epsilon) for order in orders]
    return [
        min(n * r + w for r, w in zip(price, idle, strict=True))
        for n in range(1, steps + 1)
    ]


def tight_conversion(epsilon: Fraction, steps: int, delta: float):
    """Return the mistake: the tight conversion of order 3, read at every step."""
    price = single(Fraction(3), epsilon)
    added = math.log(2 / 3) - (math.log(delta) + math.log(3)) / 2
    return [n * price + added for n in range(1, steps + 1)]


@pytest.mark.parametrize("mistake", [full_delta_at_every_order, tight_conversion])
@pytest.mark.parametrize(("epsilon", "steps", "delta"), SETTINGS)
def test_wrong_readings_fail_the_same_audit(mistake, epsilon, steps, delta):
    """Nearly twice delta, and six times delta."""
    unit = Fraction(epsilon)
    found = crossing(unit, mistake(unit, steps, float(delta)))
    assert found > 1.9 * float(delta)


def best_crossing(rule: Odometer, unit: Fraction, reach: int) -> float:
    """Return the best probability of crossing for steps of unit and of 2 unit."""
    one, two = (rule.price(PureDP(epsilon=n * unit)).amounts for n in (1, 2))
    ups = [1 / (1 + math.exp(-n * unit)) for n in (1, 2)]
    width = 2 * reach + 5
    losses = [Fraction(k - reach - 2) * unit for k in range(width)]
    value: dict[tuple[int, int], np.ndarray] = {}
    for used in range(reach, -1, -1):
        for doubles in range(used // 2 + 1):
            singles = used - 2 * doubles
            spent = tuple(
                singles * a + doubles * b for a, b in zip(one, two, strict=True)
            )
            bound = Fraction(rule.read(Tally(spent)))
            crossed = np.array([float(loss > bound) for loss in losses])
            best = crossed.copy()
            for size, up in zip((1, 2), ups, strict=True):
                after = (singles + (size == 1), doubles + (size == 2))
                if after not in value:
                    continue
                ahead = value[after]
                moved = np.zeros(width)
                moved[size:-size] = (
                    up * ahead[2 * size :] + (1 - up) * ahead[: -2 * size]
                )
                best = np.maximum(best, moved)
            value[singles, doubles] = best
    return float(value[0, 0][reach + 2]) * (1 + ROUNDING)


@pytest.mark.parametrize(("theorem", "options", "share"), RULES)
def test_the_choosing_adversary_stays_below_delta(theorem, options, share):
    """Steps of 0.4 and 0.8, as many as fit a sum of 24, chosen from the outputs."""
    rule = make_odometer(theorem, delta="0.05", **options)
    found = best_crossing(rule, Fraction("0.4"), 60) / 0.05
    repeated = crossing(Fraction("0.4"), readings_of(rule, Fraction("0.4"), 60))
    assert repeated / 0.05 <= found * (1 + 1e-9)
    assert found <= 1
