"""Kinds of pandas: tables column by column, a column of objects value by value.

It omits the attributes of a frame (`attrs`): they may say anything of the data.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from pandas import arrays

from dpflow.ledger.codec.kinds import kind_of, register, unstorable

# Columns


def _column(column: Any) -> Any:
    """Return the values of a Series or an Index; those of objects as a list."""
    if isinstance(column.dtype, np.dtype):
        return list(column) if column.dtype.kind == "O" else column.to_numpy()
    if kind_of(column.array) is None:
        dtype = type(column.dtype).__name__
        hint = f"turn the dtype {dtype} into numbers, text or datetime64"
        raise unstorable(column.array, hint)
    return column.array


def _dtype(column: Any) -> Any:
    # Said, for pandas would make text of objects that are all str.
    return getattr(column, "dtype", object)


def _series(column: Any, index: Any, name: Any) -> Any:
    return pd.Series(column, index=index, name=name, dtype=_dtype(column))


def _mask_parts(array: Any) -> list[Any]:
    data = array.to_numpy(dtype=array.dtype.numpy_dtype, na_value=0)
    return [data, np.asarray(array.isna())]


def _text_parts(array: Any) -> list[Any]:
    texts = array.to_numpy(object, na_value=None).tolist()
    return [array.dtype.storage, array.dtype.na_value, texts]


def _category_parts(array: Any) -> tuple[Any, ...]:
    """Return the parts of categories, without those of omitted rows.

    An order is a scale, all of which its author declared.
    """
    shown = array if array.ordered else array.remove_unused_categories()
    return shown.codes, shown.categories, shown.ordered


def _make_texts(storage: Any, missing: Any, texts: list[Any]) -> Any:
    return pd.array(texts, dtype=pd.StringDtype(storage, na_value=missing))


def _make_moments(clock: Any, zone: Any) -> Any:
    index = pd.DatetimeIndex(clock)
    return (index.tz_localize("UTC").tz_convert(zone) if zone else index).array


# Indexes


def _index_parts(index: Any) -> list[Any]:
    frequency = getattr(index, "freq", None)
    if frequency is not None and not isinstance(index, pd.PeriodIndex):
        raise unstorable(frequency, "drop the index's frequency: index.freq = None")
    return [_column(index), index.name]


def _make_index(column: Any, name: Any) -> Any:
    return pd.Index(column, dtype=_dtype(column), name=name, tupleize_cols=False)


# Values


def _frame_parts(frame: Any) -> list[Any]:
    numbers = range(len(frame.columns))
    columns = [_column(frame.iloc[:, number]) for number in numbers]
    return [columns, frame.columns, frame.index]


def _make_frame(columns: list[Any], names: Any, index: Any) -> Any:
    # By place, then named: names may repeat.
    data = {n: _series(column, index, None) for n, column in enumerate(columns)}
    frame: Any = pd.DataFrame(data, index=index)
    frame.columns = names
    return frame


def _make_timestamp(moments: Any, fold: int) -> Any:
    # Where the clock is not set back, the fold means nothing, but it may be set.
    moment = moments[0]
    return moment if moment.fold == fold else moment.replace(fold=fold)


_MASKED: Any = (arrays.BooleanArray, arrays.FloatingArray, arrays.IntegerArray)
_TEXTS: Any = (arrays.StringArray, arrays.ArrowStringArray)
_NAMED = (
    lambda array: [str(array.dtype), list(array)],
    lambda dtype, values: pd.array(values, dtype=dtype),
)
_KINDS: dict[type, Any] = {
    **{cls: (_mask_parts, cls) for cls in _MASKED},
    **dict.fromkeys(_TEXTS, (_text_parts, _make_texts)),
    **dict.fromkeys((arrays.IntervalArray, arrays.PeriodArray), _NAMED),
    arrays.DatetimeArray: (
        lambda array: [array.asi8.view(f"M8[{array.unit}]"), array.tz],
        _make_moments,
    ),
    pd.Categorical: (
        _category_parts,
        lambda codes, names, ordered: pd.Categorical.from_codes(
            codes, names, ordered=ordered
        ),
    ),
    pd.Index: (_index_parts, _make_index),
    pd.RangeIndex: (
        attrgetter("start", "stop", "step", "name"),
        lambda start, stop, step, name: pd.RangeIndex(start, stop, step, name=name),
    ),
    pd.MultiIndex: (
        lambda index: map(index.get_level_values, range(index.nlevels)),
        lambda *levels: pd.MultiIndex.from_arrays(
            levels, names=[level.name for level in levels]
        ),
    ),
    pd.Series: (lambda series: [_column(series), series.index, series.name], _series),
    pd.DataFrame: (_frame_parts, _make_frame),
    pd.Timestamp: (
        lambda moment: [pd.DatetimeIndex([moment]).array, moment.fold],
        _make_timestamp,
    ),
    # The ends of intervals.
    pd.Timedelta: (lambda value: [value.to_timedelta64()], pd.Timedelta),
    pd.Interval: (attrgetter("left", "right", "closed"), pd.Interval),
    pd.Period: (
        attrgetter("ordinal", "freqstr"),
        lambda ordinal, freq: pd.Period(ordinal=ordinal, freq=freq),
    ),
    type(pd.NaT): (lambda _: (), lambda: pd.NaT),
    type(pd.NA): (lambda _: (), lambda: pd.NA),
}
register("pandas.", _KINDS, inherited=(pd.Index, *_TEXTS))
