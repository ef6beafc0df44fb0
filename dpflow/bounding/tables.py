"""The rows of tables: their persons, the contributed ones, and their clipped numbers.

A frame of pandas or polars is bounded in memory; of a lazy table only the schema is
read, and its own engine does the work. A row is ranked among the rows of its person
alone. Rows of one rank are chosen by their place in a frame. A lazy table has no
places: ties are broken by all other columns, so that rows of one rank are the same row.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeVar, cast

import narwhals as nw
import numpy as np

from dpflow.exceptions import PublicContributionsError
from dpflow.interrupts import without_interrupts
from dpflow.libraries import comes_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpflow.bounding.contributions import Contributions

Frame = TypeVar("Frame")
Kinds = Mapping[str, str]

_LAZY = ("polars", "duckdb", "_duckdb", "ibis", "pyspark")
_UNORDERED = ("Enum", "Categorical", "List", "Array", "Struct", "Object")
_FLOATS = ("Float32", "Float64")
#: Types that an Int64 holds: a cast of them cannot fail by a value.
_WHOLE = ("Boolean", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32")
_NUMBERS = (*_WHOLE, *_FLOATS, "Int128", "UInt64", "UInt128", "Decimal")
#: Types whose values are ordered, and the same wherever they are equal. A nested value
#: has no order in some engines; intervals of a month and of 30 days are equal in some.
_ORDERED = (*_NUMBERS, "String", "Binary", "Date", "Datetime", "Time", *_UNORDERED[:2])
#: Types of polars that name neither a person nor a group.
_NAMELESS = (*_UNORDERED[2:], "Unknown")
#: What an entry of a column of objects may be. A complex one would warn of itself.
_REAL = (int, float, Decimal, Fraction, np.integer, np.floating, np.bool_)
#: Added to a double of at most 2**31 and taken away, it rounds half to even. Engines
#: disagree on what their own ROUND does.
_ROUNDS = 1.5 * 2**52
_OURS = "_dpflow_"
_ROW, _HASH = f"{_OURS}row", f"{_OURS}hash"


def bounded(frame: Frame, wanted: Contributions) -> Frame:
    """Return a table with few rows of each person and clipped columns.

    Args:
        frame: A pandas or polars DataFrame, a polars LazyFrame, a DuckDB relation, a
            table of ibis or PySpark.
        wanted: Whose rows count, how many, and how they are clipped.

    Raises:
        ContributionsError: If the table lacks a column, or one has another type, or if
            nothing says which rows of a lazy table come first.
    """
    source: Any = frame
    named = [*dict.fromkeys((*wanted.unit, *wanted.by, *wanted.order_by, *wanted.clip))]
    if _is_frame(source):
        _check_columns(list(source.columns), named)
        table = nw.from_native(source[named])
        polars = comes_from(source, "polars")
        _check_kinds(_kinds(table), wanted, _NAMELESS if polars else ())
        table = table if polars else _cleaned(source, wanted)
        rows = _kept(table.with_row_index(_ROW), wanted, [_ROW], _ROW).sort(_ROW)
        return cast("Frame", _taken(source, rows, wanted))
    table = nw.from_native(source, pass_through=True)
    known = any(comes_from(source, library) for library in _LAZY)
    if not known or not isinstance(table, nw.LazyFrame):
        msg = (
            f"a pandas or polars DataFrame can be bounded, not {type(frame).__name__}, "
            "or a lazy table of polars, DuckDB, ibis or PySpark"
        )
        raise PublicContributionsError(msg)
    kinds = _kinds(table)
    _check_lazy(kinds, wanted, named)
    ties = [name for name in kinds if name not in {*wanted.unit, *wanted.order_by}]
    # No row lacks its person where rows are counted, so that each one counts.
    kept = _kept(table, wanted, ties, wanted.unit[0])
    return cast("Frame", kept.select(*kinds).to_native())


def _is_frame(frame: Any) -> bool:
    kinds = [kind for kind in type(frame).__mro__ if kind.__name__ == "DataFrame"]
    return any(k.__module__.split(".")[0] in ("pandas", "polars") for k in kinds)


def _kept(table: Any, wanted: Contributions, ties: list[str], counted: str) -> Any:
    """Return the contributed rows, with clipped columns."""
    kinds = _kinds(table)
    table = table.filter(*(~_missing(name, kinds) for name in wanted.unit))
    table = table.with_columns(
        **{
            name: _steps(name, kinds, float(clip.step), *clip.steps)
            for name, clip in wanted.clip.items()
        },
        **{f"{_OURS}at_{n}": _last(k, kinds) for n, k in enumerate(wanted.order_by)},
        **{f"{_OURS}by_{n}": _group(k, kinds) for n, k in enumerate(wanted.by)},
    )
    order = [
        key
        for n, name in enumerate(wanted.order_by)
        for key in (f"{_OURS}at_{n}", name)
    ]
    if not order and wanted.seed is not None:
        table, order = _hashed(table, wanted.unit, wanted.seed), [_HASH]
    if wanted.max_rows_per_group is not None:
        whose = [*wanted.unit, *(f"{_OURS}by_{n}" for n in range(len(wanted.by)))]
        most = wanted.max_rows_per_group
        table = _first(table, whose, [*order, *ties], most, counted)
    return _first(table, wanted.unit, [*order, *ties], wanted.max_rows, counted)


def _first(
    table: Any, whose: Sequence[str], order: Sequence[str], rows: int, counted: str
) -> Any:
    """Return the first rows of each person, or of each person in a group.

    Under pandas narwhals counts wrongly in a column that is a key as well, so that the
    rows of a frame are counted by their numbers.
    """
    place = nw.col(counted).cum_count().over(*whose, order_by=list(order))
    ranked = table.with_columns(**{f"{_OURS}place": place})
    return ranked.filter(nw.col(f"{_OURS}place") <= rows)


# Expressions


def _missing(name: str, kinds: Kinds) -> Any:
    """Say of each row whether a column is null or NaN."""
    column = nw.col(name)
    if kinds[name] not in _FLOATS:
        return column.is_null()
    return column.is_null() | column.is_nan()


def _last(name: str, kinds: Kinds) -> Any:
    """Return what puts null after NaN, and both after all numbers."""
    column, rest = nw.col(name), nw.lit(0)
    if kinds[name] in _FLOATS:
        rest = nw.when(column.is_nan()).then(nw.lit(1)).otherwise(rest)
    return nw.when(column.is_null()).then(nw.lit(2)).otherwise(rest)


def _group(name: str, kinds: Kinds) -> Any:
    """Return a row's group; NaN is in the group of what is missing."""
    return nw.when(~_missing(name, kinds)).then(nw.col(name))


def _steps(name: str, kinds: Kinds, step: float, low: int, high: int) -> Any:
    """Return clipped numbers of steps; whatever is no number counts as zero.

    No engine divides what overflows or underflows: some raise for it, and an
    error would tell of one person's number.
    """
    if step == 1 and kinds[name] in _WHOLE:
        return nw.col(name).cast(nw.Int64).fill_null(0).clip(low, high).cast(nw.Int64)
    number = nw.col(name).cast(nw.Float64)
    nothing = (
        number.is_null() | number.is_nan() | number.is_between(-step / 4, step / 4)
    )
    number = nw.when(nothing).then(nw.lit(0.0)).otherwise(number)
    near = number.clip(low * step, high * step) / nw.lit(step)
    whole = (near + nw.lit(_ROUNDS)) - nw.lit(_ROUNDS)
    return whole.cast(nw.Int64).clip(low, high).cast(nw.Int64)


# Choice by a hash


def _hashed(table: Any, unit: Sequence[str], seed: str) -> Any:
    """Add a hash of the person and of the row's place among the person's own.

    A row's place in the frame would tell of the people before it.
    """
    key = hashlib.sha256(seed.encode()).digest()
    names = list(zip(*(_plain(table[name]) for name in unit), strict=True))
    hashes = {name: _hash(key, name) for name in set(names)}
    places = table.select(nw.col(_ROW).cum_count().over(*unit, order_by=_ROW))[_ROW]
    numbers = np.array([hashes[name] for name in names], "<u8")
    mixed = _mixed(numbers, places.to_numpy().astype(np.uint64))
    backend = table.implementation
    return table.with_columns(nw.new_series(_HASH, mixed, nw.UInt64, backend=backend))


def _plain(column: Any) -> list[Any]:
    """Return names; times as integers: Python has not all of them, no nanoseconds."""
    native = column.to_native()
    if comes_from(native, "polars"):
        times = native.dtype.is_temporal()
        return list((native.to_physical() if times else native).to_list())
    if native.dtype.kind not in "mM":
        return list(native.tolist())
    whole = native.dt.tz_convert(None) if getattr(native.dtype, "tz", None) else native
    return list(whole.to_numpy().view("i8").tolist())


def _hash(key: bytes, name: Sequence[Any]) -> int:
    # One missing name turns a column of integers into floats.
    same = [
        int(part) if isinstance(part, float) and part.is_integer() else part
        for part in name
    ]
    try:
        text = repr(same)
    except without_interrupts(Exception):
        text = repr([type(part).__name__ for part in name])
    encoded = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(encoded, key=key, digest_size=8).digest())


def _mixed(
    hashes: NDArray[np.uint64], places: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Mix a person's hash with places from 1: SplitMix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        mixed = hashes + places * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        result: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return result


# Frames


def _cleaned(frame: Any, wanted: Contributions) -> Any:
    """Return a pandas frame's columns; what has no hash names nothing.

    Numbers are read one by one: what an entry becomes does not depend on others.
    """
    import pandas as pd  # noqa: PLC0415

    columns: dict[str, Any] = {}
    for name in (*wanted.unit, *wanted.by, *wanted.order_by, *wanted.clip):
        column = frame[name]
        if name in wanted.clip and column.dtype != object:
            column = column.to_numpy(np.float64, na_value=np.nan)
        elif name in wanted.clip:
            column = np.array([real_or_nan(each) for each in column], np.float64)
        elif column.dtype == object:
            values = [each if _is_hashable(each) else None for each in column]
            column = pd.Series(values, dtype=object)
        columns[name] = column if name in wanted.clip else column.reset_index(drop=True)
    return nw.from_native(pd.DataFrame(columns))


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except without_interrupts(Exception):
        return False
    return True


def _taken(frame: Any, rows: Any, wanted: Contributions) -> Any:
    """Return the contributed rows of a frame, with the clipped columns."""
    places = rows[_ROW].to_numpy().astype(np.int64)
    if comes_from(frame, "polars"):
        return frame[places].with_columns(rows[k].to_native() for k in wanted.clip)
    kept = frame.iloc[places].copy()
    for name in wanted.clip:
        kept[name] = rows[name].to_numpy()
    return kept


# Checks, by the schema alone


def _kinds(table: Any) -> dict[str, str]:
    """Return the names of the columns' types, without their parts."""
    kinds = {name: type(kind).__name__ for name, kind in table.collect_schema().items()}
    native = table.to_native()
    if comes_from(native, "pandas"):
        # Of a column of objects, narwhals looks at what is in it.
        objects = (name for name in kinds if native[name].dtype == "object")
        kinds |= dict.fromkeys(objects, "Object")
    return kinds


def _check_columns(present: list[Any], named: Sequence[str]) -> None:
    missing = [name for name in named if present.count(name) != 1]
    if missing or any(str(name).lower().startswith(_OURS) for name in present):
        # The columns that it has may be made of data, by a pivot.
        msg = (
            f"the table must have each of these columns once: {missing}, and none that "
            f"starts with {_OURS}. Compare them with the columns that it has"
        )
        raise PublicContributionsError(msg)


def _check_kinds(
    kinds: Kinds, wanted: Contributions, nameless: Collection[str]
) -> None:
    """Refuse a column whose order, clip or names could fail by what it holds."""
    objects = [k for k, c in wanted.clip.items() if c.objects and kinds[k] == "Object"]
    clipped = [k for k in wanted.clip if kinds[k] not in _NUMBERS and k not in objects]
    wrong = [
        *(("clipped column", name) for name in clipped),
        *(("order_by column", k) for k in wanted.order_by if kinds[k] in _UNORDERED),
        *(("column", k) for k in (*wanted.unit, *wanted.by) if kinds[k] in nameless),
    ]
    for what, name in wrong:
        msg = (
            f"{what} {name!r} is of type {kinds[name]}; make it a number, or a string "
            "or time where it is not clipped."
        )
        if kinds[name] == "Object":
            msg += ' If it holds Decimals, write Clip(..., objects="decimal").'
        raise PublicContributionsError(msg)


def _check_lazy(kinds: Kinds, wanted: Contributions, named: Sequence[str]) -> None:
    if not wanted.order_by:
        msg = (
            "a lazy table needs order_by=, the columns that say which of a person's "
            "rows are kept. It has no order of its own, and seed= is refused: a "
            "database's random order or hash is not ours, and may be another one "
            "tomorrow"
        )
        raise PublicContributionsError(msg)
    _check_columns(list(kinds), named)
    unordered = {*kinds.values()}.difference(_ORDERED)
    _check_kinds(kinds, wanted, unordered)
    if unordered:
        # Other columns' names may be made of data, by a pivot.
        msg = (
            "ties are broken by all columns, and one of the table's is of a type "
            "without an order of its own (nested, an interval, unknown). Select the "
            "columns that are needed, or make it text"
        )
        raise PublicContributionsError(msg)


def real_or_nan(value: object) -> float:
    """Return one entry of a column of objects as a float; NaN if it is no number."""
    if not isinstance(value, _REAL):
        return math.nan
    number: Any = value
    try:
        return float(number)
    except without_interrupts(OverflowError):
        return math.inf if number > 0 else -math.inf
    except without_interrupts(ValueError, TypeError):
        return math.nan
