"""Polars frames and series as trees of plain JSON values, column by column.

Not as polars' own IPC: its bytes keep what a mask took away (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from dpflow.ledger.codec import form

_NUMBERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
#: Types whose values are Python's own.
_PLAIN = (*_NUMBERS, "Float32", "Float64", "Boolean", "String", "Binary", "Null")
#: Types that count in whole numbers, of this physical type.
_CLOCKS = {"Date": "Int32", "Datetime": "Int64", "Duration": "Int64", "Time": "Int64"}


def packer_of(value: object) -> form.Pack | None:
    """Return what writes a frame or series; None for any other value."""
    return _PACKERS.get(type(value))


def _pack_column(packer: form.Packer, series: Any) -> form.Node:
    dtype = series.dtype
    kind = dtype.base_type().__name__
    node = {"name": packer.pack(series.name), "dtype": kind}
    if kind in _PACK_NAMED:
        more: form.Node = _PACK_NAMED[kind](packer, series)
        return node | more
    if kind not in _PLAIN and kind not in _CLOCKS:
        hint = f"a column of {dtype} has no exact text; cast it to numbers or text"
        raise form.unstorable(series, hint)
    values = series.to_physical() if kind in _CLOCKS else series
    return node | {
        "unit": getattr(dtype, "time_unit", None),
        "zone": getattr(dtype, "time_zone", None),
        "values": packer.pack_all(values.to_list()),
    }


def _pack_decimals(packer: form.Packer, series: Any) -> form.Node:
    size = [series.dtype.precision, series.dtype.scale]
    return {"size": size, "values": packer.pack_all(series.to_list())}


def _pack_names(packer: form.Packer, series: Any) -> form.Node:
    """Pack categories as their names; only an Enum's others are part of its type."""
    known = getattr(series.dtype, "categories", None)
    names = known.to_list() if series.dtype == pl.Enum and known is not None else None
    return {
        "categories": packer.pack(names),
        "values": packer.pack_all(series.cast(pl.String).to_list()),
    }


def _pack_series(packer: form.Packer, series: Any) -> form.Node:
    return {form.TYPE_KEY: "polars.Series", **_pack_column(packer, series)}


def _pack_frame(packer: form.Packer, frame: Any) -> form.Node:
    columns = [_pack_column(packer, column) for column in frame]
    return {form.TYPE_KEY: "polars.DataFrame", "columns": columns}


def _unpack_series(node: form.Node, unpack: form.Unpack) -> Any:
    kind = form.member(node, "dtype", str)
    if kind in _UNPACK_NAMED:
        return _UNPACK_NAMED[kind](node, unpack).alias(unpack(node["name"]))
    values = [unpack(item) for item in form.member(node, "values", list)]
    name = unpack(node["name"])
    if kind in _PLAIN:
        return pl.Series(name, values, dtype=getattr(pl, kind), strict=True)
    counts = pl.Series(name, values, dtype=getattr(pl, _CLOCKS[kind]), strict=True)
    if kind == "Datetime":
        return counts.cast(pl.Datetime(node["unit"], node["zone"]))
    if kind == "Duration":
        return counts.cast(pl.Duration(node["unit"]))
    return counts.cast(getattr(pl, kind))


def _unpack_decimals(node: form.Node, unpack: form.Unpack) -> Any:
    precision, scale = form.member(node, "size", list)
    values = [unpack(item) for item in form.member(node, "values", list)]
    return pl.Series(values, dtype=pl.Decimal(precision, scale), strict=True)


def _unpack_names(node: form.Node, unpack: form.Unpack) -> Any:
    known = unpack(node["categories"])
    values = [unpack(item) for item in form.member(node, "values", list)]
    kind = pl.Categorical() if known is None else pl.Enum(known)
    return pl.Series(values, dtype=pl.String, strict=True).cast(kind)


def _unpack_frame(node: form.Node, unpack: form.Unpack) -> Any:
    columns = form.member(node, "columns", list)
    return pl.DataFrame([_unpack_series(column, unpack) for column in columns])


_PACK_NAMED: dict[str, form.Pack] = {
    "Decimal": _pack_decimals,
    "Categorical": _pack_names,
    "Enum": _pack_names,
}
_UNPACK_NAMED: dict[str, Callable[[form.Node, form.Unpack], Any]] = {
    "Decimal": _unpack_decimals,
    "Categorical": _unpack_names,
    "Enum": _unpack_names,
}
_PACKERS: dict[type, form.Pack] = {pl.Series: _pack_series, pl.DataFrame: _pack_frame}
UNPACKERS = {"polars.Series": _unpack_series, "polars.DataFrame": _unpack_frame}
