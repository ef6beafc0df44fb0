"""What `release` takes and returns: numbers of one kind, in a new container."""

# The rows of test_containers.yaml are expressions of the imported names.
# ruff: noqa: F401

from __future__ import annotations

import datetime as dt
import enum
import pickle
from collections import OrderedDict
from contextlib import nullcontext
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import yaml

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
TWO = FRAME.assign(day=DAYS).set_index(["week", "day"])
WEEKS: dict[str, Any] = {"groups": ["b", "a"]}
NAMED: dict[str, Any] = {"groups": {"week": ["b", "a"]}}
ONE: dict[str, Any] = {"groups": {"week": ["a", "b"]}, "columns": ["v"]}
TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def read(expression: str) -> Any:
    """Return the value of an expression of the table."""
    return eval(expression, globals())


def cases(name: str) -> list[tuple[Any, str, str]]:
    """Return a result, a declaration and one value of each case of a table."""
    return [
        (result, declared, value)
        for result, declared, *values in TABLES[name]
        for value in values
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
@pytest.mark.parametrize(("value", "declared", "expected"), TABLES["taken"])
def test_a_value_comes_back_as_declared(value, declared, expected):
    """Its groups, columns and length; floats, or ints by `as_int` and integer noise."""
    value, shape = read(value), read(f"read_shape({declared})")
    before = pickle.dumps(value)
    assert same(draw(CONTINUOUS, value, shape), read(expected))
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
#: Counts of days, as rows without a day are, too.
DATED = pd.Series([SECRET], pd.date_range("2026-01-01", periods=1, name="day"))


@pytest.mark.parametrize(("text", "declared", "value"), cases("refused"))
def test_what_does_not_fit_is_refused_before_the_draw(
    text, declared, value, monkeypatch
):
    """By its type and what to do, and without a number or a label of the value."""
    monkeypatch.setattr(noise, "_noisy", lambda *_: pytest.fail("it was drawn"))
    value, shape = read(value), read(f"read_shape({declared})")
    with pytest.raises(ReleaseError, match=text) as caught:
        draw(CONTINUOUS, value, shape)
    error = caught.value
    assert text == "too large" or type(value).__name__ in str(error)
    assert str(SECRET)[:5] not in f"{error} {error.details}"
    assert (error.__cause__, error.__context__) == (None, None)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("expected", "declared", "value"), cases("ints"))
def test_integer_noise_takes_ints_by_their_type(expected, declared, value):
    """Of labels also whole floats: an absent group makes a column of counts float."""
    value, shape = read(value), read(f"read_shape({declared})")
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


@pytest.mark.parametrize(("largest", "many", "taken"), TABLES["rounded"])
def test_a_number_whose_rounding_could_show_is_refused(largest, many, taken):
    """N times the last place of the largest is at most 2^-20 of the sensitivity."""
    numbers = [read(largest)] + [0] * (many - 1)
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
