"""Filter or output DP: what is left after an early stop."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.notions import PureDP
from dpflow.exceptions import InvalidCost
from dpflow.forecast.stopping import leftovers, small_step

COST = EarlyStopping(PureDP(epsilon="0.01"), stops=(25, 50, 100))
REST = small_step(Fraction(1))
BUDGET = {"epsilon": Fraction(1), "delta": Fraction(1, 10**6)}


def by_way(found):
    """Index by theorem and accountant."""
    return {(each.theorem, each.accountant): each for each in found}


def test_every_number_is_what_the_filter_then_admits():
    """Reserve, settle the stop, then count further steps one by one."""
    for each in leftovers(COST, 50, REST, **BUDGET):
        if each.problem:
            continue
        cost = COST
        if each.accountant not in ("", "basic"):
            share = BUDGET["delta"] / 2
            cost = EarlyStopping(
                COST.step, stops=COST.stops, accountant=each.accountant, delta=share
            )
        rule = make_filter(each.theorem, **BUDGET)
        assert rule.admits(rule.price(cost))
        total, count = rule.price_realised(cost, 50), 0
        while rule.admits(total + rule.price(REST, total)):
            total, count = total + rule.price(REST, total), count + 1
        assert count == each.rest, each


def test_the_one_that_leaves_most_comes_first():
    """Here a filter; and basic composition gives back just what did not run."""
    found = leftovers(COST, 50, REST, **BUDGET)
    counts = [each.rest for each in found if not each.problem]
    assert counts == sorted(counts, reverse=True)
    ways = by_way(found)
    assert ways["basic", ""].rest == ways["output", "basic"].rest == 50
    assert not found[0].output_dp


def test_output_dp_never_gives_delta_back():
    """Whatever the stop, half of delta is gone."""
    for stop in (1, 100):
        way = by_way(leftovers(COST, stop, REST, **BUDGET))["output", "kov"]
        assert way.delta == pytest.approx(0.5)


def test_an_earlier_stop_leaves_more_in_every_way():
    """A number that ignored the stop would be caught."""
    early = by_way(leftovers(COST, 25, REST, **BUDGET))
    late = by_way(leftovers(COST, 100, REST, **BUDGET))
    for way, each in late.items():
        if not each.problem:
            assert early[way].rest > each.rest, way


def test_between_stops_output_dp_counts_the_later_one():
    """Filters charge the sub-steps that ran."""
    one, two = (by_way(leftovers(COST, stop, REST, **BUDGET)) for stop in (26, 50))
    assert one["output", "kov"].rest == two["output", "kov"].rest
    assert one["renyi", ""].rest > two["renyi", ""].rest


def test_a_stop_that_cannot_be_is_refused():
    """There are at most a hundred sub-steps."""
    with pytest.raises(InvalidCost, match="100"):
        leftovers(COST, 101, REST, **BUDGET)


def test_what_does_not_fit_or_has_no_price_says_so():
    """Last in the list."""
    large = EarlyStopping(PureDP(epsilon="0.5"), stops=(1, 9))
    ways = by_way(leftovers(large, 1, REST, **BUDGET))
    assert "does not fit" in ways["basic", ""].problem
    assert "no Gaussian" in ways["output", "gaussian"].problem
    pure = by_way(leftovers(COST, 25, REST, epsilon=Fraction(1), delta=Fraction(0)))
    assert pure["output", "basic"].rest == 75
    assert pure["output", "kov"].problem
