"""Declared shapes: how many numbers a step releases, of which groups and columns.

A shape is public before private data is read. So a label, a length or a column of an
output never depends on the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import product
from typing import Any
from uuid import UUID

from dpflow.exceptions import ConfigurationError, DpflowError
from dpflow.noise.columns import label_kind
from dpflow.noise.numbers import is_missing, type_name, without_numpy

#: Labels of rows: of one column, or of several by their names.
Labels = list[Any] | tuple[Any, ...] | range
GroupsLike = Labels | Mapping[Any, Labels]
LengthLike = int | tuple[int, ...]

#: The refusals of `groups=` and `length=` that depend on rows: a fixed text each.
DUPLICATE = (
    "release() refuses two rows of one group: together they may move by more than the "
    "sensitivity of one. Aggregate first, so that each group has one row."
)
OTHER_LENGTH = (
    "release() refuses a value whose length is not the declared length=. Bring it to "
    "that length first, with a number for each place, as reindex(..., fill_value=0)."
)


@dataclass(frozen=True)
class Groups:
    """Declared groups: the rows of a release, in their order.

    Attributes:
        names: Names of the label columns; None for labels without names.
        labels: Labels of each column; the groups are their product.
    """

    names: tuple[Hashable, ...] | None
    labels: tuple[tuple[Any, ...], ...]

    @property
    def count(self) -> int:
        """The number of groups."""
        return math.prod(map(len, self.labels))

    @cached_property
    def rows(self) -> list[tuple[Any, ...]]:
        """The labels of each group, one for each column."""
        return list(product(*self.labels))


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step declares of several numbers; nothing for one number.

    Attributes:
        length: Number of places, of an array by axis.
        groups: Rows of a value with labels.
        columns: Names of its columns of numbers, where it has several.
    """

    length: tuple[int, ...] | None = None
    groups: Groups | None = None
    columns: tuple[Hashable, ...] | None = None

    @property
    def count(self) -> int:
        """The number of numbers."""
        if self.groups is not None:
            return self.groups.count * len(self.columns or (None,))
        return math.prod(self.length or ())

    def describe(self) -> dict[str, Any]:
        """Return the declaration for the journal: sizes and names, no labels."""
        groups = self.groups
        names = [] if groups is None else [str(name) for name in groups.names or ()]
        sizes = {
            "length": self.length and list(self.length),
            "groups": groups and {"names": names, "count": groups.count},
            "columns": self.columns and [str(name) for name in self.columns],
        }
        return {name: size for name, size in sizes.items() if size is not None}


def read_shape(
    length: Any = None,
    groups: Any = None,
    columns: Any = None,
    *,
    kind: Callable[[str], DpflowError] = ConfigurationError,
) -> Shape:
    """Return the shape that `length=`, `groups=` and `columns=` declare.

    Args:
        length: A number, or one for each axis of an array.
        groups: Labels, or labels by the names of their columns.
        columns: Names of the columns of numbers.
        kind: Class of the error, whose text names types only.

    Raises:
        ConfigurationError: If it is no declaration, or of the given kind.
    """
    for problem in _problems(length, groups, columns):
        raise kind(problem)
    rows = None
    if groups is not None:
        is_named = isinstance(groups, Mapping)
        columns_of_labels = groups.values() if is_named else [groups]
        labels = tuple(_plain(tuple(column)) for column in columns_of_labels)
        rows = Groups(tuple(groups) if is_named else None, labels)
    return Shape(
        None if length is None else _sizes(length),
        rows,
        None if columns is None else tuple(columns),
    )


def _problems(length: Any, groups: Any, columns: Any) -> Iterator[str]:
    """Yield what is wrong with a declaration, by types alone; only the first counts."""
    if length is not None and groups is not None:
        yield "length= is of numbers without labels: leave it or groups= away"
    if columns is not None and groups is None:
        yield "columns= needs groups=, the labels of the rows"
    if length is not None and not all(
        type(size) is int and size > 0 for size in _sizes(length) or [None]
    ):
        yield (
            "length= takes a whole number from 1, or a tuple of them for an array of "
            f"more dimensions, got a value of type {type_name(length)}"
        )
    if columns is not None:
        yield from _label_problems("columns=", columns)
    if isinstance(groups, Mapping):
        yield from _label_problems("the mapping groups=", [*groups])
        for number, labels in enumerate(groups.values(), 1):
            yield from _label_problems(f"column {number} of groups=", labels)
        if not groups.keys().isdisjoint(columns or ()):
            yield "a column cannot be in groups= and in columns=: labels get no noise"
    elif groups is not None:
        yield from _label_problems("groups=", groups)


def _label_problems(what: str, labels: Any) -> Iterator[str]:
    if type(labels) not in (list, tuple, range):
        yield (
            f"{what} takes a list, tuple or range of labels that are known before the "
            f"data is read, got a value of type {type_name(labels)}"
        )
    for label in labels:
        if not is_label(label):
            yield (
                f"{what} holds a label of type {type_name(label)}; a label is a text, "
                "a number (not NaN), a date, a time, None or a tuple"
            )
    if not labels:
        yield f"{what} is empty; name at least one label"
    if len({*map(_plain, labels)}) < len(labels):
        yield f"{what} names one label twice (1, 1.0 and True are one)"


def is_label(label: Any) -> bool:
    """Return whether a value can be a declared label."""
    if isinstance(label, tuple):
        return all(map(is_label, label))
    plain = without_numpy(label)
    is_scalar = isinstance(plain, UUID | Enum) or label_kind(plain) != "other"
    # NaN equals no label.
    is_scalar = is_scalar and (plain is None or not is_missing(plain))
    return is_scalar or type_name(plain) in ("pandas Period", "pandas Interval")


def _plain(label: Any) -> Any:
    """Return a label without scalars of numpy."""
    is_tuple = isinstance(label, tuple)
    return tuple(map(_plain, label)) if is_tuple else without_numpy(label)


def _sizes(length: Any) -> Any:
    """Return the size of each axis."""
    return length if isinstance(length, tuple) else (length,)
