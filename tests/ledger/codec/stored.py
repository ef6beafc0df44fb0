"""Storing a value and reading it back."""

from __future__ import annotations

from typing import Any

from dpflow.ledger.codec import decode, encode


def again(value: Any) -> Any:
    """Store a value and read it back, checking that its text is canonical."""
    text = encode(value)
    assert text.isascii()
    back = decode(text)
    assert encode(back) == text
    assert type(back) is type(value)
    return back
