"""Take the numbers out of a value, and put noisy ones into a new value.

Nothing of the old value is in the new one: its labels, columns, index and length are
those that the step declared, its dtypes float64 or int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import PublicError, ReleaseError, public_kind
from dpflow.interrupts import without_interrupts
from dpflow.noise.columns import NUMBERS
from dpflow.noise.numbers import (
    check_dtype,
    is_missing,
    name_of,
    numbers_for,
    refused,
)
from dpflow.noise.readers import Table, Vector, line_to_write, read_content
from dpflow.noise.shape import DUPLICATE, OTHER_LENGTH, Groups, Shape, label_kind

#: Puts noisy numbers into a new container.
Rebuild = Callable[[list[Any]], Any]
Parts = tuple[list[Any], Rebuild]


def take_apart(
    cost: Cost, value: Any, shape: Shape, *, as_int: bool = False, checks: bool = False
) -> Parts:
    """Return the numbers in a value, and how to make a value of noisy ones.

    Args:
        cost: The declared cost, which says what a number is.
        value: A number, or a container of numbers.
        shape: What the step declared.
        as_int: Whether the noisy numbers are ints.
        checks: Whether the data is synthetic, so that labels without a group are an
            error.

    Raises:
        ReleaseError: If the value is not of the declared shape, or holds no numbers.
    """
    content = read_content(value, shape)
    if content is None:
        numbers = numbers_for(cost, value, [value])
        if shape != Shape():
            todo = "Declare groups=, columns= and length= for several numbers only"
            raise refused(value, "the step declares several numbers", todo)
        return numbers, lambda noisy: noisy[0]
    if isinstance(content, Vector):
        return _take_vector(cost, value, shape, content, as_int=as_int)
    return _take_table(cost, value, shape, content, as_int=as_int, checks=checks)


def _take_vector(
    cost: Cost, value: Any, shape: Shape, vector: Vector, *, as_int: bool
) -> Parts:
    """Take numbers without labels, which have the declared length."""
    if shape.groups is not None:
        what = "its numbers have no labels, and the step declares groups="
        raise refused(value, what, line_to_write("length=12"))
    if shape.length is None:
        what = "how many numbers it holds may depend on private data"
        raise refused(value, what, line_to_write("length=12"))
    column = vector.column
    check_dtype(cost, value, column.kind, column.dtype, labelled=False)
    if vector.sizes != shape.length:
        raise PublicError(OTHER_LENGTH)
    numbers = numbers_for(cost, value, column.entries)
    return numbers, lambda noisy: vector.make(_array(noisy, as_int=as_int))


def _take_table(
    cost: Cost, value: Any, shape: Shape, table: Table, *, as_int: bool, checks: bool
) -> Parts:
    """Take the numbers of the declared groups and columns, in their order."""
    assert shape.groups is not None
    groups = shape.groups
    places = _places(value, groups, table, checks=checks)
    entries = list[Any]()
    names = shape.columns or (None,)
    for name in names:
        column = table.numbers.get(name)
        if column is None:
            entries += [0] * len(places)
            continue
        if not column.is_absent:
            check_dtype(cost, value, column.kind, column.dtype, labelled=True)
        found = [None if at is None else column.entries[at] for at in places]
        entries += [0 if is_missing(entry) else entry for entry in found]
    numbers = numbers_for(cost, value, entries, labelled=True)
    labels = [list(column) for column in zip(*groups.rows, strict=True)]

    def rebuild(noisy: list[Any]) -> Any:
        step = len(places)
        columns = [noisy[at : at + step] for at in range(0, len(noisy), step)]
        arrays = [_array(column, as_int=as_int) for column in columns]
        return table.make(labels, arrays)

    try:
        # The declaration alone, so that no number can fail here.
        rebuild([0] * len(numbers))
    except without_interrupts(Exception):
        what = "no new value of its type can hold the declared labels"
        raise refused(value, what, "Declare labels of one type a column") from None
    return numbers, rebuild


def _places(
    value: Any, groups: Groups, table: Table, *, checks: bool
) -> list[int | None]:
    """Return the row of each declared group; None for an absent one."""
    for column, declared in zip(table.labels, groups.labels, strict=True):
        kinds = {label_kind(label) for label in declared}
        kind = "number" if column.kind in NUMBERS else column.kind
        is_default = column.kind in _DEFAULTS and column.is_absent
        is_other = not kinds & {kind, "missing", "other"} and not is_default
        if is_other and column.kind not in _ANYTHING:
            raise _other_labels(value, column.dtype, declared)
    places: dict[Any, int | None] = dict.fromkeys(groups.rows)
    rows = zip(*(column.entries for column in table.labels), strict=True)
    for place, row in enumerate(rows):
        key = tuple(None if is_missing(label) else label for label in row)
        try:
            is_declared = key in places
        except without_interrupts(TypeError):
            # What has no hash equals no label.
            continue
        if is_declared and places[key] is not None:
            raise PublicError(DUPLICATE)
        if is_declared:
            places[key] = place
    if checks and table.rows and not any(p is not None for p in places.values()):
        first = table.labels[0]
        dtype = first.dtype if first.kind != "object" else _types(first.entries)
        raise _other_labels(value, dtype, groups.labels[0])
    return list(places.values())


#: Kinds of columns that may hold any label.
_ANYTHING = ("object", "other")
#: Kinds that libraries give to columns without an entry.
_DEFAULTS = ("float", "text")


def _other_labels(value: Any, dtype: str, declared: Sequence[Any]) -> ReleaseError:
    what = f"its labels of type {dtype} equal no label of groups=, of type "
    todo = "Write the labels in groups= as the data has them; none is converted"
    return refused(value, what + _types(declared), todo)


def _types(labels: Sequence[Any]) -> str:
    names = (name_of(public_kind(type(label))) for label in labels)
    return " or ".join(dict.fromkeys(names))


def _array(noisy: Sequence[Any], *, as_int: bool) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.array(noisy, dtype=np.int64 if as_int else np.float64)
