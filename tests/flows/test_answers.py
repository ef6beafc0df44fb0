"""Answers about a year of real purchases: ranges within 10 %, consistent baskets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from fractions import Fraction
from itertools import combinations
from random import Random

import numpy as np
import pytest

import dpflow
from dpflow import Gaussian, guarded, release
from dpflow.accounting import make_filter
from dpflow.answers import derived
from dpflow.answers.sources import Measured
from dpflow.answers.sums import Noisy
from dpflow.noise.accuracy import Target
from dpflow.noise.refining import gaussian_numbers, rule_for
from dpflow.testing import ledger_for_tests
from flows import data
from flows.good_enough import CONFIDENCE, COST, WITHIN, one_noise_for_all
from tests.policy_examples import SHORT

WEEKS = data.weeks()[:52]
#: 52 releases fit the budget, and no 53rd.
NOISE = Gaussian(sensitivity=1, noise_multiplier="11.134")


@guarded(
    dataset="cdnow", cost=NOISE, release_key="buyers/{week}", measures="buyer_weeks"
)
def buyers(week: str) -> float:
    """Release the customers of a week; their sum over weeks counts buyer weeks."""
    return release(float(data.active_customers(data.purchases(week))))


def within(widths: Sequence[float], values: Sequence[float], share: float) -> int:
    """Count the ranges of weeks whose half-width is a share of the true number."""
    ranges = combinations(range(53), 2)
    return sum(widths[b - a - 1] <= share * sum(values[a:b]) for a, b in ranges)


def test_all_1378_ranges_of_a_year_are_within_10_percent() -> None:
    """From 52 weekly releases; revenue has 1,354, and 1,259 with twice the clip."""
    frames = [data.purchases(week) for week in WEEKS]
    counts = [data.active_customers(frame) for frame in frames]
    with ledger_for_tests() as ledger:
        ledger.use(SHORT)
        for week in WEEKS:
            buyers(week)
        with pytest.raises(dpflow.BudgetRefused):
            buyers(data.weeks()[52])
        answers = {
            length: dpflow.answer("buyer_weeks", start=WEEKS[0], end=WEEKS[length - 1])
            for length in (1, 2, 13, 52)
        }
    halves = {n: (e.interval[1] - e.interval[0]) / 2 for n, e in answers.items()}
    # Equal noise: a range of n weeks is as wide as any other one.
    widths = [halves[1] * length**0.5 for length in range(1, 53)]
    assert all(widths[n - 1] == pytest.approx(half) for n, half in halves.items())
    assert within(widths, counts, 0.10) == 1378
    assert within(widths, counts, 0.05) == 1374
    for length, each in answers.items():
        assert each.interval[0] <= sum(counts[:length]) <= each.interval[1]
    for clip, expected in ((10_000, 1354), (20_000, 1259)):
        cents = [data.revenue_cents(frame, clip) for frame in frames]
        assert within([clip * each for each in widths], cents, 0.10) == expected


def test_consistent_baskets_have_smaller_errors(monkeypatch) -> None:
    """A count and six baskets: 0.93 of the raw errors, and 0.9 without negatives."""
    random, fits, frees, raws = np.random.default_rng(7), [], [], []
    monkeypatch.setattr(derived, "inspect_ledger", lambda *_, **__: nullcontext())
    for week in WEEKS:
        baskets = data.basket_sizes(data.purchases(week))
        true = np.array([baskets.sum(), *baskets], dtype=float)
        numbers = [
            Noisy(Fraction(number), Fraction(20), True, 1, Fraction(0))
            for number in map(float, true + random.normal(size=7) * 20)
        ]
        sources = [
            Measured(key, (week,), tuple(own), {}, "")
            for key, own in (("count", numbers[:1]), ("baskets", numbers[1:]))
        ]
        monkeypatch.setattr(derived, "read_measured", lambda *_, s=sources: s)
        fit = dpflow.consistent("count", "baskets").values()
        fits.append(np.array([*fit]) - true)
        raws.append([float(each.number) for each in numbers] - true)
        frees.append([(high - low) / 2 for low, high in (e.interval for e in fit)])
    widest = np.max(frees) / (20 * 1.959963984540054)
    assert widest == pytest.approx((6 / 7) ** 0.5)
    assert round(float(widest), 2) == 0.93
    shares = np.sqrt(np.mean(np.square(fits), 0) / np.mean(np.square(raws), 0))
    assert 0.87 < shares.mean() < 0.93


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
