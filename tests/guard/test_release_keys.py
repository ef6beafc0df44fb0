"""Keys made of arguments: two arguments never share a release; what can be kept."""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prefect.types import DateTime

from dpflow import guarded, release
from dpflow.exceptions import ConfigurationError, ReservationConflict
from dpflow.guard.release_keys import AmbiguousArgument, fill
from dpflow.interop import releasable
from dpflow.ledger.codec import encode
from dpflow.ledger.codec.kinds import unstorable_type
from tests.projects import NOISY, POLICY, TENTH, make_project, rows
from tests.sizes import scaled
from tests.tables import read_tables

pytestmark = pytest.mark.quick

#: A budget for many charges of a tenth.
WIDE = POLICY.replace("epsilon: 1}", "epsilon: 9}")


class Colour(enum.Enum):
    """An enumeration as most are."""

    RED = 1
    BLUE = 2


class Alike(enum.Enum):
    """One whose members all read the same."""

    RED = 1
    BLUE = 2

    def __str__(self):
        return "colour"


class Short(str):
    """A text that shows its beginning only."""

    __slots__ = ()

    def __format__(self, form):
        return self[:3]


class Plain:
    """An object with the text that every object has."""


class Named:
    """An object whose text is its class's own invention."""

    def __init__(self, number):
        self.number = number

    def __str__(self):
        return "named"


@releasable
@dataclass(frozen=True)
class Window:
    """What its author declared."""

    start: int
    end: int

    def __str__(self):
        return "window"


def changed(values, place):
    """Return a copy that differs in one number, in the middle."""
    result = values.copy()
    result[place] += 1
    return result


LONG = np.arange(2000)
FRAME = pd.DataFrame({"a": range(200), "b": range(200)})
#: Two arguments that are not one.
PAIRS = {
    "numpy": (LONG, changed(LONG, 1000)),
    "numpy-shape": (np.zeros(4), np.zeros((2, 2))),
    "series": (pd.Series(LONG), pd.Series(changed(LONG, 1000))),
    "frame": (FRAME, FRAME.assign(b=changed(FRAME["b"].to_numpy(), 100))),
    "polars": (pl.Series(LONG), pl.Series(changed(LONG, 1000))),
    "list": ([1] * 500, [1] * 499 + [2]),
    "list-tuple": ([1], (1,)),
    "dict": ({"a": 1}, {"a": 2}),
    "array-in-list": ([LONG], [changed(LONG, 1000)]),
    "declared": (Window(1, 2), Window(1, 3)),
    "enum": (Colour.RED, Colour.BLUE),
    "float": (0.1 + 0.2, 0.3),
    "bool": (True, 1),
}
TABLES = read_tables(__file__)


def counting(**declared):
    """Return a guarded step over one argument and the list of what it ran for."""
    ran = []
    if "release_key" in declared:
        declared = {"ignore": ("ran", "rest"), **declared}

    @guarded(dataset="shop", cost=NOISY, **declared)
    def count(ids, rest=""):
        ran.append(ids)
        return release(len(ran) * 1000)

    return count, ran


@pytest.mark.promise("ambiguous-key")
def test_another_argument_is_never_answered_with_this_ones_release(
    tmp_path, monkeypatch
):
    """Arrays, frames and objects are in the key whole, whatever their texts are."""
    make_project(tmp_path, monkeypatch, WIDE)
    for name, (one, other) in PAIRS.items():
        count, ran = counting(release_key=f"{name}/{{ids}}/{{rest}}")
        first = count(one)
        count(other)
        assert count(one) == first, name
        assert len(ran) == 2, name
    assert len(rows(tmp_path)["release"]) == 2 * len(PAIRS)


#: Arguments that no text identifies.
NO_TEXT = [
    Plain(),
    Alike.RED,
    Short("monday"),
    lambda: 1,
    functools.partial(int, "1"),
    np.array([Plain()]),
    np.ma.masked_array([1]),
    pl.DataFrame({"a": [1]}).lazy(),
    str(Plain()),
]


@pytest.mark.promise("ambiguous-key")
def test_what_no_text_identifies_is_refused_before_anything_is_charged(
    tmp_path, monkeypatch
):
    """Addresses, texts of a class's own invention, and texts that no ledger keeps."""
    make_project(tmp_path, monkeypatch, WIDE + "partition: {by: shift}\n")
    before = rows(tmp_path)
    for value, keyword in itertools.product(NO_TEXT, ("release_key", "partitions")):
        count, ran = counting(**{"partitions": "p", keyword: "sum/{ids}"})
        with pytest.raises(ConfigurationError, match=r"(?s)'ids'.*Name what tells it"):
            count(value)
        assert ran == []
    count, _ = counting(partitions="p", release_key="sum/{ids}")
    for text in ("a\0b", "\ud800"):
        with pytest.raises(ConfigurationError, match=r"release_key .* NUL") as refused:
            count(text)
        assert "key_text" not in refused.value.message
    assert before == rows(tmp_path)


#: Argument, template, and its text.
FILLED = [
    (date(2026, 1, 5), "{v:%G-W%V}", "2026-W02"),
    ([7.0, "u\u0308"], "{v}", "[7, 'ü']"),
    ("Zu\u0308rich", "{v}", "Zürich"),
    ("u\u0308ber", "{v:.2}", "üb"),
    (Colour.RED, "{v.name}", "RED"),
    (pd.Timestamp("2026-01-05"), "{v:%G-W%V}", "2026-W02"),
    (Named(3), "{v.number}", "3"),
]


def test_plain_arguments_read_as_python_writes_them():
    """A format that shortens is its author's choice, in public."""
    for value, template, text in FILLED:
        assert fill(template, {"v": value}) == text


class Report:
    """A report of one region, whose methods are steps."""

    def __init__(self, region, limit=0.0):
        self.region, self.limit = region, limit

    @guarded(dataset="shop", cost=TENTH, release_key="{self.region}/{self.limit:.0f}")
    def released(self):
        """Release the number that identifies the instance."""
        return {"region": self.region, "limit": self.limit}

    def plain(self):
        """Return the region, without a charge."""
        return self.region


def of_region(region, **declared):
    """Return a step that captures its region."""
    words = {"release_key": "{region}/{day}", "name": "count", **declared}
    step = guarded(dataset="shop", cost=TENTH, **words)
    return step(lambda day, minimum=0: [region, day, minimum])


def test_two_instances_or_closures_have_two_releases(shop):
    """The key reads instance and captures; each call gets the value of a replay."""
    for _ in range(2):
        for region in ("EU", "US"):
            assert [*Report(region).released().values()] == [0.0, region]
            count = of_region(region, ignore=("minimum",))
            assert count("mon") == [region, "mon", 0]
    assert len(rows(shop)["release"]) == 4


def capturing(region):
    """Return a function that captures its region."""
    return lambda: region


#: Functions, and their argument that a key without names leaves out.
LEFT_OUT = [
    (lambda day: day, "day"),
    (lambda self: self, "self"),
    (lambda **options: options, "options"),
    (capturing("EU"), "region"),
    (Report("EU").plain, "self"),
    (functools.partial(pow, 2, exp=3), "base"),
]


def test_a_key_that_leaves_out_what_the_output_may_depend_on_is_refused():
    """Unless `ignore` names it, the step cannot be defined."""
    words = {"dataset": "shop", "cost": TENTH, "release_key": "x", "name": "n"}
    for function, missing in LEFT_OUT:
        with pytest.raises(ConfigurationError, match=f"reads nothing of '{missing}'"):
            guarded(**words)(function)
        parameters = {*inspect.signature(function).parameters, missing}
        guarded(**words, ignore=tuple(parameters))(function)


def test_a_replay_with_other_arguments_is_refused(shop):
    """A format that shortens never answers one argument with another one's release."""
    for template, one, other, differs in TABLES["other_arguments"]:
        count = of_region(template, release_key=f"{{region}}/{template}")
        first = count(*one)
        before = rows(shop)
        text = f"another value of {differs}\\. "
        with pytest.raises(ReservationConflict, match=text):
            count(*other)
        assert before == rows(shop)
        assert count(*one) == first


def test_days_of_one_week_share_the_release(shop):
    """The formatted text identifies a date, and equal numbers are one argument."""
    count = of_region("EU", release_key="{region}/{day:%G-W%V}/{minimum}")
    days = (date(2026, 1, 8), DateTime(2026, 1, 5, 7), pd.Timestamp("2026-01-05"))
    made = count(date(2026, 1, 5), 7)
    for day, minimum in zip(days, (7.0, np.int64(7), "7"), strict=True):
        assert count(day, minimum) == made
    assert len(rows(shop)["release"]) == 1


def test_a_format_of_one_calendar_is_filled():
    """With two, December's last days would be answered with those of January before."""
    day = date(2024, 12, 31)
    for form in ("%G-W%V", "%Y-%m-%d", "%Y-W%W", "%%V%Y"):
        assert fill("{v:{form}}", {"v": day, "form": form}) == day.strftime(form)
    with pytest.raises(AmbiguousArgument, match="write %Y"):
        fill("{v:{form}}", {"v": day, "form": "%B %G%%"})


NUMBERS = st.integers(-3, 3) | st.floats(allow_nan=False) | st.booleans()
LEAVES = NUMBERS | st.none() | st.dates() | st.binary(max_size=3)
TREES = st.recursive(
    LEAVES | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=8,
)
ARRAYS = st.builds(
    lambda numbers, kind: np.resize(np.array(numbers, dtype=kind), 1500),
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.sampled_from(["int64", "float32", "float64"]),
)
VALUES = (
    TREES
    | ARRAYS
    | ARRAYS.map(pd.Series)
    | ARRAYS.map(pl.Series)
    | ARRAYS.map(lambda each: pd.DataFrame({"a": each}))
    | st.builds(Plain)
    | st.builds(Named, st.integers())
    | st.sampled_from([*Colour, *Alike, Window(1, 2), Window(2, 1)])
)


def collide(one, other, key):
    """Say whether two arguments that differ get one key."""
    try:
        same_key = key(one) == key(other)
    except AmbiguousArgument:
        return False
    return same_key and not same(one, other)


def same(one, other):
    """Say whether the codec takes two values for one."""
    if isinstance(one, enum.Enum | str) or isinstance(other, enum.Enum | str):
        # What reads as a text does has one key with it.
        return str(one) == str(other)
    return encode(one) == encode(other)


def by_name(value):
    """Make a key as it is made now."""
    return fill("{v}", {"v": value})


@pytest.mark.promise("ambiguous-key")
@settings(max_examples=scaled(30), suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, VALUES, st.integers(0, 1499))
def test_two_arguments_never_share_a_key(one, other, place):
    """Nor does one with another that differs in a single number."""
    assert not collide(one, other, by_name)
    if isinstance(one, np.ndarray):
        assert not collide(one, changed(one, place), by_name)


def test_keys_by_text_would_be_shared():
    """The test above can fail."""
    for made in (np.array, pd.Series, pl.Series):
        one, other = made(LONG), made(changed(LONG, 1000))
        assert collide(one, other, str)
        assert not collide(one, other, by_name)


#: Annotations, and a value that can be stored.
STORED = [
    (float, 1.5),
    (int | None, None),
    (list[Decimal], [Decimal("0.1")]),
    (dict[str, tuple[int, ...]], {"a": (1, 2)}),
    (np.ndarray, np.ones(2)),
    (pd.DataFrame, pd.DataFrame({"a": [1]})),
    (pl.Series, pl.Series([1])),
    (Window, Window(1, 3)),
    (UUID, UUID(int=7)),
    (Literal["a", 1], "a"),
    (np.float64, np.float64(2)),
]


def test_annotations_say_what_can_be_stored() -> None:
    """Each value of these annotations can; bad types are named within containers."""
    for annotation, value in STORED:
        assert unstorable_type(annotation) is None
        assert encode(value)
    for annotation in (Plain, list[Plain], dict[str, tuple[Plain, ...]]):
        assert unstorable_type(annotation) is Plain
    assert unstorable_type(Colour) is Colour
    assert unstorable_type(complex | None) is complex


def test_a_keyed_step_that_returns_what_cannot_be_stored_is_not_charged(shop):
    """The error names the type and what can be stored; without a key it runs."""
    ran = []

    @guarded(dataset="shop", cost=TENTH, release_key="table", ignore=("ran",))
    def table() -> list[Plain]:
        ran.append(1)
        return [Plain()]

    before = rows(shop)
    with pytest.raises(ConfigurationError, match=r"Plain, which cannot be stored") as e:
        table()
    assert "nothing was charged" in e.value.message
    assert rows(shop) == before
    assert not ran

    @guarded(dataset="shop", cost=TENTH)
    def unkeyed() -> Plain:
        return Plain()

    assert isinstance(unkeyed(), Plain)
