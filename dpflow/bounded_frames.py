"""The rows of frames: whose they are, which are kept, and their clipped numbers.

Nothing here decides by looking at more than one person's rows. A rank is taken among
the rows of one person; a stable order of the whole frame, cut down to one person's
rows, is the stable order of these rows.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from dpflow.exceptions import ContributionsError
from dpflow.libraries import comes_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

Frame = TypeVar("Frame")
#: What an entry of a column of objects may be. A complex one would warn of itself.
_REAL = (int, float, Decimal, Fraction, np.integer, np.floating)
#: Of a row whose person is not known.
_NOBODY = -1


def bounded(
    frame: Frame,
    *,
    unit: Sequence[str],
    max_rows: int,
    clip: Mapping[str, tuple[float, int, int]],
    by: Sequence[str],
    max_rows_per_group: int | None,
    order_by: Sequence[str],
    seed: str | None,
) -> Frame:
    """Return a frame with few rows of each person and clipped columns.

    Args:
        frame: A pandas or polars DataFrame.
        unit: As in `dpflow.bounding.Contributions`, like the others.
        max_rows: Rows of each person.
        clip: The step of each column's grid, and its bounds in steps.
        by: Columns of a row's group.
        max_rows_per_group: Rows of a person in one group.
        order_by: Columns that say which rows come first.
        seed: Key of the hash that says it instead.

    Raises:
        ContributionsError: If the frame lacks a column, or one has another type.
    """
    table = _table(frame)
    _check_columns(table.columns(), (*unit, *by, *order_by, *clip))
    people = table.codes(unit, missing=True)
    if order_by:
        order = table.order(order_by)
    elif seed is not None:
        order = _hashed_order(table.names(unit), _ranks(people), seed)
    else:
        order = np.arange(len(people), dtype=np.int64)
    order = order[people[order] != _NOBODY]
    if max_rows_per_group is not None:
        groups = table.codes(by, missing=False)
        # A group of a person: two numbers as one.
        both = people * (groups.max(initial=0) + 1) + groups
        order = order[_ranks(both[order]) < max_rows_per_group]
    kept = np.sort(order[_ranks(people[order]) < max_rows])
    # A warning about one person's number would tell of them.
    with np.errstate(all="ignore"):
        columns = {
            name: _steps(table.numbers(name)[kept], *grid)
            for name, grid in clip.items()
        }
    result: Frame = table.take(kept, columns)
    return result


def _hashed_order(
    names: list[Any], places: NDArray[np.int64], seed: str
) -> NDArray[np.int64]:
    """Order rows by a hash of the person and the row's place among the person's own.

    A row's place in the frame would tell of the people before it.
    """
    key = hashlib.sha256(seed.encode()).digest()
    hashes = [
        _hash(key, name, place)
        for name, place in zip(names, places.tolist(), strict=True)
    ]
    return np.argsort(np.array(hashes, "<u8"), kind="stable")


def _hash(key: bytes, name: Sequence[Any], place: int) -> int:
    # One missing name turns a column of integers into floats.
    same = [
        int(part) if isinstance(part, float) and part.is_integer() else part
        for part in name
    ]
    text = f"{same!r}/{place}".encode()
    return int.from_bytes(hashlib.blake2b(text, key=key, digest_size=8).digest())


def _ranks(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each entry among the entries of its code, from zero."""
    count = len(codes)
    sorting = np.argsort(codes, kind="stable")
    placed = codes[sorting]
    first = np.ones(count, np.bool_)
    first[1:] = placed[1:] != placed[:-1]
    places = np.arange(count, dtype=np.int64)
    ranks = np.empty(count, np.int64)
    ranks[sorting] = places - np.maximum.accumulate(np.where(first, places, 0))
    return ranks


def _steps(
    numbers: NDArray[np.float64], step: float, low: int, high: int
) -> NDArray[np.int64]:
    """Return clipped numbers of steps; whatever is no number counts as zero."""
    steps = np.rint(np.nan_to_num(numbers, nan=0.0) / step)
    # Within 2**31, where floats are exact.
    return np.clip(steps, low, high).astype(np.int64)


class _Table(Protocol):
    """What is asked of a frame of either library."""

    def columns(self) -> list[Any]:
        """Return the names of the columns."""

    def codes(self, names: Sequence[str], *, missing: bool) -> NDArray[np.int64]:
        """Number the different values of some columns; missing ones may be nobody."""

    def names(self, names: Sequence[str]) -> list[Any]:
        """Return the values of some columns, one for each row."""

    def order(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows in the stable order of some columns."""

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column as floats; what is no number is NaN."""

    def take(self, rows: NDArray[np.int64], columns: dict[str, Any]) -> Any:
        """Return some rows, with some columns replaced."""


class _Pandas:
    """A pandas frame."""

    def __init__(self, frame: Any, library: Any) -> None:
        self._frame, self._library = frame, library

    def columns(self) -> list[Any]:
        return list(self._frame.columns)

    def codes(self, names: Sequence[str], *, missing: bool) -> NDArray[np.int64]:
        columns = [
            self._library.factorize(self._frame[name], use_na_sentinel=missing)[0]
            for name in names
        ]
        return _combined(columns)

    def names(self, names: Sequence[str]) -> list[Any]:
        columns = (self._frame[name].tolist() for name in names)
        return list(zip(*columns, strict=True))

    def order(self, names: Sequence[str]) -> NDArray[np.int64]:
        columns = [self._frame[name] for name in names]
        for name, column in zip(names, columns, strict=True):
            _check_sortable(name, str(column.dtype).lower())
        # By ranks: missing values come last, whatever their type.
        ranks = [
            column.rank(method="dense", na_option="bottom").to_numpy(np.float64)
            for column in columns
        ]
        return np.lexsort(ranks[::-1])

    def numbers(self, name: str) -> NDArray[np.float64]:
        column = self._frame[name]
        _check_numeric(name, str(column.dtype).lower())
        if column.dtype == object:
            return np.array([_float(each) for each in column], np.float64)
        found: NDArray[np.float64] = column.to_numpy(np.float64, na_value=np.nan)
        return found

    def take(self, rows: NDArray[np.int64], columns: dict[str, Any]) -> Any:
        kept = self._frame.iloc[rows].copy()
        for name, numbers in columns.items():
            kept[name] = numbers
        return kept


class _Polars:
    """A polars frame."""

    def __init__(self, frame: Any, library: Any) -> None:
        self._frame, self._library = frame, library

    def columns(self) -> list[Any]:
        return list(self._frame.columns)

    def codes(self, names: Sequence[str], *, missing: bool) -> NDArray[np.int64]:
        columns = [
            _numbered(self._frame[name].to_list(), missing=missing) for name in names
        ]
        return _combined(columns)

    def names(self, names: Sequence[str]) -> list[Any]:
        return list(self._frame.select(names).iter_rows())

    def order(self, names: Sequence[str]) -> NDArray[np.int64]:
        for name in names:
            _check_sortable(name, str(self._frame.schema[name]).lower())
        rows = self._frame.select(
            self._library.arg_sort_by(list(names), nulls_last=True, maintain_order=True)
        )
        found: NDArray[np.int64] = rows.to_series().to_numpy().astype(np.int64)
        return found

    def numbers(self, name: str) -> NDArray[np.float64]:
        column = self._frame[name]
        _check_numeric(name, str(column.dtype).lower())
        floats = column.cast(self._library.Float64, strict=False)
        return np.array(floats.fill_null(float("nan")).to_numpy(), np.float64)

    def take(self, rows: NDArray[np.int64], columns: dict[str, Any]) -> Any:
        replaced = [self._library.Series(k, v) for k, v in columns.items()]
        return self._frame[rows].with_columns(replaced)


def _table(frame: object) -> _Table:
    """Return the frame with what its library can do."""
    if comes_from(frame, "pandas"):
        import pandas as pd  # noqa: PLC0415

        if isinstance(frame, pd.DataFrame):
            return _Pandas(frame, pd)
    if comes_from(frame, "polars"):
        import polars as pl  # noqa: PLC0415

        if isinstance(frame, pl.DataFrame):
            return _Polars(frame, pl)
    msg = (
        f"a pandas or polars DataFrame can be bounded, not {type(frame).__name__}; "
        "collect a lazy frame first"
    )
    raise ContributionsError(msg)


def _check_columns(present: list[Any], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if present.count(name) != 1]
    if missing:
        # The columns that it has may be made of data, by a pivot.
        msg = (
            f"the frame must have each of these columns once: {missing}. Compare them "
            "with the columns that it has"
        )
        raise ContributionsError(msg)


def _check_sortable(name: str, kind: str) -> None:
    """Refuse a column whose order could fail, or not, by what it holds."""
    if kind.startswith(("object", "list", "struct", "category", "categorical")):
        msg = (
            f"order_by column {name!r} is of type {_bare(kind)}; give it one type that "
            "is ordered, such as a date, a number or a string"
        )
        raise ContributionsError(msg)


def _check_numeric(name: str, kind: str) -> None:
    """Refuse a column that holds no numbers by its type, never by its content."""
    numeric = ("int", "uint", "float", "bool", "decimal", "object", "null")
    if not kind.startswith(numeric):
        msg = (
            f"clipped column {name!r} is of type {_bare(kind)}; make it a number first"
        )
        raise ContributionsError(msg)


def _bare(kind: str) -> str:
    """Return a column's type without its parts: categories are data."""
    return re.split(r"[\W_]", kind, maxsplit=1)[0]


def _float(value: object) -> float:
    """Return one entry of a column of objects as a float, whatever the others are."""
    if not isinstance(value, _REAL):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (ValueError, TypeError):
        return math.nan


def _numbered(values: list[Any], *, missing: bool) -> NDArray[np.int64]:
    """Number different values in the order in which they come."""
    known: dict[Any, int] = {}
    codes = np.empty(len(values), np.int64)
    for row, value in enumerate(values):
        # NaN is not itself.
        absent = value is None or value != value  # noqa: PLR0124
        if absent and missing:
            codes[row] = _NOBODY
        else:
            codes[row] = known.setdefault(None if absent else value, len(known))
    return codes


def _combined(columns: Sequence[Any]) -> NDArray[np.int64]:
    """Number the different rows of several numbered columns; nobody stays nobody."""
    stacked = np.column_stack([np.asarray(each, np.int64) for each in columns])
    nobody = (stacked == _NOBODY).any(axis=1)
    if len(columns) == 1:
        return np.asarray(stacked[:, 0], np.int64)
    codes = np.unique(stacked, axis=0, return_inverse=True)[1].reshape(-1)
    return np.where(nobody, _NOBODY, codes).astype(np.int64)
