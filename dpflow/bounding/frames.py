"""The rows of frames: whose they are, which are kept, and their clipped numbers.

Nothing here decides by looking at more than one person's rows. A rank is taken among
the rows of one person; a stable order of the whole frame, cut down to one person's
rows, is the stable order of these rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dpflow.exceptions import PublicContributionsError
from dpflow.libraries import bare_type, comes_from
from dpflow.rounding import real_or_nan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpflow.bounding.contributions import Clip, Contributions

Frame = TypeVar("Frame")
#: What an entry of a column of objects may be. A complex one would warn of itself.
_REAL = (int, float, Decimal, Fraction, np.integer, np.floating)
#: Of a row whose person is not known.
_NOBODY = -1


def bounded(frame: Frame, wanted: Contributions) -> Frame:
    """Return a frame with few rows of each person and clipped columns.

    Args:
        frame: A pandas or polars DataFrame.
        wanted: Whose rows are kept, how many, and how they are clipped.

    Raises:
        ContributionsError: If the frame lacks a column, or one has another type.
    """
    table = _table(frame)
    unit, by, order_by = wanted.unit, wanted.by, wanted.order_by
    _check_columns(table.columns(), (*unit, *by, *order_by, *wanted.clip))
    people = table.codes(unit, missing=True)
    order = _order(table, wanted, people)
    order = order[people[order] != _NOBODY]
    if wanted.max_rows_per_group is not None:
        groups = table.codes(by, missing=False)
        # A group of a person: two numbers as one.
        both = people * (groups.max(initial=0) + 1) + groups
        order = order[_ranks(both[order]) < wanted.max_rows_per_group]
    kept = np.sort(order[_ranks(people[order]) < wanted.max_rows])
    # A warning about one person's number would tell of them.
    with np.errstate(all="ignore"):
        columns = {
            name: _steps(table.numbers(name, clip)[kept], float(clip.step), *clip.steps)
            for name, clip in wanted.clip.items()
        }
    result: Frame = table.take(kept, columns)
    return result


def _order(
    table: _Pandas | _Polars, wanted: Contributions, people: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return all rows, a person's in the order in which they are kept."""
    if wanted.order_by:
        return table.order(wanted.order_by)
    if wanted.seed is not None:
        return _hashed_order(table.names(wanted.unit), people, wanted.seed)
    return np.arange(len(people), dtype=np.int64)


def _hashed_order(
    names: list[Any], people: NDArray[np.int64], seed: str
) -> NDArray[np.int64]:
    """Order rows by a hash of the person and the row's place among the person's own.

    A row's place in the frame would tell of the people before it.
    """
    key = hashlib.sha256(seed.encode()).digest()
    _, first, person = np.unique(people, return_index=True, return_inverse=True)
    hashes = [_hash(key, names[row]) for row in first.tolist()]
    places = _ranks(people).astype(np.uint64)
    return np.argsort(_mixed(np.array(hashes, "<u8")[person], places), kind="stable")


def _hash(key: bytes, name: Sequence[Any]) -> int:
    # One missing name turns a column of integers into floats.
    same = [
        int(part) if isinstance(part, float) and part.is_integer() else part
        for part in name
    ]
    text = _text(same).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, key=key, digest_size=8).digest())


def _mixed(
    hashes: NDArray[np.uint64], places: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Mix a person's hash with places: SplitMix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = hashes + (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


def _text(name: Sequence[Any]) -> str:
    """Return a name as text; of what has none, the types."""
    try:
        return repr(name)
    except Exception:  # noqa: BLE001 - an error would tell of this person
        return repr([type(part).__name__ for part in name])


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


class _Pandas:
    """A pandas frame."""

    def __init__(self, frame: Any, library: Any) -> None:
        self._frame, self._library = frame, library

    def columns(self) -> list[Any]:
        return list(self._frame.columns)

    def codes(self, names: Sequence[str], *, missing: bool) -> NDArray[np.int64]:
        """Number the values of columns, told apart as pandas does; nobody is -1."""
        columns = [
            self._library.factorize(self._values(name), use_na_sentinel=missing)[0]
            for name in names
        ]
        return _combined(columns)

    def _values(self, name: str) -> Any:
        """Return a column; what has no hash names nothing, like a missing value."""
        column = self._frame[name]
        if column.dtype != object:
            return column
        values = [each if _is_hashable(each) else None for each in column]
        return self._library.Series(values, dtype=object)

    def names(self, names: Sequence[str]) -> list[Any]:
        columns = (self._as_integers(self._frame[name]).tolist() for name in names)
        return list(zip(*columns, strict=True))

    def _as_integers(self, column: Any) -> Any:
        """Return times as integers: Python has not all of them, and no nanoseconds."""
        if isinstance(column.dtype, self._library.DatetimeTZDtype):
            column = column.dt.tz_convert(None)
        return column.to_numpy().view("i8") if column.dtype.kind in "mM" else column

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

    def numbers(self, name: str, clip: Clip) -> NDArray[np.float64]:
        column = self._frame[name]
        _check_numeric(name, str(column.dtype).lower(), clip)
        if column.dtype == object:
            return np.array([real_or_nan(each, _REAL) for each in column], np.float64)
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
        return _combined([self._numbered(name, missing=missing) for name in names])

    def _numbered(self, name: str, *, missing: bool) -> NDArray[np.int64]:
        # Python's objects would be equal where values are not: they have no nanoseconds
        # and take both hours that a clock repeats for one.
        column = self._frame[name]
        _check_nameable(name, column.dtype)
        if column.dtype.is_float():
            column = column.fill_nan(None)
        ranks = column.rank("dense").fill_null(0).to_numpy().astype(np.int64)
        found: NDArray[np.int64] = ranks - 1 if missing else ranks
        return found

    def names(self, names: Sequence[str]) -> list[Any]:
        columns = [self._frame[name] for name in names]
        whole = [c.to_physical() if c.dtype.is_temporal() else c for c in columns]
        return list(zip(*(column.to_list() for column in whole), strict=True))

    def order(self, names: Sequence[str]) -> NDArray[np.int64]:
        for name in names:
            _check_sortable(name, str(self._frame.schema[name]).lower())
        rows = self._frame.select(
            self._library.arg_sort_by(list(names), nulls_last=True, maintain_order=True)
        )
        found: NDArray[np.int64] = rows.to_series().to_numpy().astype(np.int64)
        return found

    def numbers(self, name: str, _: Clip) -> NDArray[np.float64]:
        column = self._frame[name]
        _check_numeric(name, str(column.dtype).lower())
        floats = column.cast(self._library.Float64, strict=False)
        return np.array(floats.fill_null(float("nan")).to_numpy(), np.float64)

    def take(self, rows: NDArray[np.int64], columns: dict[str, Any]) -> Any:
        replaced = [self._library.Series(k, v) for k, v in columns.items()]
        return self._frame[rows].with_columns(replaced)


def _table(frame: object) -> _Pandas | _Polars:
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
        f"a pandas or polars DataFrame can be bounded, not {type(frame).__name__}, or "
        "a lazy table of polars, DuckDB, ibis or PySpark"
    )
    raise PublicContributionsError(msg)


def _check_columns(present: list[Any], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if present.count(name) != 1]
    if missing:
        # The columns that it has may be made of data, by a pivot.
        msg = (
            f"the frame must have each of these columns once: {missing}. Compare them "
            "with the columns that it has"
        )
        raise PublicContributionsError(msg)


def _check_sortable(name: str, kind: str) -> None:
    """Refuse a column whose order could fail, or not, by what it holds."""
    if kind.startswith(("object", "list", "struct", "category", "categorical")):
        msg = (
            f"order_by column {name!r} is of type {bare_type(kind)}; give it one type "
            "that is ordered, such as a date, a number or a string"
        )
        raise PublicContributionsError(msg)


def _check_nameable(name: str, kind: Any) -> None:
    """Refuse a column that cannot name a person or a group, by its type."""
    if kind.is_nested() or kind.is_object():
        msg = (
            f"column {name!r} is of type {bare_type(str(kind))}, which names neither a "
            "person nor a group; make it a number, a string or a time, or several "
            "columns"
        )
        raise PublicContributionsError(msg)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except Exception:  # noqa: BLE001 - an error would tell of this value
        return False
    return True


def _check_numeric(name: str, kind: str, clip: Clip | None = None) -> None:
    """Refuse a column that holds no numbers by its type, never by its content."""
    objects = clip is not None and kind == "object"
    if objects and clip is not None and clip.objects:
        return
    if not kind.startswith(("int", "uint", "float", "bool", "decimal", "null")):
        todo = "make it a number first"
        if objects:
            todo += ', or write Clip(..., objects="decimal") if it holds Decimals: text'
            todo += " would count as zero"
        msg = f"clipped column {name!r} is of type {bare_type(kind)}; {todo}"
        raise PublicContributionsError(msg)


def _combined(columns: Sequence[Any]) -> NDArray[np.int64]:
    """Number the different rows of several numbered columns; nobody stays nobody."""
    stacked = np.column_stack([np.asarray(each, np.int64) for each in columns])
    nobody = (stacked == _NOBODY).any(axis=1)
    if len(columns) == 1:
        return np.asarray(stacked[:, 0], np.int64)
    codes = np.unique(stacked, axis=0, return_inverse=True)[1].reshape(-1)
    return np.where(nobody, _NOBODY, codes).astype(np.int64)
