"""Quantiles by the exponential mechanism: its exact law against its price."""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pandas as pd
import pytest

from dpflow import ExponentialMechanism, Repeated, guarded
from dpflow.exceptions import ReleaseError
from dpflow.mechanisms import private_bounds
from dpflow.mechanisms.bounds import numbers_of, rates
from dpflow.rounding import to_fraction

CUTS = [1.0, 2.0, 3.0]
POINTS = (0.0, 1.5, 2.5, 9.0)
EPSILON = Fraction(1)


@cache
def law(numbers, share, relation, *, max_rows=1, epsilon=EPSILON):
    """Return the exact probability of each cut, to 50 digits."""
    shunned = rates(np.array(numbers), CUTS, share, epsilon, max_rows, relation)
    with mpmath.workdps(50):
        weights = [
            mpmath.exp(-mpmath.mpf(r.numerator) / r.denominator) for r in shunned
        ]
        whole = mpmath.fsum(weights)
        return [weight / whole for weight in weights]


def neighbours(relation, max_rows):
    """Yield all pairs of small data sets that differ in one person's numbers."""
    for size in range(4):
        for others in itertools.combinations_with_replacement(POINTS, size):
            for own in itertools.combinations_with_replacement(POINTS, max_rows):
                if relation == "add-or-remove":
                    yield others, others + own
                    continue
                for new in itertools.product(POINTS, repeat=max_rows):
                    yield others + own, others + new


def losses(one, other):
    """Return the loss of every output, within 1e-45."""
    with mpmath.workdps(50):
        return [to_fraction(mpmath.log(p / q)) for p, q in zip(one, other, strict=True)]


def worst(relation, share, *, max_rows=1, told=None, epsilon=EPSILON):
    """Return the largest loss, and the largest range of one, over all neighbours."""
    told = max_rows if told is None else told
    found = [
        losses(
            law(a, share, relation, max_rows=told, epsilon=epsilon),
            law(b, share, relation, max_rows=told, epsilon=epsilon),
        )
        for a, b in neighbours(relation, max_rows)
    ]
    return (
        max(max(map(abs, each)) for each in found),
        max(max(each) - min(each) for each in found),
    )


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("share", ["1/2", "9/10", "1/4"])
@pytest.mark.parametrize("max_rows", [1, 2])
def test_no_pair_loses_more_than_its_price(relation, share, max_rows):
    """Neither the loss nor its range, which is what the cost declares; it is met."""
    loss, span = worst(relation, Fraction(share), max_rows=max_rows)
    assert loss <= EPSILON
    assert Fraction(1, 2) <= span <= EPSILON + Fraction(1, 10**40)


def test_a_person_of_more_numbers_than_said_is_caught():
    """The same search finds what is wrong: two numbers at the price of one."""
    assert worst("add-or-remove", Fraction(1, 2), max_rows=2, told=1)[1] > EPSILON


def test_a_replaced_person_at_the_price_of_an_added_one_is_caught():
    """The scale of add-or-remove does not do for pairs of replace-one."""
    share = Fraction(1, 2)
    found = [
        losses(law(a, share, "add-or-remove"), law(b, share, "add-or-remove"))
        for a, b in neighbours("replace-one", 1)
    ]
    assert max(max(each) - min(each) for each in found) > EPSILON


def test_what_is_no_number_counts_as_zero():
    """As it does when it is clipped; infinities stay, and nothing raises."""
    odd = [1, None, "private", float("nan"), float("inf"), 10**400, pd.NA]
    assert numbers_of(odd).tolist() == [1, 0, 0, 0, np.inf, np.inf, 0]
    assert numbers_of(pd.Series([1, None], dtype="Int64")).tolist() == [1, 0]


POLICY = """
dataset: orders
unit: customer
relation: add-or-remove
budget: {epsilon: 1}
errors: keep
filter: basic
"""


def test_a_step_releases_its_bounds_once(dpflow_ledger):
    """Its price is the declared one; a second call replays; another cost is refused."""
    dpflow_ledger.use(POLICY)

    @guarded(
        dataset="orders",
        cost=Repeated(ExponentialMechanism(epsilon="0.1"), 2),
        release_key="bounds",
    )
    def bounds():
        return private_bounds([3, 4, 5], [1, 10, 100], ["0.1", "0.9"])

    first = bounds()
    assert bounds() == first
    assert set(first) <= {1, 10, 100}
    assert dpflow_ledger.spent("orders")["epsilon"] == "0.2"

    @guarded(dataset="orders", cost=ExponentialMechanism(epsilon="0.1"))
    def cheaper():
        return private_bounds([3, 4, 5], [1, 10, 100], ["0.1", "0.9"])

    with pytest.raises(ReleaseError, match=r"Repeated\(ExponentialMechanism"):
        cheaper()
