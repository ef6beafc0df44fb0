"""Weeks within 10 % at (1, 1e-6): asking for the error goes more than twice as far."""

from __future__ import annotations

from random import Random

import pytest

from dpflow.accounting import make_filter
from dpflow.noise.accuracy import Target
from dpflow.noise.refining import gaussian_numbers, rule_for
from flows import data
from flows.good_enough import CONFIDENCE, COST, WITHIN, one_noise_for_all


def weeks_that_fit(counts: list[int], seed: int) -> tuple[int, int]:
    """Return how many weeks the budget admits, and how many intervals hold."""
    random, held = Random(seed), 0
    budget = make_filter("gdp", epsilon=1, delta="1e-6")
    rule = rule_for(COST, Target.read(WITHIN, CONFIDENCE))
    tally, weeks = budget.zero(), 0
    for count in counts:
        if not budget.admits(tally + budget.price(COST)):
            break
        numbers = gaussian_numbers(
            COST, [count], lambda part, n: [n[0] + random.gauss(0, float(part.sigma))]
        )
        draws, estimate = rule.refine(each for (each,) in numbers)
        tally, weeks = tally + budget.price_realised(COST, draws), weeks + 1
        held += estimate.interval[0] <= count <= estimate.interval[1]
    return weeks, held


@pytest.mark.parametrize("seed", range(5))
def test_asking_for_the_error_does_40_weeks_where_one_noise_does_16(seed: int) -> None:
    """Of 78 whole weeks of real purchases; the rule and the prices are the flow's."""
    assert len(data.weeks()) == 79
    counts = [data.active_customers(data.purchases(w)) for w in data.weeks()[:-1]]
    assert one_noise_for_all() == 16
    weeks, held = weeks_that_fit(counts, seed)
    assert weeks >= 40
    assert held >= 0.85 * weeks
