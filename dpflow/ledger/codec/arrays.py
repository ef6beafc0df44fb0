"""Numpy values as trees.

Numbers are stored as base64 of their bytes, little-endian and in C order, so that they
come back bit for bit. Object arrays are refused: only pickle could store them.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from dpflow.ledger.codec import form

Array = np.ndarray[Any, Any]

#: Kinds of numpy dtypes whose bytes mean the same everywhere.
_KINDS = "biufMmUS"
_DTYPE = re.compile(r"[<>|][biufMmUS][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")
_WIDEST_FLOAT = 8


def packer_of(value: object) -> form.Pack | None:
    """Return what writes an array or a scalar; None for any other value."""
    if type(value) is np.ndarray:
        return _pack_array
    return _pack_scalar if isinstance(value, np.generic) else None


def _pack_array(packer: form.Packer, array: Array) -> form.Node:
    dtype = array.dtype
    wide = dtype.kind == "f" and dtype.itemsize > _WIDEST_FLOAT
    if dtype.kind not in _KINDS or wide:
        hint = f"dtype {dtype.name} has no exact text; convert it to a numeric dtype"
        raise form.unstorable(array, hint)
    packer.take(array.nbytes * 4 // 3)
    data = array.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    shape, text = list(array.shape), form.to_base64(data)
    return form.node("numpy.array", dtype=dtype.str, shape=shape, data=text)


def _unpack_array(node: form.Node, _: form.Unpack) -> Array:
    # The pattern first: numpy's own parser of dtypes takes much more than these.
    text = form.member(node, "dtype", str)
    if not _DTYPE.fullmatch(text):
        raise ValueError(text)
    dtype, shape = np.dtype(text), tuple(form.member(node, "shape", list))
    data = form.from_base64(form.member(node, "data", str))
    if len(data) != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(text)
    if not data:
        return np.zeros(shape, dtype)
    if dtype.kind == "b" and max(data) > 1:
        raise ValueError(text)
    flat = np.frombuffer(data, dtype.newbyteorder("<"))
    # A copy, for what frombuffer returns is read-only.
    return flat.astype(dtype, copy=True).reshape(shape)


def _pack_scalar(packer: form.Packer, value: np.generic) -> form.Node:
    node = _pack_array(packer, np.asarray(value))
    back = _unpack_scalar(node, packer.pack)
    # Numpy drops trailing NULs of text, and has types that differ by name only.
    same_text = value.dtype.kind not in "US" or bool(back == value)
    if type(back) is not type(value) or not same_text:
        raise form.unstorable(value, "convert it to a plain Python value first")
    return {**node, form.TYPE_KEY: "numpy.scalar"}


def _unpack_scalar(node: form.Node, unpack: form.Unpack) -> Any:
    return _unpack_array(node, unpack)[()]


UNPACKERS = {"numpy.array": _unpack_array, "numpy.scalar": _unpack_scalar}
