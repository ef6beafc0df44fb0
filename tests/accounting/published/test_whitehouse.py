"""The Whitehouse filter against the paper's numbers and interval arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from flint import arb, ctx, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian, Laplace
from dpflow.accounting.costs.notions import (
    ZCDP,
    ApproxDP,
    ApproxZCDP,
    GaussianDP,
    ProbabilisticDP,
    PureDP,
)
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS, from_units
from tests.sizes import scaled


def powers(low: int, high: int) -> st.SearchStrategy[Fraction]:
    """Draw a decimal with four digits between two powers of ten."""
    return st.builds(
        lambda digits, exponent: Fraction(digits, 1000) * Fraction(10) ** exponent,
        st.integers(1000, 9999),
        st.integers(low, high - 1),
    )


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


def admitted(rule, cost: Cost) -> int:
    """Count equal steps until the first refusal."""
    price, count = rule.price(cost).amounts, 0
    while rule.admits(Tally(tuple((count + 1) * amount for amount in price))):
        count += 1
    return count


@pytest.mark.parametrize(
    ("epsilon", "stated"),
    [
        (1, "0.0349378095382467556483640343529"),
        (5, "0.770692763322177392740839141427"),
    ],
)
def test_the_budget_of_squares_is_the_stated_one(epsilon, stated):
    """The threshold on the sum of squares matches, to the last digit given."""
    rule = make_filter("whitehouse", epsilon=epsilon, delta="1e-6")
    assert rule.limit.amounts[0] <= UNITS * Fraction(stated) * (1 + Fraction(1, 10**28))
    assert abs(from_units(rule.limit.amounts[0]) / Fraction(stated) - 1) < 1e-28


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


COUNTS = [
    ("classic", 1, PureDP(epsilon="0.1"), 3),
    ("classic", 5, PureDP(epsilon="0.1"), 77),
    ("classic", 1, Gaussian(sensitivity=1, sigma=20), 13),
    ("classic", 5, Gaussian(sensitivity=1, sigma=20), 308),
    ("tanh", 5, Gaussian(sensitivity=1, sigma=20), 308),
    ("classic", 20, PureDP(epsilon=1), 8),
    ("tanh", 20, PureDP(epsilon=1), 9),
    ("classic", 60, PureDP(epsilon=3), 5),
    ("tanh", 60, PureDP(epsilon=3), 8),
]


@pytest.mark.parametrize(("drift", "epsilon", "cost", "count"), COUNTS)
def test_the_number_of_admitted_steps_is_the_stated_one(drift, epsilon, cost, count):
    """How many equal steps fit at delta = 1e-6: docs/admitted.md, known numbers."""
    rule = make_filter("whitehouse", epsilon=epsilon, delta="1e-6", drift=drift)
    assert admitted(rule, cost) == count


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


@settings(max_examples=scaled(12), deadline=None)
@given(epsilon=EPSILONS, delta=DELTAS, step=powers(-9, 3))
def test_the_tighter_drift_never_admits_less(epsilon, delta, step):
    """A pure step uses no larger share under `tanh` than under `classic`."""
    shares = [
        rule.used_fraction(rule.price(PureDP(epsilon=step)))
        for rule in (
            make_filter("whitehouse", epsilon=epsilon, delta=delta, drift=drift)
            for drift in ("tanh", "classic")
        )
    ]
    assert shares[0] <= shares[1] * (1 + 1e-12)


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


@pytest.mark.parametrize("drift", ["classic", "tanh"])
def test_a_step_with_a_delta_needs_a_share(drift):
    """Without delta_loss below delta, such a step is refused with the way out."""
    rule = make_filter("whitehouse", epsilon=1, delta="1e-6", drift=drift)
    with pytest.raises(UnsupportedCost, match="Set delta_loss below delta"):
        rule.price(ApproxDP(epsilon="0.1", delta="1e-7"))


WRONG = [
    ({"delta": 0}, "delta must be"),
    ({"delta_loss": "2e-6"}, "exceeds delta 0.000001"),
    ({"delta_loss": 0}, "delta_loss must be"),
    ({"drift": "tan"}, "drift must be one of classic, tanh"),
    ({"beta": 1}, "does not take these options"),
    ({"epsilon": 0}, "epsilon must lie in"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_wrong_options_are_refused(options, words):
    """Each wrong option is named with its limit."""
    with pytest.raises(InvalidCost, match=words):
        make_filter("whitehouse", **{"epsilon": 1, "delta": "1e-6", **options})
