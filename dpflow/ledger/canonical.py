"""Canonical texts of JSON-able data, and their digests."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

_json: Any = json.encoder


#: Sorts keys; knows neither spaces, nor letters beyond ASCII, nor infinite numbers.
_encode = _json.c_make_encoder(
    None, None, _json.encode_basestring_ascii, None, ":", ",", True, False, False
)


def canonical(data: object) -> str:
    """Write JSON-able data in one form: sorted, without spaces, in ASCII.

    Raises:
        TypeError: If it is nothing that JSON knows.
        ValueError: If it contains itself, or a number is not finite.
    """
    try:
        return "".join(_encode(data, 0))
    except RecursionError as error:
        what = "it is too deep"
        raise ValueError(what) from error


def digest(text: str) -> str:
    """Return the sha256 of a text in hexadecimal."""
    return sha256(text.encode()).hexdigest()
