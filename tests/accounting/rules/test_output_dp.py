"""The filter `output-dp`: realised epsilons come back, deltas never do."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_filter
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.accounting.costs.outcomes import OutputDP, ProposeTestRelease
from dpflow.accounting.costs.sparse_vector import SparseVector
from dpflow.accounting.fixed.stops import best_epsilons, lemma_11
from dpflow.accounting.rules.output_dp import OutputDpFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS, units_up
from tests.sizes import scaled

pytestmark = pytest.mark.quick

TENTH, TWENTY = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
TOY = OutputDP({"none": 0, "answer": "0.5"})
PTR = ProposeTestRelease(epsilon="0.2", delta="1e-7")
RULE = OutputDpFilter(epsilon=1, delta="3e-7")


def tally(epsilon: str, delta: str = "0") -> Tally:
    """Return a tally of two decimals."""
    return Tally((int(Fraction(epsilon) * UNITS), int(Fraction(delta) * UNITS)))


def test_ten_tenths_fit_exactly() -> None:
    """Equality admits: ten steps of 0.1 fill an epsilon of 1."""
    spent = RULE.zero()
    for _ in range(10):
        spent += RULE.price(TENTH)
        assert RULE.admits(spent)
    assert not RULE.admits(spent + RULE.price(PureDP(epsilon="1e-12")))
    assert RULE.used_fraction(spent) == 1
    assert RULE.limit == tally("1", "3e-7")


def test_cheap_outcomes_make_room() -> None:
    """A toy that told nothing costs nothing; one that answered costs its epsilon."""
    rule = OutputDpFilter(epsilon=1)
    spent = rule.zero()
    for _ in range(1000):
        assert rule.admits(spent + rule.price(TOY))
        spent += rule.price_realised(TOY, "none")
    assert spent == rule.zero()
    spent += rule.price_realised(TOY, "answer")
    assert rule.admits(spent + rule.price(TOY))
    spent += rule.price_realised(TOY, "answer")
    assert not rule.admits(spent + rule.price(TOY))


def test_the_worst_cell_is_checked_before_the_step() -> None:
    """What remains must cover the worst cell, however cheap others are."""
    spent = tally("0.6")
    assert not RULE.admits(spent + RULE.price(TOY))
    assert RULE.admits(spent + RULE.price_realised(TOY, "none"))


def test_delta_is_never_refunded() -> None:
    """Three tests without an answer exhaust delta, though epsilon is left."""
    spent = RULE.zero()
    for _ in range(3):
        assert RULE.admits(spent + RULE.price(PTR))
        spent += RULE.price_realised(PTR, "none")
    assert spent == tally("0.6", "3e-7")
    assert not RULE.admits(spent + RULE.price(PTR))
    assert RULE.admits(spent + RULE.price(TENTH))


def test_reserve_settle_and_void_are_exact() -> None:
    """Charges in flight, settled and cancelled leave the tally of what happened."""
    held = RULE.price(TOY) + RULE.price(PTR) + RULE.price(TENTH)
    settled = RULE.zero()
    held -= RULE.price(TOY)
    settled += RULE.price_realised(TOY, "none")
    held -= RULE.price(TENTH)
    held -= RULE.price(PTR)
    settled += RULE.price_realised(PTR, "answer")
    assert held == RULE.zero()
    assert settled == tally("0.4", "1e-7")


def test_sparse_vector_pays_for_its_positives() -> None:
    """Two positives of four cost the threshold and half of the answers."""
    cost = SparseVector(positives=4, epsilon_threshold="0.1", epsilon_answers="0.4")
    assert RULE.price(cost) == tally("0.5")
    for found, epsilon in ((0, "0.1"), (1, "0.2"), (2, "0.3"), (4, "0.5")):
        assert RULE.price_realised(cost, found) == tally(epsilon)


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


def test_stopping_early_without_an_accountant() -> None:
    """Sub-steps that never ran give epsilon and delta back: nobody invoked them."""
    cost = EarlyStopping(ApproxDP(epsilon="0.1", delta="1e-8"), stops=(2, 9))
    assert RULE.price(cost) == tally("0.9", "9e-8")
    assert RULE.price_realised(cost, 2) == tally("0.2", "2e-8")
    assert RULE.price_realised(cost, None) == RULE.price(cost)


def test_theorem_15_beats_lemma_11() -> None:
    """The accountant `optimal` prices the solved epsilons of Theorem 15."""
    stops = (10, 20, 30)
    best, lemma = (
        EarlyStopping(TENTH, stops=stops, accountant=name, delta="3e-7")
        for name in ("optimal", "kov")
    )
    solved = best_epsilons(
        ((Fraction("0.1"), Fraction(0)),) * 30, stops, (Fraction(1, 10**7),) * 3
    )
    rule = OutputDpFilter(epsilon=9, delta="3e-7")
    assert rule.price(best).amounts[0] == units_up(solved[2])
    for ran in (10, 20, 30):
        saved = rule.price_realised(best, ran).amounts
        assert saved[0] < rule.price_realised(lemma, ran).amounts[0]


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
def test_it_is_algorithm_1(
    rounds: list[tuple[list[Fraction], Fraction, int]],
) -> None:
    """Admission is that of the paper's composition experiment, in any order."""
    left_epsilon, left_delta = Fraction(1), Fraction("3e-7")
    spent, charges = RULE.zero(), []
    for cells, delta, cell in rounds:
        cost = OutputDP(dict(enumerate(cells)), delta=delta)
        allowed = max(map(Fraction, cells)) <= left_epsilon
        allowed = allowed and Fraction(delta) <= left_delta
        assert allowed == RULE.admits(spent + RULE.price(cost))
        if allowed:
            fell = cell % len(cells)
            charges.append(RULE.price_realised(cost, fell))
            spent += charges[-1]
            left_epsilon -= Fraction(cells[fell])
            left_delta -= Fraction(delta)
    again = RULE.zero()
    for charge in reversed(charges):
        again += charge
    assert spent == again


def test_what_it_refuses() -> None:
    """A bare Gaussian has no epsilon, and unknown cells are no outcome."""
    with pytest.raises(UnsupportedCost):
        RULE.price(TWENTY)
    with pytest.raises(InvalidCost, match="unknown cell"):
        RULE.price_realised(TOY, "maybe")
    with pytest.raises(InvalidCost):
        make_filter("output-dp", epsilon=0)
