"""Columns of polars and Arrow: exact, without what a mask took away."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal, assert_series_equal

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import decode, encode
from tests.ledger.codec.stored import again

HIDDEN = 123_456_789.25
COLUMNS: list[Any] = [
    pl.Series("small", [1, None, -128], dtype=pl.Int8),
    pl.Series("large", [2**63 - 1, None, -(2**63)], dtype=pl.Int64),
    pl.Series("unsigned", [2**64 - 1, None, 0], dtype=pl.UInt64),
    pl.Series("single", [0.1, None, float("nan")], dtype=pl.Float32),
    pl.Series("double", [0.1, float("-inf"), -0.0], dtype=pl.Float64),
    pl.Series("flag", [True, None, False]),
    pl.Series("text", ["a", None, "\u00e4\x00\U0001f600"]),
    pl.Series("bytes", [b"\x00\xff", None, b""]),
    pl.Series("nothing", [None, None, None]),
    pl.Series("day", [date(1, 1, 1), None, date(2026, 11, 21)]),
    pl.Series("hour", [time(0), None, time(23, 59, 59, 999999)]),
    pl.Series("nanos", [1, None, -(2**62)], dtype=pl.Int64).cast(pl.Datetime("ns")),
    pl.Series("zoned", [datetime(2026, 1, 1, tzinfo=UTC), None, None]).cast(
        pl.Datetime("ms", "Europe/Berlin")
    ),
    pl.Series("span", [timedelta(days=1), None, timedelta(microseconds=-1)]),
    pl.Series("decimals", [Decimal("0.10"), None], dtype=pl.Decimal(38, 2)),
    pl.Series("categories", ["b", None, "a", "b"], dtype=pl.Categorical),
    pl.Series("choices", ["b", None], dtype=pl.Enum(["a", "b", "c"])),
]
ARRAYS = [
    pa.array([1, None, -(2**63)]), pa.array([1.5, None, float("inf")]),
    pa.array([1.5, 2.25], pa.float32()), pa.array([2**64 - 1], pa.uint64()),
    pa.array([True, None]), pa.array(["a", None]), pa.array([b"\x00"]),
    pa.array([], pa.int8()), pa.nulls(2), pa.array(["x"], pa.large_string()),
    pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
    pa.array([date(2027, 1, 4), None]),
    pa.array([datetime(2027, 1, 4, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    pa.array([10**18 + 1], pa.timestamp("ns")),
    pa.array(["a", "b", "a", None]).dictionary_encode(),
]  # fmt: skip


@pytest.mark.parametrize("series", COLUMNS, ids=lambda series: series.name)
def test_a_series_comes_back(series: pl.Series) -> None:
    """Type, name, missing values and every bit that equality sees."""
    assert_series_equal(again(series), series, check_exact=True)


def test_a_frame_comes_back() -> None:
    """Column by column, an empty one as well."""
    frame = pl.DataFrame([column[:2] for column in COLUMNS])
    assert_frame_equal(again({"a": (0, [frame])})["a"][1][0], frame, check_exact=True)
    assert_frame_equal(again(frame.clear()), frame.clear())
    assert again(pl.DataFrame()).shape == (0, 0)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_arrays_come_back_as_they_were(array: Any) -> None:
    """Alone, in chunks and in a table; not as a column of pandas."""
    chunks = pa.chunked_array([array, array])
    for value in (array, chunks, pa.table({"a": array, "b": array})):
        assert again(value).equals(value)
    with pytest.raises(ReleaseError, match="into numbers, text or datetime64"):
        encode(pd.Series(array, dtype=pd.ArrowDtype(array.type)))


@pytest.mark.parametrize(
    "column",
    [
        pl.Series("objects", [object()], dtype=pl.Object),
        pl.Series("arrays", [[1, 2]], dtype=pl.Array(pl.Int8, 2)),
        pl.Series("lists", [[1, None], None, []], dtype=pl.List(pl.Int8)),
        pl.Series("structs", [{"a": 1, "b": [0.5]}, None]),
        pa.array([[1]]),
    ],
    ids=lambda column: str(getattr(column, "dtype", "arrow")),
)
def test_other_columns_are_refused(column: Any) -> None:
    """Before anything is stored, with what to do; so is a frame that reads later."""
    with pytest.raises(ReleaseError, match="cast it to numbers or text"):
        encode([column])
    with pytest.raises(ReleaseError, match="polars"):
        encode(pl.LazyFrame({"a": [1]}))


def test_what_was_masked_is_not_published() -> None:
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


def test_what_no_row_has_is_not_stored() -> None:
    """Names of rows that were left out, and what a schema says of the data."""
    names = pa.array(["kept", "canary"]).dictionary_encode().slice(0, 1)
    table = pa.table({"a": [1]}).replace_schema_metadata({"note": "canary"})
    assert "canary" not in encode([names, table])
    assert again(names).to_pylist() == ["kept"]


@pytest.mark.parametrize(
    "text",
    [
        '{"$type":"polars.Series"}',
        '{"$type":"polars.Series","parts":["a","Int8",[],[300]]}',
        '{"$type":"polars.Series","parts":["a","read_csv",["/etc/passwd"],[]]}',
        '{"$type":"polars.Series","parts":["a","Enum",[["a"]],["b"]]}',
        '{"$type":"polars.read_csv","parts":["/etc/passwd"]}',
        '{"$type":"polars.DataFrame","parts":[1]}',
        '{"$type":"pyarrow.Array","parts":["table",[],[]]}',
    ],
)
def test_damaged_text_is_refused(text: str) -> None:
    """Nothing that it names is called."""
    with pytest.raises(ReleaseError):
        decode(text)
