"""What `release` takes and returns: numbers of one kind, in a new container."""

from __future__ import annotations

import datetime as dt
import enum
import pickle
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpflow import DiscreteGaussian, Gaussian, IntEstimate, Laplace, Refined
from dpflow.exceptions import ReleaseError
from dpflow.noise import draws as noise
from dpflow.noise import refining
from dpflow.noise.accuracy import Target
from dpflow.noise.draws import add_noise, draw
from dpflow.noise.returned import numbers_in
from dpflow.noise.shape import read_shape
from dpflow.noise.sources import Stream, drawing
from dpflow.rounding import float_up

pytestmark = pytest.mark.quick

CONTINUOUS = Gaussian(sensitivity=1, sigma=3)
WHOLE = DiscreteGaussian(sensitivity=1, sigma=3)
DAYS = [dt.date(2026, 3, day) for day in (1, 2, 3)]


class Row(NamedTuple):
    """A row as a driver names its columns."""

    week: str
    n: int


class Region(enum.Enum):
    """Labels of a schema."""

    NORTH = "north"


@pytest.fixture
def silent():
    """Add no noise, so that the numbers say where they stand."""
    with drawing(Stream("", silent=True)):
        yield


def table(columns: Any = None, **shape: Any) -> pd.DataFrame:
    """Return an expected frame."""
    return pd.DataFrame(columns, **shape)


FRAME = pd.DataFrame({"week": ["a", "b", "z"], "m": [1, 2, 9], "v": [0.5, None, 9]})
SALES = pd.Series([5, 7], index=pd.Index(["b", "z"], name="week"), name="n")
TWO = FRAME.assign(day=DAYS).set_index(["week", "day"])
WEEKS: dict[str, Any] = {"groups": ["b", "a"]}
NAMED: dict[str, Any] = {"groups": {"week": ["b", "a"]}}
ONE: dict[str, Any] = {"groups": {"week": ["a", "b"]}, "columns": ["v"]}
#: A value, its declaration, and what comes back without noise.
TAKEN: list[tuple[Any, dict[str, Any], Any]] = [
    ([1, 2.5, np.int8(3), Decimal(4)], {"length": 4}, [1.0, 2.5, 3.0, 4.0]),
    ((1, 2), {"length": 2}, (1.0, 2.0)),
    (np.array([[1, 2]], "u1"), {"length": (1, 2)}, np.array([[1.0, 2.0]])),
    (np.array([1, 2], "f2"), {"length": 2}, np.array([1.0, 2.0])),
    (np.array([Decimal(3)], object), {"length": 1}, np.array([3.0])),
    (pd.Series([1, 2], name="n"), {"length": 2}, pd.Series([1.0, 2.0])),
    (pl.Series("n", [Decimal("1.5")]), {"length": 1}, pl.Series([1.5])),
    (pa.array([Decimal("1.5")]), {"length": 1}, pa.array([1.5])),
    ({"a": 1, "z": 5}, WEEKS, {"b": 0.0, "a": 1.0}),
    (OrderedDict(a=None), NAMED, {"b": 0.0, "a": 0.0}),
    (
        {("a", 2): 3},
        {"groups": {"week": ["a", "b"], "n": (1, 2)}},
        {("a", 1): 0.0, ("a", 2): 3.0, ("b", 1): 0.0, ("b", 2): 0.0},
    ),
    ({None: 3, "a": 1}, {"groups": [None, "a"]}, {None: 3.0, "a": 1.0}),
    ({float("nan"): 3}, {"groups": [None]}, {None: 3.0}),
    ({3: 1}, {"groups": range(2, 4)}, {2: 0.0, 3: 1.0}),
    ({Region.NORTH: 1}, {"groups": [Region.NORTH]}, {Region.NORTH: 1.0}),
    ([Row("a", 3), ("z", 5)], WEEKS, [("b", 0.0), ("a", 3.0)]),
    ([["a", 3]], WEEKS, [("b", 0.0), ("a", 3.0)]),
    ((("a", 3),), NAMED, (("b", 0.0), ("a", 3.0))),
    (
        [{"week": "a", "n": 3, "raw": 7}],
        {**NAMED, "columns": ["n", "m"]},
        [{"week": "b", "n": 0.0, "m": 0.0}, {"week": "a", "n": 3.0, "m": 0.0}],
    ),
    (pd.Series({0: 5, 1: 7}), {"groups": [1]}, pd.Series([7.0], pd.Index([1]))),
    # A name that was not declared does not come back.
    (SALES, WEEKS, pd.Series([5.0, 0.0], ["b", "a"])),
    (SALES, NAMED, pd.Series([5.0, 0.0], ["b", "a"]).rename_axis("week")),
    (
        FRAME,
        {**NAMED, "columns": ["v", "m"]},
        table({"week": ["b", "a"], "v": [0.0, 0.5], "m": [2.0, 1.0]}),
    ),
    (
        pd.DataFrame([]),
        {**NAMED, "columns": ["m"]},
        table({"week": ["b", "a"], "m": [0.0, 0.0]}),
    ),
    (
        FRAME[FRAME.m > 1],
        {**WEEKS, "columns": ["m"]},
        table({"group": ["b", "a"], "m": [2.0, 0.0]}),
    ),
    (
        FRAME.set_index("week"),
        {**WEEKS, "columns": ["m", "new"]},
        table({"m": [2.0, 1.0], "new": [0.0, 0.0]}, index=pd.Index(["b", "a"])),
    ),
    (
        TWO,
        {"groups": {"day": DAYS[1:2], "week": ["a", "b"]}, "columns": ["m"]},
        table(
            {"m": [0.0, 2.0]},
            index=pd.MultiIndex.from_product(
                [DAYS[1:2], ["a", "b"]], names=["day", "week"]
            ),
        ),
    ),
    (
        pl.from_pandas(FRAME),
        {**NAMED, "columns": ["m"]},
        pl.DataFrame({"week": ["b", "a"], "m": [2.0, 1.0]}),
    ),
    (
        pa.table({"week": ["a", "z"], "m": [1, None], "n": [True, False]}),
        {**WEEKS, "columns": ["m"]},
        pa.table({"group": ["b", "a"], "m": [0.0, 1.0]}),
    ),
]


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, dtypes and names included."""
    if isinstance(other, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other)
    elif isinstance(other, pd.Series):
        pd.testing.assert_series_equal(one, other)
    elif isinstance(other, np.ndarray):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())
    elif isinstance(other, pl.Series | pl.DataFrame | pa.Array | pa.Table):
        return bool(one.equals(other)) and str(one) == str(other)
    else:
        return type(one) is type(other) and repr(one) == repr(other)
    return True


@dataclass(slots=True)
class Report:
    """What a body returns."""

    title: str
    counts: Any


@pytest.mark.parametrize(
    "counts", [[1.0, 2], (1.0, 2), {"a": 1.0, "b": 2}, np.array([1.0, 2.0])]
)
def test_the_numbers_of_a_returned_value_are_read(counts):
    """Also of a dataclass with slots."""
    assert [*numbers_in([Report("weeks", counts), "text", 3])] == [1, 2, 3]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    TAKEN,
    ids=[f"{type(v).__module__[:6]}-{n}" for n, (v, *_) in enumerate(TAKEN)],
)
def test_a_value_comes_back_as_declared(value, declared, expected):
    """Its groups, columns and length; floats, or ints by `as_int` and integer noise."""
    before = pickle.dumps(value)
    noisy = draw(CONTINUOUS, value, read_shape(**declared))
    assert same(noisy, expected)
    assert pickle.dumps(value) == before
    ints = draw(CONTINUOUS, value, read_shape(**declared), as_int=True)
    assert {type(n) for n in numbers_in(ints)} == {int}


def test_ints_that_leave_int64():
    """Noise beyond int64 is held at its ends and never wraps around."""
    cost = Gaussian(sensitivity="1e15", noise_multiplier="1e9")
    noisy = draw(cost, np.zeros(50, int), read_shape(50), as_int=True)
    assert (noisy.min(), noisy.max()) == (-(2**63) + 1, 2**63 - 1)
    for groups in ({"a": 1e300}, {"a": 0}):
        assert draw(cost, groups, read_shape(groups=["a"]), as_int=True)


SECRET = 731_954_286
FIELD = pa.struct([(f"f{SECRET}", pa.int64())])
NULL = r"COALESCE\(SUM\(x\), 0\)"


def dated(groups: list[Any], text: str, labels: Any = None) -> list[Any]:
    """Return counts of days, with and without rows, whose labels equal no group."""
    labels = pd.date_range("2026-01-01", periods=1) if labels is None else labels
    counts = pd.Series([SECRET], index=labels.rename("day"))
    return [(rows, {"groups": groups}, text) for rows in (counts, counts[:0])]


#: Values that are refused, their declaration, and words of the error.
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    # Undeclared: the line to write.
    *((v, {}, "length=") for v in ([1], (1,), np.ones(2), pl.Series([1]))),
    *((v, {}, "length=") for v in (pa.array([1]), pd.Series([1]), [])),
    *((v, {}, "groups=") for v in ({"a": 1}, [("a", 1)], SALES, FRAME)),
    *((v, {}, "columns=") for v in (FRAME, pl.from_pandas(FRAME), [{"a": 1}])),
    (pa.table({"a": [1]}), {}, "columns="),
    # Declared as something else.
    (5, {"length": 1}, "several numbers"),
    (5, {"groups": ["a"]}, "several numbers"),
    ([1, 2], {"groups": ["a", "b"]}, "no labels"),
    (np.ones(2), {"groups": ["a", "b"]}, "no labels"),
    (pd.Series([1, 2]), {"groups": ["a", "b"]}, "equal no label"),
    (pd.Series([1, 2], ["a", "b"]), {"length": 2}, "groups="),
    ({"a": 1}, {"length": 1}, "groups="),
    ({"a": 1}, {"groups": ["a"], "columns": ["n"]}, "Leave columns= away"),
    (SALES, {"groups": ["a"], "columns": ["n"]}, "Leave columns= away"),
    (SALES, {"groups": {"month": ["a"]}}, "other levels"),
    (FRAME, {"groups": {"month": ["a"]}, "columns": ["m"]}, "no column or index"),
    (FRAME[["m"]], {"groups": ["a"], "columns": ["m"]}, "equal no label"),
    (FRAME, {"groups": ["a"]}, "columns="),
    (FRAME, {"groups": ["a"], "columns": ["group"]}, "without a name"),
    ([{"week": "a", "n": 1}], {"groups": ["a"], "columns": ["n"]}, "has none"),
    ([("a", 1, 2)], {"groups": ["a"]}, "1 labels and 1 numbers"),
    (pd.concat([FRAME, FRAME], axis=1), {**NAMED, "columns": ["m"]}, "two of its"),
    (pa.table({"k": ["a"], "n": [1]}), {"groups": {"k": [1]}, "columns": ["n"]}, "str"),
    # Labels of a dtype that equals no group, whose types stand in the text.
    *dated(["2026-01-01"], "datetime64 equal no label of groups=, of type str"),
    *dated([dt.date(2026, 1, 1)], "datetime64 equal no .* of type datetime date"),
    *dated(["1"], "int64 equal no label of groups=, of type str", pd.Index([1])),
    # Dtypes that are no numbers.
    (pl.DataFrame({"week": ["a"], "m": ["x"]}), {**NAMED, "columns": ["m"]}, "dtype"),
    (pd.DataFrame({"week": ["a"], "m": [True]}), {**NAMED, "columns": ["m"]}, "0 and"),
    (pl.Series([1], dtype=pl.Int128), {"length": 1}, "dtype"),
    (pl.Series([1], dtype=pl.UInt128), {"length": 1}, "dtype"),
    (np.array([True]), {"length": 1}, "ints 0 and 1"),
    (pd.Series([f"{SECRET}"], dtype="string"), {"length": 1}, "dtype"),
    (pa.array([1.0, SECRET], pa.date64()), {"length": 2}, "dtype"),
    # Categories and fields may be made of data.
    (pl.Series([f"f{SECRET}"], dtype=pl.Enum([f"f{SECRET}"])), {"length": 1}, "dtype"),
    (pa.nulls(1, FIELD), {"length": 1}, "dtype struct"),
    (pd.Series([None], dtype=pd.ArrowDtype(FIELD)), {"length": 1}, "dtype struct"),
    # Entries that are no numbers.
    *((value, {}, "ints 0 and 1") for value in (True, np.True_)),
    *((value, {}, "NaN") for value in (float("nan"), Decimal("sNaN"))),
    *((value, {}, "not a number") for value in (f"{SECRET}", np.longdouble(SECRET))),
    *((value, {}, "not a number") for value in ({SECRET}, np.complex64(SECRET))),
    (np.ma.array([SECRET], mask=[True]), {"length": 1}, "not a number"),
    *((value, {"length": 1}, NULL) for value in ([None], (None,))),
    (None, {}, NULL),
    ([[SECRET, 2]], {"length": 1}, "one flat list"),
    ({"a": [SECRET]}, {"groups": ["a"]}, "one flat list"),
    (np.array([SECRET, {SECRET}], object), {"length": 2}, "one flat list"),
    ([float("nan")], {"length": 1}, "NaN"),
    (np.array([SECRET, np.nan]), {"length": 2}, "NaN"),
    *((each([SECRET, None]), {"length": 2}, NULL) for each in (pl.Series, pa.array)),
    (pd.Series([SECRET, None], dtype="Int64"), {"length": 2}, "NAType"),
    # Too large.
    *((value, {}, "too large") for value in (float("inf"), -np.float64("inf"))),
    *((SECRET * factor, {}, "too large") for factor in (2**53, 10**400)),
    (Decimal(SECRET * 2**53), {}, "too large"),
    (Decimal(f"1.5E{SECRET}"), {}, "too large"),
    (Decimal(f"{SECRET}0.00") * 2**33, {}, "too large"),
    (np.array([SECRET * 2**33], "u8"), {"length": 1}, "too large"),
]


@pytest.mark.parametrize(
    ("value", "declared", "text"), WRONG, ids=lambda value: type(value).__name__
)
def test_what_does_not_fit_is_refused_before_the_draw(
    value, declared, text, monkeypatch
):
    """By its type and what to do, and without a number or a label of the value."""
    monkeypatch.setattr(noise, "_noisy", lambda *_: pytest.fail("it was drawn"))
    with pytest.raises(ReleaseError, match=text) as caught:
        draw(CONTINUOUS, value, read_shape(**declared))
    error = caught.value
    assert text == "too large" or type(value).__name__ in str(error)
    assert str(SECRET)[:5] not in f"{error} {error.details}"
    assert (error.__cause__, error.__context__) == (None, None)


#: Under integer noise: what is taken, and as which ints; None is refused.
INTS: list[tuple[Any, dict[str, Any], Any]] = [
    *((v, {}, int(v)) for v in (5, np.int8(5), np.uint64(5), True, np.True_)),
    *((v, {}, None) for v in (5.0, np.float64(5), Decimal(5), 2**53 + 1, None)),
    (np.array([True, False]), {"length": 2}, [1, 0]),
    (pl.Series([True]), {"length": 1}, [1]),
    (pd.Series([1, None], dtype="boolean"), {"length": 2}, None),
    ([1.0], {"length": 1}, None),
    (np.array([1.0]), {"length": 1}, None),
    (pd.Series([3.0], ["a"]), {"groups": ["a", "b"]}, [3, 0]),
    ({"a": np.float32(3)}, {"groups": ["a"]}, {"a": 3}),
    ({"a": 3.5}, {"groups": ["a"]}, None),
    ({"a": Decimal(3)}, {"groups": ["a"]}, None),
    (pl.DataFrame({"k": ["a"], "n": [2.0]}), {"groups": ["a"], "columns": ["n"]}, [2]),
    (FRAME[["week", "v"]].assign(v=[3.0, None, 9]), ONE, [3, 0]),
    (FRAME[["week", "v"]][:0].astype(object), ONE, [0, 0]),
]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("value", "declared", "expected"), INTS)
def test_integer_noise_takes_ints_by_their_type(value, declared, expected):
    """Of labels also whole floats: an absent group makes a column of counts float."""
    shape = read_shape(**declared)
    if expected is None:
        with pytest.raises(ReleaseError):
            draw(WHOLE, value, shape)
        return
    noisy = draw(WHOLE, value, shape)
    numbers = [*numbers_in(noisy)]
    assert numbers == [*numbers_in(expected)]
    assert {type(number) for number in numbers} <= {int, IntEstimate}


@pytest.mark.parametrize("sensitivity", [1, 10**6, "1e-6"])
@pytest.mark.parametrize(
    ("kind", "size"), [(Laplace, {"epsilon": 3}), (Gaussian, {"noise_multiplier": 3})]
)
def test_decimals_reach_the_doubles_of_floats(sensitivity, kind, size, monkeypatch):
    """Both go to the sampler as one double, with one scale above the declared one.

    So that 10^5 draws of `Decimal("0.00")` and of 0.0 have one law.
    """
    seen = []

    def keep(_, scale, numbers):
        seen.append((scale, [*map(repr, numbers)]))
        return numbers

    monkeypatch.setattr(noise, "_noisy", keep)
    cost = kind(sensitivity=sensitivity, **size)
    for number in (Decimal("0.00"), Decimal(0), 0, 0.0, np.float32(0), np.int64(0)):
        draw(cost, number)
        add_noise(cost, np.array([number], object))
    declared = cost.sigma if kind is Gaussian else cost.scale
    assert {repr(each) for each in seen} == {
        repr((float_up(declared * (1 + Fraction(1, 2**20))), ["0.0"]))
    }


@pytest.mark.parametrize(
    ("largest", "many", "taken"),
    [
        (Decimal(2**22), 1000, True),
        (Decimal(2**23), 1000, False),
        (Decimal(2**32), 1, True),
        (Decimal(2**33), 1, False),
        (Decimal("0.1"), 1, True),
        (2**53, 1000, True),
        (2**53 + 1, 1, False),
        (float(2**60), 1000, True),
    ],
)
def test_a_number_whose_rounding_could_show_is_refused(largest, many, taken):
    """N times the last place of the largest is at most 2^-20 of the sensitivity."""
    numbers = [largest] + [0] * (many - 1)
    refusal = pytest.raises(ReleaseError, match="too large")
    with nullcontext() if taken else refusal:
        noise.numbers_for(Gaussian(sensitivity=1, sigma=3), numbers, numbers)


@pytest.mark.parametrize("cost", [Laplace, Gaussian])
def test_refining_begins_at_the_nearest_double(cost, monkeypatch):
    """Both kinds of refined noise, of whichever kind the number is."""
    seen: list[Any] = []
    for name in ("laplace_numbers", "gaussian_numbers"):
        monkeypatch.setattr(
            refining, name, lambda _, number, __: seen.append(number) or iter(())
        )
    finest = cost(sensitivity=1, **{"scale" if cost is Laplace else "sigma": 1})
    refined = Refined(finest, coarsest=4)
    for number in (Decimal("0.7"), 0.7):
        refining.refinement(refined, number, noise.NO_SHAPE, Target.read(1), None)
    assert {str(each).strip("[]") for each in seen} == {"0.7"}


@pytest.mark.parametrize(
    "value", [{"a": 1}, (1, 2), SALES, FRAME, pl.Series([1]), pa.array([1]), [], "a"]
)
def test_a_mechanism_adds_noise_to_floats_only(value):
    """A number, a list or an array of any shape; nothing with labels."""
    with pytest.raises(ReleaseError):
        add_noise(CONTINUOUS, value)
    assert type(add_noise(CONTINUOUS, 3)) is float
    for array in ([1, 2.5], np.zeros((2, 3)), np.zeros(())):
        noisy = add_noise(CONTINUOUS, array)
        assert (noisy.dtype, noisy.shape) == (np.float64, np.shape(array))
