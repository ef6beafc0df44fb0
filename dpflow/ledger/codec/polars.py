"""Polars frames and series as trees of plain JSON values, column by column.

Not as polars' own IPC: its bytes keep what a mask took away (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from dpflow.ledger.codec import form

_NUMBERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_PLAIN = (*_NUMBERS, "Float32", "Float64", "Boolean", "String", "Binary", "Null")
#: Arguments of each type, and the type as which its values are written, if another.
_TYPES: dict[str, tuple[tuple[str, ...], str | None]] = {
    **dict.fromkeys(_PLAIN, ((), None)),
    "Date": ((), "Int32"),
    "Time": ((), "Int64"),
    "Datetime": (("time_unit", "time_zone"), "Int64"),
    "Duration": (("time_unit",), "Int64"),
    "Decimal": (("precision", "scale"), None),
    # Only the categories of an Enum are part of its type.
    "Categorical": ((), "String"),
    "Enum": (("categories",), "String"),
}


def packer_of(value: object) -> form.Pack | None:
    """Return what writes a frame or series; None for any other value."""
    return {pl.Series: _pack_series, pl.DataFrame: _pack_frame}.get(type(value))


def _pack_series(packer: form.Packer, series: Any) -> form.Node:
    dtype = series.dtype
    kind = dtype.base_type().__name__
    if kind not in _TYPES:
        hint = f"a column of {dtype} has no exact text; cast it to numbers or text"
        raise form.unstorable(series, hint)
    names, written = _TYPES[kind]
    values = series.cast(getattr(pl, written)) if written else series
    return form.node(
        "polars.Series",
        name=packer.pack(series.name),
        dtype=kind,
        arguments=packer.pack_all(getattr(dtype, name) for name in names),
        values=packer.pack_all(values.to_list()),
    )


def _unpack_series(node: form.Node, unpack: form.Unpack) -> Any:
    kind, name = form.member(node, "dtype", str), unpack(node["name"])
    _, written = _TYPES[kind]
    dtype = getattr(pl, kind)(*map(unpack, form.member(node, "arguments", list)))
    values = [unpack(item) for item in form.member(node, "values", list)]
    as_written = getattr(pl, written) if written else dtype
    return pl.Series(name, values, dtype=as_written, strict=True).cast(dtype)


def _pack_frame(packer: form.Packer, frame: Any) -> form.Node:
    return form.node("polars.DataFrame", columns=packer.pack_all(frame))


UNPACKERS: dict[str, Callable[[form.Node, form.Unpack], Any]] = {
    "polars.Series": _unpack_series,
    "polars.DataFrame": lambda node, unpack: pl.DataFrame(
        [_unpack_series(each, unpack) for each in form.member(node, "columns", list)]
    ),
}
