"""Columns of pandas, polars, Arrow and numpy: what a dtype holds, and its entries.

Kinds are those of labels (`label_kind`), with numbers as "int", "float", "bool" or
"decimal". "object" may hold anything, and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dpflow.noise.numbers import fits_float, is_missing

#: Kinds of columns whose labels are numbers.
NUMBERS = ("int", "float", "bool", "decimal")


class Column(NamedTuple):
    """A column as Python's own values.

    Attributes:
        kind: What its dtype holds.
        dtype: Name of the dtype, without its parts.
        entries: The values; None, NaN or a library's own for a missing one.
    """

    kind: str
    dtype: str
    entries: list[Any]

    @property
    def is_absent(self) -> bool:
        """Whether no entry says what the column holds; its dtype may be a default."""
        return all(map(is_missing, self.entries))


def bare_type(kind: object) -> str:
    """Return a column's type without its parts: categories and fields are data."""
    return re.split(r"\W", str(kind), maxsplit=1)[0]


def objects(entries: list[Any]) -> Column:
    """Return a column of anything."""
    return Column("object", "object", entries)


def numpy_column(array: Any) -> Column:
    """Return an array's numbers, in C order."""
    # A dtype's own name has the length of the longest text.
    name = array.dtype.type.__name__
    return Column(_numpy_kind(array.dtype), name, array.ravel().tolist())


def pandas_column(column: Any) -> Column:
    """Return the values of a Series or an Index."""
    dtype = column.dtype
    return Column(_pandas_kind(dtype), bare_type(dtype), column.tolist())


def polars_column(series: Any) -> Column:
    """Return the values of a polars Series."""
    name = series.dtype.base_type().__name__
    kind = _POLARS.get(name, "other")
    if name == "Datetime" and series.dtype.time_zone:
        kind = "aware time"
    return Column(kind, name, series.to_list())


def arrow_column(array: Any) -> Column:
    """Return the values of an Arrow array, chunked or not."""
    return Column(arrow_kind(array.type), bare_type(array.type), array.to_pylist())


_NUMPY = {
    "b": "bool",
    "i": "int",
    "u": "int",
    "f": "float",
    "O": "object",
    "M": "time",
    "m": "duration",
    "U": "text",
    "S": "bytes",
}


def _numpy_kind(dtype: Any) -> str:
    kind = _NUMPY.get(dtype.kind, "other")
    return "other" if kind in NUMBERS and not fits_float(dtype) else kind


def _pandas_kind(dtype: Any) -> str:
    name = type(dtype).__name__
    if name == "CategoricalDtype":
        return _pandas_kind(dtype.categories.dtype)
    if name == "ArrowDtype":
        return arrow_kind(dtype.pyarrow_dtype)
    if name == "SparseDtype":
        return _numpy_kind(dtype.subtype)
    named = {"StringDtype": "text", "DatetimeTZDtype": "aware time"}
    plain = getattr(dtype, "numpy_dtype", dtype)
    return named.get(name) or (
        _numpy_kind(plain) if hasattr(plain, "kind") else "other"
    )


_INTS = [f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
_POLARS = {
    **dict.fromkeys(_INTS, "int"),
    **dict.fromkeys(("Float16", "Float32", "Float64"), "float"),
    **dict.fromkeys(("String", "Categorical", "Enum"), "text"),
    **dict.fromkeys(("Null", "Object"), "object"),
    "Boolean": "bool",
    "Decimal": "decimal",
    "Binary": "bytes",
    "Date": "date",
    "Datetime": "time",
    "Time": "clock",
    "Duration": "duration",
}


def arrow_kind(kind: Any) -> str:
    """Return what an Arrow type holds."""
    from pyarrow import types  # noqa: PLC0415

    if types.is_dictionary(kind):
        return arrow_kind(kind.value_type)
    tests: dict[str, tuple[Callable[[Any], bool], ...]] = {
        "int": (types.is_integer,),
        "float": (types.is_floating,),
        "bool": (types.is_boolean,),
        "decimal": (types.is_decimal,),
        "text": (types.is_string, types.is_large_string, types.is_string_view),
        "bytes": (types.is_binary, types.is_large_binary),
        "time": (types.is_timestamp,),
        "date": (types.is_date,),
        "clock": (types.is_time,),
        "duration": (types.is_duration,),
        "object": (types.is_null,),
    }
    name = next((n for n, each in tests.items() if any(t(kind) for t in each)), "other")
    return "aware time" if name == "time" and kind.tz else name
