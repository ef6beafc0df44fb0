"""Values of numpy, pandas, polars and Arrow: exact, without what a mask took away."""

from __future__ import annotations

import io
import itertools
import sys
import zoneinfo
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from polars.testing import assert_frame_equal, assert_series_equal

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import decode, encode
from tests.ledger.codec.test_codec import again, relaxed

dtypes = st.sampled_from(["?", "<i2", ">u8", "<f2", ">f4", "M8[D]", ">m8[us]", ">U2"])
shapes = npst.array_shapes(min_dims=0, min_side=0, max_side=4)


@given(npst.arrays(dtypes, shapes))
@relaxed
def test_arrays(array):
    """An array and its scalars keep dtype (with its byte order), shape and bits."""
    back = again(array)
    assert (array.dtype.str, array.shape) == (back.dtype.str, back.shape)
    assert array.tobytes() == back.tobytes()
    assert back.flags.writeable
    for scalar in array.flat:
        back = again(scalar)
        assert (scalar.dtype, scalar.tobytes()) == (back.dtype, back.tobytes())


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
WEEKS = pd.date_range("2026-03-01", periods=3, freq="W-SUN", tz=BERLIN, name="week")
WEEKS.freq = None
ODD = pd.arrays.FloatingArray(np.array([np.nan, 1, 2]), np.array([False, True, False]))
GROUPED = pd.DataFrame({"k": [1, 1, 2], "j": list("aba"), "v": [1.0, 2, 3]})
TABLES: dict[str, Any] = {
    "numbers": pd.DataFrame({"f": np.float32([1, np.nan]), "i": np.int8([1, -1])}),
    "moments": pd.Series(np.array(["2026-01-01T01", None], "M8[ms]")),
    "zoned": pd.Series(WEEKS),
    "texts": pd.Series(["a", None, "é"], index=["x", None, "x"]),
    "texts, NA": pd.Series(["a", pd.NA], dtype="string"),
    "texts of Python": pd.Series(["a", None], dtype=pd.StringDtype("python")),
    "texts as objects": pd.Series(["a", "b"], dtype=object),
    "objects": pd.Series(["a", (1,), [2], None, pd.NA, pd.NaT, 1], dtype=object),
    "integers": pd.Series([1, None], dtype="UInt8", index=pd.RangeIndex(1, 5, 2)),
    "floats with NaN": pd.Series(ODD),
    "booleans": pd.Series([True, None], dtype="boolean"),
    "categories": pd.Series(["b", None, "a"], dtype="category"),
    "ordered": pd.Series(pd.Categorical([2, 1], [3, 2, 1], ordered=True)),
    "age bands": pd.Series(pd.cut([1, 5, np.nan, 30], [0, 10, 40], right=False)),
    "intervals": pd.Series(pd.interval_range(0, 3, closed="both")),
    "time intervals": pd.Series(pd.IntervalIndex.from_breaks(WEEKS)),
    "durations": pd.Series(
        pd.interval_range(pd.Timedelta("1D").as_unit("s"), periods=3)
    ),
    "periods": pd.Series(pd.PeriodIndex(["2026-01", None], freq="M")),
    "scalars": pd.Series([pd.Period("2020"), pd.Interval(0, 1)], dtype=object),
    "by week": pd.DataFrame({"n": [1, 2, 3]}, index=WEEKS),
    "by tuple": pd.Series([1], pd.Index([(1, 2)], tupleize_cols=False), name=("n", 1)),
    "by period": pd.Series(0, index=pd.period_range("2026Q1", periods=2)),
    "by category": pd.Series(0, index=pd.CategoricalIndex(["b", "a"], name="k")),
    "by interval": pd.Series(0, index=pd.interval_range(0.0, 1.0, periods=2)),
    "by day": pd.Series(0, index=pd.to_timedelta([1, 2, 3], unit="D")),
    "grouped": GROUPED.groupby(["k", "j"]).agg({"v": ["sum", "count"]}),
    "nothing": pd.DataFrame(),
    "no columns": pd.DataFrame(index=["a", "b"]),
    "no rows": pd.DataFrame({"a": pd.Series(dtype="i4"), "b": pd.Series(dtype="str")}),
    "names repeat": pd.DataFrame(
        [[1, "x", 2.5], [2, "y", 3.5]], index=[7, 7], columns=["a", "b", "a"]
    ).rename_axis(columns="field"),
}


@pytest.mark.parametrize("name", TABLES)
def test_special_tables(name):
    """Zones, names, objects, missing values and two-level columns survive."""
    value, back = TABLES[name], again(TABLES[name])
    assert type(value.index) is type(back.index)
    if isinstance(value, pd.DataFrame):
        pd.testing.assert_frame_equal(value, back, check_exact=True)
        assert type(value.columns) is type(back.columns)
    else:
        pd.testing.assert_series_equal(value, back, check_exact=True)
        assert value.dtype == back.dtype
        assert [type(item) for item in value] == [type(item) for item in back]


def test_timestamps():
    """A Timestamp keeps its unit, its zone and its fold."""
    zones: list[Any] = [None, UTC, BERLIN]
    for unit, zone, fold in itertools.product(["s", "ms", "us", "ns"], zones, (0, 1)):
        moment = pd.Timestamp(2026, 10, 25, 2, 30, tzinfo=zone, fold=fold)
        moment = moment.as_unit(unit)
        back = again(moment)
        assert (moment, moment.unit, moment.fold) == (back, back.unit, back.fold)
        assert moment.tzinfo == back.tzinfo


def test_what_would_come_back_changed_is_refused():
    """Numpy drops trailing NULs, and no text holds a frequency."""
    assert again(np.bytes_(b"ab")) == b"ab"
    weekly = pd.Series(0, index=pd.date_range("2026-03-01", periods=3, freq="W-SUN"))
    for value, advice in ((np.str_("a\0"), "plain Python"), (weekly, "freq = None")):
        with pytest.raises(ReleaseError, match=advice):
            encode(value)


def test_reading_without_pandas(monkeypatch):
    """A machine without pandas says what is missing."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, "dpflow.ledger.codec.pandas", raising=False)
    with pytest.raises(ReleaseError, match="needs pandas, which is not installed"):
        decode('{"$type":"pandas.Other","parts":[]}')


HIDDEN = 123_456_789.25
VALUES: list[tuple[list[Any], Any]] = [
    ([2**63 - 1, None, -(2**63)], pl.Int64),
    ([2**64 - 1, None, 0], pl.UInt64),
    ([0.1, None, float("nan")], pl.Float32),
    ([0.1, float("-inf"), -0.0], pl.Float64),
    (["a", None, "\u00e4\x00\U0001f600"], pl.String),
    ([b"\x00\xff", None, b""], pl.Binary),
    ([None, None, None], pl.Null),
    ([date(1, 1, 1), None, date(2026, 11, 21)], pl.Date),
    ([time(0), None, time(23, 59, 59, 999999)], pl.Time),
    ([1, None, -(2**62)], pl.Datetime("ns")),
    ([datetime(2026, 1, 1, tzinfo=UTC), None], pl.Datetime("ms", "Europe/Berlin")),
    ([timedelta(days=1), None, timedelta(microseconds=-1)], pl.Duration("us")),
    ([Decimal("0.10"), None], pl.Decimal(38, 2)),
    (["b", None, "a", "b"], pl.Categorical),
    (["b", None], pl.Enum(["a", "b", "c"])),
]
COLUMNS = [pl.Series(str(dtype), values, dtype) for values, dtype in VALUES]
ARRAYS = [
    *(pa.array([1, None, -(2**63)]), pa.array([1.5, None, float("inf")])),
    *(pa.array([1.5, 2.25], pa.float32()), pa.array([2**64 - 1], pa.uint64())),
    *(pa.array([True, None]), pa.array(["a", None]), pa.array([b"\x00"])),
    *(pa.array([], pa.int8()), pa.nulls(2), pa.array(["x"], pa.large_string())),
    pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
    pa.array([date(2027, 1, 4), None]),
    pa.array([datetime(2027, 1, 4, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    pa.array([10**18 + 1], pa.timestamp("ns")),
    *(pa.array([time(1), None]), pa.array([timedelta(days=1), None])),
    pa.array(["a", "b", "a", None]).dictionary_encode(),
]


def test_a_frame_comes_back():
    """Type, name, missing values and bits of each column; an empty one as well."""
    for series in COLUMNS:
        assert_series_equal(again(series), series, check_exact=True)
    frame = pl.DataFrame([column[:2] for column in COLUMNS])
    assert_frame_equal(again({"a": (0, [frame])})["a"][1][0], frame, check_exact=True)
    assert_frame_equal(again(frame.clear()), frame.clear())
    assert again(pl.DataFrame()).shape == (0, 0)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_arrays_come_back_as_they_were(array):
    """Alone, in chunks and in a table; not as a column of pandas."""
    chunks = pa.chunked_array([array, array])
    for value in (array, chunks, pa.table({"a": array, "b": array})):
        assert again(value).equals(value)
    with pytest.raises(ReleaseError, match="into numbers, text or datetime64"):
        encode(pd.Series(array, dtype=pd.ArrowDtype(array.type)))


def test_other_columns_are_refused():
    """Before anything is stored, with what to do; so is a frame that reads later."""
    for column in (
        pl.Series("objects", [object()], dtype=pl.Object),
        pl.Series("arrays", [[1, 2]], dtype=pl.Array(pl.Int8, 2)),
        *(pl.Series([[1, None], None, []]), pl.Series([{"hidden": 1}, None])),
        *(pa.array([[1]]), pa.array([{"hidden": 1}])),
        pd.Series(pd.arrays.ArrowExtensionArray(pa.array([{"hidden": 1}]))),
    ):
        problem = "cast it to numbers or text|turn the dtype"
        with pytest.raises(ReleaseError, match=problem) as refused:
            encode([column])
        assert "hidden" not in refused.value.message
    with pytest.raises(ReleaseError, match="polars"):
        encode(pl.LazyFrame({"a": [1]}))


def test_what_was_masked_is_not_published():
    """Nothing beneath a null is written; the control is the libraries' own format."""
    kept = pl.DataFrame({"number": [1.0, HIDDEN], "kept": [True, False]})
    masked = kept.select(pl.when("kept").then("number").alias("shown"))
    frame = io.BytesIO()
    masked.rechunk().write_ipc_stream(frame, compression="uncompressed")
    array = pa.array(np.array([HIDDEN, 2.0]), mask=np.array([True, False]))
    table, sink = pa.table({"a": array}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    for raw in (frame.getvalue(), sink.getvalue().to_pybytes()):
        assert np.float64(HIDDEN).tobytes() in raw
    assert str(int(HIDDEN)) not in encode([masked, table])


def test_what_no_row_has_is_not_stored():
    """Names of omitted rows, and remarks on the data."""
    frame = pd.DataFrame({"a": [1]})
    frame.attrs = {"raw": ["canary"]}
    names = pa.array(["kept", "canary"]).dictionary_encode().slice(0, 1)
    table = pa.table({"a": [1]}).replace_schema_metadata({"note": "canary"})
    labels = pd.Categorical(["kept", "canary"])[:1]
    by_label = pd.Series([1], index=pd.CategoricalIndex(labels))
    values = [names, table, frame, frame["a"], pd.Series(labels), by_label]
    assert "canary" not in encode(values)
    assert again(names).to_pylist() == ["kept"]
