"""Tallies are exact vectors of integers: a commutative monoid with an order."""

from __future__ import annotations

import operator
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.accounting.rules.tally import Tally

pytestmark = pytest.mark.quick

amounts = st.integers(0, 10**60)
tallies = st.tuples(amounts, amounts).map(Tally)


def test_only_tuples_of_natural_numbers_make_a_tally():
    """Anything that could wrap, round, shrink or change is refused, with its value."""
    wrong = [-1, -(10**40), True, 0.0, float("nan"), "1", None, (1,)]
    wrong += [Fraction(1), Decimal(1), np.int64(1), np.uint64(1), np.bool_(True)]
    for amount in wrong:
        for vector in ((amount, 5), (5, amount)):
            with pytest.raises(ValueError, match="non-negative integers") as caught:
                Tally(vector)
            assert repr(amount) in str(caught.value)
    for vector in ([1], {1: 2}, {1}, "12", b"12", 5, None, np.array([1]), range(3)):
        with pytest.raises(ValueError, match=f"tuple, got {type(vector).__name__}"):
            Tally(vector)


@given(tallies, tallies)
def test_taking_away_is_the_exact_inverse_of_adding(first, second):
    """At any size, exactly where the smaller tally fits within the larger."""
    assert first + second - second == first
    if second.fits_within(first):
        assert (first - second) + second == first
    else:
        with pytest.raises(ValueError, match="non-negative integers"):
            _ = first - second


@given(tallies, tallies, tallies)
def test_fits_within_is_a_partial_order_that_sums_respect(first, second, third):
    """Reflexive, antisymmetric, transitive; `highest` is the least upper bound."""
    assert first.fits_within(first)
    assert first.fits_within(first + second)
    both = first.fits_within(second) and second.fits_within(first)
    assert both == (first == second)
    if first.fits_within(second) and second.fits_within(third):
        assert first.fits_within(third)
    added = (first + third).fits_within(second + third)
    assert first.fits_within(second) == added
    top = first.highest(second)
    assert top == second.highest(first)
    assert first.fits_within(top)
    if first.fits_within(third) and second.fits_within(third):
        assert top.fits_within(third)


def test_tallies_of_different_theorems_do_not_mix():
    """A vector of another length is never padded or cut."""
    for work in (operator.add, operator.sub, Tally.fits_within, Tally.highest):
        for other in (Tally((1,)), Tally((1, 1, 0)), Tally(())):
            with pytest.raises(ValueError, match="different theorems"):
                work(Tally((2, 2)), other)
