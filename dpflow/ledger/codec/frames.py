"""Pandas values as trees, column by column; a column of objects, value by value.

The attributes of a frame (`attrs`) are left out: they may say anything of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from pandas import arrays

from dpflow.ledger.codec import form
from dpflow.ledger.codec.arrays import Array


def packer_of(value: object) -> form.Pack | None:
    """Return what writes a frame, series or moment; None for any other value."""
    return _PACKERS.get(type(value))


# Columns


def _pack_column(packer: form.Packer, column: Any) -> form.Node:
    """Return the tree of the values of a Series or an Index."""
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
    special = _COLUMNS.get(type(dtype))
    if special is None:
        hint = f"turn the dtype {dtype.name} into numbers, text or datetime64"
        raise form.unstorable(column.array, hint)
    return special(packer, column.array)


def _pack_categories(packer: form.Packer, array: Any) -> form.Node:
    return {
        "kind": "category",
        "values": packer.pack(array.codes),
        "categories": _pack_index(packer, array.categories),
        "ordered": bool(array.ordered),
    }


def _pack_intervals(packer: form.Packer, array: Any) -> form.Node:
    return {
        "kind": "interval",
        "values": _pack_column(packer, array.left),
        "right": _pack_column(packer, array.right),
        "closed": array.closed,
    }


def _periods(ordinals: Any, freq: str) -> Any:
    index: Any = pd.PeriodIndex
    return index.from_ordinals(ordinals, freq=freq)


def _pack_periods(packer: form.Packer, array: Any) -> form.Node:
    values, freq = packer.pack(array.asi8), pd.PeriodIndex(array).freqstr
    return {"kind": "period", "values": values, "freq": freq}


_COLUMNS: dict[type, Callable[[form.Packer, Any], form.Node]] = {
    pd.CategoricalDtype: _pack_categories,
    pd.IntervalDtype: _pack_intervals,
    pd.PeriodDtype: _pack_periods,
}


def _pack_masked(packer: form.Packer, array: Any) -> form.Node:
    data = array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=0)
    mask = np.asarray(array.isna())
    return {"kind": "masked", "values": packer.pack(data), "mask": packer.pack(mask)}


def _masked_kinds() -> tuple[type, ...]:
    return arrays.BooleanArray, arrays.IntegerArray, arrays.FloatingArray


def _unpack_objects(node: form.Node, unpack: form.Unpack) -> Any:
    packed = node["values"]
    values = np.empty(len(packed), dtype=object)
    for position, item in enumerate(packed):
        values[position] = unpack(item)
    return values


def _unpack_texts(node: form.Node, unpack: form.Unpack) -> Any:
    missing: Any = pd.NA if node["missing"] == "NA" else np.nan
    dtype = pd.StringDtype(node["storage"], na_value=missing)
    return pd.array([unpack(item) for item in node["values"]], dtype=dtype)


def _unpack_intervals(node: form.Node, unpack: form.Unpack) -> Any:
    left, right = (_unpack_column(node[side], unpack) for side in ("values", "right"))
    return arrays.IntervalArray.from_arrays(left, right, closed=node["closed"])


_BY_THEMSELVES: dict[str, Callable[[form.Node, form.Unpack], Any]] = {
    "object": _unpack_objects,
    "string": _unpack_texts,
    "interval": _unpack_intervals,
}


def _unpack_column(node: form.Node, unpack: form.Unpack) -> Any:
    """Return the values that `_pack_column` was given, as an array."""
    kind, packed = form.member(node, "kind", str), node["values"]
    if kind in _BY_THEMSELVES:
        return _BY_THEMSELVES[kind](node, unpack)
    array = _checked_array(unpack(packed))
    if kind == "category":
        names, ordered = _unpack_index(node["categories"], unpack), node["ordered"]
        return pd.Categorical.from_codes(array, names, ordered=ordered)
    if kind == "period":
        return _periods(array, form.member(node, "freq", str)).array
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
    if type(index) not in _INDEXES:
        raise form.unstorable(index, "turn it into text with .map(str)")
    frequency = getattr(index, "freq", None)
    if frequency is not None and not isinstance(index, pd.PeriodIndex):
        hint = "drop the index's frequency: index.freq = None"
        raise form.unstorable(frequency, hint)
    return {"kind": "flat", "column": _pack_column(packer, index), "name": name}


_INDEXES = {
    pd.Index,
    pd.DatetimeIndex,
    pd.TimedeltaIndex,
    pd.CategoricalIndex,
    pd.IntervalIndex,
    pd.PeriodIndex,
}


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
    if kind != "flat":
        raise ValueError(kind)
    column = _unpack_column(form.member(node, "column", dict), unpack)
    return pd.Index(column, dtype=column.dtype, name=name, tupleize_cols=False)


# Values


def _pack_series(packer: form.Packer, series: Any) -> form.Node:
    return {
        form.TYPE_KEY: "pandas.Series",
        "column": _pack_column(packer, series),
        "index": _pack_index(packer, series.index),
        "name": packer.pack(series.name),
    }


def _unpack_series(node: form.Node, unpack: form.Unpack) -> Any:
    index, name = _unpack_index(node["index"], unpack), unpack(node["name"])
    column = _unpack_column(node["column"], unpack)
    # The dtype is said, for pandas would make text of objects that are all str.
    return pd.Series(column, index=index, name=name, dtype=column.dtype)


def _pack_frame(packer: form.Packer, frame: Any) -> form.Node:
    places = range(len(frame.columns))
    columns = [_pack_column(packer, frame.iloc[:, place]) for place in places]
    return {
        form.TYPE_KEY: "pandas.DataFrame",
        "data": columns,
        "columns": _pack_index(packer, frame.columns),
        "index": _pack_index(packer, frame.index),
    }


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
    node = {form.TYPE_KEY: "pandas.Timestamp", "utc": moment, "zone": zone}
    return {**node, "fold": value.fold}


def _unpack_timestamp(node: form.Node, unpack: form.Unpack) -> Any:
    moment, zone = pd.Timestamp(unpack(node["utc"])), unpack(node["zone"])
    if zone is not None:
        moment = moment.tz_localize("UTC").tz_convert(zone)
    # Where the clock is not set back, the fold means nothing, but it may be set.
    fold = form.member(node, "fold", int)
    return moment if moment.fold == fold else moment.replace(fold=fold)


def _pack_interval(packer: form.Packer, value: Any) -> form.Node:
    ends = packer.pack_all([value.left, value.right])
    return {form.TYPE_KEY: "pandas.Interval", "ends": ends, "closed": value.closed}


def _unpack_interval(node: form.Node, unpack: form.Unpack) -> Any:
    left, right = map(unpack, form.member(node, "ends", list))
    return pd.Interval(left, right, closed=node["closed"])


def _pack_period(_: form.Packer, value: Any) -> form.Node:
    freq = value.freqstr
    return {form.TYPE_KEY: "pandas.Period", "ordinal": value.ordinal, "freq": freq}


def _unpack_period(node: form.Node, _: form.Unpack) -> Any:
    ordinal, freq = form.member(node, "ordinal", int), form.member(node, "freq", str)
    return _periods([ordinal], freq)[0]


_PACKERS: dict[type, form.Pack] = {
    pd.Interval: _pack_interval,
    pd.Period: _pack_period,
    pd.Series: _pack_series,
    pd.DataFrame: _pack_frame,
    pd.Timestamp: _pack_timestamp,
    type(pd.NaT): lambda *_: {form.TYPE_KEY: "pandas.NaT"},
    type(pd.NA): lambda *_: {form.TYPE_KEY: "pandas.NA"},
}
UNPACKERS: dict[str, Callable[[form.Node, form.Unpack], Any]] = {
    "pandas.Interval": _unpack_interval,
    "pandas.Period": _unpack_period,
    "pandas.Series": _unpack_series,
    "pandas.DataFrame": _unpack_frame,
    "pandas.Timestamp": _unpack_timestamp,
    "pandas.NaT": lambda *_: pd.NaT,
    "pandas.NA": lambda *_: pd.NA,
}
