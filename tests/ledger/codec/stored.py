"""Storing a value and reading it back."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings

from dpflow.ledger.codec import decode, encode
from tests.sizes import scaled

relaxed = settings(
    max_examples=scaled(24), deadline=None, suppress_health_check=list(HealthCheck)
)


def again(value: Any) -> Any:
    """Store a value and read it back, checking that its text is canonical."""
    text = encode(value)
    assert text.isascii()
    back = decode(text)
    assert encode(back) == text
    assert type(back) is type(value)
    return back
