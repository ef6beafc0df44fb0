"""Which of a person's rows are kept: what the choice promises, and what it biases."""

from __future__ import annotations

import random

import pandas as pd
import polars as pl
import pytest

from dpflow import Contributions

pytestmark = pytest.mark.quick

DAYS = 7
BUSY = 24
#: What the default choice kept of two people in another process, by an early version.
KEPT = [0, 6, 7, 0, 4, 6]


def limits(rows=5, **choice):
    """Return bounds that only count."""
    choice |= {"unit": ("person",), "relation": "add-or-remove", "objects": "text"}
    return Contributions(max_rows=rows, **choice)


def week(people=400, seed=3):
    """Return a week's rows in the order of time, of people with up to 24 of them."""
    chance = random.Random(seed)
    rows = [
        (day, f"p{person}")
        for person in range(people)
        for day in (chance.randrange(DAYS) for _ in range(chance.randint(1, BUSY)))
    ]
    return pd.DataFrame(sorted(rows), columns=["day", "person"])


def skew(frame, bounds):
    """Return the largest error of a day's share of the rows, relatively."""
    kept = bounds.bound(frame)
    shares = [
        (each["day"].value_counts() / len(each)).sort_index() for each in (frame, kept)
    ]
    return float(((shares[1] - shares[0]) / shares[0]).abs().max())


def test_the_default_choice_does_not_follow_time():
    """Each day keeps its share, where the first rows would favour the first days."""
    frame = week()
    assert skew(frame, limits()) < 0.1
    assert skew(frame, limits(seed=None)) > 0.5
    assert skew(frame, limits(order_by=("day",))) > 0.5


def test_the_choice_is_the_same_at_every_run():
    """As in an earlier process, in polars, under the default's own name."""
    frame = week(people=30)
    kept = limits().bound(frame)
    named = limits(seed="dpflow").bound(frame)
    assert kept.index.tolist() == named.index.tolist()
    columns = {name: frame[name].to_list() for name in frame.columns}
    polars = limits().bound(pl.DataFrame(columns))
    assert polars["day"].to_list() == kept["day"].tolist()
    rows = []
    for person, dtype in (("ann", object), (7, None)):
        frame = pd.DataFrame({"person": [person] * 9, "n": range(9)}, dtype=dtype)
        rows += limits(3).bound(frame)["n"].tolist()
    assert rows == KEPT
