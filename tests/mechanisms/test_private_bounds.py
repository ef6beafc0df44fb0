"""Quantiles by the exponential mechanism: its exact law against its price."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import cache, partial

import mpmath
import numpy as np
import pandas as pd
import pytest

from dpflow import ExponentialMechanism, Repeated, guarded
from dpflow.mechanisms import private_bounds
from dpflow.mechanisms.bounds import numbers_of, rates
from dpflow.rounding import to_fraction
from tests.mechanisms.projects import fixture_policy

CUTS = [1.0, 2.0, 3.0]
POINTS = (0.0, 1.5, 2.5, 9.0)
EPSILON = Fraction(1)


@cache
def law(numbers, share, relation, *, max_rows=1):
    """Return the exact probability of each cut, to 50 digits."""
    shunned = rates(np.array(numbers), CUTS, share, EPSILON, max_rows, relation)
    with mpmath.workdps(50):
        weights = [
            mpmath.exp(-mpmath.mpf(r.numerator) / r.denominator) for r in shunned
        ]
        whole = mpmath.fsum(weights)
        return [weight / whole for weight in weights]


def neighbours(relation, max_rows):
    """Yield all pairs of small data sets that differ in one person's numbers."""
    some = partial(itertools.combinations_with_replacement, POINTS)
    for size in range(4):
        for others, own in itertools.product(some(size), some(max_rows)):
            if relation == "add-or-remove":
                yield others, others + own
                continue
            for new in itertools.product(POINTS, repeat=max_rows):
                yield others + own, others + new


def losses(one, other):
    """Return the loss of every output, within 1e-45."""
    with mpmath.workdps(50):
        return [to_fraction(mpmath.log(p / q)) for p, q in zip(one, other, strict=True)]


def worst(relation, share, *, max_rows=1, declared=None, scale=None):
    """Return the largest loss, and the largest range of one, over all neighbours."""
    words = {"max_rows": declared or max_rows}
    laws = [
        [law(numbers, share, scale or relation, **words) for numbers in pair]
        for pair in neighbours(relation, max_rows)
    ]
    results = [losses(*pair) for pair in laws]
    return (
        max(max(map(abs, each)) for each in results),
        max(max(each) - min(each) for each in results),
    )


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize(("share", "max_rows"), [("1/2", 1), ("9/10", 1), ("1/4", 2)])
def test_no_pair_loses_more_than_its_price(relation, share, max_rows):
    """Neither the loss nor its range, which is what the cost declares; it is met."""
    loss, span = worst(relation, Fraction(share), max_rows=max_rows)
    assert loss <= EPSILON
    assert Fraction(1, 2) <= span <= EPSILON + Fraction(1, 10**40)


def test_wrong_scales_are_caught():
    """Two numbers at the price of one; a replaced person at that of an added one."""
    half = Fraction(1, 2)
    assert worst("add-or-remove", half, max_rows=2, declared=1)[1] > EPSILON
    assert worst("replace-one", half, scale="add-or-remove")[1] > EPSILON


def test_what_is_no_number_counts_as_zero():
    """As it does when it is clipped; what is beyond all floats is the largest one."""
    odd = [1, None, "private", float("nan"), float("inf"), 10**400, pd.NA]
    largest = np.finfo(float).max
    assert numbers_of(odd).tolist() == [1, 0, 0, 0, largest, largest, 0]
    assert numbers_of(pd.Series([1, None], dtype="Int64")).tolist() == [1, 0]


def test_a_step_releases_its_bounds_once(dpflow_ledger):
    """Its price is the declared one; a second call replays."""
    dpflow_ledger.use(fixture_policy())
    cost = Repeated(ExponentialMechanism(epsilon="0.1"), 2)
    bounds = lambda: private_bounds([3, 4, 5], [1, 10, 100], ["0.1", "0.9"])
    step = guarded(dataset="orders", cost=cost, release_key="bounds")(bounds)
    first = step()
    assert step() == first
    assert set(first) <= {1, 10, 100}
    assert dpflow_ledger.spent("orders")["epsilon"] == "0.2"
