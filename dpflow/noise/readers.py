"""Readers of containers: their numbers and labels, and how to make a new container."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dpflow.noise.columns import (
    Column,
    column_of,
    columns_of,
    is_frame,
    is_vector,
    objects,
)
from dpflow.noise.numbers import name_of, refused
from dpflow.noise.shape import Groups, Shape

#: Makes a container of new label columns and arrays of numbers.
MakeTable = Callable[[list[list[Any]], list[Any]], Any]


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
    make: MakeTable
    rows: int


def read_content(value: Any, shape: Shape) -> Vector | Table | None:
    """Return the numbers of a container as its step declares them; else None.

    Raises:
        ReleaseError: If it has no declaration, or another one.
    """
    if isinstance(value, dict):
        return _read_dict(value, shape)
    if isinstance(value, list | tuple):
        return _read_list(value, shape)
    if is_frame(type(value)):
        return _read_frame(value, shape)
    return _read_vector(value, shape) if is_vector(type(value)) else None


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
    rows = list[tuple[Any, ...]]()
    for key, number in values.items():
        labels = key if width > 1 and isinstance(key, tuple) else (key,)
        # A key of another form equals no group.
        labels = labels if len(labels) == width else (object(),) * width
        rows.append((*labels, number))

    def make(new: list[list[Any]], arrays: list[Any]) -> Any:
        names = new[0] if width == 1 else zip(*new, strict=True)
        return dict(zip(names, arrays[0].tolist(), strict=True))

    return _table_of(rows, width, (None,), make)


def _table_of(
    rows: Sequence[Sequence[Any]], width: int, numbers: Sequence[Any], make: MakeTable
) -> Table:
    """Return rows of labels and then numbers as columns."""
    places = range(width + len(numbers))
    columns = [objects([row[place] for row in rows]) for place in places]
    by_name = dict(zip(numbers, columns[width:], strict=True))
    return Table(columns[:width], by_name, make, len(rows))


def _read_list(values: Sequence[Any], shape: Shape) -> Vector | Table:
    """Read a flat list or tuple of numbers, or rows of labels and numbers.

    No rows cannot be distinguished from other rows: where every entry of a row has
    a declared name, rows come back as dicts.
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

    def make(labels: list[list[Any]], arrays: list[Any]) -> Any:
        new = zip(*labels, *(array.tolist() for array in arrays), strict=True)
        return kind(dict(zip(names, r, strict=True)) if named else r for r in new)

    return _table_of(rows, width, numbers, make)


def _read_vector(value: Any, shape: Shape) -> Vector | Table:
    """Read an array or a Series; of pandas by its index, unless that counts rows."""
    kind, name = type(value), name_of(type(value))
    is_unlabelled = name != "pandas Series" or _has_numbers_of_rows(value.index)
    if not is_unlabelled or (name == "pandas Series" and shape.groups is not None):
        return _read_series(value, shape)
    sizes = getattr(value, "shape", (len(value),))

    def make(flat: Any) -> Any:
        if name == "numpy ndarray":
            return flat.reshape(sizes)
        if not name.startswith("pyarrow"):
            return kind(flat)
        import pyarrow as pa  # noqa: PLC0415

        return pa.chunked_array([flat]) if hasattr(value, "chunks") else pa.array(flat)

    return Vector(sizes, column_of(value), make)


def _read_series(series: Any, shape: Shape) -> Table:
    groups, levels = _grouped(series, shape, columns=False), _levels(series.index)
    names = list(groups.names or levels)
    if len(series) == 0 and _has_numbers_of_rows(series.index):
        levels = dict.fromkeys(names, objects([]))
    if len(names) != len(groups.labels) or not {*names} <= levels.keys():
        what = "its index has other levels than groups= names"
        raise refused(series, what, line_to_write(_FRAME))

    def make(labels: list[list[Any]], arrays: list[Any]) -> Any:
        # Without its name, which is a label where it was a row of a frame.
        return type(series)(arrays[0], _index(dict(zip(names, labels, strict=True))))

    numbers = {None: column_of(series)}
    return Table([levels[name] for name in names], numbers, make, len(series))


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
    return {level.name: column_of(level) for level in levels}


def _index(levels: dict[Any, list[Any]]) -> Any:
    """Return a new index of labels."""
    import pandas as pd  # noqa: PLC0415

    if len(levels) == 1:
        ((name, labels),) = levels.items()
        return pd.Index(labels, name=name, tupleize_cols=False)
    return pd.MultiIndex.from_arrays([*levels.values()], names=[*levels])


def _read_frame(frame: Any, shape: Shape) -> Table:
    """Read a frame or table: its labels are columns, or levels of an index."""
    groups, wanted = _grouped(frame, shape, columns=True), shape.columns or ()
    names, columns = columns_of(frame)
    levels = dict[Any, Column]()
    if hasattr(frame, "iloc"):
        is_bare = groups.names is None and {*names} <= {*wanted}
        is_labelled = is_bare or not _has_numbers_of_rows(frame.index)
        levels = _levels(frame.index) if is_labelled else {}
    unnamed = [*levels] or [name for name in names if name not in wanted][:1]
    labels = unnamed if groups.names is None else [*groups.names]
    declared = {*labels, *wanted}
    by_name = [pair for pair in zip(names, columns, strict=True) if pair[0] in declared]
    read = {**levels, **{name: column_of(column) for name, column in by_name}}
    if len(by_name) > len(declared & {*names}):
        what = "two of its columns have one declared name"
        raise refused(frame, what, "Name each column once")
    # A frame made of no rows may have no columns.
    absent = {*labels} - {*read} if names or len(frame) else set()
    if absent or len(labels) != len(groups.labels):
        what = "it has no column or index level with the labels of groups="
        raise refused(frame, what, line_to_write(_FRAME))
    in_index = {*levels} - {*names}

    def make(new: list[list[Any]], arrays: list[Any]) -> Any:
        made = dict(zip((*labels, *wanted), (*new, *arrays), strict=True))
        return _new_frame(type(frame), made, in_index)

    return Table(
        [read.get(name, objects([])) for name in labels],
        {name: read[name] for name in wanted if name in names},
        make,
        len(frame),
    )


def _new_frame(kind: Any, columns: dict[Any, Any], in_index: set[Any]) -> Any:
    """Return a frame or table of new columns, for pandas with some in its index."""
    if hasattr(kind, "from_pydict"):
        return kind.from_pydict(columns)
    if not hasattr(kind, "iloc"):
        return kind(columns)
    import pandas as pd  # noqa: PLC0415

    levels = {name: columns.pop(name) for name in [*columns] if name in in_index}
    made = kind(dict(enumerate(columns.values())), _index(levels) if levels else None)
    are_tuples = all(isinstance(name, tuple) for name in columns)
    made.columns = pd.Index([*columns], tupleize_cols=are_tuples)
    return made
