"""The filters basic and output-dp, and filters that keep a part of delta for steps."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import (
    ApproxDP,
    Composed,
    EarlyStopping,
    Laplace,
    OutputDP,
    PureDP,
    Repeated,
)
from dpflow.accounting import Filter, make_filter, make_odometer
from dpflow.accounting.fixed.stops import lemma_11
from dpflow.accounting.rules.output_dp import OutputDpFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ProbabilisticDP, ProposeTestRelease
from dpflow.rounding import UNITS, units_up
from tests.sizes import scaled
from tests.tables import read_costs, read_tables

millionths = st.integers(1, 10**6).map(lambda n: Fraction(n, 10**6))
tiny_deltas = st.integers(0, 10**6).map(lambda n: Fraction(n, 10**12))
costs = st.one_of(
    st.builds(PureDP, epsilon=millionths),
    st.builds(ApproxDP, epsilon=millionths, delta=tiny_deltas),
    st.builds(Laplace, sensitivity=st.just(1), epsilon=millionths),
)


def test_the_odometer_is_undefined_once_its_delta_is_exceeded():
    """Until then it reads the sum of the epsilons."""
    odometer = make_odometer("basic", delta="2e-6")
    once = odometer.price(ProbabilisticDP(epsilon="0.1", delta="1e-6"))
    assert odometer.read(once.times(2)) == 0.2
    assert odometer.read(once.times(3)) == math.inf


def test_repeated_and_composed_cost_the_same():
    """Equal steps are rounded once, as their sum is; 1/2 to 1/100 fill a budget."""
    for theorem in ("auto", "output-dp", "gdp", "zcdp", "rdp", "basic"):
        rule = make_filter(theorem, epsilon=1, delta="1e-6")
        for parts in (3, 7, 101):
            part = PureDP(epsilon=Fraction(1, parts))
            repeated = rule.price(Repeated(part, parts))
            assert repeated == rule.price(Composed(*[part] * parts))
            assert rule.price(Composed(part, Repeated(part, parts - 1))) == repeated
            if theorem in ("basic", "output-dp", "auto"):
                assert rule.admits(repeated)
    for parts in range(1, 101):
        part = rule.price(PureDP(epsilon=Fraction(1, parts)))
        assert rule.admits(part.times(parts))


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


TOY = OutputDP({"none": 0, "answer": "0.5"})
RULE = OutputDpFilter(epsilon=1, delta="3e-7")


def test_the_worst_cell_is_checked_before_the_step() -> None:
    """The remaining budget must cover it; a cheap outcome leaves room again."""
    before = spent = Tally((6 * UNITS // 10, 0))
    assert not RULE.admits(spent + RULE.price(TOY))
    for _ in range(1000):
        spent += RULE.price_realised(TOY, "none")
    assert spent == before
    spent = RULE.price_realised(TOY, "answer")
    assert RULE.admits(spent + RULE.price(TOY))
    assert not RULE.admits(spent + spent + RULE.price(TOY))


def test_stopping_early_by_lemma_11() -> None:
    """The largest epsilon of a stop is reserved, that of the stop reached settled."""
    shares = [Fraction(1, 10**7)] * 3
    stops = (5, 10, 15)
    (step,) = read_costs(["Gaussian(sensitivity=1, sigma=20)"])
    cost = EarlyStopping(step, stops=stops, accountant="gdp", delta=shares)
    epsilons = lemma_11([((step, k),) for k in stops], shares, "gdp")
    assert RULE.admits(RULE.price(cost))
    units = [units_up(e) for e in epsilons]
    delta = 3 * UNITS // 10**7
    assert RULE.price(cost) == Tally((units[2], delta))
    for ran, i in ((1, 0), (5, 0), (6, 1), (10, 1), (14, 2), (15, 2)):
        assert RULE.price_realised(cost, ran) == Tally((units[i], delta))


@settings(max_examples=scaled(16), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.decimals("1e-9", "0.2", places=9), min_size=1, max_size=4),
            st.decimals("0", "1e-7", places=12),
            st.integers(0, 3),
        ),
        max_size=25,
    )
)
def test_it_is_algorithm_1(rounds):
    """Admission is that of the paper's composition experiment."""
    rest_epsilon, rest_delta, spent = Fraction(1), Fraction("3e-7"), RULE.zero()
    for cells, delta, cell in rounds:
        cost = OutputDP(dict(enumerate(cells)), delta=delta)
        allowed = max(map(Fraction, cells)) <= rest_epsilon
        allowed = allowed and Fraction(delta) <= rest_delta
        assert allowed == RULE.admits(spent + RULE.price(cost))
        if allowed:
            fell = cell % len(cells)
            spent += RULE.price_realised(cost, fell)
            rest_epsilon -= Fraction(cells[fell])
            rest_delta -= Fraction(delta)


def split(theorem: str) -> Filter:
    """Make a filter at (3, 1e-6) that keeps a tenth of delta."""
    return make_filter(theorem, epsilon=3, delta="1e-6", delta_loss="9e-7")


@pytest.mark.parametrize("theorem", ["gdp", "rdp"])
def test_a_step_costs_its_loss_and_its_delta(theorem):
    """The loss as the filter without a split prices it; the delta exactly."""
    for step, part, delta in read_tables(__file__)["split"]:
        cost, alone = read_costs((step, part))
        loss = make_filter(theorem, epsilon=3, delta="9e-7").price(alone).amounts
        assert split(theorem).price(cost).amounts == (*loss, units_up(Fraction(delta)))


def test_a_mechanism_with_a_delta_settles_as_its_worst_cell() -> None:
    """Its cells are no divergences; those of one without a delta are."""
    rule = split("rdp")
    tried = ProposeTestRelease(epsilon="0.1", delta="1e-9")
    for outcome in ("none", "answer"):
        assert rule.price_realised(tried, outcome) == rule.price(tried)
    cells = OutputDP({"none": 0, "answer": "0.5"})
    assert rule.price_realised(cells, "none").amounts == (0, 0)
    aside = ApproxDP(epsilon="0.1", delta="1e-9")
    stopped = EarlyStopping(aside, stops=(2, 4))
    assert rule.price_realised(stopped, 3) == rule.price(Repeated(aside, 3))
