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


FRAME = pd.DataFrame({"week": ["a", "b", "z"], "m": [1, 2, 9], "v": [0.5, None, 9]})
SALES = pd.Series([5, 7], index=pd.Index(["b", "z"], name="week"), name="n")
WEEKLY = FRAME.set_index("week")
TWO = FRAME.assign(day=DAYS).set_index(["week", "day"])
POLARS = pl.from_pandas(FRAME)
ARROW = pa.table({"week": ["a", "z"], "m": [1, None], "n": [True, False]})
A, AB, BA = ["a"], ["a", "b"], ["b", "a"]
NAMED = {"week": BA}


def by(groups: Any, *columns: str) -> dict[str, Any]:
    """Return the declaration of groups, and of columns if there are any."""
    return {"groups": groups, "columns": [*columns] or None}


def frame(index: Any = None, **columns: list[float]) -> pd.DataFrame:
    """Return an expected frame."""
    return pd.DataFrame(columns, index)


def cases(table: list[Any]) -> list[Any]:
    """Return a result, a declaration and one value of each case of a table."""
    return [
        pytest.param(result, declared, value, id=f"{result}-{type(value).__name__}")
        for result, declared, *values in table
        for value in values
    ]


COUNTS = {("a", 1): 0.0, ("a", 2): 3.0, ("b", 1): 0.0, ("b", 2): 0.0}
RECORDS = [{"week": "b", "n": 0.0, "m": 0.0}, {"week": "a", "n": 3.0, "m": 0.0}]
LEVELS = pd.MultiIndex.from_product([DAYS[1:2], AB], names=["day", "week"])
#: Value, declaration, and what comes back without noise.
TAKEN: list[tuple[Any, dict[str, Any], Any]] = [
    ([1, 2.5, np.int8(3), Decimal(4)], {"length": 4}, [1.0, 2.5, 3.0, 4.0]),
    ((1, 2), {"length": 2}, (1.0, 2.0)),
    (np.array([[1, 2]], "u1"), {"length": (1, 2)}, np.array([[1.0, 2.0]])),
    (np.array([1, 2], "f2"), {"length": 2}, np.array([1.0, 2.0])),
    (np.array([Decimal(3)], object), {"length": 1}, np.array([3.0])),
    (pd.Series([1, 2], name="n"), {"length": 2}, pd.Series([1.0, 2.0])),
    (pl.Series("n", [Decimal("1.5")]), {"length": 1}, pl.Series([1.5])),
    (pa.array([Decimal("1.5")]), {"length": 1}, pa.array([1.5])),
    ({"a": 1, "z": 5}, by(BA), {"b": 0.0, "a": 1.0}),
    (OrderedDict(a=None), by(NAMED), {"b": 0.0, "a": 0.0}),
    ({("a", 2): 3}, by({"week": AB, "n": (1, 2)}), COUNTS),
    ({None: 3, "a": 1}, by([None, "a"]), {None: 3.0, "a": 1.0}),
    ({float("nan"): 3}, by([None]), {None: 3.0}),
    ({3: 1}, by(range(2, 4)), {2: 0.0, 3: 1.0}),
    ({Region.NORTH: 1}, by([Region.NORTH]), {Region.NORTH: 1.0}),
    ([Row("a", 3), ("z", 5)], by(BA), [("b", 0.0), ("a", 3.0)]),
    ([["a", 3]], by(BA), [("b", 0.0), ("a", 3.0)]),
    ((("a", 3),), by(NAMED), (("b", 0.0), ("a", 3.0))),
    ([{"week": "a", "n": 3, "raw": 7}], by(NAMED, "n", "m"), RECORDS),
    (pd.Series({0: 5, 1: 7}), by([1]), pd.Series([7.0], pd.Index([1]))),
    # A name that was not declared does not come back.
    (SALES, by(BA), pd.Series([5.0, 0.0], BA)),
    (SALES, by(NAMED), pd.Series([5.0, 0.0], BA).rename_axis("week")),
    (FRAME, by(NAMED, "v", "m"), frame(week=BA, v=[0.0, 0.5], m=[2.0, 1.0])),
    (pd.DataFrame([]), by(NAMED, "m"), frame(week=BA, m=[0.0, 0.0])),
    (FRAME[FRAME.m > 1], by(BA, "m"), frame(group=BA, m=[2.0, 0.0])),
    (WEEKLY, by(BA, "m", "new"), frame(BA, m=[2.0, 1.0], new=[0.0, 0.0])),
    (TWO, by({"day": DAYS[1:2], "week": AB}, "m"), frame(LEVELS, m=[0.0, 2.0])),
    (POLARS, by(NAMED, "m"), pl.DataFrame({"week": BA, "m": [2.0, 1.0]})),
    (ARROW, by(BA, "m"), pa.table({"group": BA, "m": [0.0, 1.0]})),
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
@pytest.mark.parametrize(("value", "declared", "expected"), TAKEN)
def test_a_value_comes_back_as_declared(value, declared, expected):
    """Its groups, columns and length; floats, or ints by `as_int` and integer noise."""
    shape = read_shape(**declared)
    before = pickle.dumps(value)
    assert same(draw(CONTINUOUS, value, shape), expected)
    assert pickle.dumps(value) == before
    ints = draw(CONTINUOUS, value, shape, as_int=True)
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
#: Counts of days, with and without a day.
DAY = pd.Series([SECRET], pd.date_range("2026-01-01", periods=1, name="day"))
DATED = [DAY, DAY[:0]]
NUMBER = pd.Series([SECRET], pd.Index([1], name="day"))
NULL = r"COALESCE\(SUM\(x\), 0\)"
#: Words of the refusal, declaration, and values that are refused.
REFUSED = [
    # Undeclared: the line to write.
    ("length=", {}, [1], (1,), np.ones(2), pl.Series([1]), pa.array([1])),
    ("length=", {}, pd.Series([1]), []),
    ("groups=", {}, {"a": 1}, [("a", 1)], SALES, FRAME),
    ("columns=", {}, FRAME, POLARS, [{"a": 1}], pa.table({"a": [1]})),
    # Declared as something else.
    ("several numbers", {"length": 1}, 5),
    ("several numbers", by(A), 5),
    ("no labels", by(AB), [1, 2], np.ones(2)),
    ("equal no label", by(AB), pd.Series([1, 2])),
    ("groups=", {"length": 2}, pd.Series([1, 2], AB)),
    ("groups=", {"length": 1}, {"a": 1}),
    ("Leave columns= away", by(A, "n"), {"a": 1}, SALES),
    ("other levels", by({"month": A}), SALES),
    ("no column or index", by({"month": A}, "m"), FRAME),
    ("equal no label", by(A, "m"), FRAME[["m"]]),
    ("columns=", by(A), FRAME),
    ("without a name", by(A, "group"), FRAME),
    ("has none", by(A, "n"), [{"week": "a", "n": 1}]),
    ("1 labels and 1 numbers", by(A), [("a", 1, 2)]),
    ("two of its", by(NAMED, "m"), pd.concat([FRAME, FRAME], axis=1)),
    ("str", by({"k": [1]}, "n"), pa.table({"k": A, "n": [1]})),
    # Labels of a dtype that equals no group, whose types stand in the text.
    ("datetime64 equal no label of groups=, of type str", by(["2026-01-01"]), *DATED),
    ("datetime64 equal no .* of type datetime date", by([dt.date(2026, 1, 1)]), *DATED),
    ("int64 equal no label of groups=, of type str", by(["1"]), NUMBER, NUMBER[:0]),
    # Dtypes that are no numbers.
    ("dtype", by(NAMED, "m"), pl.DataFrame({"week": A, "m": ["x"]})),
    ("0 and", by(NAMED, "m"), pd.DataFrame({"week": A, "m": [True]})),
    ("dtype", {"length": 1}, pl.Series([1], dtype=pl.Int128)),
    ("dtype", {"length": 1}, pl.Series([1], dtype=pl.UInt128)),
    ("dtype", {"length": 1}, pd.Series([f"{SECRET}"], dtype="string")),
    ("ints 0 and 1", {"length": 1}, np.array([True])),
    ("dtype", {"length": 2}, pa.array([1.0, SECRET], pa.date64())),
    # Categories and fields may be made of data.
    ("dtype", {"length": 1}, pl.Series([f"f{SECRET}"], dtype=pl.Enum([f"f{SECRET}"]))),
    ("dtype struct", {"length": 1}, pa.nulls(1, FIELD)),
    ("dtype struct", {"length": 1}, pd.Series([None], dtype=pd.ArrowDtype(FIELD))),
    # Entries that are no numbers.
    ("ints 0 and 1", {}, True, np.True_),
    ("NaN", {}, float("nan"), Decimal("sNaN")),
    ("not a number", {}, f"{SECRET}", np.longdouble(SECRET)),
    ("not a number", {}, {SECRET}, np.complex64(SECRET)),
    ("not a number", {"length": 1}, np.ma.array([SECRET], mask=[True])),
    (NULL, {"length": 1}, [None], (None,)),
    (NULL, {}, None),
    ("one flat list", {"length": 1}, [[SECRET, 2]]),
    ("one flat list", by(A), {"a": [SECRET]}),
    ("one flat list", {"length": 2}, np.array([SECRET, {SECRET}], object)),
    ("NaN", {"length": 1}, [float("nan")]),
    ("NaN", {"length": 2}, np.array([SECRET, np.nan])),
    (NULL, {"length": 2}, pl.Series([SECRET, None]), pa.array([SECRET, None])),
    ("NAType", {"length": 2}, pd.Series([SECRET, None], dtype="Int64")),
    # Too large.
    ("too large", {}, float("inf"), -np.float64("inf")),
    ("too large", {}, SECRET * 2**53, SECRET * 10**400),
    ("too large", {}, Decimal(SECRET * 2**53), Decimal(f"1.5E{SECRET}")),
    ("too large", {}, Decimal(f"{SECRET}0.00") * 2**33),
    ("too large", {"length": 1}, np.array([SECRET * 2**33], "u8")),
]


@pytest.mark.parametrize(("text", "declared", "value"), cases(REFUSED))
def test_what_does_not_fit_is_refused_before_the_draw(
    text, declared, value, monkeypatch
):
    """By its type and what to do, and without a number or a label of the value."""
    monkeypatch.setattr(noise, "_noisy", lambda *_: pytest.fail("it was drawn"))
    shape = read_shape(**declared)
    with pytest.raises(ReleaseError, match=text) as caught:
        draw(CONTINUOUS, value, shape)
    error = caught.value
    assert text == "too large" or type(value).__name__ in str(error)
    assert str(SECRET)[:5] not in f"{error} {error.details}"
    assert (error.__cause__, error.__context__) == (None, None)


#: Ints under integer noise (None where it refuses), declaration, and values.
INTS = [
    ([5], {}, 5, np.int8(5), np.uint64(5)),
    ([1], {}, True, np.True_),
    (None, {}, 5.0, np.float64(5), Decimal(5), 2**53 + 1, None),
    ([1, 0], {"length": 2}, np.array([True, False])),
    ([1], {"length": 1}, pl.Series([True])),
    (None, {"length": 2}, pd.Series([1, None], dtype="boolean")),
    (None, {"length": 1}, [1.0], np.array([1.0])),
    ([3, 0], by(AB), pd.Series([3.0], A)),
    ([3], by(A), {"a": np.float32(3)}),
    (None, by(A), {"a": 3.5}, {"a": Decimal(3)}),
    ([2], by(A, "n"), pl.DataFrame({"k": A, "n": [2.0]})),
    ([3, 0], by({"week": AB}, "v"), FRAME[["week", "v"]].assign(v=[3.0, None, 9])),
    ([0, 0], by({"week": AB}, "v"), FRAME[["week", "v"]][:0].astype(object)),
]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("expected", "declared", "value"), cases(INTS))
def test_integer_noise_takes_ints_by_their_type(expected, declared, value):
    """Of labels also whole floats: an absent group makes a column of counts float."""
    shape = read_shape(**declared)
    if expected is None:
        with pytest.raises(ReleaseError):
            draw(WHOLE, value, shape)
        return
    numbers = [*numbers_in(draw(WHOLE, value, shape))]
    assert numbers == expected
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


#: The largest of so many numbers, and whether its rounding stays too small to show.
ROUNDED = [
    (Decimal(2**22), 1000, True),
    (Decimal(2**23), 1000, False),
    (Decimal(2**32), 1, True),
    (Decimal(2**33), 1, False),
    (Decimal("0.1"), 1, True),
    (2**53, 1000, True),
    (2**53 + 1, 1, False),
    (float(2**60), 1000, True),
]


@pytest.mark.parametrize(("largest", "many", "taken"), ROUNDED)
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
