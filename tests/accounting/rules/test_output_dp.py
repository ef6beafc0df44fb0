"""The filter `output-dp`: realised epsilons come back, deltas never do."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import EarlyStopping, Gaussian, OutputDP
from dpflow.accounting.fixed.stops import lemma_11
from dpflow.accounting.rules.output_dp import OutputDpFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ProposeTestRelease
from dpflow.rounding import UNITS, units_up
from tests.sizes import scaled

pytestmark = pytest.mark.quick

TWENTY = Gaussian(sensitivity=1, sigma=20)
TOY = OutputDP({"none": 0, "answer": "0.5"})
PTR = ProposeTestRelease(epsilon="0.2", delta="1e-7")
RULE = OutputDpFilter(epsilon=1, delta="3e-7")


def tally(epsilon: str, delta: str = "0") -> Tally:
    """Return a tally of two decimals."""
    return Tally((int(Fraction(epsilon) * UNITS), int(Fraction(delta) * UNITS)))


def test_the_worst_cell_is_checked_before_the_step() -> None:
    """The remaining budget must cover it; a cheap outcome leaves room again."""
    spent = tally("0.6")
    assert not RULE.admits(spent + RULE.price(TOY))
    for _ in range(1000):
        spent += RULE.price_realised(TOY, "none")
    assert spent == tally("0.6")
    spent = RULE.price_realised(TOY, "answer")
    assert RULE.admits(spent + RULE.price(TOY))
    assert not RULE.admits(spent + spent + RULE.price(TOY))


def test_delta_is_never_refunded() -> None:
    """Three tests without an answer exhaust delta, though epsilon remains."""
    spent = RULE.zero()
    for _ in range(3):
        assert RULE.admits(spent + RULE.price(PTR))
        spent += RULE.price_realised(PTR, "none")
    assert spent == tally("0.6", "3e-7")
    assert not RULE.admits(spent + RULE.price(PTR))
    assert RULE.admits(spent + tally("0.1"))


def test_stopping_early_by_lemma_11() -> None:
    """The largest epsilon of a stop is reserved, that of the stop reached settled."""
    shares = [Fraction(1, 10**7)] * 3
    stops = (5, 10, 15)
    cost = EarlyStopping(TWENTY, stops=stops, accountant="gdp", delta=shares)
    epsilons = lemma_11([((TWENTY, k),) for k in stops], shares, "gdp")
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
