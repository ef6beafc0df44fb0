"""Arrow arrays and tables as releases: exact, without what a mask took away."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpflow.exceptions import ReleaseError
from dpflow.ledger.codec import decode, encode

HIDDEN = 123_456_789.25
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


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_arrays_come_back_as_they_were(array: Any) -> None:
    """Alone, in chunks and in a table; not as a column of pandas."""
    back = decode(encode(array))
    assert back.type == array.type
    assert back.equals(array)
    chunks = pa.chunked_array([array, array])
    assert decode(encode(chunks)).equals(chunks)
    table = pa.table({"a": array, "b": array})
    assert decode(encode(table)).equals(table)
    assert encode(decode(encode(table))) == encode(table)
    with pytest.raises(ReleaseError, match="into numbers, text or datetime64"):
        encode(pd.Series(array, dtype=pd.ArrowDtype(array.type)))


def test_what_a_mask_hides_is_not_stored() -> None:
    """Arrow's own format keeps it; that is why it is not used."""
    array = pa.array(np.array([HIDDEN, 2.0]), mask=np.array([True, False]))
    table = pa.table({"a": array})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    kept = np.float64(HIDDEN).tobytes()
    assert kept in sink.getvalue().to_pybytes()
    assert str(int(HIDDEN)) not in encode(table)


def test_names_that_no_row_has_are_not_stored() -> None:
    """A dictionary may list those of rows that were left out."""
    names = pa.array(["kept", "canary"]).dictionary_encode()
    assert "canary" not in encode(names.slice(0, 1))
    assert decode(encode(names.slice(0, 1))).to_pylist() == ["kept"]


def test_what_has_no_exact_text_is_refused() -> None:
    """By its type, and what to do."""
    with pytest.raises(ReleaseError, match="cast it to numbers or text"):
        encode(pa.array([[1]]))


def test_metadata_of_a_schema_is_left_out() -> None:
    """It may say anything of the data."""
    table = pa.table({"a": [1]}).replace_schema_metadata({"note": "canary"})
    assert "canary" not in encode(table)
