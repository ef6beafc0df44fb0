"""The best adaptive adversary against a filter, by exact backward induction.

Before each step the adversary sees all outputs and picks the next mechanism, or stops;
the filter refuses what does not fit. The value of the game is the hockey-stick
divergence E_P[max(0, 1 - exp(epsilon - loss))] of the best strategy: the true delta of
the whole interaction at epsilon. For steps without a delta the theorems promise more,
P(loss > epsilon) <= delta, and that is audited as well. Only non-negative terms are
added, so float rounding is below a relative 1e-10.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from dpflow import ApproxDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.published.whitehouse import WhitehouseFilter
from dpflow.accounting.rules.tally import Tally

#: How many units of loss each mechanism of the adversary moves by.
SIZES = (1, 2, 1)


def true_delta(
    rule: Filter, unit: Fraction, own: str = "0", *, tail: bool = False
) -> float:
    """Return the value of the game for randomized responses of unit and 2 unit.

    The third mechanism is the randomized response of unit that reveals everything with
    probability `own`. With `tail`, the value is P(loss > epsilon) instead.
    """
    steps = 300
    costs = [
        ApproxDP(epsilon=unit, delta=0),
        ApproxDP(epsilon=2 * unit, delta=0),
        ApproxDP(epsilon=unit, delta=own),
    ]
    prices = [rule.price(cost) for cost in costs[: 3 if own != "0" else 2]]
    reach = 2 * steps + 3
    grid = np.arange(-reach, reach + 1)
    if tail:
        stop = 1.0 * (grid > math.floor(rule.epsilon / unit))
    else:
        stop = np.maximum(0, -np.expm1(float(rule.epsilon) - grid * float(unit)))

    @cache
    def value(counts: tuple[int, ...]) -> bytes:
        best = stop.copy()
        for index, cost in enumerate(costs[: len(counts)]):
            later = tuple(n + (i == index) for i, n in enumerate(counts))
            paid = [price.times(n) for price, n in zip(prices, later, strict=True)]
            if not rule.admits(sum(paid, rule.zero())):
                continue
            assert sum(later) <= steps
            ahead = np.frombuffer(value(later))
            size, delta = SIZES[index], float(cost.delta)
            up = 1 / (1 + math.exp(-size * float(unit)))
            moved = np.zeros(len(grid))
            shown = up * ahead[2 * size :] + (1 - up) * ahead[: -2 * size]
            moved[size:-size] = shown * (1 - delta) + delta
            best = np.maximum(best, moved)
        return best.tobytes()

    return float(np.frombuffer(value((0,) * len(prices)))[reach])


CASES = [
    ("rogers", {}, "2", "0.05", "0.05"),
    ("rogers", {}, "8", "0.05", "0.25"),
    ("whitehouse", {}, "1", "0.05", "0.05"),
    ("whitehouse", {}, "3", "0.01", "0.2"),
    ("whitehouse", {"drift": "tanh"}, "3", "0.05", "0.2"),
    ("whitehouse", {"drift": "tanh"}, "6", "0.05", "0.5"),
    ("whitehouse", {"drift": "tanh"}, "4", "0.000001", "0.1"),
]


@pytest.mark.parametrize(("name", "options", "epsilon", "delta", "unit"), CASES)
def test_no_adaptive_strategy_exceeds_the_budget(name, options, epsilon, delta, unit):
    """The whole interaction is (epsilon, delta)-DP against the best adversary."""
    rule = make_filter(name, epsilon=epsilon, delta=delta, **options)
    found = true_delta(rule, Fraction(unit))
    tail = true_delta(rule, Fraction(unit), tail=True)
    assert 0 < found < tail
    assert tail * (1 + 1e-10) <= float(delta)


def test_basic_composition_never_exceeds_the_budget_at_all():
    """Without deltas the loss is at most epsilon on every path, and reaches it."""
    rule = make_filter("basic", epsilon=1)
    assert true_delta(rule, Fraction("0.1"), tail=True) == 0
    tighter = make_filter("basic", epsilon="1.05")
    tighter.epsilon = Fraction("0.99")
    assert true_delta(tighter, Fraction("0.1"), tail=True) > 0


SPLIT_CASES = [
    ("whitehouse", {"delta_loss": "0.02"}, "2", "0.05", "0.01"),
    ("whitehouse", {"delta_loss": "0.02", "drift": "tanh"}, "2", "0.05", "0.01"),
    ("rogers", {}, "3", "0.06", "0.01"),
    ("basic", {}, "1", "0.02", "0.01"),
]


@pytest.mark.parametrize(("name", "options", "epsilon", "delta", "own"), SPLIT_CASES)
def test_steps_with_a_delta_stay_in_their_share(name, options, epsilon, delta, own):
    """Revealing everything now and then is paid from the part kept for steps."""
    rule = make_filter(name, epsilon=epsilon, delta=delta, **options)
    found = true_delta(rule, Fraction("0.25"), own)
    assert found * (1 + 1e-10) <= float(delta)
    assert found > float(own)


class LooksAfterRunning(WhitehouseFilter):
    """The mistake: the new step is not counted when it is admitted."""

    def admits(self, tally: Tally) -> bool:
        """Forget the price of one large step."""
        last = self.price(ApproxDP(epsilon=Fraction("1.2"), delta=0)).amounts
        before = tuple(max(a - b, 0) for a, b in zip(tally.amounts, last, strict=True))
        return super().admits(Tally(before))


class RefundsDelta(WhitehouseFilter):
    """The mistake: the deltas of steps that revealed nothing are given back."""

    def admits(self, tally: Tally) -> bool:
        """Forget the deltas, up to a hundred of them."""
        return super().admits(Tally((tally.amounts[0], tally.amounts[1] // 100)))


def test_a_filter_that_looks_after_running_fails_the_audit():
    """Admission must include the step that asks at its worst case."""
    wrong = LooksAfterRunning(epsilon=3, delta="0.01")
    assert true_delta(wrong, Fraction("0.6")) > 0.02


def test_a_filter_that_refunds_delta_fails_the_audit():
    """A step's delta is paid whatever its output was.

    See docs/derivations/output-dp.md#delta-stays-spent.
    """
    wrong = RefundsDelta(epsilon=2, delta="0.05", delta_loss="0.02")
    assert true_delta(wrong, Fraction("0.25"), "0.01") > 0.05
