"""Filters of one loss that keep a part of delta for the deltas of steps."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow import ApproxDP, Composed, EarlyStopping, Gaussian, OutputDP, PureDP
from dpflow import Repeated as Times
from dpflow.accounting import Filter, make_filter
from dpflow.costs import ProbabilisticDP, ProposeTestRelease
from dpflow.rounding import units_up

ASIDE = ApproxDP(epsilon="0.1", delta="1e-9")
TRIED = ProposeTestRelease(epsilon="0.1", delta="1e-9")
TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
#: A step, its loss without its delta, and its delta.
STEPS = [
    (ASIDE, TENTH, "1e-9"),
    (ProbabilisticDP(epsilon="0.1", delta="1e-9"), TENTH, "1e-9"),
    (TRIED, PureDP(epsilon="0.2"), "1e-9"),
    (OutputDP({"a": 0}, delta="1e-9"), PureDP(epsilon="1e-12"), "1e-9"),
    (Composed(TWENTY, ASIDE), Composed(TWENTY, TENTH), "1e-9"),
    (Times(TRIED, 7), Times(PureDP(epsilon="0.2"), 7), "7e-9"),
    (Composed(Times(ASIDE, 3), TWENTY), Composed(Times(TENTH, 3), TWENTY), "3e-9"),
    (EarlyStopping(ASIDE, stops=(2, 4)), Times(TENTH, 4), "4e-9"),
    (TWENTY, TWENTY, "0"),
]


def split(theorem: str) -> Filter:
    """Make a filter at (3, 1e-6) that keeps a tenth of delta."""
    return make_filter(theorem, epsilon=3, delta="1e-6", delta_loss="9e-7")


@pytest.mark.parametrize("theorem", ["gdp", "rdp"])
def test_a_step_costs_its_loss_and_its_delta(theorem):
    """The loss as the filter without a split prices it; the delta exactly."""
    for cost, rest, delta in STEPS:
        loss = make_filter(theorem, epsilon=3, delta="9e-7").price(rest).amounts
        assert split(theorem).price(cost).amounts == (*loss, units_up(Fraction(delta)))


def test_a_mechanism_with_a_delta_settles_as_its_worst_cell() -> None:
    """Its cells are no divergences; those of one without a delta are."""
    rule = split("rdp")
    for outcome in ("none", "answer"):
        assert rule.price_realised(TRIED, outcome) == rule.price(TRIED)
    cells = OutputDP({"none": 0, "answer": "0.5"})
    assert rule.price_realised(cells, "none").amounts == (0, 0)
    stopped = EarlyStopping(ASIDE, stops=(2, 4))
    assert rule.price_realised(stopped, 3) == rule.price(Times(ASIDE, 3))
