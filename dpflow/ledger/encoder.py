"""JSON in one canonical form, without a new encoder for each text."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from typing import Any


def _encoding() -> Callable[[object], str]:
    plain = json.JSONEncoder(
        sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    quoted = json.encoder.encode_basestring_ascii
    # What `plain` makes anew for each text; without the markers of what it is in, for
    # several threads use it.
    write = make(None, plain.default, quoted, None, ":", ",", True, False, False)
    return lambda data: "".join(write(data, 0))


_encode = _encoding()


def encoded(data: object) -> str:
    """Write JSON-able data with sorted keys, without spaces, in ASCII.

    Raises:
        TypeError: If it holds something that is no JSON.
        ValueError: If a number is not finite, or it holds itself or goes too deep.
    """
    try:
        return _encode(data)
    except RecursionError:
        msg = "it holds itself, or goes too deep"
        raise ValueError(msg) from None
