"""The Whitehouse filter against the paper's numbers and interval arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from flint import arb, ctx, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ApproxZCDP, GaussianDP, ProbabilisticDP
from dpflow.rounding import UNITS, from_units
from tests.accounting.oracle import powers
from tests.sizes import scaled

EPSILONS = powers(-9, 3)
DELTAS = st.one_of(
    powers(-30, -1), st.integers(100, 500).map(lambda n: Fraction(n, 1000))
)


def ball(value: Fraction) -> arb:
    """Return the exact value as an interval of 600 bits."""
    ctx.prec = 600
    return arb(fmpq(value.numerator, value.denominator))


def true_budget(epsilon: Fraction, delta: Fraction) -> arb:
    """Solve sqrt(2 log(1/delta) y) + y/2 = epsilon for y, as an interval."""
    log = -ball(delta).log()
    return ((2 * (ball(epsilon) + log)).sqrt() - (2 * log).sqrt()) ** 2


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
@given(epsilon=EPSILONS, delta=DELTAS, drift=st.sampled_from(["classic", "tanh"]))
def test_thresholds_lie_just_below_the_truth(epsilon, delta, drift):
    """Never above the interval that holds the root, within 1e-9 or one unit of it."""
    rule = make_filter("whitehouse", epsilon=epsilon, delta=delta, drift=drift)
    truth = true_budget(epsilon, delta) / (1 if drift == "classic" else 2)
    limit = ball(from_units(rule.limit.amounts[0]))
    assert limit <= truth
    assert limit + ball(Fraction(1, 10**36)) >= truth * (1 - ball(Fraction(1, 10**9)))


@settings(max_examples=scaled(30), deadline=None)
@given(epsilon=EPSILONS)
def test_prices_lie_just_above_the_truth(epsilon):
    """The square is exact up to a unit; epsilon tanh(epsilon/2) is rounded up."""
    classic = make_filter("whitehouse", epsilon=1, delta="1e-6")
    tighter = make_filter("whitehouse", epsilon=1, delta="1e-6", drift="tanh")
    square = classic.price(PureDP(epsilon=epsilon)).amounts[0]
    assert 0 <= square - epsilon**2 * UNITS < UNITS // 10**36
    rate = ball(from_units(tighter.price(PureDP(epsilon=epsilon)).amounts[0]))
    truth = ball(epsilon) * (ball(epsilon) / 2).tanh()
    assert not rate < truth
    assert rate <= truth * (1 + ball(Fraction(1, 10**9))) + ball(Fraction(1, 10**36))


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


@pytest.mark.parametrize(("cost", "square", "delta"), PRICES)
def test_each_notion_is_charged_what_it_implies(cost, square, delta):
    """(epsilon, delta)-DP enters at epsilon squared, rho-zCDP at twice rho."""
    rule = make_filter("whitehouse", epsilon=1, delta="1e-6", delta_loss="5e-7")
    assert (square * UNITS, delta * UNITS) == rule.price(cost).amounts
