"""Kinds of polars: frames column by column.

Not as polars' own IPC: its bytes keep what a mask took away (docs/decisions.md).
"""

from __future__ import annotations

from typing import Any

import polars as pl

from dpflow.ledger.codec.kinds import Types, column_parts, register

_NUMBERS = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
_PLAIN = (*_NUMBERS, "Float32", "Float64", "Boolean", "String", "Binary", "Null")
_TYPES: Types = {
    **{name: (getattr(pl, name), (), None) for name in _PLAIN},
    "Date": (pl.Date, (), pl.Int32),
    "Time": (pl.Time, (), pl.Int64),
    "Datetime": (pl.Datetime, ("time_unit", "time_zone"), pl.Int64),
    "Duration": (pl.Duration, ("time_unit",), pl.Int64),
    "Decimal": (pl.Decimal, ("precision", "scale"), None),
    # Only the categories of an Enum are part of its type.
    "Categorical": (pl.Categorical, (), pl.String),
    "Enum": (pl.Enum, ("categories",), pl.String),
}


def _series_parts(series: Any) -> list[Any]:
    name = series.dtype.base_type().__name__
    *kind, column = column_parts(_TYPES, name, series, series.dtype)
    return [series.name, *kind, column.to_list()]


def _make_series(name: str, kind: str, arguments: list[Any], values: list[Any]) -> Any:
    make, _, written = _TYPES[kind]
    dtype = make(*arguments)
    return pl.Series(name, values, dtype=written or dtype, strict=True).cast(dtype)


_KINDS: dict[type, Any] = {
    pl.Series: (_series_parts, _make_series),
    pl.DataFrame: (
        lambda frame: frame.get_columns(),
        lambda *columns: pl.DataFrame({column.name: column for column in columns}),
    ),
}
register("polars.", _KINDS)
