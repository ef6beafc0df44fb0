"""The rows of tables: their persons, the contributed ones, and their clipped numbers.

A frame of pandas or polars is bounded in memory; of a lazy table only the schema is
read, and its own engine does the work. A row is ranked among the rows of its person
alone. Rows of one rank are chosen by their place in a frame. A lazy table has no
places: ties are broken by all other columns, so that rows of one rank are the same row.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import narwhals as nw
import numpy as np

from dpflow.exceptions import PublicContributionsError
from dpflow.interrupts import without_interrupts
from dpflow.libraries import comes_from

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dpflow.bounding.contributions import Contributions

    Places = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

Kinds = Mapping[str, str]

#: The first version whose integers of 128 bits are all different.
_POLARS = (1, 33)
_LAZY = ("polars", "duckdb", "_duckdb", "ibis", "pyspark")
_FLOATS = ("Float32", "Float64")
#: Types that an Int64 holds: a cast of them cannot fail by a value.
_WHOLE = ("Boolean", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32")
_NUMBERS = (*_WHOLE, *_FLOATS, "Int128", "UInt64", "UInt128", "Decimal")
_TIMES = ("Date", "Datetime", "Time", "Duration")
_SORTED = (*_NUMBERS, "String", "Binary", *_TIMES[:3])
#: Types whose values are the same wherever they are equal. A nested value has no order
#: in some engines; intervals of a month and of 30 days are equal in some.
_TIES = (*_SORTED, "Enum", "Categorical")
#: Types of a frame by which its rows are ordered, and which name people and groups.
_KEYS = (*_SORTED, "Duration", "PeriodDtype")
_NAMES = (*_TIES, *_KEYS)
#: What an entry of a column of objects may be. A complex one would warn of itself.
_REAL = (int, float, Decimal, Fraction, np.integer, np.floating, np.bool_)
_HUGE = float(np.finfo(np.float64).max)
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
#: Of each word of `objects=`, the class of an entry and what reads it: equal entries
#: become equal values, which have a hash and an order and raise nothing. An infinity
#: becomes the largest number, which is clipped as well.
_READERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    # Raises of half a pair of characters, which pandas and Arrow hold in no text.
    "text": (str, lambda entry: str.__str__(entry).encode().decode()),
    "bytes": (bytes, lambda entry: b"".join((entry,))),
    "uuid": (UUID, lambda entry: entry.int),
    "date": (date, date.toordinal),
    "decimal": (Decimal, lambda entry: _EXACT.normalize(entry) or Decimal(0)),
    "number": (_REAL, lambda entry: float(min(max(entry, -_HUGE), _HUGE))),
}
#: Added to a double of at most 2**31 and taken away, it rounds half to even. Engines
#: disagree on what their own ROUND does.
_ROUNDS = 1.5 * 2**52
_SAID = ('Contributions(..., objects="text")', 'Clip(..., objects="decimal")')
_OURS = "_dpflow_"
_ROW = f"{_OURS}row"


def bound_table(source: Any, wanted: Contributions) -> Any:
    """Return a table with few rows of each person and clipped columns.

    Args:
        source: A pandas or polars DataFrame, a polars LazyFrame, a DuckDB relation, a
            table of ibis or PySpark.
        wanted: Whose rows count, how many, and how they are clipped.

    Raises:
        ContributionsError: If the table lacks a column, or one has another type, or if
            nothing says which rows of a lazy table come first, or if polars is too old.
    """
    if comes_from(source, "polars"):
        _check_polars()
    named = [*dict.fromkeys((*wanted.unit, *wanted.by, *wanted.order_by, *wanted.clip))]
    if _is_frame(source):
        _check_columns(list(source.columns), named)
        kinds = _kinds(source[named])
        _check_kinds(kinds, wanted, _NAMES)
        return _bound_frame(source, _read(source, wanted, kinds), wanted)
    table = nw.from_native(source, pass_through=True)
    is_lazy = any(comes_from(source, library) for library in _LAZY)
    if not is_lazy or not isinstance(table, nw.LazyFrame):
        msg = (
            "a pandas or polars DataFrame can be bounded, not "
            f"{type(source).__name__}, "
            "or a lazy table of polars, DuckDB, ibis or PySpark"
        )
        raise PublicContributionsError(msg)
    kinds = _kinds(source)
    _check_lazy(kinds, wanted, named)
    return _bound_lazy(table, wanted, kinds).to_native()


def _check_polars() -> None:
    """Refuse a version of polars that moves rows of one person for another one."""
    import polars as pl  # noqa: PLC0415

    major, minor = map(int, pl.__version__.split(".")[:2])
    if (major, minor) < _POLARS:
        msg = (
            f"polars {pl.__version__} confuses integers of 128 bits, so that the "
            "rows of one person depend on those of others. Install polars 1.33 or newer"
        )
        raise PublicContributionsError(msg)


def _is_frame(frame: Any) -> bool:
    kinds = [kind for kind in type(frame).__mro__ if kind.__name__ == "DataFrame"]
    return any(k.__module__.split(".")[0] in ("pandas", "polars") for k in kinds)


# Lazy tables


def _bound_lazy(table: Any, wanted: Contributions, kinds: Kinds) -> Any:
    """Return the contributed rows of a lazy table, with clipped columns."""
    keys, groups = _order(wanted, kinds), _groups(wanted, kinds)
    table = table.filter(*(~_missing(name, kinds) for name in wanted.unit))
    table = table.with_columns(**_clips(wanted, kinds), **keys, **groups)
    order = [*keys, *(k for k in kinds if k not in {*wanted.unit, *wanted.order_by})]
    if wanted.max_rows_per_group is not None:
        whose = [*wanted.unit, *groups]
        table = _first(table, whose, order, wanted.max_rows_per_group)
    return _first(table, wanted.unit, order, wanted.max_rows).select(*kinds)


def _first(table: Any, whose: Sequence[str], order: list[str], rows: int) -> Any:
    """Return the first rows of each person, or of each person in a group.

    No row lacks the person, so that each row of that column counts.
    """
    rank = nw.col(whose[0]).cum_count().over(*whose, order_by=order)
    ranked = table.with_columns(**{f"{_OURS}place": rank})
    return ranked.filter(nw.col(f"{_OURS}place") <= rows)


# Expressions


def _missing(name: str, kinds: Kinds) -> Any:
    """Say of each row whether a column is null or NaN."""
    null = nw.col(name).is_null()
    return null | nw.col(name).is_nan() if kinds[name] in _FLOATS else null


def _last(name: str, kinds: Kinds) -> Any:
    """Return what puts null after NaN, and both after all numbers."""
    missing = nw.when(_missing(name, kinds)).then(nw.lit(1)).otherwise(nw.lit(0))
    return nw.when(nw.col(name).is_null()).then(nw.lit(2)).otherwise(missing)


def _order(wanted: Contributions, kinds: Kinds) -> dict[str, Any]:
    """Return the columns by which a person's rows are ordered."""
    result: dict[str, Any] = {}
    for n, name in enumerate(wanted.order_by):
        result |= {f"{_OURS}at_{n}": _last(name, kinds), name: nw.col(name)}
    return result


def _groups(wanted: Contributions, kinds: Kinds) -> dict[str, Any]:
    """Return the columns of a row's group; NaN is in the group of what is missing."""
    return {
        f"{_OURS}by_{n}": nw.when(~_missing(name, kinds)).then(nw.col(name))
        for n, name in enumerate(wanted.by)
    }


def _clips(wanted: Contributions, kinds: Kinds) -> dict[str, Any]:
    """Return the clipped columns."""
    return {
        name: _steps(name, kinds[name], float(clip.step), *clip.steps)
        for name, clip in wanted.clip.items()
    }


def _steps(name: str, kind: str, step: float, low: int, high: int) -> Any:
    """Return clipped numbers of steps; whatever is no number counts as zero.

    No engine divides what overflows or underflows: some raise for it, and an
    error would tell of one person's number.
    """
    if step == 1 and kind in _WHOLE:
        return nw.col(name).cast(nw.Int64).fill_null(0).clip(low, high).cast(nw.Int64)
    number = nw.col(name).cast(nw.Float64)
    tiny = number.is_between(-step / 4, step / 4)
    nothing = tiny | number.is_null() | number.is_nan()
    number = nw.when(nothing).then(nw.lit(0.0)).otherwise(number)
    near = number.clip(low * step, high * step) / nw.lit(step)
    integer = (near + nw.lit(_ROUNDS)) - nw.lit(_ROUNDS)
    return integer.cast(nw.Int64).clip(low, high).cast(nw.Int64)


# Frames


def _bound_frame(frame: Any, table: Any, wanted: Contributions) -> Any:
    """Return the contributed rows of a frame, with clipped columns.

    Args:
        frame: The frame.
        table: Its columns that are named, read one entry at a time.
        wanted: Whose rows count, how many, and how they are clipped.
    """
    kinds = _kinds(table.to_native())
    table = table.with_row_index(f"{_OURS}place")
    table = table.filter(*(~_missing(name, kinds) for name in wanted.unit))
    groups = _groups(wanted, kinds)
    table = table.with_row_index(_ROW).with_columns(**groups)
    people = _heads(table, wanted.unit)
    rows = _order_rows(table, people, wanted, kinds)
    if wanted.max_rows_per_group is not None:
        cells = _heads(table, [*wanted.unit, *groups])
        rows = rows[_places(cells[rows]) < wanted.max_rows_per_group]
    table = table[np.sort(rows[_places(people[rows]) < wanted.max_rows])]
    places = np.asarray(table[f"{_OURS}place"], np.int64)
    steps = table.select(**_clips(wanted, kinds))
    if comes_from(frame, "polars"):
        return frame[places].with_columns(steps[k].to_native() for k in wanted.clip)
    selection = frame.iloc[places]
    if selection.index.name is None and selection.index.dtype.kind in "iu":
        # The numbers of rows tell of the rows that were left out.
        selection = selection.reset_index(drop=True)
    return selection.assign(**{name: steps[name].to_numpy() for name in wanted.clip})


def _heads(table: Any, names: Sequence[str]) -> Places:
    """Return of each row the place of the first row with equal names."""
    return np.asarray(table.select(nw.col(_ROW).min().over(*names))[_ROW], np.int64)


def _places(keys: Places) -> Places:
    """Return the place of each entry among those with its key, from 0.

    Pairs of key and place are sorted as one number each: an order that is stable, in a
    fifth of the time of a stable sort.
    """
    count = np.arange(len(keys), dtype=np.int64)
    pairs = np.sort(keys << 32 | count)
    order, of_key = pairs & (2**32 - 1), pairs >> 32
    starts = np.where(of_key != np.roll(of_key, 1), count, 0)
    places = np.empty_like(count)
    places[order] = count - np.maximum.accumulate(starts)
    return places


def _order_rows(
    table: Any, people: Places, wanted: Contributions, kinds: Kinds
) -> Places:
    """Return the places of a frame's rows, those first that a person keeps first.

    A hash is of the person and of the row's place among the person's own: its place in
    the frame would tell of the people before it.
    """
    count = np.arange(len(people), dtype=np.int64)
    if wanted.order_by:
        order = _order(wanted, kinds)
        ordered = table.with_columns(**order).sort(*order, _ROW)
        return np.asarray(ordered[_ROW], np.int64)
    if wanted.seed is None:
        return count
    first = np.flatnonzero(people == count)
    names = [_plain(table[name][first], kinds[name]) for name in wanted.unit]
    hashes = np.zeros(len(people), np.uint64)
    hashes[first] = _hashes(zip(*names, strict=True), wanted.seed)
    return np.argsort(_mix(hashes[people], _places(people).astype(np.uint64) + 1))


def _hashes(names: Iterable[tuple[Any, ...]], seed: str) -> Hashes:
    """Return a hash of each person's name."""
    key = hashlib.sha256(seed.encode()).digest()
    texts = (repr([*name]).encode(errors="surrogatepass") for name in names)
    digests = [hashlib.blake2b(t, key=key, digest_size=8).digest() for t in texts]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def _plain(column: Any, kind: str) -> list[Any]:
    """Return names; times as integers: Python has not all of them, no nanoseconds."""
    native = column.to_native()
    if kind in _TIMES and comes_from(native, "polars"):
        native = native.to_physical()
    elif kind in _TIMES:
        arrow = getattr(native.dtype, "pyarrow_dtype", None)
        native = native.astype(f"int{arrow.bit_width}[pyarrow]" if arrow else "int64")
    if kind in _FLOATS:
        # One missing name turns a column of integers into floats.
        return [int(name) if name.is_integer() else name for name in native.to_list()]
    return cast("list[Any]", native.to_list())


def _mix(hashes: Hashes, places: Hashes) -> Hashes:
    """Mix a person's hash with places from 1: SplitMix64 (Steele, Lea, Flood 2014).

    Different places of one person have different results.
    """
    with np.errstate(over="ignore"):
        mixed = hashes + places * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def _read(frame: Any, wanted: Contributions, kinds: Kinds) -> Any:
    """Return the columns that are named; numbers as floats, objects by their word.

    They are read one by one: what an entry becomes does not depend on others.
    """
    if comes_from(frame, "polars"):
        return nw.from_native(frame[[*kinds]])
    columns = frame[[*kinds]].reset_index(drop=True)
    for name, kind in kinds.items():
        if kind == "object":
            word = wanted.word_of(name)
            entries = [_entry(entry, word) for entry in columns[name]]
            columns[name] = np.array(entries, object)
        if name in wanted.clip:
            columns[name] = columns[name].to_numpy(np.float64, na_value=np.nan)
    return nw.from_native(columns)


def _entry(entry: object, word: str) -> Any:
    """Return what names a row; None if an entry is of another type, or no value."""
    kind, read = _READERS[word]
    if not issubclass(type(entry), kind) or issubclass(type(entry), datetime):
        return None
    try:
        name = read(entry)
    except without_interrupts(Exception):  # an error would tell of this entry
        return None
    return name if name == name else None  # noqa: PLR0124


# Checks, by the schema alone


def _kinds(table: Any) -> dict[str, str]:
    """Return the names of the columns' types, without their parts."""
    kinds = {}
    if comes_from(table, "pandas"):
        # Of objects, narwhals looks at what they are.
        for name, kind in table.dtypes.items():
            values = getattr(getattr(kind, "categories", None), "dtype", kind)
            kinds[name] = "object" if values == "object" else type(kind).__name__
        table = table[[name for name in kinds if kinds[name] != "object"]]
    for name, kind in nw.from_native(table).collect_schema().items():
        kind_name = type(kind).__name__
        if kind_name != "Unknown" or name not in kinds:
            kinds[name] = kind_name
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


def _check_kinds(kinds: Kinds, wanted: Contributions, names: Sequence[str]) -> None:
    """Refuse a column whose order, clip or names could fail by what it holds."""
    for what, columns, allowed in (
        ("clipped column", [*wanted.clip], _NUMBERS),
        ("order_by column", [*wanted.order_by], _KEYS),
        ("column", [*wanted.unit, *wanted.by], names),
    ):
        for name in columns:
            kind = kinds[name]
            if kind in allowed or (kind == "object" and wanted.word_of(name)):
                continue
            msg = (
                f"{what} {name!r} is of type {kind}; make it a number, or a string or "
                "time where it is not clipped."
            )
            if kind == "object":
                msg += f" Or say what it holds: {_SAID[name in wanted.clip]}."
            raise PublicContributionsError(msg)


def _check_lazy(kinds: Kinds, wanted: Contributions, named: Sequence[str]) -> None:
    if not wanted.order_by:
        msg = (
            "a lazy table has no order of its own: it needs order_by=, the columns by "
            "which a person's first rows are kept. seed= is refused, because a "
            "database's random order or hash is not ours and may change"
        )
        raise PublicContributionsError(msg)
    _check_columns(list(kinds), named)
    _check_kinds(kinds, wanted, _TIES)
    if {*kinds.values()}.difference(_TIES):
        # Other columns' names may be made of data, by a pivot.
        msg = (
            "ties are broken by all columns, and one of the table's is of a type "
            "without an order of its own (nested, an interval, unknown). Select the "
            "columns that are needed, or make it text"
        )
        raise PublicContributionsError(msg)


def real_or_nan(value: object) -> float:
    """Return one entry of a column of objects as a float; NaN if it is no number."""
    number = _entry(value, "number")
    return math.nan if number is None else float(number)
