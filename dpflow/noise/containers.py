"""Take the numbers out of a value, and put noisy ones into a new value.

Nothing of the old value is in the new one: its labels, columns, index and length are
those that the step declared, its dtypes float64 or int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import PublicError, ReleaseError
from dpflow.interrupts import suppress, without_interrupts
from dpflow.noise.columns import NUMBERS, check_dtype
from dpflow.noise.numbers import is_missing, numbers_for, refused, type_name
from dpflow.noise.readers import Table, line_to_write, read_content
from dpflow.noise.shape import DUPLICATE, OTHER_LENGTH, Groups, Shape, label_kind
from dpflow.noise.sources import replaced_stream

#: Puts noisy numbers into a new container.
Rebuild = Callable[[list[Any]], Any]
Parts = tuple[list[Any], Rebuild]


def take_apart(cost: Cost, value: Any, shape: Shape) -> Parts:
    """Return the numbers in a value, and how to make a value of noisy ones.

    Args:
        cost: The declared cost, which says what a number is.
        value: A number, or a container of numbers.
        shape: What the step declared.

    Raises:
        ReleaseError: If the value is not of the declared shape, or holds no numbers.
    """
    content = read_content(value, shape)
    if isinstance(content, Table):
        return _take_table(cost, value, shape, content)
    if content is None:
        numbers = numbers_for(cost, value, [value])
        if shape != Shape():
            todo = "Declare groups=, columns= and length= for several numbers only"
            raise refused(value, "the step declares several numbers", todo)
        return numbers, itemgetter(0)
    what, column = "", content.column
    if shape.groups is not None:
        what = "its numbers have no labels, and the step declares groups="
    elif shape.length is None:
        what = "how many numbers it holds may depend on private data"
    if what:
        raise refused(value, what, line_to_write("length=12"))
    check_dtype(cost, value, column, labelled=False)
    if content.sizes != shape.length:
        raise PublicError(OTHER_LENGTH)
    numbers = numbers_for(cost, value, column.entries)
    return numbers, lambda noisy: content.make(_array(noisy))


def _take_table(cost: Cost, value: Any, shape: Shape, table: Table) -> Parts:
    """Take the numbers of the declared groups and columns, in their order."""
    assert shape.groups is not None
    places = _places(value, shape.groups, table)
    entries = list[Any]()
    for name in shape.columns or (None,):
        column = table.numbers.get(name)
        if column is None:
            entries += [0] * len(places)
            continue
        if not column.is_absent:
            check_dtype(cost, value, column, labelled=True)
        found = [None if at is None else column.entries[at] for at in places]
        entries += [0 if is_missing(entry) else entry for entry in found]
    numbers = numbers_for(cost, value, entries, labelled=True)
    labels = [list(column) for column in zip(*shape.groups.rows, strict=True)]

    def rebuild(noisy: list[Any]) -> Any:
        return table.make(labels, [*_array(noisy).reshape(-1, len(places))])

    try:
        # The declaration alone, so that no number can fail here.
        rebuild([0] * len(numbers))
    except without_interrupts(Exception):
        what = "no new value of its type can hold the declared labels"
        raise refused(value, what, "Declare labels of one type a column") from None
    return numbers, rebuild


def _places(value: Any, groups: Groups, table: Table) -> list[int | None]:
    """Return the row of each declared group; None for an absent one.

    Where a test has replaced the noise, its data is synthetic, and labels without a
    group are an error.
    """
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
        # What has no hash equals no label.
        with suppress(TypeError):
            if places.get(key) is not None:
                raise PublicError(DUPLICATE)
            if key in places:
                places[key] = place
    first = table.labels[0]
    is_strange = first.entries and all(place is None for place in places.values())
    if is_strange and replaced_stream() is not None:
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
    return " or ".join(dict.fromkeys(map(type_name, labels)))


def _array(noisy: Sequence[Any]) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.array(noisy, np.int64 if type(noisy[0]) is int else np.float64)
