"""The tallies of people: exact charges, no free step, and no text about a person."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import logging
import pickle
import pprint
import re
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import cloudpickle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.pretty import pretty_repr

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import InvalidCost, LedgerCorrupt, ReleaseError
from dpflow.people import PrivateTally
from tests.people.places import Place, in_child, store_of
from tests.sizes import scaled

pytestmark = pytest.mark.quick

ONE = IndividualBound(measure="rdp", order=8, bound=1)
UGLY = [float("nan"), -float("nan"), float("inf"), -float("inf"), -1.0, -1e-320, 1e308]


def tally_of(people: int, bound=1) -> PrivateTally:
    """Make a tally of the RDP measure."""
    one = IndividualBound(measure="rdp", order=8, bound=bound)
    return PrivateTally(one, people=people)


def admit(tally: PrivateTally, *costs: float) -> list[bool]:
    """Charge a step and say who takes part, as a body would see it."""
    mask = tally.admit(np.array(costs))
    return mask.apply(np.ones(len(costs))).astype(bool).tolist()


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
    for _ in range(4):
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
    floats = np.array([0.5, 0.5])
    arrays = [floats.astype("f4"), floats.astype(">f8"), np.array([1, 1])]
    arrays += [floats[:1], floats[None], np.ma.array(floats)]
    for wrong in (*arrays, [0.5, 0.5], 0.5, None):
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
    people, rounds = 20_000, 50
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

    def refused(_):
        with pytest.raises(ReleaseError):
            tally.admit(np.array([0.5]))

    assert in_child(refused) == (0, "")
    assert admit(tally, 1.0) == [True]


#: A cost of one person; no text may hold it.
CANARY_COST = 0.123456789012345


def tally_and_mask(*costs):
    """Make a tally that one step has charged, and the mask of that step."""
    tally = tally_of(len(costs))
    return tally, tally.admit(np.array(costs))


def logged(value) -> str:
    """Format a log record with a value."""
    words = ("canary", logging.WARNING, "", 0, "%s %r", (value, value), None)
    return logging.Formatter().format(logging.LogRecord(*words))


def traced(value) -> str:
    """Format a traceback that shows local variables."""
    try:
        json.dumps(value)
    except TypeError as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        return "".join(shown.format())
    return ""


def rich_traced(value) -> str:
    """Show a traceback with local variables, as Prefect and typer do."""
    console = Console(file=io.StringIO(), width=200)
    try:
        value + 1
    except TypeError:
        console.print_exception(show_locals=True)
    return console.file.getvalue()


SHOWN = [
    *(repr, logged, traced, rich_traced, pprint.pformat, pretty_repr),
    lambda v: f"{v} {v!r} {v:>40} {v:.3f}",
    lambda v: "%s" % (v,),  # noqa: UP031
    lambda v: json.dumps({"value": v}, default=str),
    lambda v: repr([v, {"a": v}, (v,)]),
]
#: Copies, comparisons, counts and walks.
REFUSED = [
    *(pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy, np.asarray),
    *(list, len, bool, float, bytes, hash),
    lambda v: v == v,  # noqa: PLR0124
    lambda v: v < v,  # noqa: PLR0124
    lambda v: v[0],
    lambda v: True in v,
    lambda v: [1][v],
    lambda v: list(reversed(v)),
]
#: Operators, buffers, dictionaries of an instance and JSON.
UNSUPPORTED = [
    *(json.dumps, vars, dataclasses.asdict, memoryview, sum),
    lambda v: v + 1,
    lambda v: 1 + v,
    lambda v: ~v,
    lambda v: np.add(v, 1),
    lambda v: v(),
]


def test_texts_are_the_same_for_all_values():
    """Logs, tracebacks with locals and viewers show a placeholder and no value."""
    some = tally_and_mask(CANARY_COST, 2.0, 0.5)
    others = tally_and_mask(2.0, 0.25, CANARY_COST)
    for show in SHOWN:
        for one, other in zip(some, others, strict=True):
            text, same = (
                re.sub("0x[0-9a-f]+", "", show(value).replace(str(id(value)), ""))
                for value in (one, other)
            )
            assert "withheld" in text
            assert same == text
            for trace in ("123456", "1973", "array", "[[", "0.25"):
                assert trace not in text


def test_every_other_use_is_refused():
    """No way to copy, store, compare, count or walk the values exists."""
    for value in tally_and_mask(CANARY_COST, 2.0, 0.5):
        for use in [*REFUSED, *UNSUPPORTED]:
            with pytest.raises((TypeError, ReleaseError)) as caught:
                use(value)
            assert "123456" not in str(caught.value)
            if use in REFUSED:
                assert isinstance(caught.value, ReleaseError)
                assert caught.value.details == {}


def test_errors_name_no_person_and_no_value():
    """An error about an array says what is wanted, not what is there."""
    tally, mask = tally_and_mask(CANARY_COST, 2.0, 0.5)
    array = np.array([CANARY_COST])
    for call, wrong in (
        (tally.admit, array),
        (tally.admit, [*array]),
        (mask.sum, array),
    ):
        with pytest.raises(InvalidCost) as caught:
            call(wrong)
        for trace in ("123456", "3"):
            assert trace not in str(caught.value).replace("float64", "")


def test_a_store_shows_no_value(tmp_path):
    """Its file holds the people's values, and the ledger none of them."""
    place = Place(tmp_path / "shop")
    with place.ledger() as ledger:
        store = store_of(ledger, place.folder)
        mask = store.reserve(["a", "b", "c"], lambda _: np.array([CANARY_COST, 2, 0.5]))
        assert repr(mask) == "<PrivateMask: withheld>"
        contents = store._read(ledger.find_payer(store._charge).store)
        assert repr(contents).startswith("<dpflow.people.store._People object")
        first = bytes(contents.tally.to_store()[:8])
    assert first in place.people.read_bytes()
    assert first[2:7] not in place.file.read_bytes()
