"""The canonical form of JSON."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.ledger.entry import canonical


def test_what_holds_itself_is_refused() -> None:
    """Also what goes too deep."""
    inner: list[Any] = []
    inner.append(inner)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for bad in (inner, deep):
        with pytest.raises(ValueError, match=r"Circular|too deep"):
            canonical(bad)
