"""Whose rows are whose: names of every type, distinguished as their library does.

One person's rows must not push out another's, whatever names them; and no name may make
the bound raise, for an error would tell of it.
"""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpflow import Clip, Contributions
from dpflow.bounding import tables

pytestmark = pytest.mark.quick

#: The hour that clocks in Berlin repeat, in UTC: 00:30 and 01:30.
AUTUMN = [int(datetime(2026, 10, 25, h, 30, tzinfo=UTC).timestamp()) for h in (0, 1)]
#: Milliseconds that were read as microseconds.
FAR = 4_611_686_018_427_387_904 // 1000


def in_berlin(unit, factor):
    """Return both instants of the repeated hour, and another."""
    numbers = [each * factor for each in (*AUTUMN, AUTUMN[0] + 7200)]
    column = pl.Series(numbers, dtype=pl.Datetime(unit))
    return column.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")


#: Names of three people, of each type that polars has.
PEOPLE: dict[str, pl.Series] = {
    "datetime[ns]": pl.Series([1, 2, 3], dtype=pl.Datetime("ns")),
    "duration[ns]": pl.Series([1, 2, 3], dtype=pl.Duration("ns")),
    "time": pl.Series([1, 2, 3], dtype=pl.Int64).cast(pl.Time),
    "datetime[us, Berlin]": in_berlin("us", 10**6),
    "datetime[ms, Berlin]": in_berlin("ms", 10**3),
    "date": pl.Series([1, 2, 3], dtype=pl.Int32).cast(pl.Date),
    "far datetime": pl.Series([FAR, FAR + 1, 0], dtype=pl.Datetime("ms")),
    "far date": pl.Series([2**30, 2**30 + 1, 0], dtype=pl.Int32).cast(pl.Date),
    "float": pl.Series([0.1, 0.1 + 2**-56, -7.0]),
    "integer": pl.Series([2**63 - 1, 2**63 - 2, 0]),
    "wide integer": pl.Series([2**100, 2**100 + 1, 0], dtype=pl.Int128),
    "decimal": pl.Series(["1.0", "1.1", "0.0"]).cast(pl.Decimal(30, 20)),
    "string": pl.Series(["a", "a ", "A"]),
    "categorical": pl.Series(["a", "b", "c"], dtype=pl.Categorical),
    "enum": pl.Series(["c", "b", "a"], dtype=pl.Enum(["a", "b", "c"])),
    "binary": pl.Series([b"a", b"b", b"\x00"]),
}


def limits(**options):
    """Return bounds of one row a person."""
    options = {"unit": ("person",), "max_rows": 1, **options}
    return Contributions(
        relation="add-or-remove", clip={"amount": Clip(-100, 100)}, **options
    )


def table(people, rows):
    """Return rows of (person, group, amount) with these names for people."""
    places = pl.Series([row[0] for row in rows], dtype=pl.UInt32)
    return pl.DataFrame(
        {
            "person": people.gather(places),
            "group": pl.Series([row[1] for row in rows], dtype=pl.String),
            "amount": pl.Series([row[2] for row in rows], dtype=pl.Int64),
        }
    )


def moved(bounds, first, second):
    """Say whether two neighbours differ by more than is claimed, in L1."""
    one, other = bounds.bound(first), bounds.bound(second)
    total = abs(one["amount"].sum() - other["amount"].sum())
    counts = [
        abs((one["group"] == name).sum() - (other["group"] == name).sum())
        for name in "xy"
    ]
    return total > bounds.sum("amount") or sum(counts) > bounds.count(by=("group",))


def excesses(people, seed, number=12):
    """Count random neighbours that differ by more than is claimed."""
    chance, count = random.Random(seed), 0
    for _ in range(number):
        rows = [
            (chance.choice([0, 1, 2, None]), chance.choice("xy"), amount)
            for amount in chance.sample([100, -100, 100, -100, 3, 0], k=5)
        ]
        choice = chance.choice([{}, {"order_by": ("group",)}, {"seed": None}])
        grouped = {"by": ("group",), "max_rows_per_group": 1}
        bounds = limits(**choice, **chance.choice([{}, grouped]))
        for person in range(3):
            rest = [row for row in rows if row[0] != person]
            count += moved(bounds, table(people, rows), table(people, rest))
    return count


@pytest.mark.parametrize("kind", PEOPLE)
def test_no_person_moves_anothers_rows(kind):
    """Random neighbours differ by what is claimed, whatever people are named by."""
    assert excesses(PEOPLE[kind], seed=1) == 0


FIRST = tables._first
#: Types of which Python takes some values for one person.
CONFUSED = [kind for kind in PEOPLE if "[ns]" in kind or "Berlin" in kind] + ["time"]


def by_python_objects(table_, whose, *rest):
    """The negative control: tell people apart as Python does."""
    known: dict[Any, int] = {}
    codes = [known.setdefault(x, len(known)) for x in table_["person"].to_list()]
    python = nw.new_series("python", codes, backend="polars")
    return FIRST(table_.with_columns(python), ["python", *whose[1:]], *rest)


@pytest.mark.parametrize("kind", CONFUSED)
def test_a_numbering_of_python_objects_is_caught(kind, monkeypatch):
    """The same neighbours notice that two people are taken for one."""
    monkeypatch.setattr(tables, "_first", by_python_objects)
    assert excesses(PEOPLE[kind], seed=1) > 0


@pytest.mark.parametrize("choice", [{}, {"seed": None}])
def test_a_strange_entry_raises_nothing(choice):
    """Without a hash, or a date that Python has not; others keep what they keep."""
    people: list[object] = ["ann", "bob", "ann", 1, None]
    for entry, place in itertools.product(([1], np.arange(3)), ("person", "group")):
        plain = {"person": people, "group": ["x"] * 5, "amount": [1, 2, 3, 4, 5]}
        longer = {"person": [*people, "cem"], "group": ["x"] * 6}
        longer["amount"] = [1, 2, 3, 4, 5, 6]
        longer[place] = [*plain[place], entry]
        objects = {
            name: pd.Series(part, dtype=None if name == "amount" else object)
            for name, part in longer.items()
        }
        bounds = limits(by=("group",), max_rows_per_group=1, **choice)
        kept = bounds.bound(pd.DataFrame(plain))["amount"].tolist()
        expected = kept if place == "person" else [*kept, 6]
        assert bounds.bound(pd.DataFrame(objects))["amount"].tolist() == expected
    numbers = np.array([FAR, 5, FAR], "datetime64[ms]")
    for zone in (None, "UTC"):
        column = pd.Series(pd.DatetimeIndex(numbers).as_unit("ms").tz_localize(zone))
        frame = pd.DataFrame({"person": column, "amount": [1, 1, 1]})
        assert len(limits(**choice).bound(frame)) == 2
    far = pl.DataFrame({"amount": [1, 1, 1], "person": ["a", "b", "a"]})
    grouped = limits(by=("at",), max_rows_per_group=1, **choice)
    assert grouped.bound(far.with_columns(at=pl.Series(numbers))).height == 2
