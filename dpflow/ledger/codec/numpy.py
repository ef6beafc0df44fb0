"""Kinds of numpy.

Numbers are stored as their bytes, little-endian and in C order, so that they come
back bit for bit. Object arrays are refused: only pickle could store them.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from dpflow.ledger.codec.kinds import KINDS, check_limits, register, unstorable

Array = np.ndarray[Any, Any]

#: Kinds of numpy dtypes whose bytes mean the same everywhere.
_LETTERS = "biufmMUS"
_DTYPE = re.compile(r"[<>|][biufmMUS][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")


def _array_parts(array: Array) -> list[Any]:
    dtype = array.dtype
    wide = dtype.kind == "f" and dtype.itemsize > np.dtype(float).itemsize
    if dtype.kind not in _LETTERS or wide:
        hint = f"dtype {dtype.name} has no exact text; convert it to a numeric dtype"
        raise unstorable(array, hint)
    check_limits(array.nbytes)
    data = array.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    return [dtype.str, list(array.shape), data]


def _make_array(name: str, shape: list[int], data: bytes) -> Array:
    # The pattern first: numpy's own parser of dtypes takes much more than these.
    if not _DTYPE.fullmatch(name):
        raise ValueError(name)
    dtype = np.dtype(name)
    # A copy, for what shares the bytes is read-only.
    return np.ndarray(tuple(shape), dtype.newbyteorder("<"), data).astype(dtype)


def _scalar_parts(value: np.generic) -> list[Any]:
    parts = _array_parts(np.asarray(value))
    back = _make_scalar(*parts)
    # Numpy drops trailing NULs of text, and has types that differ by name only.
    is_text = value.dtype.kind in "US"
    if type(back) is not type(value) or (is_text and back != value):
        raise unstorable(value, "convert it to a plain Python value first")
    return parts


def _make_scalar(*parts: Any) -> Any:
    return _make_array(*parts)[()]


_KINDS: dict[type, Any] = {
    np.ndarray: (_array_parts, _make_array),
    np.generic: (_scalar_parts, _make_scalar),
}
register("numpy.", _KINDS, inherited=(np.generic,))
# Texts inherit from Python's own, too.
KINDS.update(dict.fromkeys((np.str_, np.bytes_), KINDS[np.generic]))
