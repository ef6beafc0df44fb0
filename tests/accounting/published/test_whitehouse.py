"""The Whitehouse filter against the paper's numbers and 120 digits."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ApproxZCDP, GaussianDP, ProbabilisticDP
from dpflow.rounding import UNITS, from_units
from tests.accounting.oracle import DELTAS, EPSILONS, MP, assert_just_above, real
from tests.sizes import scaled


@pytest.mark.parametrize(
    ("spent", "stated"),
    [
        ("0.1", "1.7122581362691099250390944075"),
        ("0.03", "0.92545627763108781051778343613"),
    ],
)
def test_the_bound_on_the_loss_is_the_stated_one(spent, stated):
    """A budget just below the stated loss refuses the sum of squares; above, admits."""
    tally = Tally((int(Fraction(spent) * UNITS), 0))
    for factor, fits in (("1.000000000001", True), ("0.999999999999", False)):
        epsilon = Fraction(stated) * Fraction(factor)
        rule = make_filter("whitehouse", epsilon=epsilon, delta="1e-6")
        assert rule.admits(tally) is fits


@settings(max_examples=scaled(30), deadline=None)
@given(epsilon=EPSILONS, delta=DELTAS)
def test_thresholds_and_prices_lie_on_the_safe_side(epsilon, delta):
    """Thresholds below the root, prices above epsilon**2 or epsilon tanh(epsilon/2)."""
    log, place = -MP.log(real(delta)), Fraction(1, 10**36)
    # The root y of sqrt(2 log(1/delta) y) + y/2 = epsilon.
    root = (MP.sqrt(2 * (real(epsilon) + log)) - MP.sqrt(2 * log)) ** 2
    rate = real(epsilon) * MP.tanh(real(epsilon) / 2)
    for drift, truth, price in (
        ("classic", root, real(epsilon**2)),
        ("tanh", root / 2, rate),
    ):
        rule = make_filter("whitehouse", epsilon=epsilon, delta=delta, drift=drift)
        limit = real(from_units(rule.limit.amounts[0]))
        assert limit <= truth
        assert limit + real(place) >= truth * (1 - MP.mpf("1e-9"))
        charged = rule.price(PureDP(epsilon=epsilon)).amounts[0]
        assert_just_above(from_units(charged), price, unit=place)


def test_deltas_of_steps_are_paid_from_their_share():
    """Delta - delta_loss bounds the sum of the steps' deltas; equality admits."""
    rule = make_filter("whitehouse", epsilon=5, delta="1e-5", delta_loss="6e-6")
    step = rule.price(ApproxDP(epsilon="0.01", delta="1e-6"))
    assert step.amounts == (UNITS // 10**4, UNITS // 10**6)
    assert rule.admits(Tally(tuple(4 * amount for amount in step.amounts)))
    assert not rule.admits(Tally(tuple(5 * amount for amount in step.amounts)))
    same = make_filter("whitehouse", epsilon=5, delta="6e-6")
    assert same.limit.amounts[0] == rule.limit.amounts[0]


PRICES = [
    (PureDP(epsilon="0.1"), Fraction("0.01"), 0),
    (Laplace(sensitivity=1, scale=10), Fraction("0.01"), 0),
    (ApproxDP(epsilon="0.1", delta="1e-7"), Fraction("0.01"), Fraction("1e-7")),
    (ProbabilisticDP(epsilon="0.1", delta="1e-7"), Fraction("0.01"), Fraction("1e-7")),
    (Gaussian(sensitivity=1, sigma=10), Fraction("0.01"), 0),
    (GaussianDP(mu="0.1"), Fraction("0.01"), 0),
    (ZCDP(rho="0.005"), Fraction("0.01"), 0),
    (ApproxZCDP(rho="0.005", delta="1e-7"), Fraction("0.01"), Fraction("1e-7")),
]


def test_each_notion_is_charged_what_it_implies():
    """(epsilon, delta)-DP enters at epsilon squared, rho-zCDP at twice rho."""
    rule = make_filter("whitehouse", epsilon=1, delta="1e-6", delta_loss="5e-7")
    for cost, square, delta in PRICES:
        assert (square * UNITS, delta * UNITS) == rule.price(cost).amounts
