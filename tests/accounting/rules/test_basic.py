"""The basic filter: epsilons add up, deltas add up, and equality still fits."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import ApproxDP, Composed, Laplace, PureDP, Repeated
from dpflow.accounting import make_filter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS

pytestmark = pytest.mark.quick

millionths = st.integers(1, 10**6).map(lambda n: Fraction(n, 10**6))
tiny_deltas = st.integers(0, 10**6).map(lambda n: Fraction(n, 10**12))
costs = st.one_of(
    st.builds(lambda e: PureDP(epsilon=e), millionths),
    st.builds(lambda e, d: ApproxDP(epsilon=e, delta=d), millionths, tiny_deltas),
    st.builds(lambda e: Laplace(sensitivity=1, epsilon=e), millionths),
)


@pytest.mark.parametrize("theorem", ["basic", "output-dp"])
def test_a_delta_has_no_price_under_a_budget_without_one(theorem):
    """It is refused in these words, not as a budget that is used up."""
    without = make_filter(theorem, epsilon=1)
    with pytest.raises(UnsupportedCost, match="keeps no delta for steps"):
        without.price(ApproxDP(epsilon="1e-9", delta="1e-35"))


def test_repeated_and_composed_cost_the_same():
    """Of a part of one; equal steps are rounded once, as their sum is."""
    for theorem in ("basic", "output-dp", "gdp", "zcdp", "rdp", "auto"):
        rule = make_filter(theorem, epsilon=1, delta="1e-6")
        for parts in (3, 7, 101):
            part = PureDP(epsilon=Fraction(1, parts))
            repeated = rule.price(Repeated(part, parts))
            assert repeated == rule.price(Composed(*[part] * parts))
            assert rule.price(Composed(part, Repeated(part, parts - 1))) == repeated
            if theorem in ("basic", "output-dp", "auto"):
                assert rule.admits(repeated)


def test_budgets_round_down_and_prices_round_up():
    """What is not exact is entered from below as a budget and from above as a cost."""
    part, place = Fraction(1, 101), UNITS // 10**36
    rule = make_filter("basic", epsilon=part, delta=part)
    below = 10**36 // 101 * place
    assert rule.limit == Tally((below, below))
    price = rule.price(ApproxDP(epsilon=part, delta=part))
    assert price == Tally((below + place, below + place))


@given(st.lists(costs, min_size=1, max_size=12))
def test_admission_agrees_with_exact_sums(costs):
    """The decision is that of fractions added without any rounding."""
    epsilon = sum(
        c.sensitivity / c.scale if isinstance(c, Laplace) else c.epsilon for c in costs
    )
    delta = sum(getattr(cost, "delta", 0) for cost in costs)
    rule = make_filter("basic", epsilon=1, delta="1e-6")
    total = sum((rule.price(cost) for cost in costs), rule.zero())
    fits = epsilon <= 1 and delta <= Fraction(1, 10**6)
    assert fits == rule.admits(total)
