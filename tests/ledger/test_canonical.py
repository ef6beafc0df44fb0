"""The canonical form of JSON is the standard library's, byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.ledger.entry import canonical

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_the_canonical_form_is_the_standard_library_s(data: Any) -> None:
    """Byte for byte, errors included; journals of other versions are read by it."""
    told = []
    for write in (canonical, _plain):
        try:
            told.append(write(data))
        except ValueError as error:
            told.append(str(error))
    assert told[0] == told[1]


def _plain(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def test_what_holds_itself_is_refused() -> None:
    """Also what goes too deep."""
    inner: list[Any] = []
    inner.append(inner)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (inner, deep):
        with pytest.raises(ValueError, match="holds itself, or is too deep"):
            canonical(bad)
