"""Whose rows are whose: names of every type, distinguished as their library does.

One person's rows must not push out another's, whatever names them; and no name may make
the bound raise, for an error would tell of it.
"""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any
from uuid import UUID

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpflow import Clip, Contributions
from dpflow.bounding import tables
from dpflow.exceptions import ContributionsError
from tests.sizes import scaled, spread

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
    one = {"unit": ("person",), "max_rows": 1, "relation": "add-or-remove"}
    return Contributions(**{**one, "clip": {"amount": Clip(-100, 100)}, **options})


def table(people, rows):
    """Return rows of (person, group, amount) with these names for people."""
    types = {"person": pl.UInt32, "group": pl.String, "amount": pl.Int64}
    frame = pl.DataFrame(rows, types, orient="row")
    return frame.with_columns(people.gather(frame["person"]).alias("person"))


def moved(bounds, one, other):
    """Say whether bounded neighbours differ by more than is claimed, in L1."""
    total = abs(one["amount"].sum() - other["amount"].sum())
    count = lambda frame, name: (frame["group"] == name).sum()
    groups = sum(abs(count(one, name) - count(other, name)) for name in "xy")
    return total > bounds.sum("amount") or groups > bounds.count(by=("group",))


def excesses(people, seed):
    """Count random neighbours that differ by more than is claimed."""
    chance, count = random.Random(seed), 0
    for _ in range(scaled(12, push=4)):
        rows = [
            (chance.choice([0, 1, 2, None]), chance.choice("xy"), amount)
            for amount in chance.sample([100, -100, 100, -100, 3, 0], k=5)
        ]
        choice = chance.choice([{}, {"order_by": ("group",)}, {"seed": None}])
        grouped = {"by": ("group",), "max_rows_per_group": 1}
        bounds = limits(**choice, **chance.choice([{}, grouped]))
        bound = bounds.bound(table(people, rows))
        for person in range(3):
            rest = [row for row in rows if row[0] != person]
            count += moved(bounds, bound, bounds.bound(table(people, rest)))
    return count


@pytest.mark.parametrize("kind", PEOPLE)
def test_no_person_moves_anothers_rows(kind):
    """Random neighbours differ by what is claimed, whatever people are named by."""
    assert excesses(PEOPLE[kind], seed=1) == 0


#: Types of which Python takes some values for one person.
CONFUSED = [kind for kind in PEOPLE if "[ns]" in kind or "Berlin" in kind] + ["time"]
HEADS = tables._heads


def by_python_objects(table_, names):
    """The negative control: tell people apart as Python does."""
    known: dict[Any, int] = {}
    codes = [known.setdefault(x, len(known)) for x in table_["person"].to_list()]
    python = nw.new_series("python", codes, backend="polars")
    return HEADS(table_.with_columns(python), ["python", *names[1:]])


@pytest.mark.parametrize("kind", CONFUSED)
def test_a_numbering_of_python_objects_is_caught(kind, monkeypatch):
    """The same neighbours notice that two people are taken for one."""
    monkeypatch.setattr(tables, "_heads", by_python_objects)
    assert excesses(PEOPLE[kind], seed=1) > 0


class Strange:
    """An entry of which every question raises."""

    def _raise(self, *_):
        raise RuntimeError

    __class__ = property(_raise)
    __hash__ = __eq__ = __lt__ = __bool__ = __repr__ = __float__ = _raise


class StrangeText(str):
    """A text that cannot be compared."""

    __slots__ = ()
    __hash__ = None
    __eq__ = __lt__ = __repr__ = __str__ = Strange._raise


class StrangeNumber(Fraction):
    """A number that is no float."""

    __float__ = Strange._raise


NAMES = {
    "text": ["ann", "bob"],
    "bytes": [b"ann", b"bob"],
    "uuid": [UUID(int=7), UUID(int=2**127)],
    "date": [date(2026, 3, 1), date.max],
    "decimal": [Decimal("1.10"), Decimal("-1E+400000")],
}
#: Entries that are of none of these types, have no hash, no order, or no value.
ENTRIES = [
    *(None, pd.NA, pd.NaT, float("nan"), [1], {}, np.arange(3), 1, 2.5, 1j, "\ud83d"),
    *(datetime(2026, 3, 1, tzinfo=UTC), Decimal("NaN"), Decimal("sNaN"), Strange()),
    object(),
]
CHOICES = [{}, {"seed": None}, {"order_by": ("at",)}]


def of_objects(people, groups, places):
    """Return a frame whose people, groups and places are objects."""
    columns = {"person": people, "group": groups, "at": places}
    frame = pd.DataFrame({k: pd.Series(v, dtype=object) for k, v in columns.items()})
    return frame.assign(amount=range(len(frame)))


# At each push every name and every choice, in the campaign all pairs.
@pytest.mark.parametrize(("word", "choice"), spread(product(NAMES, CHOICES), 8))
def test_a_strange_entry_names_nothing_and_raises_nothing(word, choice):
    """Others keep what they keep; entries of another type are no person."""
    ann, bob = NAMES[word]
    people, entries = [ann, bob, ann, ann], [*ENTRIES]
    entries += [each for other, (each, _) in NAMES.items() if other != word]
    bounds = limits(by=("group",), max_rows_per_group=1, objects=word, **choice)
    alone = bounds.bound(of_objects(people, people, people))
    assert len(alone) == 2
    size = len(entries)
    for columns in (
        (entries, [ann] * size, [ann] * size),
        ([bob] * size, entries, [ann] * size),
        ([bob] * size, [ann] * size, entries),
    ):
        pairs = zip((people,) * 3, columns, strict=True)
        kept = bounds.bound(of_objects(*([*a, *b] for a, b in pairs)))
        others = kept[[person is ann for person in kept["person"]]]
        assert others["amount"].tolist() == [
            a for a, p in zip(alone["amount"], alone["person"], strict=True) if p is ann
        ]
        assert len(kept) == 2
    assert len(bounds.bound(of_objects(entries, entries, entries))) == 0


def test_equal_objects_are_one_person():
    """Whatever their digits, or a class of a driver."""
    text, number = StrangeText("ann"), Decimal("1.1")
    for word, people in (
        ("text", ["ann", text, np.str_("ann")]),
        ("decimal", [number, Decimal("1.10"), Decimal("1.100")]),
        ("decimal", [Decimal(0), Decimal("-0.0"), Decimal("0E+9")]),
        ("uuid", [UUID(int=7), type("Driver", (UUID,), {})(int=7)]),
        ("date", [date(2026, 3, 1), type("Day", (date,), {})(2026, 3, 1)]),
        ("bytes", [b"ann", type("Id", (bytes,), {})(b"ann")]),
    ):
        frame = of_objects(people, people, people)
        for choice in CHOICES:
            assert len(limits(objects=word, **choice).bound(frame)) == 1
    strange = [Strange(), StrangeNumber(7), [1], Decimal("sNaN"), 7]
    bounds = limits(unit=("at",), clip={"amount": Clip(0, 9, objects="decimal")})
    frame = pd.DataFrame({"at": range(5), "amount": pd.Series(strange, dtype=object)})
    assert bounds.bound(frame)["amount"].tolist() == [0, 0, 0, 0, 7]


def test_a_column_of_objects_is_refused_by_its_dtype_alone():
    """Whatever its rows hold, none included; a declared column of another is read."""
    roles = {"person": {"unit": ("person",)}, "at": {"order_by": ("at",)}}
    roles["group"] = {"by": ("group",), "max_rows_per_group": 1}
    refused = r'type object; .*objects="text"'
    for people in ([], [None], ["ann"], [7], [["a"], ["b"]]):
        frame = of_objects(people, ["x"] * len(people), [1] * len(people))
        for name, role in roles.items():
            words = {"unit": ("amount",), "clip": {}, "seed": None, **role}
            with pytest.raises(ContributionsError, match=refused):
                limits(**words).bound(frame)
            assert limits(**words, objects={name: "text"}).bound(frame) is not None
    for person in (pd.Series([1, 1]), pd.Series(["a", "a"], dtype="string")):
        frame = pd.DataFrame({"person": person, "amount": [1, 2]})
        assert len(limits(objects="uuid").bound(frame)) == 1
    category = pd.Series([1, "a"], dtype=object).astype("category")
    with pytest.raises(ContributionsError, match="type object"):
        limits().bound(pd.DataFrame({"person": category, "amount": [1, 2]}))


def in_arrow(array):
    """Return a series with the type of an array of Arrow."""
    return pd.Series(pd.arrays.ArrowExtensionArray(array))


#: Names of people of dtypes that pandas has and polars has not.
INT32 = pa.int32()
DTYPES: dict[str, Any] = {
    "far date": in_arrow(pa.array([2**30, 5, None], INT32).view("date32")),
    "time": in_arrow(pa.array([1, 5, None], INT32).view("time32[s]")),
    "decimal": in_arrow(pa.array([Decimal("1.1"), 5, None], pa.decimal128(9, 2))),
    "period": pd.Series(pd.PeriodIndex(["2026-01", "2026-02", None], freq="M")),
    "category": pd.Series(["a", "b", None], dtype="category"),
    "nullable": pd.Series([2**62, 1, None], dtype="Int64"),
    "zone": pd.Series(pd.DatetimeIndex(["2026-01-01", "2026-01-02", None], tz="UTC")),
    "far times": pd.Series(np.array([FAR, 5, "NaT"], "datetime64[ms]")),
}


@pytest.mark.parametrize("choice", [{}, {"seed": None}])
@pytest.mark.parametrize("kind", DTYPES)
def test_every_dtype_of_pandas_names_people(kind, choice):
    """Two people and a row without one."""
    column = DTYPES[kind].take([0, 1, 2, 0, 1]).reset_index(drop=True)
    frame = pd.DataFrame({"person": column, "amount": range(5)})
    choice = {"objects": "text", **choice}
    assert len(limits(**choice).bound(frame)) == 2
    grouped = {"unit": ("amount",), "by": ("person",), "max_rows_per_group": 1}
    bounds = limits(clip={}, **grouped, **choice)
    assert len(bounds.bound(frame)) == 5


COLUMNS = ["person", "group", "at", "amount"]


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", [pl.Int128, pl.UInt128])
def test_wide_integers_are_bounded_or_refused_by_their_dtype(kind, column):
    """In each place, eager and lazy, whatever the rows hold."""
    bounds = limits(order_by=("at",), by=("group",), max_rows_per_group=1)
    for values in ([], [None, 0], [2**127 - 1, 2**100], [0, None]):
        numbers = pl.Series([0] * len(values), dtype=pl.Int64)
        frame = pl.DataFrame(dict.fromkeys(COLUMNS, numbers))
        frame = frame.with_columns(pl.Series(column, values, dtype=kind))
        for bound in (bounds.bound(frame), bounds.bound(frame.lazy()).collect()):
            assert bound.schema["amount"] == pl.Int64


def test_an_early_polars_is_refused(monkeypatch):
    """Eager and lazy, whatever the columns are."""
    frame = pl.DataFrame({"person": [1], "amount": [1]})
    bounds = limits(order_by=("person",))
    for version in ("1.33.0", "2.0.0rc1"):
        monkeypatch.setattr(pl, "__version__", version)
        assert len(bounds.bound(frame)) == 1
    for version in ("1.32.3", "0.20.31"):
        monkeypatch.setattr(pl, "__version__", version)
        for table in (frame, frame.lazy()):
            with pytest.raises(ContributionsError, match=r"polars 1\.33 or newer"):
                bounds.bound(table)


LIBRARIES = {
    "pandas": lambda frame: frame,
    "arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "polars": pl.from_pandas,
    "category": lambda frame: frame.astype({"group": pd.CategoricalDtype([*"xyz"])}),
}


def shape(frame):
    """Return everything of a bounded frame but its rows."""
    if isinstance(frame, pl.DataFrame):
        return frame.schema
    return list(frame.dtypes.items()), type(frame.index), frame.index.dtype


@pytest.mark.parametrize(("choice", "library"), spread(product(CHOICES, LIBRARIES), 6))
def test_nothing_but_kept_rows_depends_on_rows(library, choice):
    """Dtypes, the index and the order of others' rows are those without a person."""
    rows = {
        "note": ["a", "b", "c", "d", "e", "f"],
        "person": ["cem", "ann", None, "cem", "ann", "bob"],
        "group": ["x", "y", "x", "z", "x", "y"],
        "at": [3, 2, 1, 5, 1, 4],
        "amount": [1.5, 2.0, float("nan"), 1e300, 0.0, 7.0],
    }
    every = pd.DataFrame(rows).astype(dict.fromkeys([*rows][:3], "string"))
    bounds = limits(by=("group",), max_rows_per_group=1, objects="text", **choice)
    expected = None
    for people in (["ann", "bob", "cem"], ["ann", "bob"], ["ann", "bob", None], []):
        some = every[every["person"].isin(people)].reset_index(drop=True)
        frame = LIBRARIES[library](some)
        bound = bounds.bound(frame)
        plain = bound.to_pandas() if library == "polars" else bound
        others = plain[plain["person"].isin(["ann", "bob"])]
        expected = expected or (shape(bound), others["note"].tolist())
        assert shape(bound) == expected[0]
        assert list(bound.columns) == [*rows]
        assert others["note"].tolist() == (expected[1] if people else [])
        if library != "polars":
            assert bound.index.tolist() == [*range(len(bound))]
    labels = every.assign(day=pd.date_range("2026-01-01", periods=6)).set_index("day")
    assert set(bounds.bound(labels).index) <= set(labels.index)
