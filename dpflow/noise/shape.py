"""Declared shapes: how many numbers a step releases, of which groups and columns.

A shape is public before private data is read. So a label, a length or a column of an
output never depends on the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import product
from typing import Any
from uuid import UUID

from dpflow.exceptions import ConfigurationError, DpflowError, public_kind
from dpflow.libraries import comes_from
from dpflow.noise.numbers import is_missing, name_of

#: Labels of rows: of one column, or of several by their names.
Labels = list[Any] | tuple[Any, ...] | range
GroupsLike = Labels | Mapping[Any, Labels]
LengthLike = int | tuple[int, ...]

_LISTS = (list, tuple, range)
_NOT_LISTS = (
    "takes a list, tuple or range of labels that are known before the data is read"
)

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
        facts = {
            "length": self.length and list(self.length),
            "groups": groups and {"names": names, "count": groups.count},
            "columns": self.columns and [str(name) for name in self.columns],
        }
        return {name: fact for name, fact in facts.items() if fact is not None}


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
    problem = ""
    if length is not None and groups is not None:
        problem = "length= is of numbers without labels: leave it or groups= away"
    elif columns is not None and groups is None:
        problem = "columns= needs groups=, the labels of the rows"
    elif length is not None and not _is_length(length):
        problem = (
            "length= takes a whole number from 1, or a tuple of them for an array of "
            f"more dimensions, got a value of type {_type(length)}"
        )
    elif columns is not None:
        problem = _problem("columns=", columns)
    if problem:
        raise kind(problem)
    read = None if groups is None else _read_groups(groups, kind)
    names = None if columns is None else tuple(columns)
    if read and names and {*names} & {*(read.names or ())}:
        msg = "a column cannot be in groups= and in columns=: labels get no noise"
        raise kind(msg)
    sizes: tuple[int, ...] | None = None
    if length is not None:
        sizes = length if isinstance(length, tuple) else (length,)
    return Shape(sizes, read, names)


def _read_groups(groups: Any, kind: Callable[[str], DpflowError]) -> Groups:
    if isinstance(groups, Mapping):
        names = list(groups)
        problem = _problem("the mapping groups=", names)
        for place, labels in enumerate(groups.values()):
            problem = problem or _problem(f"column {place + 1} of groups=", labels)
        if problem:
            raise kind(problem)
        columns = [tuple(map(_plain, labels)) for labels in groups.values()]
        return Groups(tuple(names), tuple(columns))
    if problem := _problem("groups=", groups):
        raise kind(problem)
    return Groups(None, (tuple(map(_plain, groups)),))


def _problem(what: str, labels: object) -> str:
    """Return why a declaration is no list of labels, by types alone; "" if it is."""
    if type(labels) not in _LISTS:
        return f"{what} {_NOT_LISTS}, got a value of type {_type(labels)}"
    each: Any = labels
    bad = next((label for label in each if not is_label(label)), None)
    if bad is not None:
        todo = "a label is a text, a number (not NaN), a date, a time, None or a tuple"
        return f"{what} holds a label of type {_type(bad)}; {todo}"
    if not labels:
        return f"{what} is empty; name at least one label"
    if len({*map(_plain, each)}) < len(each):
        return f"{what} names one label twice (1, 1.0 and True are one)"
    return ""


def is_label(label: Any) -> bool:
    """Return whether a value can be a declared label."""
    if isinstance(label, tuple):
        return all(map(is_label, label))
    if comes_from(label, "pandas"):
        return type(label).__name__ in ("Timestamp", "Timedelta", "Period", "Interval")
    plain = _plain(label)
    is_scalar = isinstance(plain, UUID | Enum) or label_kind(plain) != "other"
    # NaN equals no label, and numpy has numbers that Python has not.
    is_plain = is_scalar and not comes_from(plain, "numpy")
    return is_plain and (plain is None or not is_missing(plain))


def _plain(label: Any) -> Any:
    """Return a scalar of numpy as Python's own, which equals it."""
    if isinstance(label, tuple):
        return tuple(map(_plain, label))
    is_scalar = type(label).__name__ not in ("datetime64", "timedelta64", "ndarray")
    return label.item() if is_scalar and comes_from(label, "numpy") else label


def _is_length(length: Any) -> bool:
    places = length if isinstance(length, tuple) else (length,)
    return all(type(each) is int and each > 0 for each in places or [None])


def _type(value: object) -> str:
    return name_of(public_kind(type(value)))


#: Kinds of labels by their types, the first that fits; labels of two kinds never equal.
_KINDS: tuple[tuple[Any, str], ...] = (
    (type(None), "missing"),
    (str, "text"),
    (bytes, "bytes"),
    ((bool, int, float, Decimal, Fraction), "number"),
    (datetime, "time"),
    (date, "date"),
    (time, "clock"),
    (timedelta, "duration"),
)


def label_kind(label: Any) -> str:
    """Return what kind of label it is, as those of columns are named; else "other"."""
    kind = next((name for types, name in _KINDS if isinstance(label, types)), "other")
    return "aware time" if kind == "time" and label.tzinfo is not None else kind
