"""Take the numbers out of a value, and put noisy ones into a new value.

Nothing of the old value is in the new one: its labels, columns, index and length are
those that the step declared, its dtypes float64 or int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, cast

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import PublicError
from dpflow.interrupts import suppress, without_interrupts
from dpflow.noise.columns import Column, columns_of, is_frame, is_vector, label_kind
from dpflow.noise.numbers import is_missing, name_of, numbers_for, refuse, type_name
from dpflow.noise.shape import DUPLICATE, OTHER_LENGTH, Groups, Shape
from dpflow.noise.sources import current_stream

#: Numbers of a value, and a function that puts as many noisy ones into a new value.
Parts = tuple[list[Any], Callable[[list[Any]], Any]]

#: Makes a container of a flat array of as many numbers; with labels, of new columns of
#: labels and an array for each column of numbers.
Make = Callable[..., Any]


class Content(NamedTuple):
    """The numbers in a container.

    Attributes:
        numbers: The columns of numbers by their names; None names the only one.
        make: Makes a new container.
        labels: A column for each declared label column, if the numbers have labels.
        sizes: How many numbers without labels there are, of an array by axis.
    """

    numbers: Mapping[Any, Column]
    make: Make
    labels: Sequence[Column] = ()
    sizes: tuple[int, ...] = ()


def take_apart(cost: Cost, value: Any, shape: Shape) -> Parts:
    """Return the numbers in a value, and how to make a value of noisy ones.

    Args:
        cost: The declared cost, which says what a number is.
        value: A number, or a container of numbers.
        shape: What the step declared.

    Raises:
        ReleaseError: If the value is not of the declared shape, or holds no numbers.
    """
    content, what = _read(value, shape), ""
    if content is None:
        numbers = numbers_for(cost, value, [value])
        if shape != Shape():
            todo = "Declare groups=, columns= and length= for several numbers only"
            refuse(value, "the step declares several numbers", todo)
        return numbers, itemgetter(0)
    if content.labels:
        return _take_table(cost, value, shape, content)
    if shape.groups is not None:
        what = "its numbers have no labels, and the step declares groups="
    elif shape.length is None:
        what = "how many numbers it holds may depend on private data"
    if what:
        refuse(value, what, _line_to_write("length=12"))
    column = content.numbers[None]
    column.check(cost, value, labelled=False)
    if content.sizes != shape.length:
        raise PublicError(OTHER_LENGTH)
    numbers = numbers_for(cost, value, column.entries)
    return numbers, lambda noisy: content.make(_array(noisy))


def _take_table(cost: Cost, value: Any, shape: Shape, table: Content) -> Parts:
    """Take the numbers of the declared groups and columns, in their order."""
    assert shape.groups is not None
    indexes = _find_rows(value, shape.groups, table)
    entries = list[Any]()
    for name in shape.columns or (None,):
        column = table.numbers.get(name)
        if column is None:
            entries += [0] * len(indexes)
            continue
        if not column.is_absent:
            column.check(cost, value, labelled=True)
        declared = [None if at is None else column.entries[at] for at in indexes]
        entries += [0 if is_missing(entry) else entry for entry in declared]
    numbers = numbers_for(cost, value, entries, labelled=True)
    labels = [list(column) for column in zip(*shape.groups.rows, strict=True)]

    def rebuild(noisy: list[Any]) -> Any:
        return table.make(labels, [*_array(noisy).reshape(-1, len(indexes))])

    try:
        # The declaration alone, so that no number can fail here.
        rebuild([0] * len(numbers))
    except without_interrupts(Exception):
        what = "no new value of its type can hold the declared labels"
        refuse(value, what, "Declare labels of one type a column")
    return numbers, rebuild


def _find_rows(value: Any, groups: Groups, table: Content) -> list[int | None]:
    """Return the row of each declared group; None for an absent one.

    Where a test has replaced the noise, its data is synthetic, and labels without a
    group are an error.
    """
    for column, declared in zip(table.labels, groups.labels, strict=True):
        kinds = {label_kind(label) for label in declared}
        is_default = column.kind in _DEFAULTS and column.is_absent
        is_other = not kinds & {column.label_kind, "missing", "other"}
        if is_other and not is_default and column.kind not in _ANYTHING:
            _refuse_labels(value, column.dtype, declared)
    indexes: dict[Any, int | None] = dict.fromkeys(groups.rows)
    rows = zip(*(column.entries for column in table.labels), strict=True)
    for number, row in enumerate(rows):
        key = tuple(None if is_missing(label) else label for label in row)
        # What has no hash equals no label.
        with suppress(TypeError):
            if indexes.get(key) is not None:
                raise PublicError(DUPLICATE)
            if key in indexes:
                indexes[key] = number
    first = table.labels[0]
    is_strange = first.entries and all(at is None for at in indexes.values())
    if is_strange and current_stream() is not None:
        dtype = first.dtype if first.kind != "object" else _types(first.entries)
        _refuse_labels(value, dtype, groups.labels[0])
    return list(indexes.values())


#: Kinds of columns that may hold any label.
_ANYTHING = ("object", "other")
#: Kinds that libraries give to columns without an entry.
_DEFAULTS = ("float", "text")


def _refuse_labels(value: Any, dtype: str, declared: Sequence[Any]) -> NoReturn:
    what = f"its labels of type {dtype} equal no label of groups=, of type "
    todo = "Write the labels in groups= as the data has them; none is converted"
    refuse(value, what + _types(declared), todo)


def _types(labels: Sequence[Any]) -> str:
    return " or ".join(dict.fromkeys(map(type_name, labels)))


def _array(noisy: Sequence[Any]) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.array(noisy, np.int64 if type(noisy[0]) is int else np.float64)


def _read(value: Any, shape: Shape) -> Content | None:
    """Return the numbers of a container as its step declares them; else None.

    Raises:
        ReleaseError: If it has no declaration, or another one.
    """
    if isinstance(value, dict):
        return _read_dict(value, shape)
    if isinstance(value, list | tuple):
        return _read_list(value, shape)
    kind = type(value)
    if is_frame(kind):
        return _read_frame(value, shape)
    if not is_vector(kind):
        return None
    # A Series of pandas has labels, unless its index counts rows.
    is_series = hasattr(value, "iloc")
    if is_series and (shape.groups is not None or not _counts_rows(value.index)):
        return _read_frame(value, shape)
    return _read_array(value)


def _line_to_write(declaration: str) -> str:
    """Return what to do, with the declaration to write."""
    return (
        f"Declare on the step what is known before the data is read, as in "
        f"{declaration}; in a spend block write it in release(...)"
    )


_LABELS = 'groups=["north", "south"]'
_FRAME = 'groups={"region": ["north", "south"]}, columns=["amount"]'


def _check_groups(value: Any, shape: Shape, *, columns: bool) -> Groups:
    """Return the declared groups of a value with labels.

    Raises:
        ReleaseError: If there are none, or no `columns=` where there must be some.
    """
    line = _line_to_write(_FRAME if columns else _LABELS)
    if shape.groups is None:
        refuse(value, "its labels may depend on private data", line)
    if columns and shape.columns is None:
        refuse(value, "its columns may depend on private data", line)
    if not columns and shape.columns is not None:
        what = "it has one number for each label, and the step declares columns="
        refuse(value, what, "Leave columns= away")
    return shape.groups


def _read_dict(values: dict[Any, Any], shape: Shape) -> Content:
    """Read the keys of a dict as labels; tuples of them for several columns."""
    width = len(_check_groups(values, shape, columns=False).labels)
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
    rows: Sequence[Sequence[Any]], width: int, numbers: Sequence[Any], make: Make
) -> Content:
    """Return rows of labels and then numbers as columns."""
    positions = range(width + len(numbers))
    columns = [Column([row[position] for row in rows]) for position in positions]
    by_name = dict(zip(numbers, columns[width:], strict=True))
    return Content(by_name, make, columns[:width])


def _read_list(values: Sequence[Any], shape: Shape) -> Content:
    """Read a flat list or tuple of numbers, or rows of labels and numbers.

    No rows cannot be distinguished from other rows: where every entry of a row has
    a declared name, rows come back as dicts.
    """
    kind: Any = tuple if isinstance(values, tuple) else list
    is_row = tuple if shape.groups is None else (tuple, list)
    kinds = {dict if isinstance(e, dict) else isinstance(e, is_row) for e in values}
    if kinds not in ({dict}, {True}) and (values or shape.groups is None):
        column, sizes = {None: Column(list(values))}, (len(values),)
        return Content(column, lambda array: kind(array.tolist()), sizes=sizes)
    has_columns = shape.columns is not None
    groups = _check_groups(values, shape, columns=has_columns or kinds == {dict})
    names = (*(groups.names or ()), *(shape.columns or ()))
    named = has_columns and groups.names is not None
    width, numbers = len(groups.labels), shape.columns or (None,)
    if kinds == {dict} and not named:
        what = "the labels of its dicts have a name, and groups= has none"
        refuse(values, what, _line_to_write(_FRAME))
    rows = [[r.get(n) for n in names] if kinds == {dict} else r for r in values]
    if any(len(row) != width + len(numbers) for row in rows):
        what = f"a row of it does not have {width} labels and {len(numbers)} numbers"
        refuse(values, what, _line_to_write(_FRAME))

    def make(labels: list[list[Any]], arrays: list[Any]) -> Any:
        new = zip(*labels, *(array.tolist() for array in arrays), strict=True)
        return kind(dict(zip(names, r, strict=True)) if named else r for r in new)

    return _table_of(rows, width, numbers, make)


def _read_array(value: Any) -> Content:
    """Read an array or a Series."""
    kind, name = type(value), name_of(type(value))
    sizes = getattr(value, "shape", (len(value),))

    def make(flat: Any) -> Any:
        if name == "numpy ndarray":
            return flat.reshape(sizes)
        if not name.startswith("pyarrow"):
            return kind(flat)
        import pyarrow as pa  # noqa: PLC0415

        return pa.chunked_array([flat]) if hasattr(value, "chunks") else pa.array(flat)

    return Content({None: Column.read(value)}, make, sizes=sizes)


def _counts_rows(index: Any) -> bool:
    """Return whether an index may be the one that pandas gives to rows.

    Not by its entries: those of a filter or of an order depend on the data.
    """
    return index.nlevels == 1 and index.name is None and index.dtype.kind in "iu"


def _levels(index: Any) -> dict[Any, Column]:
    """Return the levels of an index; one that counts no rows has no dtype."""
    if len(index) == 0 and _counts_rows(index):
        return {None: Column([])}
    levels = map(index.get_level_values, range(index.nlevels))
    return {level.name: Column.read(level) for level in levels}


#: Name of a new column of labels whose name was not declared.
_UNNAMED = "group"


def _read_frame(value: Any, shape: Shape) -> Content:
    """Read a frame, table or Series: its labels are columns, or levels of an index."""
    has_columns = is_frame(type(value))
    groups = _check_groups(value, shape, columns=has_columns)
    wanted = shape.columns or ()
    columns = columns_of(value) if has_columns else []
    names = {name for name, _ in columns}
    if has_columns and groups.names is None and _UNNAMED in wanted:
        what = f"columns= names {_UNNAMED!r}, as its labels are named without a name"
        refuse(value, what, _line_to_write(_FRAME))
    levels = dict[Any, Column]()
    if hasattr(value, "iloc"):
        is_bare = groups.names is None and names <= {*wanted}
        is_labelled = is_bare or not _counts_rows(value.index)
        levels = _levels(value.index) if is_labelled else {}
    unnamed = [*levels] or [name for name, _ in columns if name not in wanted][:1]
    labels = unnamed if groups.names is None else [*groups.names]
    declared = [pair for pair in columns if pair[0] in {*labels, *wanted}]
    numbers = {name: Column.read(column) for name, column in declared}
    if len(numbers) < len(declared):
        what = "two of its columns have one declared name"
        refuse(value, what, "Name each column once")
    read = {**levels, **numbers}
    # A frame made of no rows may have no columns, and a Series no index.
    is_made = len(value) or (names if has_columns else levels)
    is_absent = is_made and not read.keys() >= {*labels}
    if is_absent or len(labels) != len(groups.labels):
        what = "its index has other levels than groups= names"
        if has_columns:
            what = "it has no column or index level with the labels of groups="
        refuse(value, what, _line_to_write(_FRAME))
    in_index = levels.keys() - names if has_columns else {*labels}

    def make(new: list[list[Any]], arrays: list[Any]) -> Any:
        pairs = [*zip(labels, new, strict=True)]
        index = {name: column for name, column in pairs if name in in_index}
        columns = {
            _UNNAMED if groups.names is None else name: column
            for name, column in pairs
            if name not in in_index
        }
        columns.update(zip(wanted or [None], arrays, strict=True))
        return _new_frame(type(value), columns, index, named=groups.names is not None)

    if not has_columns:
        numbers = {None: Column.read(value)}
    return Content(numbers, make, [read.get(name, Column([])) for name in labels])


def _new_frame(
    kind: Any, columns: dict[Any, Any], levels: dict[Any, Any], *, named: bool
) -> Any:
    """Return a frame, table or Series of new columns, in pandas with an index.

    The names of its levels come back only if they were declared: a name may be data.
    """
    if hasattr(kind, "from_pydict"):
        return kind.from_pydict(columns)
    if not hasattr(kind, "iloc"):
        return kind(columns)
    import pandas as pd  # noqa: PLC0415

    index, names = cast("Any", None), [*levels] if named else [None] * len(levels)
    if len(levels) == 1:
        (labels,) = levels.values()
        index = pd.Index(labels, name=names[0], tupleize_cols=False)
    elif levels:
        index = pd.MultiIndex.from_arrays([*levels.values()], names=names)
    if not is_frame(kind):
        # Without its name, which is a label where it was a row of a frame.
        return kind(columns[None], index)
    frame = kind(columns, index)
    frame.columns = pd.Index([*columns])
    return frame
