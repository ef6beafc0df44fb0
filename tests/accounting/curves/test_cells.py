"""What a cell costs at one order of the Renyi divergence."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import OutputDP, PureDP, SparseVector
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.curves.cells import cell_renyi
from dpflow.accounting.fixed.stops import compose_epsilon
from dpflow.exceptions import InvalidCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import MP, real
from tests.sizes import scaled

pytestmark = pytest.mark.quick

EPSILONS = st.integers(1, 300).map(lambda n: Fraction(n, 100))
ORDERS = st.sampled_from([Fraction(x) for x in ("1.1", "2", "3.67", "8", "64", "1000")])


@settings(max_examples=scaled(12), deadline=None)
@given(EPSILONS, EPSILONS, ORDERS, st.fractions(-1, 1, max_denominator=50))
def test_one_line_is_above_all_cells(first, second, order, at):
    """For all losses of all cells: the ratio's power is below a line through (1, 1)."""
    cost = OutputDP(dict(enumerate((first, second, 0))))
    a, least, most = real(order), MP.mpf(1), MP.inf
    for cell, epsilon in enumerate((first, second)):
        c = MP.exp((a - 1) * real(cell_renyi(cost, cell, order)))
        for loss in (epsilon, -epsilon, at * epsilon):
            x = MP.exp(real(loss))
            # x^a <= c (1 + slope (x - 1)) bounds the slope on one side.
            if loss > 0:
                least = max(least, (x**a / c - 1) / (x - 1))
            elif loss < 0:
                most = min(most, (x**a / c - 1) / (x - 1))
    assert least <= most * (1 + MP.mpf(10) ** -25)


def test_the_toy_of_hartmann_et_al_runs_twice_as_often() -> None:
    """At (5, 1e-6): 9,263 answers, and as many coins that ended without."""
    rule = make_filter("rdp", epsilon=5, delta="1e-6")
    toy = OutputDP({"none": 0, "answer": "0.01"})
    worst, none = rule.price(toy), rule.price_realised(toy, "none")
    answer = rule.price_realised(toy, "answer")
    assert (none, answer) == (rule.zero(), worst)
    coin, used, count = random.Random(1), rule.zero(), 0
    while rule.admits(used + worst):
        used += answer if coin.random() < 0.5 else none
        count += 1
    assert used.amounts[0] // worst.amounts[0] == 9263
    assert count > 18_000
    # Composed as if fixed in advance, these answers are within the budget.
    most = compose_epsilon(((PureDP(epsilon="0.01"), 9263),), Fraction(1, 10**6), "kov")
    assert most < 5


@pytest.mark.parametrize("make", [make_filter, make_odometer])
@pytest.mark.parametrize("options", [{"order": 8}, {"orders": [4, 8]}])
def test_all_rules_with_divergences_settle_cells(make, options):
    """With one order or several, each order by its own slope."""
    budget = {"epsilon": 3} if make is make_filter else {"halt_at_epsilon": 3}
    rule: Any = make("rdp", delta="1e-6", **budget, **options)
    cost = SparseVector(positives=4, epsilon_threshold="0.2", epsilon_answers="0.4")
    orders = [Fraction(x) for x in options.get("orders", [8])]
    amounts = [rule.price_realised(cost, k).amounts[: len(orders)] for k in (0, 2, 4)]
    assert all(a < b < c for a, b, c in zip(*amounts, strict=True))
    for amount, order in zip(amounts[1], orders, strict=True):
        exact = float(cell_renyi(cost, 2, order))
        assert Fraction(amount, UNITS) == pytest.approx(exact, rel=1e-12)
    assert rule.price_realised(cost, None) == rule.price(cost)
    with pytest.raises(InvalidCost):
        rule.price_realised(cost, 5)
