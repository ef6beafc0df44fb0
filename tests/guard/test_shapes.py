"""Declared lengths, groups and columns: checked before a charge, drawn as declared."""

from __future__ import annotations

import datetime as dt
import enum
from pathlib import Path
from typing import Annotated, Any, NewType, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from typing_extensions import TypeAliasType

from dpflow import (
    Composed,
    EarlyStopping,
    Gaussian,
    Laplace,
    OutputDP,
    Repeated,
    guarded,
    iterations,
    release,
    spend,
)
from dpflow.exceptions import ConfigurationError, ReleaseError
from dpflow.testing import ledger_for_tests
from tests.projects import NOISY, POLICY, caught, journal, kinds, spent

pytestmark = pytest.mark.quick

REGIONS = ["south", "north"]
STEP: dict[str, Any] = {"dataset": "shop", "cost": NOISY}


class Region(enum.Enum):
    """Labels without @releasable."""

    NORTH = "north"


def body_of(annotation: Any) -> Any:
    """Return a body with an annotation."""

    def body() -> Any:
        return release({"north": 1})

    body.__annotations__["return"] = annotation
    return body


#: As a `type` statement declares them, which Python 3.12 has.
Numbers = TypeAliasType("Numbers", list[int])
Noted = TypeAliasType("Noted", Annotated[Numbers, "weekly"])
Item = TypeVar("Item")
Items = TypeAliasType("Items", list[Item], type_params=(Item,))
Vector = NewType("Vector", pl.Series)

DAYS = pd.date_range("2026-03-28", periods=3)
HOURS = pd.Series(1, index=pd.date_range("2026-03-28", periods=60, freq="h"))
ZONE = ZoneInfo("Europe/Oslo")
CUT = pd.cut(pd.Series([1, 2, 3]), [0, 2, 4])
LOCAL = HOURS.tz_localize("UTC").tz_convert(ZONE)
NEW_YEAR = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

#: Annotations that say several numbers.
SEVERAL = [
    *(Numbers, Noted, Items[int], Vector, Annotated[Items[float] | None, "weekly"]),
    *(list, list[int], list[float] | None, np.ndarray, npt.NDArray[np.float64]),
    *(pd.Series, pd.DataFrame, pl.Series, pl.DataFrame, pa.Table, pa.ChunkedArray),
]
#: Any of these is enough beside such an annotation.
ENOUGH: list[dict[str, Any]] = [
    {"groups": REGIONS},
    {"length": 2},
    {"groups": lambda: REGIONS},
    {"noise": "own"},
    {"cost": lambda: NOISY},
    {"cost": Gaussian(sensitivity=1, noise="planned")},
    {"cost": EarlyStopping(NOISY, stops=(2,))},
    {"cost": Repeated(NOISY, 2)},
    {"cost": Composed(NOISY, NOISY)},
]


@pytest.mark.parametrize("annotation", SEVERAL, ids=str)
def test_an_annotation_that_says_several_needs_a_declaration(annotation):
    """At definition, with the line to write; where `release` draws a constant cost."""
    body = body_of(annotation)
    with pytest.raises(ConfigurationError, match="groups="):
        guarded(**STEP)(body)
    for declared in ENOUGH:
        guarded(**{**STEP, **declared})(body)


@pytest.mark.parametrize(
    "annotation", [int, float, dict, dict[str, int], list[str], Any, "Nope"]
)
def test_other_annotations_are_looked_at_when_release_is_called(shop, annotation):
    """A dict may be built around one number; the value is refused before the draw."""
    step = guarded(**STEP, name="step")(body_of(annotation))
    assert "groups=" in str(caught(step))
    assert journal()[-1].body["outcome"] == "failed"


#: Declarations of no shape.
WRONG: list[dict[str, Any]] = [
    {"groups": {"north"}},
    {"groups": pd.Index(REGIONS)},
    {"groups": []},
    {"length": 0},
    {"length": 2, "groups": REGIONS},
    {"columns": ["n"]},
]


@pytest.mark.parametrize("declared", WRONG)
def test_a_wrong_declaration_is_refused_at_definition_or_before_the_charge(
    shop, declared
):
    """A constant where it is defined, a function's answer where it is called."""
    with pytest.raises(ConfigurationError, match="step 'body'"):
        guarded(**STEP, **declared)(body_of(Any))
    late = {name: lambda value=value: value for name, value in declared.items()}
    step = guarded(**STEP, **late)(body_of(Any))
    assert "did not run" in str(caught(step))
    assert kinds() == []


def test_declarations_are_functions_of_public_arguments(shop):
    """As `cost=`; the values come back in the declared order, replays too."""

    @guarded(**STEP, release_key="{regions}", groups=lambda regions: regions)
    def by_region(regions: list[str]) -> dict[str, float]:
        return release({"north": 1, "west": 5})

    @guarded(**STEP, length=lambda days: days)
    def by_day(days: int) -> Any:
        return release(np.ones(3))

    first = by_region(REGIONS)
    assert [*first] == [*by_region(REGIONS)] == REGIONS
    assert first == by_region(REGIONS)
    assert [*by_region(["west"])] == ["west"]
    assert by_day(3).shape == (3,)
    assert "length is not the declared" in str(caught(lambda: by_day(2)))
    shapes = [e.body["shape"] for e in journal() if e.kind == "reserve"]
    assert shapes[0] == {"groups": {"count": 2, "names": []}}
    assert shapes[-1] == {"length": [2]}


#: Declarations of releases that no ledger stores.
LARGE: list[dict[str, Any]] = [
    {"length": 700_000},
    {"length": (1000, 1000)},
    {"groups": {"a": range(1000), "b": range(1000)}, "columns": ["n"]},
    {"groups": ["x" * 2**24]},
    {"groups": [Region.NORTH]},
]


@pytest.mark.parametrize("declared", LARGE)
def test_what_cannot_be_kept_is_refused_before_the_reservation(shop, declared):
    """With a release key; the numbers count 25 bytes each."""
    step = guarded(**STEP, **declared, release_key="k")(body_of(Any))
    assert "could not be stored" in str(caught(step))
    assert kinds() == []


def test_a_block_declares_in_release(shop):
    """And a function does not: its declaration is known before its data is read."""
    with spend(**STEP, step="block") as charge:
        noisy = release({"north": 1}, groups=REGIONS, as_int=True)
        assert [*noisy] == REGIONS
        assert {type(number) for number in noisy.values()} == {int}
        assert "twice" in str(caught(lambda: charge.release([1], length=1)))
    with spend(**STEP, step="block") as charge:
        error = caught(lambda: charge.release({"north": 1}, groups={"north"}))
        assert "type set" in str(error)
        charge.release([1, 2], length=2)

    error = caught(guarded(**STEP, name="n")(lambda: release([1], length=1)))
    assert isinstance(error, ReleaseError)
    assert "in its decorator" in str(error)


def test_a_missing_return_is_not_kept(shop):
    """Under a key it fails like a body without a draw; a mechanism's None is fine."""

    @guarded(**STEP, release_key="n")
    def forgets() -> None:
        release(3)

    @guarded(**STEP, release_key="n")
    def remembers() -> float:
        return release(3)

    stopping = EarlyStopping(Laplace(sensitivity=1, epsilon="0.01"), stops=(1,))

    @guarded(dataset="shop", cost=stopping, release_key="loop")
    def loops() -> None:
        for step in iterations():
            step.release(1.0)

    @guarded(dataset="shop", cost=OutputDP({"no": "0.1"}), release_key="cell")
    def cell() -> None:
        """Return the output that a mechanism has where nothing stands out."""

    for body in (forgets, loops):
        assert "returned None" in str(caught(body))
        assert journal()[-1].body["outcome"] == "failed"
    assert isinstance(remembers(), float)
    assert cell() is None


def test_a_missing_return_without_a_key_warns_once(shop):
    """A step without a release may be for its side effect."""

    @guarded(**STEP)
    def forgets_quietly() -> None:
        release(3)

    with pytest.warns(RuntimeWarning, match="is a `return` missing"):
        forgets_quietly()
    assert forgets_quietly() is None
    with spend(**STEP, step="block"):
        release(3)
    assert spent() == "0.3"


def test_a_value_that_cannot_be_stored_says_what_follows(shop):
    """Later runs of its key are refused, which the first one announces."""
    unkept = guarded(**STEP, release_key="n")(lambda: (release(3), object()))
    with pytest.warns(RuntimeWarning, match="Later runs of this key will be refused"):
        unkept()
    assert "not kept" in str(caught(unkept))


#: Ordinary results of pandas whose labels are no plain values, with their groups.
RESULTS = [
    (HOURS.resample("D").sum(), DAYS),
    (LOCAL.resample("D").sum(), DAYS.tz_localize(ZONE)),
    (HOURS.to_period("D").groupby(level=0).sum(), DAYS.to_period("D")),
    (CUT.value_counts(), pd.interval_range(0, 4, 2)),
]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("value", "groups"), RESULTS)
def test_ordinary_results_of_pandas_are_kept(shop, value, groups):
    """A replay equals the first answer; dtypes are numpy's, and no index has a freq."""
    words = {"groups": [*groups], "release_key": "n", "ignore": ("value",)}
    count = guarded(**STEP, **words, name="n")(lambda: release(value))
    first, again = count(), count()
    pd.testing.assert_series_equal(first, again)
    assert (type(first.dtype), first.dtype) == (type(np.dtype(float)), np.float64)
    freq = getattr(first.index, "freq", None)
    assert freq is None or isinstance(first.index, pd.PeriodIndex)
    assert spent() == "0.1"


#: Data whose labels equal no group, the groups, and both types.
TYPOS: list[tuple[Any, list[Any], tuple[str, str]]] = [
    ({"North": 1}, REGIONS, ("str", "str")),
    ({1: 1}, REGIONS, ("int", "str")),
    ({NEW_YEAR: 1}, [NEW_YEAR.date()], ("datetime", "date")),
    (pd.Series([1], index=pd.Index(["a"], dtype=object)), [1], ("str", "int")),
]


def test_a_typo_in_groups_is_an_error_in_tests_only(shop: Path):
    """In production a message would depend on rows."""

    def typo(value, groups):
        return guarded(**STEP, groups=groups, name="typo")(lambda: release(value))

    steps = []
    for value, groups, types in TYPOS:
        steps.append((typo(value, groups), types))
        assert len(steps[-1][0]()) == len(groups)
    with ledger_for_tests() as ledger:
        ledger.use(POLICY)
        for step, types in steps:
            message = str(caught(step))
            assert "equal no label of groups=" in message
            assert all(word in message for word in types)
