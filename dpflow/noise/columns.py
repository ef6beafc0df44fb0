"""Columns of numpy, pandas, polars and Arrow: what a dtype holds, and its entries.

Kinds are those of labels (`label_kind`), with numbers as "int", "float", "bool" or
"decimal". "object" may hold anything, and says nothing.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter
from typing import Any, NamedTuple

from dpflow.accounting.costs.base import Cost
from dpflow.noise import numbers

#: Kinds of columns whose labels are numbers.
NUMBERS = ("int", "float", "bool", "decimal")

_FRAMES = re.compile(r"(pandas|polars) DataFrame|pyarrow Table")
_VECTORS = re.compile(r"numpy ndarray|(pandas|polars) Series|pyarrow \w*Array")
#: Kinds with the types of their labels, of which the first that fits counts, and the
#: names of their dtypes in small letters. Labels of two kinds never equal.
_KINDS: dict[str, tuple[Any, str]] = {
    "missing": (type(None), ""),
    "text": (str, r"str(ing)?|large_string|string_view|categorical|enum"),
    "bytes": (bytes, r"bytes|(large_)?binary"),
    "number": ((bool, int, float, Decimal, Fraction), ""),
    "int": ((), r"u?int(8|16|32|64)"),
    "float": ((), r"float(16|32|64)?|double|halffloat"),
    "bool": ((), r"bool(ean)?"),
    "decimal": ((), r"decimal\d*"),
    "time": (datetime, r"datetime(64)?|timestamp"),
    "date": (date, r"date(32|64)?"),
    "clock": (time, r"time(32|64)?"),
    "duration": (timedelta, r"duration|timedelta64"),
    "object": ((), r"object|null"),
}
#: Dtypes around another one.
_INSIDE: dict[str, Any] = {
    "CategoricalDtype": attrgetter("categories.dtype"),
    "ArrowDtype": attrgetter("pyarrow_dtype"),
    "SparseDtype": attrgetter("subtype"),
    "DictionaryType": attrgetter("value_type"),
}


class Column(NamedTuple):
    """A column as Python's own values.

    Attributes:
        entries: The values; None, NaN or a library's own for a missing one.
        kind: What its dtype holds; default: anything.
        dtype: Name of the dtype, without its parts.
    """

    entries: list[Any]
    kind: str = "object"
    dtype: str = "object"

    @classmethod
    def read(cls, values: Any) -> Column:
        """Return the values of an array in C order, of a Series or of an Index."""
        dtype = values.dtype if hasattr(values, "dtype") else values.type
        read = getattr(values, "to_pylist", None) or getattr(values, "to_list", None)
        entries = values.ravel().tolist() if read is None else read()
        return cls(entries, _kind(dtype), _bare_type(dtype))

    @property
    def is_absent(self) -> bool:
        """Whether no entry says what the column holds; its dtype may be a default."""
        return all(map(numbers.is_missing, self.entries))

    def check(self, cost: Cost, value: object, *, labelled: bool) -> None:
        """Refuse a column of numbers by its dtype, which is public.

        The numbers of dtype object are read by their entries.

        Args:
            cost: The declared cost.
            value: The whole value, for messages.
            labelled: Whether the numbers have labels.
        """
        accepted, todo = ["int", "object"], "Cast it to int64 or float64"
        if numbers.is_whole(cost):
            accepted += ["bool", "float"] if labelled else ["bool"]
            todo = numbers.WHOLE_ONLY
        else:
            accepted += ["float", "decimal"]
            todo = numbers.NO_BOOL if self.kind == "bool" else todo
        if self.kind not in accepted:
            numbers.refuse(value, f"it holds numbers of dtype {self.dtype}", todo)

    @property
    def label_kind(self) -> str:
        """What kind of labels the column holds, as `label_kind` names it."""
        return "number" if self.kind in NUMBERS else self.kind


def is_frame(kind: type) -> bool:
    """Return whether a class is of frames or tables of a supported library."""
    return _FRAMES.fullmatch(numbers.name_of(kind)) is not None


def is_vector(kind: type) -> bool:
    """Return whether a class is of arrays or Series of a supported library."""
    return _VECTORS.fullmatch(numbers.name_of(kind)) is not None


def columns_of(frame: Any) -> list[tuple[Any, Any]]:
    """Return the columns of a frame or table with their names."""
    if hasattr(frame, "iloc"):
        return [*frame.items()]
    if hasattr(frame, "column_names"):
        return [*zip(frame.column_names, frame.columns, strict=True)]
    return [*zip(frame.columns, frame.get_columns(), strict=True)]


def _bare_type(dtype: Any) -> str:
    """Return a dtype's name without its parts: categories, fields, length of texts."""
    text = str(getattr(dtype, "name", dtype))
    return re.split(r"\W|(?<=^str)\d|(?<=^bytes)\d|(?<=^void)\d", text, maxsplit=1)[0]


def label_kind(label: Any) -> str:
    """Return what kind of label it is, as those of columns are named; else "other"."""
    kind = next((k for k, (types, _) in _KINDS.items() if isinstance(label, types)), "")
    is_aware = kind == "time" and label.tzinfo is not None
    return "aware time" if is_aware else kind or "other"


def _kind(dtype: Any) -> str:
    if inside := _INSIDE.get(type(dtype).__name__):
        return _kind(inside(dtype))
    name = _bare_type(dtype).lower()
    kind = next((k for k, (_, form) in _KINDS.items() if re.fullmatch(form, name)), "")
    is_aware = getattr(dtype, "tz", None) or getattr(dtype, "time_zone", None)
    return "aware time" if kind == "time" and is_aware else kind or "other"
