"""Polars frames and series as trees of plain JSON values, column by column."""

from __future__ import annotations

from typing import Any

import polars as pl

from dpflow.ledger.codec.form import (
    TYPE_KEY,
    Node,
    Pack,
    Packer,
    Unpack,
    member,
    unstorable,
)

_NUMBERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
#: Types whose values are Python's own.
_PLAIN = (*_NUMBERS, "Float32", "Float64", "Boolean", "String", "Binary", "Null")
#: Types that count in whole numbers, of this physical type.
_CLOCKS = {"Date": "Int32", "Datetime": "Int64", "Duration": "Int64", "Time": "Int64"}


def packer_of(value: object) -> Pack | None:
    """Return what writes a frame or series; None for any other value."""
    return _PACKERS.get(type(value))


def _pack_column(packer: Packer, series: Any) -> Node:
    dtype = series.dtype
    kind = dtype.base_type().__name__
    if kind not in _PLAIN and kind not in _CLOCKS:
        hint = f"a column of {dtype} has no exact text; cast it to numbers or text"
        raise unstorable(series, hint)
    values = series.to_physical() if kind in _CLOCKS else series
    return {
        "name": packer.pack(series.name),
        "dtype": kind,
        "unit": getattr(dtype, "time_unit", None),
        "zone": getattr(dtype, "time_zone", None),
        "values": packer.pack_all(values.to_list()),
    }


def _pack_series(packer: Packer, series: Any) -> Node:
    return {TYPE_KEY: "polars.Series", **_pack_column(packer, series)}


def _pack_frame(packer: Packer, frame: Any) -> Node:
    columns = [_pack_column(packer, column) for column in frame]
    return {TYPE_KEY: "polars.DataFrame", "columns": columns}


def _unpack_series(node: Node, unpack: Unpack) -> Any:
    kind = member(node, "dtype", str)
    values = [unpack(item) for item in member(node, "values", list)]
    name = unpack(node["name"])
    if kind in _PLAIN:
        return pl.Series(name, values, dtype=getattr(pl, kind), strict=True)
    counts = pl.Series(name, values, dtype=getattr(pl, _CLOCKS[kind]), strict=True)
    if kind == "Datetime":
        return counts.cast(pl.Datetime(node["unit"], node["zone"]))
    if kind == "Duration":
        return counts.cast(pl.Duration(node["unit"]))
    return counts.cast(getattr(pl, kind))


def _unpack_frame(node: Node, unpack: Unpack) -> Any:
    columns = member(node, "columns", list)
    return pl.DataFrame([_unpack_series(column, unpack) for column in columns])


_PACKERS: dict[type, Pack] = {pl.Series: _pack_series, pl.DataFrame: _pack_frame}
UNPACKERS = {"polars.Series": _unpack_series, "polars.DataFrame": _unpack_frame}
