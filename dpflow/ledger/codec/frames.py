"""Pandas values as trees, column by column; a column of objects, value by value.

The attributes of a frame (`attrs`) are left out: they may say anything of the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from pandas import arrays

from dpflow.ledger.codec import form
from dpflow.ledger.codec.arrays import Array

_MASKED: dict[str, Any] = {
    "b": arrays.BooleanArray,
    "f": arrays.FloatingArray,
    "i": arrays.IntegerArray,
    "u": arrays.IntegerArray,
}
#: Names of dtypes of which pandas makes a column from its values.
_NAMED = re.compile(r"(interval|period)\[.+\]")


def packer_of(value: object) -> form.Pack | None:
    """Return what writes a frame, series or moment; None for any other value."""
    return _PACKERS.get(type(value))


# Columns


def _pack_column(packer: form.Packer, column: Any) -> form.Node:
    """Return the tree of the values of a Series or an Index."""
    dtype = column.dtype
    array: Any = column.array
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
    if type(array) in _MASKED.values():
        data = array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=0)
        values, mask = packer.pack_all([data, np.asarray(array.isna())])
        return {"kind": "masked", "values": values, "mask": mask}
    if isinstance(dtype, pd.CategoricalDtype):
        return {
            "kind": "category",
            "values": packer.pack(array.codes),
            "categories": _pack_index(packer, array.categories),
            "ordered": bool(array.ordered),
        }
    if not _NAMED.fullmatch(str(dtype)):
        hint = f"turn the dtype {dtype.name} into numbers, text or datetime64"
        raise form.unstorable(array, hint)
    return {"kind": "named", "dtype": str(dtype), "values": packer.pack_all(column)}


def _unpack_column(node: form.Node, unpack: form.Unpack) -> Any:
    """Return the values that `_pack_column` was given, as an array."""
    kind, packed = form.member(node, "kind", str), node["values"]
    if kind in ("object", "string", "named"):
        values = np.empty(len(packed), dtype=object)
        for position, item in enumerate(packed):
            values[position] = unpack(item)
        if kind == "object":
            return values
        if kind == "named" and _NAMED.fullmatch(node["dtype"]):
            return pd.array(values, dtype=node["dtype"])
        missing: Any = pd.NA if node["missing"] == "NA" else np.nan
        return pd.array(values, dtype=pd.StringDtype(node["storage"], na_value=missing))
    array = _checked_array(unpack(packed))
    if kind == "category":
        names, ordered = _unpack_index(node["categories"], unpack), node["ordered"]
        return pd.Categorical.from_codes(array, names, ordered=ordered)
    if kind == "zoned":
        clock = pd.DatetimeIndex(array).tz_localize("UTC")
        return clock.tz_convert(unpack(node["zone"])).array
    if kind == "masked":
        mask = _checked_array(unpack(node["mask"]))
        return _MASKED[array.dtype.kind](array, mask)
    return array if kind == "numpy" else form.not_canonical()


def _checked_array(value: object) -> Array:
    if type(value) is not np.ndarray or value.ndim != 1:
        msg = "not a column"
        raise TypeError(msg)
    return value


# Indexes


def _pack_index(packer: form.Packer, index: Any) -> form.Node:
    if isinstance(index, pd.MultiIndex):
        levels = [index.get_level_values(place) for place in range(index.nlevels)]
        return {"kind": "multi", "levels": [_pack_index(packer, one) for one in levels]}
    name = packer.pack(index.name)
    if isinstance(index, pd.RangeIndex):
        bounds = [index.start, index.stop, index.step]
        return {"kind": "range", "bounds": bounds, "name": name}
    frequency = getattr(index, "freq", None)
    if frequency is not None and not isinstance(index, pd.PeriodIndex):
        hint = "drop the index's frequency: index.freq = None"
        raise form.unstorable(frequency, hint)
    return {"kind": "flat", "column": _pack_column(packer, index), "name": name}


def _unpack_index(node: form.Node, unpack: form.Unpack) -> Any:
    kind = form.member(node, "kind", str)
    if kind == "multi":
        levels = [
            _unpack_index(one, unpack) for one in form.member(node, "levels", list)
        ]
        return pd.MultiIndex.from_arrays(levels, names=[one.name for one in levels])
    name = unpack(node["name"])
    if kind == "range":
        start, stop, step = form.member(node, "bounds", list)
        return pd.RangeIndex(start, stop, step, name=name)
    column = _unpack_column(form.member(node, "column", dict), unpack)
    return pd.Index(column, dtype=column.dtype, name=name, tupleize_cols=False)


# Values


def _pack_series(packer: form.Packer, series: Any) -> form.Node:
    return form.node(
        "pandas.Series",
        column=_pack_column(packer, series),
        index=_pack_index(packer, series.index),
        name=packer.pack(series.name),
    )


def _unpack_series(node: form.Node, unpack: form.Unpack) -> Any:
    index, name = _unpack_index(node["index"], unpack), unpack(node["name"])
    column = _unpack_column(node["column"], unpack)
    # The dtype is said, for pandas would make text of objects that are all str.
    return pd.Series(column, index=index, name=name, dtype=column.dtype)


def _pack_frame(packer: form.Packer, frame: Any) -> form.Node:
    places = range(len(frame.columns))
    return form.node(
        "pandas.DataFrame",
        data=[_pack_column(packer, frame.iloc[:, place]) for place in places],
        columns=_pack_index(packer, frame.columns),
        index=_pack_index(packer, frame.index),
    )


def _unpack_frame(node: form.Node, unpack: form.Unpack) -> Any:
    index = _unpack_index(node["index"], unpack)
    data = {}
    for place, packed in enumerate(form.member(node, "data", list)):
        column = _unpack_column(packed, unpack)
        data[place] = pd.Series(column, index=index, dtype=column.dtype)
    # By place, then named: names may repeat.
    frame: Any = pd.DataFrame(data, index=index)
    frame.columns = _unpack_index(node["columns"], unpack)
    return frame


def _pack_timestamp(packer: form.Packer, value: Any) -> form.Node:
    zone = None if value.tz is None else packer.pack(value.tz)
    clock = value if zone is None else value.tz_convert("UTC").tz_localize(None)
    moment = packer.pack(clock.to_datetime64())
    return form.node("pandas.Timestamp", utc=moment, zone=zone, fold=value.fold)


def _unpack_timestamp(node: form.Node, unpack: form.Unpack) -> Any:
    moment, zone = pd.Timestamp(unpack(node["utc"])), unpack(node["zone"])
    if zone is not None:
        moment = moment.tz_localize("UTC").tz_convert(zone)
    # Where the clock is not set back, the fold means nothing, but it may be set.
    fold = form.member(node, "fold", int)
    return moment if moment.fold == fold else moment.replace(fold=fold)


def _pack_interval(packer: form.Packer, value: Any) -> form.Node:
    ends = packer.pack_all([value.left, value.right])
    return form.node("pandas.Interval", ends=ends, closed=value.closed)


def _unpack_interval(node: form.Node, unpack: form.Unpack) -> Any:
    left, right = map(unpack, form.member(node, "ends", list))
    return pd.Interval(left, right, closed=node["closed"])


def _pack_period(_: form.Packer, value: Any) -> form.Node:
    return form.node("pandas.Period", ordinal=value.ordinal, freq=value.freqstr)


_PACKERS: dict[type, form.Pack] = {
    pd.Interval: _pack_interval,
    pd.Period: _pack_period,
    pd.Series: _pack_series,
    pd.DataFrame: _pack_frame,
    pd.Timestamp: _pack_timestamp,
    # The ends of intervals.
    pd.Timedelta: lambda packer, value: form.node(
        "pandas.Timedelta", value=packer.pack(np.array([value.to_timedelta64()]))
    ),
    type(pd.NaT): lambda *_: form.node("pandas.NaT"),
    type(pd.NA): lambda *_: form.node("pandas.NA"),
}
UNPACKERS: dict[str, Callable[[form.Node, form.Unpack], Any]] = {
    "pandas.Interval": _unpack_interval,
    "pandas.Period": lambda node, _: pd.Period(
        ordinal=form.member(node, "ordinal", int), freq=form.member(node, "freq", str)
    ),
    "pandas.Series": _unpack_series,
    "pandas.DataFrame": _unpack_frame,
    "pandas.Timestamp": _unpack_timestamp,
    "pandas.Timedelta": lambda node, unpack: pd.Timedelta(
        _checked_array(unpack(node["value"]))[0]
    ),
    "pandas.NaT": lambda *_: pd.NaT,
    "pandas.NA": lambda *_: pd.NA,
}
