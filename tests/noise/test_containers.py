"""Noise for lists, arrays and tables: each number its own, and each kind comes back."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpflow import Gaussian, Laplace, Refined
from dpflow.noise import draws as noise
from dpflow.noise import refining
from dpflow.noise.draws import draw

QUIET = Laplace(sensitivity=1, scale="1e-6")
SECRET = 731_954_286


class Row(NamedTuple):
    """A row as a driver names its columns."""

    n: int
    total: Decimal


@pytest.mark.parametrize("dtype", ["i1", "u8", ">i4", "f2", ">f8"])
def test_arrays(dtype):
    """Arrays keep shape and order; ints become int64, floats keep their width."""
    for shape in ((), (6,), (1, 2, 3)):
        array = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
        noisy = draw(QUIET, array)
        kind = array.dtype.newbyteorder("=") if "f" in dtype else np.dtype("int64")
        assert (type(noisy), noisy.dtype, noisy.shape) == (np.ndarray, kind, shape)
        assert np.allclose(array, noisy, atol=1e-3)


def test_ints_that_leave_int64():
    """Noise beyond int64 is held at its ends and never wraps around."""
    cost = Gaussian(sensitivity="1e15", noise_multiplier="1e9")
    noisy = draw(cost, np.zeros(50, dtype=np.int64))
    assert noisy.min() == -(2**63) + 1024
    assert noisy.max() == 2**63 - 1024
    assert any(abs(number) > 2**63 for number in draw(cost, [0] * 50))


WEEKS = pd.date_range("2026-03-01", periods=3)
TABLES: list[Any] = [
    pd.DataFrame({"k": ["a", "b", "a"], "n": [1, 2, 3], "v": [0.5, 1, 2]}, index=WEEKS),
    pd.DataFrame([[1, 2.5], [3, 4]], columns=["n", "n"]),
    pd.DataFrame(
        {"k": pd.Series(["a", "b"], dtype="category"), "at": WEEKS[:2], "n": 1}
    ),
    pl.DataFrame({"k": ["a", "b"], "n": [1, 2], "v": [0.5, 1.5], "at": [WEEKS[0]] * 2}),
]


def rows(table):
    """Return the rows of a table."""
    is_pandas = isinstance(table, pd.DataFrame)
    return list(table.itertuples()) if is_pandas else table.rows()


@pytest.mark.parametrize("table", TABLES, ids=lambda t: type(t).__module__[:6])
def test_a_frame_keeps_its_labels(table, monkeypatch):
    """One draw, over the numeric columns one after the other."""
    drawn: list[list[Any]] = []

    def one_more(_, __, numbers):
        drawn.append(numbers)
        return [number + 1.25 for number in numbers]

    monkeypatch.setattr(noise, "_noisy", one_more)
    before = table.copy() if isinstance(table, pd.DataFrame) else table.clone()
    noisy = draw(Gaussian(sensitivity=1, sigma=3), table)
    assert len(drawn) == 1
    assert type(noisy) is type(table)
    assert [*noisy.columns] == [*table.columns]
    assert [*map(str, noisy.dtypes)] == [*map(str, table.dtypes)]
    assert table.equals(before)
    moved = 0
    for new, old in zip(rows(noisy), rows(table), strict=True):
        for after, number in zip(new, old, strict=True):
            if after != number:
                assert after - number in (1, 1.25)
                moved += 1
    assert moved == len(drawn[0]) > 0


SERIES = pd.Series([3, 4], index=pd.Index(["a", "b"], name="key"), name="n")
#: Types of pandas columns, and what they become.
WIDTHS = {
    **{kind: kind for kind in ("int64", "float64", "float32", "Int64", "Float32")},
    "UInt8": "Int64",
    "int8[pyarrow]": "int64[pyarrow]",
    "double[pyarrow]": "double[pyarrow]",
}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        *((kind(5), 5) for kind in (int, np.int8, np.int64, np.uint16)),
        *((kind(5.5), 5.5) for kind in (float, np.float64, np.float32, np.float16)),
        ([1, 2, np.int16(3)], [1, 2, 3]),
        ({"a": 1, "b": 2.5}, {"a": 1.0, "b": 2.5}),
        *((SERIES.astype(a), SERIES.astype(b)) for a, b in WIDTHS.items()),
        *(
            (SERIES.astype(a).to_frame(), SERIES.astype(b).to_frame())
            for a, b in WIDTHS.items()
        ),
        (pl.Series("n", [1, 2], dtype=pl.UInt8), pl.Series("n", [1, 2])),
        (pl.Series("v", [0.5], dtype=pl.Float32),) * 2,
        (Decimal(1234), 1234),
        # By its places: which sums happen to be whole says something of the data.
        (Decimal("12.00"), 12.0),
        ((Decimal(5), 7), (5, 7)),
        ([(1, 2), (3, 4.5)], [(1.0, 2.0), (3.0, 4.5)]),
        (Row(3, Decimal(4)), (3, 4)),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1, a=Decimal(2)), {"b": 1, "a": 2}),
        (np.array([True, False]), np.array([1, 0])),
        (pd.Series([True, False], dtype="boolean"), pd.Series([1, 0], dtype="Int64")),
        (pl.Series("n", [True, False]), pl.Series("n", [1, 0])),
        (pl.DataFrame({"n": [True, False]}), pl.DataFrame({"n": [1, 0]})),
        (pl.Series([Decimal(3)], dtype=pl.Decimal(9, 0)), pl.Series([3])),
        (pl.Series([Decimal(3)], dtype=pl.Decimal(9, 2)), pl.Series([3.0])),
        (pa.table({"n": [True, False]}), pa.table({"n": [1, 0]})),
        (pa.array([3, 4], pa.int8()), pa.array([3, 4])),
        (pa.table({"n": [3], "week": ["a"], "m": [0.5]}),) * 2,
    ],
    ids=lambda value: repr(value)[:30].replace("\n", " "),
)
def test_what_databases_return_has_one_meaning(value, kept, monkeypatch):
    """Each comes back as numbers of one kind, with its places and names."""
    monkeypatch.setattr(noise, "_noisy", lambda *parts: parts[-1])
    noisy = draw(Gaussian(sensitivity=1, noise_multiplier=1), value)
    assert type(noisy) is type(kept)
    texts = [re.sub(r"0x\w+", "", repr(value)) for value in (noisy, kept)]
    assert texts[0] == texts[1]
    assert str(getattr(noisy, "dtypes", "")) == str(getattr(kept, "dtypes", ""))


NEAR, FAR = Decimal("0.7"), Decimal("0.8")
SMALL = [
    Laplace(sensitivity="0.1", scale="0.1"),
    Gaussian(sensitivity="0.1", sigma="0.1"),
]


@pytest.mark.parametrize("cost", SMALL)
def test_decimals_are_as_far_apart_as_declared(cost, monkeypatch):
    """Neighbours differ by at most the sensitivity as drawn; floats are the control."""
    seen = []

    def keep(_, scale, numbers):
        seen.extend((Fraction(number), Fraction(scale)) for number in numbers)
        return numbers

    monkeypatch.setattr(noise, "_noisy", keep)
    for container, exact in (
        (lambda number: number, True),
        (lambda number: [number, Decimal(0)], True),
        (lambda number: (0, number), True),
        (lambda number: {"a": number}, True),
        (lambda number: pl.Series([number], dtype=pl.Decimal(9, 2)), True),
        (float, False),
    ):
        drawn = []
        for number in (NEAR, FAR):
            seen.clear()
            draw(cost, container(number))
            drawn.append(sum(value / scale for value, scale in seen))
        assert (drawn[1] - drawn[0] <= 1) == exact


@pytest.mark.parametrize("cost", SMALL)
def test_refining_begins_at_the_exact_decimal(cost, monkeypatch):
    """Both kinds of refined noise are added to 0.7, not to the nearest float."""
    seen = []
    for name in ("laplace_numbers", "gaussian_numbers"):
        monkeypatch.setattr(
            refining, name, lambda _, number, __: seen.append(number) or iter(())
        )
    refined = Refined(cost, coarsest=4)
    refining.refinement(refined, NEAR, within=1, until=None, confidence="95%")
    assert seen in ([Fraction(7, 10)], [[700_000]])


def test_metadata_does_not_pass():
    """What rides along with the numbers is neither noised nor public."""
    cost = Gaussian(sensitivity=1, noise_multiplier=1)
    frame = pd.DataFrame({"n": [1], "week": ["a"]})
    frame.attrs = {"raw": [SECRET]}
    assert draw(cost, frame).attrs == draw(cost, frame["n"]).attrs == {}
    assert frame.attrs == {"raw": [SECRET]}
    fields = [
        pa.field(name, kind, metadata={"raw": str(SECRET)})
        for name, kind in (("n", pa.int64()), ("week", pa.string()))
    ]
    schema = pa.schema(fields, metadata={"raw": str(SECRET)})
    assert str(SECRET) in str(schema)
    table = pa.table({"n": [1], "week": ["a"]}, schema=schema)
    assert str(SECRET) not in str(draw(cost, table).schema)
    array = np.zeros(1, np.dtype("f8", metadata={"raw": SECRET}))
    assert draw(cost, array).dtype.metadata is None
