"""The tallies of people: exact charges, no free step, ugly costs."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import InvalidCost, LedgerCorrupt, ReleaseError
from dpflow.people import PrivateTally
from tests.sizes import scaled

pytestmark = pytest.mark.quick

ONE = IndividualBound(measure="rdp", order=8, bound=1)
UGLY = [float("nan"), -float("nan"), float("inf"), -float("inf"), -1.0, -1e-320, 1e308]


def tally_of(people: int, bound=1) -> PrivateTally:
    """Make a tally of the RDP measure."""
    return PrivateTally(
        IndividualBound(measure="rdp", order=8, bound=bound), people=people
    )


def members(mask, people: int) -> list[bool]:
    """Look at a mask as a body would."""
    return mask.apply(np.ones(people)).astype(bool).tolist()


def admit(tally: PrivateTally, *costs: float) -> list[bool]:
    """Charge a step and say who takes part."""
    return members(tally.admit(np.array(costs)), len(costs))


bounds = st.floats(-20, 10).map(lambda x: Fraction(f"{10**x:.9g}"))
shares = st.one_of(
    st.floats(0, 1.5), st.floats(-18, 0).map(lambda x: 10**x), st.just(5e-324)
)


@settings(max_examples=scaled(30), deadline=None)
@given(bounds, st.lists(st.tuples(shares, shares, shares), max_size=25))
def test_no_person_exceeds_the_bound_or_is_excluded_early(bound, steps):
    """Against exact sums: who was admitted fits, who was not would not have."""
    tally, spent = tally_of(3, bound), [Fraction(0)] * 3
    for charges, step in enumerate(steps, start=1):
        costs = [float(share * float(bound)) for share in step]
        slack = charges * bound / 2**51
        for person, took_part in enumerate(admit(tally, *costs)):
            total = spent[person] + Fraction(costs[person])
            if took_part:
                assert total <= bound
                spent[person] = total
            else:
                assert total + slack > bound


def test_an_excluded_person_pays_nothing_and_may_return():
    """A step that does not fit charges nothing; a cheaper one is taken later."""
    tally = tally_of(1)
    assert admit(tally, 0.75) == [True]
    assert admit(tally, 0.5) == [False]
    assert admit(tally, 0.5) == [False]
    assert admit(tally, 0.25) == [True]
    assert admit(tally, 0.25) == [False]


def test_unusable_costs_leave_only_their_person_out():
    """NaN, negatives and infinities charge nothing and raise nothing."""
    for ugly in UGLY:
        tally = tally_of(3)
        with np.errstate(all="raise"):
            assert admit(tally, 0.5, ugly, 0.5) == [True, False, True]
        assert admit(tally, 0.5, 1.0, 0.6) == [True, True, False]


def test_many_people_are_charged_each_their_own():
    """Blocks of people agree with one exact pass over all of them."""
    people = 300_007
    generator = np.random.default_rng(20)
    tally, left = tally_of(people), np.full(people, 2**51, np.int64)
    for _ in range(6):
        units = generator.integers(0, 2**50, people)
        taken = units <= left
        left -= np.where(taken, units, 0)
        mask = tally.admit(units * 2.0**-51)
        assert np.array_equal(mask.apply(np.ones(people, bool)), taken)
        values = generator.integers(-1000, 1000, (people, 2))
        assert np.array_equal(mask.sum(values), values[taken].sum(axis=0))
    assert np.array_equal(np.frombuffer(tally.to_store(), "<f8"), left)


def test_a_mask_hides_the_rows_of_those_left_out():
    """NaN in a row that is left out reaches neither the rows nor the sum."""
    mask = tally_of(3).admit(np.array([0.5, np.nan, 0.5]))
    rows = np.array([[1.0, 2.0], [np.nan, np.inf], [3.0, 4.0]])
    assert mask.sum(rows).tolist() == [4.0, 6.0]
    assert mask.apply(rows).tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]
    assert mask.sum(np.array([1, 2, 3])) == 4
    for wrong in (np.ones(2), [1.0, 1.0, 1.0], np.ma.ones(3), np.float64(1)):
        with pytest.raises(InvalidCost):
            mask.sum(wrong)


def test_unusable_arrays_are_refused_and_charge_nothing():
    """Only a float64 array with one entry per person is taken."""
    tally = tally_of(2)
    for wrong in (
        [0.5, 0.5],
        np.array([0.5, 0.5], np.float32),
        np.array([1, 1]),
        np.array([0.5]),
        np.array([[0.5, 0.5]]),
        np.array([0.5, 0.5], ">f8"),
        np.ma.array([0.5, 0.5]),
        0.5,
        None,
    ):
        with pytest.raises(InvalidCost):
            tally.admit(wrong)
    assert admit(tally, 1.0, 1.0) == [True, True]
    for people in (0, -1, 1.5, True, None):
        with pytest.raises(InvalidCost):
            PrivateTally(ONE, people=people)


def test_bytes_round_trip_and_damage_is_refused():
    """What a store wrote reads back; what no tally can be is refused."""
    tally = tally_of(2)
    admit(tally, 0.5, 0.25)
    again = PrivateTally.from_store(ONE, bytearray(tally.to_store()))
    assert admit(again, 0.5, 0.75) == [True, True]
    assert admit(again, 5e-324, 5e-324) == [False, False]
    for damaged in (np.nan, -1.0, 0.5, 2.0**51 + 1, np.inf, -np.inf):
        values = bytearray(np.array([1.0, damaged], "<f8").tobytes())
        with pytest.raises(LedgerCorrupt):
            PrivateTally.from_store(ONE, values)
    with pytest.raises(InvalidCost):
        admit(PrivateTally.from_store(ONE, bytearray()), 0.5)
    # A page that reads as zeros, or as negative zeros, is a spent budget.
    for zero in (0.0, -0.0):
        empty = bytearray(np.full(2, zero, "<f8").tobytes())
        tally = PrivateTally.from_store(ONE, empty)
        assert admit(tally, 5e-324, 0.0) == [False, True]


def test_threads_spend_one_budget():
    """Every charge of four concurrent threads is in the sums: none is overwritten."""
    people, rounds = 20_000, 100
    tally, start = tally_of(people), threading.Barrier(4)

    def work():
        start.wait()
        for _ in range(rounds):
            tally.admit(np.full(people, 2.0**-20))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            [*pool.map(lambda _: work(), range(4))]
    finally:
        sys.setswitchinterval(interval)
    rest = np.frombuffer(tally.to_store(), "<f8")
    assert (rest == 2**51 - 4 * rounds * 2**31).all()


def test_a_forked_child_has_no_budget_of_its_own():
    """Parent and child would each spend the whole tally."""
    tally = tally_of(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            tally.admit(np.array([0.5]))
        except ReleaseError:
            status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert admit(tally, 1.0) == [True]
