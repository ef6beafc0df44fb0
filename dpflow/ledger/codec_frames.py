"""Numpy and pandas values as trees of plain JSON values; the other half of `codec`.

Numbers are stored as base64 of their bytes, little-endian and in C order, so that they
come back bit for bit. Object arrays are refused: only pickle could store them. Pandas
objects are stored column by column; a column of objects is stored value by value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from dpflow.ledger.codec import (
    TYPE_KEY,
    Packer,
    Unpack,
    from_base64,
    member,
    to_base64,
    unstorable,
)
from dpflow.libraries import comes_from

_Array = np.ndarray[Any, Any]
_Node = dict[str, Any]

#: Kinds of numpy dtypes whose bytes mean the same everywhere.
_KINDS = "biufMmUS"
_DTYPE = re.compile(r"[<>|][biufMmUS][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")
_WIDEST_FLOAT = 8


def pack(packer: Packer, value: object) -> _Node | None:
    """Return the tree of a value of numpy or pandas, or None for any other value."""
    if type(value) is np.ndarray:
        return _pack_array(packer, value)
    if isinstance(value, np.generic):
        return _pack_scalar(packer, value)
    if not comes_from(value, "pandas"):
        return None
    import pandas as pd  # noqa: PLC0415

    if value is pd.NaT or value is pd.NA:
        return {TYPE_KEY: "pandas.NaT" if value is pd.NaT else "pandas.NA"}
    handler = {
        pd.Series: _pack_series,
        pd.DataFrame: _pack_frame,
        pd.Timestamp: _pack_timestamp,
    }.get(type(value))
    return None if handler is None else handler(packer, value)


# ---- numpy


def _pack_array(packer: Packer, array: _Array) -> _Node:
    dtype = array.dtype
    wide = dtype.kind == "f" and dtype.itemsize > _WIDEST_FLOAT
    if dtype.kind not in _KINDS or wide:
        hint = f"dtype {dtype.name} has no exact text; convert it to a numeric dtype"
        raise unstorable(array, hint)
    packer.take(array.nbytes * 4 // 3)
    data = array.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    return {
        TYPE_KEY: "numpy.array",
        "dtype": dtype.str,
        "shape": list(array.shape),
        "data": to_base64(data),
    }


def _unpack_array(node: _Node, _: Unpack) -> _Array:
    # The pattern first: numpy's own parser of dtypes takes much more than these.
    text = member(node, "dtype", str)
    if not _DTYPE.fullmatch(text):
        raise ValueError(text)
    dtype, shape = np.dtype(text), tuple(member(node, "shape", list))
    data = from_base64(member(node, "data", str))
    if len(data) != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
        raise ValueError(text)
    if not data:
        return np.zeros(shape, dtype)
    if dtype.kind == "b" and max(data) > 1:
        raise ValueError(text)
    flat = np.frombuffer(data, dtype.newbyteorder("<"))
    # A copy, for what frombuffer returns is read-only.
    return flat.astype(dtype, copy=True).reshape(shape)


def _pack_scalar(packer: Packer, value: np.generic) -> _Node:
    node = _pack_array(packer, np.asarray(value))
    back = _unpack_scalar(node, packer.pack)
    # Numpy drops trailing NULs of text, and has types that differ by name only.
    same_text = value.dtype.kind not in "US" or bool(back == value)
    if type(back) is not type(value) or not same_text:
        raise unstorable(value, "convert it to a plain Python value first")
    return {**node, TYPE_KEY: "numpy.scalar"}


def _unpack_scalar(node: _Node, unpack: Unpack) -> Any:
    return _unpack_array(node, unpack)[()]


# ---- pandas: columns


def _pack_column(packer: Packer, column: Any) -> _Node:
    """Return the tree of the values of a Series or an Index."""
    import pandas as pd  # noqa: PLC0415

    dtype = column.dtype
    if isinstance(dtype, np.dtype):
        if dtype.kind == "O":
            return {"kind": "object", "values": packer.pack_all(column)}
        return {"kind": "numpy", "values": packer.pack(column.to_numpy())}
    if isinstance(dtype, pd.DatetimeTZDtype):
        clock = pd.DatetimeIndex(column).tz_convert("UTC").tz_localize(None)
        values, zone = packer.pack(clock.to_numpy()), packer.pack(dtype.tz)
        return {"kind": "zoned", "values": values, "zone": zone}
    if isinstance(dtype, pd.StringDtype):
        texts = column.astype(object).where(column.notna(), None)
        return {
            "kind": "string",
            "values": packer.pack_all(texts),
            "storage": dtype.storage,
            "missing": "NA" if dtype.na_value is pd.NA else "nan",
        }
    if isinstance(column.array, _masked_kinds()):
        return _pack_masked(packer, column.array)
    raise unstorable(column.array, _column_hint(dtype))


def _pack_masked(packer: Packer, array: Any) -> _Node:
    data = array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=0)
    mask = np.asarray(array.isna())
    return {"kind": "masked", "values": packer.pack(data), "mask": packer.pack(mask)}


def _column_hint(dtype: Any) -> str:
    if dtype.name == "category":
        return "turn the categories into text with .astype(str)"
    return f"turn the dtype {dtype.name} into numbers, text or datetime64"


def _masked_kinds() -> tuple[type, ...]:
    from pandas import arrays  # noqa: PLC0415

    return arrays.BooleanArray, arrays.IntegerArray, arrays.FloatingArray


def _unpack_column(node: _Node, unpack: Unpack) -> Any:
    """Return the values that `_pack_column` was given, as an array."""
    import pandas as pd  # noqa: PLC0415

    kind, packed = member(node, "kind", str), node["values"]
    if kind == "object":
        values = np.empty(len(packed), dtype=object)
        for position, item in enumerate(packed):
            values[position] = unpack(item)
        return values
    if kind == "string":
        missing: Any = pd.NA if node["missing"] == "NA" else np.nan
        dtype = pd.StringDtype(node["storage"], na_value=missing)
        return pd.array([unpack(item) for item in packed], dtype=dtype)
    array = _checked_array(unpack(packed))
    if kind == "numpy":
        return array
    if kind == "zoned":
        clock = pd.DatetimeIndex(array).tz_localize("UTC")
        return clock.tz_convert(unpack(node["zone"])).array
    if kind == "masked":
        mask = _checked_array(unpack(node["mask"]))
        boolean, integer, floating = _masked_kinds()
        masked: Any = {"b": boolean, "f": floating}.get(array.dtype.kind, integer)
        return masked(array, mask)
    raise ValueError(kind)


def _checked_array(value: object) -> _Array:
    if type(value) is not np.ndarray or value.ndim != 1:
        msg = "not a column"
        raise TypeError(msg)
    return value


# ---- pandas: indexes


def _pack_index(packer: Packer, index: Any) -> _Node:
    import pandas as pd  # noqa: PLC0415

    if isinstance(index, pd.MultiIndex):
        levels = [index.get_level_values(place) for place in range(index.nlevels)]
        return {"kind": "multi", "levels": [_pack_index(packer, one) for one in levels]}
    name = packer.pack(index.name)
    if isinstance(index, pd.RangeIndex):
        bounds = [index.start, index.stop, index.step]
        return {"kind": "range", "bounds": bounds, "name": name}
    if type(index) not in {pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex}:
        raise unstorable(index, "turn it into text with .map(str)")
    node = {"kind": "flat", "column": _pack_column(packer, index), "name": name}
    frequency = getattr(index, "freq", None)
    if frequency is None:
        return node
    if pd.tseries.frequencies.to_offset(index.freqstr) != frequency:
        raise unstorable(frequency, "drop the index's frequency: index.freq = None")
    return {**node, "freq": index.freqstr}


def _unpack_index(node: _Node, unpack: Unpack) -> Any:
    import pandas as pd  # noqa: PLC0415

    kind = member(node, "kind", str)
    if kind == "multi":
        levels = [_unpack_index(one, unpack) for one in member(node, "levels", list)]
        return pd.MultiIndex.from_arrays(levels, names=[one.name for one in levels])
    name = unpack(node["name"])
    if kind == "range":
        start, stop, step = member(node, "bounds", list)
        return pd.RangeIndex(start, stop, step, name=name)
    if kind != "flat":
        raise ValueError(kind)
    column = _unpack_column(member(node, "column", dict), unpack)
    index = pd.Index(column, dtype=column.dtype, name=name, tupleize_cols=False)
    if "freq" in node:
        index.freq = member(node, "freq", str)
    return index


# ---- pandas: values


def _pack_series(packer: Packer, series: Any) -> _Node:
    return {
        TYPE_KEY: "pandas.Series",
        "column": _pack_column(packer, series),
        "index": _pack_index(packer, series.index),
        "name": packer.pack(series.name),
        "attrs": packer.pack(series.attrs),
    }


def _unpack_series(node: _Node, unpack: Unpack) -> Any:
    import pandas as pd  # noqa: PLC0415

    index, name = _unpack_index(node["index"], unpack), unpack(node["name"])
    column = _unpack_column(node["column"], unpack)
    # The dtype is said, for pandas would make text of objects that are all str.
    series: Any = pd.Series(column, index=index, name=name, dtype=column.dtype)
    series.attrs = unpack(node["attrs"])
    return series


def _pack_frame(packer: Packer, frame: Any) -> _Node:
    places = range(len(frame.columns))
    columns = [_pack_column(packer, frame.iloc[:, place]) for place in places]
    return {
        TYPE_KEY: "pandas.DataFrame",
        "data": columns,
        "columns": _pack_index(packer, frame.columns),
        "index": _pack_index(packer, frame.index),
        "attrs": packer.pack(frame.attrs),
    }


def _unpack_frame(node: _Node, unpack: Unpack) -> Any:
    import pandas as pd  # noqa: PLC0415

    index = _unpack_index(node["index"], unpack)
    data = {}
    for place, packed in enumerate(member(node, "data", list)):
        column = _unpack_column(packed, unpack)
        data[place] = pd.Series(column, index=index, dtype=column.dtype)
    # By place, then named: names may repeat.
    frame: Any = pd.DataFrame(data, index=index)
    frame.columns = _unpack_index(node["columns"], unpack)
    frame.attrs = unpack(node["attrs"])
    return frame


def _pack_timestamp(packer: Packer, value: Any) -> _Node:
    zone = None if value.tz is None else packer.pack(value.tz)
    clock = value if zone is None else value.tz_convert("UTC").tz_localize(None)
    moment = packer.pack(clock.to_datetime64())
    node = {TYPE_KEY: "pandas.Timestamp", "utc": moment, "zone": zone}
    return {**node, "fold": value.fold}


def _unpack_timestamp(node: _Node, unpack: Unpack) -> Any:
    import pandas as pd  # noqa: PLC0415

    moment, zone = pd.Timestamp(unpack(node["utc"])), unpack(node["zone"])
    if zone is not None:
        moment = moment.tz_localize("UTC").tz_convert(zone)
    # Where the clock is not set back, the fold means nothing, but it may be set.
    fold = member(node, "fold", int)
    return moment if moment.fold == fold else moment.replace(fold=fold)


def _unpack_missing(node: _Node, _: Unpack) -> Any:
    import pandas as pd  # noqa: PLC0415

    return pd.NaT if node[TYPE_KEY] == "pandas.NaT" else pd.NA


#: How to read each type of node that `pack` writes.
UNPACKERS: dict[str, Callable[[_Node, Unpack], Any]] = {
    "numpy.array": _unpack_array,
    "numpy.scalar": _unpack_scalar,
    "pandas.Series": _unpack_series,
    "pandas.DataFrame": _unpack_frame,
    "pandas.Timestamp": _unpack_timestamp,
    "pandas.NaT": _unpack_missing,
    "pandas.NA": _unpack_missing,
}
