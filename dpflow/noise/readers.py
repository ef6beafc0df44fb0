"""Readers of containers: their numbers and labels, and how to make a new container."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dpflow.noise.columns import (
    Column,
    arrow_column,
    numpy_column,
    objects,
    pandas_column,
    polars_column,
)
from dpflow.noise.numbers import name_of, refused
from dpflow.noise.shape import Groups, Shape


class Vector(NamedTuple):
    """Numbers without labels.

    Attributes:
        sizes: How many there are, of an array by axis.
        column: The numbers.
        make: Makes a container of a flat array of as many numbers.
    """

    sizes: tuple[int, ...]
    column: Column
    make: Callable[[Any], Any]


class Table(NamedTuple):
    """Numbers with labels.

    Attributes:
        labels: A column for each declared label column.
        numbers: The columns of numbers by their names; None names the only one.
        make: Makes a container of new label columns and arrays of numbers.
        rows: How many rows there are.
    """

    labels: list[Column]
    numbers: Mapping[Any, Column]
    make: Callable[[list[list[Any]], list[Any]], Any]
    rows: int


Reader = Callable[[Any, Shape], Vector | Table]


def reader_of(value: Any) -> Reader | None:
    """Return the function that reads a container; None for one number."""
    name = name_of(type(value))
    read = _READERS.get("Arrow" if _ARROW_ARRAY.fullmatch(name) else name)
    if read is None and isinstance(value, list | tuple | dict):
        return _read_dict if isinstance(value, dict) else _read_list
    return read


def line_to_write(declaration: str) -> str:
    """Return what to do, with the declaration to write."""
    return (
        f"Declare on the step what is known before the data is read, as in "
        f"{declaration}; in a spend block write it in release(...)"
    )


_LABELS = 'groups=["north", "south"]'
_FRAME = 'groups={"region": ["north", "south"]}, columns=["amount"]'


def _grouped(value: Any, shape: Shape, *, columns: bool) -> Groups:
    """Return the declared groups of a value with labels.

    Raises:
        ReleaseError: If there are none, or no `columns=` where there must be some.
    """
    line = line_to_write(_FRAME if columns else _LABELS)
    if shape.groups is None:
        raise refused(value, "its labels may depend on private data", line)
    if columns and shape.columns is None:
        raise refused(value, "its columns may depend on private data", line)
    if not columns and shape.columns is not None:
        what = "it has one number for each label, and the step declares columns="
        raise refused(value, what, "Leave columns= away")
    return shape.groups


def _read_dict(values: dict[Any, Any], shape: Shape) -> Table:
    """Read the keys of a dict as labels; tuples of them for several columns."""
    width = len(_grouped(values, shape, columns=False).labels)
    # A key of another form equals no group.
    keys = [
        (key,) if width == 1 else key if _is_tuple(key, width) else (object(),) * width
        for key in values
    ]
    labels = [objects([key[place] for key in keys]) for place in range(width)]

    def make(new: list[list[Any]], arrays: list[Any]) -> Any:
        names = new[0] if width == 1 else zip(*new, strict=True)
        return dict(zip(names, arrays[0].tolist(), strict=True))

    return Table(labels, {None: objects(list(values.values()))}, make, len(values))


def _is_tuple(key: Any, width: int) -> bool:
    return isinstance(key, tuple) and len(key) == width


def _read_list(values: Sequence[Any], shape: Shape) -> Vector | Table:
    """Read a flat list or tuple of numbers, or rows of labels and numbers.

    No rows cannot be told from other rows: where every entry of a row has a declared
    name, rows come back as dicts.
    """
    kind: Any = tuple if isinstance(values, tuple) else list
    is_row = tuple if shape.groups is None else (tuple, list)
    kinds = {dict if isinstance(e, dict) else isinstance(e, is_row) for e in values}
    if kinds not in ({dict}, {True}) and (values or shape.groups is None):
        column = objects(list(values))
        return Vector((len(values),), column, lambda array: kind(array.tolist()))
    is_named = shape.columns is not None
    groups = _grouped(values, shape, columns=is_named or kinds == {dict})
    names = (*(groups.names or ()), *(shape.columns or ()))
    named = is_named and groups.names is not None
    width, numbers = len(groups.labels), shape.columns or (None,)
    if kinds == {dict} and not named:
        what = "the labels of its dicts have a name, and groups= has none"
        raise refused(values, what, line_to_write(_FRAME))
    rows = [[r.get(n) for n in names] if kinds == {dict} else r for r in values]
    if any(len(row) != width + len(numbers) for row in rows):
        what = f"a row of it does not have {width} labels and {len(numbers)} numbers"
        raise refused(values, what, line_to_write(_FRAME))
    places = range(width + len(numbers))
    columns = [objects([row[place] for row in rows]) for place in places]

    def make(labels: list[list[Any]], arrays: list[Any]) -> Any:
        new = zip(*labels, *(array.tolist() for array in arrays), strict=True)
        return kind(dict(zip(names, r, strict=True)) if named else r for r in new)

    by_name = dict(zip(numbers, columns[width:], strict=True))
    return Table(columns[:width], by_name, make, len(rows))


def _read_array(array: Any, _: Shape) -> Vector:
    sizes = array.shape
    return Vector(sizes, numpy_column(array), lambda flat: flat.reshape(sizes))


def _read_polars(series: Any, _: Shape) -> Vector:
    import polars as pl  # noqa: PLC0415

    return Vector((len(series),), polars_column(series), pl.Series)


def _read_arrow(array: Any, _: Shape) -> Vector:
    import pyarrow as pa  # noqa: PLC0415

    def make(flat: Any) -> Any:
        new = pa.array(flat)
        return pa.chunked_array([new]) if hasattr(array, "chunks") else new

    return Vector((len(array),), arrow_column(array), make)


def _table(
    value: Any,
    shape: Shape,
    names: Sequence[Any],
    column_at: Callable[[int], Column],
    make: Callable[[dict[Any, Any]], Any],
    *,
    levels: Mapping[Any, Column] | None = None,
) -> Table:
    """Read the declared columns of a frame or table.

    Args:
        value: The frame.
        shape: The declared shape.
        names: Names of its columns.
        column_at: Returns the column of a place.
        make: Makes a frame of new columns by name, the labels first.
        levels: Levels of its index, by name, where these may be labels.
    """
    groups, wanted = _grouped(value, shape, columns=True), shape.columns or ()
    places = {name: place for place, name in enumerate(names)}
    labels = list(groups.names or ())
    if groups.names is None:
        unnamed = [name for name in names if name not in wanted]
        labels = list(unnamed[:1] if levels is None else levels)
    columns = {name: column_at(at) for name, at in places.items() if name in labels}
    columns = {**(levels or {}), **columns}
    read = {*labels, *wanted}
    if sum(name in read for name in names) > len(read & {*names}):
        what = "two of its columns have one declared name"
        raise refused(value, what, "Name each column once")
    # A frame made of no rows may have no columns.
    absent = {*labels} - {*columns} if names or columns else set()
    if absent or len(labels) != len(groups.labels):
        what = "it has no column or index level with the labels of groups="
        raise refused(value, what, line_to_write(_FRAME))
    return Table(
        [columns.get(name, objects([])) for name in labels],
        {name: column_at(places[name]) for name in wanted if name in places},
        lambda new, arrays: make(
            dict(zip((*labels, *wanted), (*new, *arrays), strict=True))
        ),
        len(value),
    )


def _read_polars_frame(frame: Any, shape: Shape) -> Table:
    import polars as pl  # noqa: PLC0415

    def column_at(place: int) -> Column:
        return polars_column(frame.to_series(place))

    return _table(frame, shape, frame.columns, column_at, pl.DataFrame)


def _read_arrow_table(table: Any, shape: Shape) -> Table:
    import pyarrow as pa  # noqa: PLC0415

    def column_at(place: int) -> Column:
        return arrow_column(table.column(place))

    return _table(table, shape, table.column_names, column_at, pa.table)


def _has_numbers_of_rows(index: Any) -> bool:
    """Return whether an index may be the one that pandas gives to rows.

    Not by its entries: those of a filter or of an order depend on the data.
    """
    return index.nlevels == 1 and index.name is None and index.dtype.kind in "iu"


def _levels(index: Any) -> dict[Any, Column]:
    """Return the levels of an index; one that counts no rows has no dtype."""
    if len(index) == 0 and _has_numbers_of_rows(index):
        return {index.name: objects([])}
    levels = map(index.get_level_values, range(index.nlevels))
    return {level.name: pandas_column(level) for level in levels}


def _read_series(series: Any, shape: Shape) -> Vector | Table:
    """Read a Series: by its index, or without labels where that may count rows."""
    import pandas as pd  # noqa: PLC0415

    index, column = series.index, pandas_column(series)
    if shape.groups is None and _has_numbers_of_rows(index):
        return Vector((len(series),), column, pd.Series)
    groups, levels = _grouped(series, shape, columns=False), _levels(index)
    names = list(groups.names or levels)
    if len(series) == 0 and _has_numbers_of_rows(index):
        levels = dict.fromkeys(names, objects([]))
    if len(names) != len(groups.labels) or not {*names} <= levels.keys():
        what = "its index has other levels than groups= names"
        raise refused(series, what, line_to_write(_FRAME))

    def make(labels: list[list[Any]], arrays: list[Any]) -> Any:
        # Without its name, which is a label where it was a row of a frame.
        return pd.Series(arrays[0], _index(dict(zip(names, labels, strict=True))))

    return Table([levels[name] for name in names], {None: column}, make, len(series))


def _index(levels: dict[Any, list[Any]]) -> Any:
    """Return a new index of labels."""
    import pandas as pd  # noqa: PLC0415

    if len(levels) == 1:
        ((name, labels),) = levels.items()
        return pd.Index(labels, name=name, tupleize_cols=False)
    return pd.MultiIndex.from_arrays([*levels.values()], names=[*levels])


def _read_frame(frame: Any, shape: Shape) -> Table:
    """Read a frame of pandas: its labels are index levels or columns."""
    import pandas as pd  # noqa: PLC0415

    wanted, index, names = shape.columns or (), frame.index, list(frame.columns)
    levels: dict[Any, Column] | None = _levels(index)
    is_bare = shape.groups is not None and shape.groups.names is None
    if _has_numbers_of_rows(index) and not (is_bare and {*names} <= {*wanted}):
        levels = None
    in_index = {*(levels or {})} - {*names}

    def column_at(place: int) -> Column:
        return pandas_column(frame.iloc[:, place])

    def make(columns: dict[Any, Any]) -> Any:
        new = {name: columns.pop(name) for name in [*columns] if name in in_index}
        made = pd.DataFrame(
            dict(enumerate(columns.values())), _index(new) if new else None
        )
        are_tuples = all(isinstance(name, tuple) for name in columns)
        made.columns = pd.Index([*columns], tupleize_cols=are_tuples)
        return made

    return _table(frame, shape, names, column_at, make, levels=levels)


_READERS: dict[str, Reader] = {
    "numpy ndarray": _read_array,
    "pandas Series": _read_series,
    "pandas DataFrame": _read_frame,
    "polars Series": _read_polars,
    "polars DataFrame": _read_polars_frame,
    "Arrow": _read_arrow,
    "pyarrow Table": _read_arrow_table,
}
_ARROW_ARRAY = re.compile(r"pyarrow \w*Array")
