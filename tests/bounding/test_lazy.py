"""Lazy tables: each engine keeps the rows that pandas keeps, of each person alone."""

from __future__ import annotations

import math
import random

import duckdb
import ibis
import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dpflow import Clip, Contributions
from dpflow.bounding import tables
from dpflow.exceptions import ContributionsError
from tests.sizes import scaled

NAN, INF = float("nan"), float("inf")
#: Halves of the grid, numbers near them, and what overflows or underflows.
AMOUNTS = [None, NAN, INF, -INF, 0.005, 0.015, -0.025, 0.1 + 0.2, 1e308, 5e-324, -9.5]
WHOLES = [2**63 - 1, -(2**63), 2**53 + 1, 0, 1, -7, 4]
TYPES = dict.fromkeys(("person", "group", "at", "note", "amount", "whole"), pl.Float64)
TYPES |= {"at": pl.Int64, "note": pl.String, "whole": pl.Int64}
CLIPS = {"amount": Clip(-2, 3, grid="0.01"), "whole": Clip(-5, 9)}


def limits(rows=2, **options):
    """Return bounds of these tables."""
    options = {"order_by": ("at",), "clip": CLIPS, "objects": "text", **options}
    person = {"unit": ("person",), "relation": "add-or-remove"}
    return Contributions(max_rows=rows, **person, **options)


def by_duckdb(bounds, frame):
    """Bound a relation."""
    with duckdb.connect() as connection:
        connection.register("frame", frame.to_arrow())
        bound = bounds.bound(connection.sql("select * from frame"))
        assert isinstance(bound, duckdb.DuckDBPyRelation)
        return pl.DataFrame(bound.fetchall(), schema=list(TYPES), orient="row")


def by_ibis(bounds, frame):
    """Bound a table of ibis."""
    with duckdb.connect() as connection:
        connection.register("arrow", frame.to_arrow())
        connection.execute("create table frame as select * from arrow")
        table = ibis.duckdb.from_connection(connection).table("frame")
        return pl.DataFrame(bounds.bound(table).to_pyarrow())


ENGINES = {
    "polars": lambda bounds, frame: bounds.bound(frame.lazy()).collect(),
    "duckdb": by_duckdb,
    "ibis": by_ibis,
}


def kept(frame):
    """Return a frame's rows in an order of their own; NaN is missing, as in pandas."""
    rows = frame.rows() if isinstance(frame, pl.DataFrame) else frame.to_numpy()

    def plain(part):
        if part is None or part != part:  # noqa: PLR0124
            return None
        return part if isinstance(part, str) else int(part)

    return sorted(repr([plain(part) for part in row]) for row in rows)


def table(rows):
    """Return a frame in the order of its clipped numbers, which breaks ties."""

    def clipped(row):
        amount = 0 if row[4] is None or math.isnan(row[4]) else row[4]
        return round(min(max(amount / 0.01, -200), 300)), min(max(row[5], -5), 9)

    return pl.DataFrame(sorted(rows, key=clipped), schema=TYPES, orient="row")


def rows_of(hole):
    """Draw rows in which this stands for what is missing."""
    row = st.tuples(
        st.sampled_from([0.0, -0.0, 1.0, 2.0, None, NAN]),
        st.sampled_from([1.0, 2.0, hole]),
        st.sampled_from([3, 1, 2**62, -1, None]),
        st.sampled_from(["", "a", "Z", "ä"]),
        st.sampled_from(AMOUNTS),
        st.sampled_from(WHOLES),
    )
    return st.lists(row, max_size=14)


@given(data=st.data())
@hypothesis_settings(max_examples=scaled(16, push=8), deadline=None)
def test_all_engines_keep_what_pandas_keeps(data):
    """Nulls, NaN, duplicates, huge and tiny numbers, with groups and without."""
    frame = table(data.draw(st.sampled_from([None, NAN]).flatmap(rows_of)))
    per_group = data.draw(st.sampled_from([None, 1, 2]))
    bounds = limits(
        data.draw(st.integers(1, 4)),
        order_by=("at", "note", "group"),
        by=("group",) if per_group else (),
        max_rows_per_group=per_group,
    )
    expected = kept(bounds.bound(frame))
    assert kept(bounds.bound(frame.to_pandas())) == expected
    for name, engine in ENGINES.items():
        assert kept(engine(bounds, frame)) == expected, name


def random_rows(seed, number=24):
    """Return rows with many ties."""
    chance = random.Random(seed)
    return [
        (
            chance.choice([1.0, 2.0, 3.0, None]),
            chance.choice([1.0, NAN, None]),
            chance.choice([1, 2, None]),
            chance.choice("ab"),
            chance.choice(AMOUNTS),
            chance.choice(WHOLES),
        )
        for _ in range(number)
    ]


def moved(engine, bounds, seed):
    """Say whether adding a person, or another order, moves the rows of others."""
    rows = random_rows(seed)
    rest = [row for row in rows if row[0] != 3.0]
    random.Random(seed).shuffle(rest)
    frames = [pl.DataFrame(each, TYPES, orient="row") for each in (rows, rest)]
    results = [engine(bounds, frame) for frame in frames]
    others = [kept(each.filter(pl.col("person") != 3.0)) for each in results]
    most = max(each.group_by("person").len()["len"].max() for each in results)
    return others[0] != others[1] or most > bounds.max_rows


GROUPED = {"by": ("group",), "max_rows_per_group": 2}


@pytest.mark.parametrize("options", [{}, GROUPED], ids=["alone", "grouped"])
@pytest.mark.parametrize("name", ENGINES)
def test_a_person_moves_no_other_rows(name, options):
    """Among any people, in any order: the claimed sensitivity depends on it."""
    for seed in range(scaled(5, push=3)):
        assert not moved(ENGINES[name], limits(3, **options), seed)


FIRST = tables._first
#: Rows ranked among those of other people, and ties in the order in which they lie.
WRONG = [
    lambda table, _, order, *rows: FIRST(table, ["note"], order, *rows),
    lambda table, whose, order, *rows: FIRST(table, whose, order[:1], *rows),
]


@pytest.mark.parametrize("wrong", WRONG, ids=("others", "ties"))
@pytest.mark.parametrize("name", ENGINES)
def test_a_wrong_rank_is_caught(name, wrong, monkeypatch):
    """The test above can fail, in each engine."""
    monkeypatch.setattr(tables, "_first", wrong)
    assert any(moved(ENGINES[name], limits(3), seed) for seed in range(8))


def test_a_table_is_refused_by_its_schema():
    """No row is read for it."""
    for column, options, message in (
        ("1.0", {"order_by": ()}, "random order or hash is not ours"),
        ("1.0", {"order_by": ("when",)}, r"each of these columns once: \['when'\]"),
        ("'1'", {}, "'amount' is of type String; make it a number"),
        ("[1]", {"clip": {}}, "Select the columns that are needed"),
        ("interval 1 month", {"clip": {}}, "Select the columns that are needed"),
    ):
        bounds = limits(**{"clip": {"amount": Clip(0, 1)}, **options})
        with duckdb.connect() as connection:
            rows = connection.sql(f'select 1 as person, 1 as "at", {column} as amount')
            with pytest.raises(ContributionsError, match=message):
                bounds.bound(rows)
