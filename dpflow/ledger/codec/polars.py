"""Kinds of polars: frames column by column.

Not as polars' own IPC: its bytes keep what a mask took away (docs/decisions.md).
"""

from __future__ import annotations

from typing import Any

import polars as pl

from dpflow.ledger.codec.kinds import register, unstorable

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


def _series_parts(series: Any) -> list[Any]:
    dtype = series.dtype
    kind = dtype.base_type().__name__
    if kind not in _TYPES:
        hint = f"a column of {dtype} has no exact text; cast it to numbers or text"
        raise unstorable(series, hint)
    names, written = _TYPES[kind]
    values = series.cast(getattr(pl, written)) if written else series
    arguments = [getattr(dtype, name) for name in names]
    return [series.name, kind, arguments, values.to_list()]


def _make_series(name: str, kind: str, arguments: list[Any], values: list[Any]) -> Any:
    _, written = _TYPES[kind]
    dtype = getattr(pl, kind)(*arguments)
    as_written = getattr(pl, written) if written else dtype
    return pl.Series(name, values, dtype=as_written, strict=True).cast(dtype)


_KINDS: dict[type, Any] = {
    pl.Series: (_series_parts, _make_series),
    pl.DataFrame: (
        lambda frame: frame.get_columns(),
        lambda *columns: pl.DataFrame({column.name: column for column in columns}),
    ),
}
register("polars.", _KINDS)
