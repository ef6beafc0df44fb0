"""Numpy and pandas through the codec: every bit, dtype, index and name comes back."""

from __future__ import annotations

import json
import sys
import zoneinfo
from datetime import UTC
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.extra import pandas as pdst

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import decode, encode
from tests.ledger.codec.stored import again
from tests.sizes import scaled

relaxed = settings(
    max_examples=scaled(24), deadline=None, suppress_health_check=list(HealthCheck)
)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


arrays = npst.arrays(
    dtype=st.one_of(
        npst.boolean_dtypes(),
        npst.integer_dtypes(endianness="?"),
        npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
        npst.datetime64_dtypes(endianness="?"),
        npst.timedelta64_dtypes(endianness="?"),
        npst.byte_string_dtypes(min_len=1),
        npst.unicode_string_dtypes(endianness="?", min_len=1),
    ),
    shape=npst.array_shapes(min_dims=0, min_side=0, max_side=4),
)


class TestNumpy:
    """Arrays and scalars of numpy."""

    @given(arrays)
    @relaxed
    def test_arrays(self, array: np.ndarray) -> None:
        """An array keeps dtype (with its byte order), shape and every bit."""
        back = again(array)
        assert (array.dtype.str, array.shape) == (back.dtype.str, back.shape)
        assert array.tobytes() == back.tobytes()
        assert back.flags.writeable

    @given(arrays.filter(lambda array: array.size and array.dtype.kind not in "US"))
    @relaxed
    def test_scalars(self, array: np.ndarray) -> None:
        """A scalar keeps its type and its bits, inside a container too."""
        scalar = array.ravel()[0]
        back = again(scalar)
        assert (scalar.dtype, scalar.tobytes()) == (back.dtype, back.tobytes())

    def test_text_scalars(self) -> None:
        """Texts of numpy come back, but not with the NULs that numpy would drop."""
        for scalar in (np.str_("é"), np.str_(""), np.bytes_(b"ab")):
            assert scalar == again(scalar)
        with pytest.raises(ReleaseError, match="plain Python value"):
            encode(np.str_("a\0"))


columns = st.sampled_from(["i1", "u4", "i8", "f4", "f8", "bool", "M8[ns]", "m8[us]"])
series = columns.flatmap(lambda dtype: pdst.series(dtype=np.dtype(dtype)))
frames = st.lists(columns, min_size=1, max_size=4).flatmap(
    lambda dtypes: pdst.data_frames(
        [pdst.column(f"c{i}", dtype=np.dtype(d)) for i, d in enumerate(dtypes)],
        index=pdst.range_indexes() | pdst.indexes(dtype=np.dtype("i8")),
    )
)
WEEKS = pd.date_range("2026-03-01", periods=3, freq="W-SUN", tz=BERLIN, name="week")
WEEKS.freq = None
PAIRS = pd.MultiIndex.from_tuples([("a", 1), ("b", 2), ("a", 3)], names=["k", None])
ODD = pd.arrays.FloatingArray(np.array([np.nan, 1, 2]), np.array([False, True, False]))
SERIES: dict[str, Any] = {
    "weeks": pd.Series([1, 2, 3], index=WEEKS, name=("count", 1)),
    "pairs": pd.Series([1.5, 2, 3], index=PAIRS),
    "zoned": pd.Series(WEEKS),
    "empty": pd.Series([], dtype="f4"),
    "text": pd.Series(["a", None, "é"], index=["x", None, "x"]),
    "text NA": pd.Series(["a", pd.NA], dtype="string"),
    "objects": pd.Series(["a", (1,), [2], None, pd.NA, pd.NaT, 1], dtype=object),
    "texts as objects": pd.Series(["a", "b"], dtype=object),
    "tuples as index": pd.Series([1], index=pd.Index([(1, 2)], tupleize_cols=False)),
    "Int64": pd.Series([1, None], dtype="Int64"),
    "UInt8": pd.Series([1, None], dtype="UInt8"),
    "Float64": pd.Series([1.5, None], dtype="Float64"),
    "Float64 with NaN": pd.Series(ODD),
    "boolean": pd.Series([True, None], dtype="boolean"),
    "categories": pd.Series(["b", None, "a"], dtype="category"),
    "ordered": pd.Series(pd.Categorical([2, 1], [3, 2, 1], ordered=True)),
    "age bands": pd.Series(pd.cut([1, 5, np.nan, 30], [0, 10, 40], right=False)),
    "intervals": pd.Series(pd.interval_range(0, 3, closed="both")),
    "time intervals": pd.Series(pd.IntervalIndex.from_breaks(WEEKS)),
    "intervals of durations": pd.Series(
        pd.interval_range(pd.Timedelta("1D").as_unit("s"), periods=3)
    ),
    "periods": pd.Series(pd.PeriodIndex(["2026-01", None], freq="M")),
    "by period": pd.Series([1, 2], index=pd.period_range("2026Q1", periods=2)),
    "by category": pd.Series([1, 2], index=pd.CategoricalIndex(["b", "a"], name="k")),
    "by interval": pd.Series([1, 2], index=pd.interval_range(0.0, 1.0, periods=2)),
    "scalars": pd.Series([pd.Period("2020"), pd.Interval(0, 1)], dtype=object),
    "days": pd.Series(0, index=pd.to_timedelta([1, 2, 3], unit="D")),
}
FRAMES: dict[str, Any] = {
    "nothing": pd.DataFrame(),
    "no columns": pd.DataFrame(index=["a", "b"]),
    "no rows": pd.DataFrame({"a": pd.Series(dtype="i4"), "b": pd.Series(dtype="str")}),
    "names repeat": pd.DataFrame(
        [[1, "x", 2.5], [2, "y", 3.5]], columns=["a", "b", "a"], index=[7, 7]
    ).rename_axis(columns="field"),
    "weeks": pd.DataFrame({"n": [1, 2, 3]}, index=WEEKS),
    "grouped": pd.DataFrame({"k": [1, 1, 2], "j": list("aba"), "v": [1.0, 2, 3]})
    .groupby(["k", "j"])
    .agg({"v": ["sum", "count"]}),
}


class TestPandas:
    """Series, frames and timestamps of pandas."""

    @given(series)
    @relaxed
    def test_series(self, value: pd.Series) -> None:
        """A Series keeps dtype, index and every value."""
        pd.testing.assert_series_equal(value, again(value), check_exact=True)

    @given(frames)
    @relaxed
    def test_frames(self, value: pd.DataFrame) -> None:
        """A DataFrame keeps its columns, their dtypes and its index."""
        pd.testing.assert_frame_equal(value, again(value), check_exact=True)

    @pytest.mark.parametrize("name", SERIES)
    def test_special_series(self, name: str) -> None:
        """Zones, names, objects and missing values survive."""
        value, back = SERIES[name], again(SERIES[name])
        pd.testing.assert_series_equal(value, back, check_exact=True)
        assert (type(value.index), value.dtype) == (type(back.index), back.dtype)
        assert [type(item) for item in value] == [type(item) for item in back]

    @pytest.mark.parametrize("name", FRAMES)
    def test_special_frames(self, name: str) -> None:
        """Empty frames, repeated names and two-level columns survive."""
        value, back = FRAMES[name], again(FRAMES[name])
        pd.testing.assert_frame_equal(value, back, check_exact=True, check_freq=True)
        assert type(value.columns) is type(back.columns)

    def test_an_index_with_a_frequency_is_refused(self) -> None:
        """Its error says how to drop it."""
        index = pd.date_range("2026-03-01", periods=3, freq="W-SUN")
        with pytest.raises(ReleaseError, match=r"index\.freq = None"):
            encode(pd.Series(0, index=index))

    def test_attrs(self) -> None:
        """The attributes of a frame and a Series may say anything, and are left out."""
        frame = pd.DataFrame({"a": [1]})
        frame.attrs = {"raw": ["canary"]}
        assert "canary" not in encode(frame) + encode(frame["a"])
        assert again(frame).attrs == again(frame["a"]).attrs == {}

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    @pytest.mark.parametrize("zone", [None, UTC, BERLIN], ids=str)
    def test_timestamps(self, unit: Any, zone: Any) -> None:
        """A Timestamp keeps its unit, its zone and its fold."""
        for fold in (0, 1):
            moment = pd.Timestamp(2026, 10, 25, 2, 30, tzinfo=zone, fold=fold)
            moment = moment.as_unit(unit)
            back = again(moment)
            assert (moment.tzinfo, moment.fold) == (back.tzinfo, back.fold)
            assert (moment, moment.unit) == (back, back.unit)


class TestRefusals:
    """What cannot be read is refused."""

    @pytest.mark.parametrize(
        ("dtype", "shape", "data"),
        [
            ("|O", [1], "AAAAAAAAAAA="),
            ("i4,(2)i4", [1], ""),
            ("<i4", [2], "AAAAAA=="),
            ("<i4", [-1, -1], "AAAAAA=="),
            ("<i4", [1], "AAAA AA=="),
            ("<i4", [1], None),
        ],
    )
    def test_bad_arrays(self, dtype: str, shape: list[int], data: Any) -> None:
        """Arrays of objects or of the wrong length are refused."""
        parts = [dtype, shape, {"$type": "bytes", "parts": [data]}]
        node = {"$type": "numpy.array", "parts": parts}
        with pytest.raises(ReleaseError, match="damaged"):
            decode(json.dumps(node))

    def test_reading_without_pandas(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine without pandas says what is missing."""
        text = encode(SERIES["text"])
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ReleaseError, match="needs pandas, which is not installed"):
            decode(text)
