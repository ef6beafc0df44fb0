"""Polars frames come back as they were."""

from __future__ import annotations

import io
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal, assert_series_equal

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import decode, encode

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


@pytest.mark.parametrize("series", COLUMNS, ids=lambda series: series.name)
def test_a_series_comes_back(series: pl.Series) -> None:
    """Type, name, missing values and every bit that equality sees."""
    text = encode(series)
    back = decode(text)
    assert_series_equal(back, series, check_exact=True)
    assert encode(back) == text


def test_a_frame_comes_back() -> None:
    """Column by column, an empty one as well."""
    frame = pl.DataFrame([column[:2] for column in COLUMNS])
    assert_frame_equal(decode(encode(frame)), frame, check_exact=True)
    empty = frame.clear()
    assert_frame_equal(decode(encode(empty)), empty)
    assert decode(encode(pl.DataFrame())).shape == (0, 0)
    nested = {"frames": (frame, [frame])}
    assert_frame_equal(decode(encode(nested))["frames"][1][0], frame)


@pytest.mark.parametrize(
    "series",
    [
        pl.Series("objects", [object()], dtype=pl.Object),
        pl.Series("arrays", [[1, 2]], dtype=pl.Array(pl.Int8, 2)),
        pl.Series("lists", [[1, None], None, []], dtype=pl.List(pl.Int8)),
        pl.Series("structs", [{"a": 1, "b": [0.5]}, None]),
    ],
    ids=lambda series: series.name,
)
def test_other_columns_are_refused(series: pl.Series) -> None:
    """Before anything is stored, with what to do."""
    with pytest.raises(ReleaseError, match="cast it to numbers or text"):
        encode(series)
    with pytest.raises(ReleaseError):
        encode(pl.DataFrame([series]))


SECRET = 123456789.25
KEPT = pl.DataFrame({"number": [1.0, SECRET], "kept": [True, False]})


def test_what_was_masked_is_not_published() -> None:
    """Nothing beneath a null is written; the control is polars' IPC, which does."""
    masked = KEPT.select(pl.when("kept").then("number").alias("shown"))
    text = encode(masked)
    assert "123456789" not in text
    assert_frame_equal(decode(text), masked)
    raw = io.BytesIO()
    masked.rechunk().write_ipc_stream(raw, compression="uncompressed")
    assert struct.pack("<d", SECRET) in raw.getvalue()


def test_lazy_frames_are_refused() -> None:
    """They would read the data later."""
    with pytest.raises(ReleaseError, match="polars"):
        encode(pl.LazyFrame({"a": [1]}))


@pytest.mark.parametrize(
    "text",
    [
        '{"$type":"polars.Series"}',
        (
            '{"$type":"polars.Series","dtype":"Int8","name":"a","unit":null,'
            '"values":[300],"zone":null}'
        ),
        (
            '{"$type":"polars.Series","dtype":"read_csv","name":"a","unit":null,'
            '"values":["/etc/passwd"],"zone":null}'
        ),
        '{"$type":"polars.read_csv","path":"/etc/passwd"}',
        '{"$type":"polars.DataFrame","columns":[1]}',
        (
            '{"$type":"polars.Series","categories":["a"],"dtype":"Enum","name":"a",'
            '"values":["b"]}'
        ),
    ],
)
def test_damaged_text_is_refused(text: str) -> None:
    """Nothing that it names is called."""
    with pytest.raises(ReleaseError):
        decode(text)
