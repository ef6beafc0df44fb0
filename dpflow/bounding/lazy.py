"""The rows of lazy tables, ranked and clipped where they are.

The table's own engine does the work; nothing is read here but the schema. A row is
ranked among the rows of its person alone, by `order_by` and then by all other columns,
so that rows of one rank are the same row, wherever the engine keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dpflow.exceptions import PublicContributionsError, how_to_install
from dpflow.libraries import comes_from

if TYPE_CHECKING:
    from dpflow.bounding.contributions import Contributions

Frame = TypeVar("Frame")
_LIBRARIES = ("duckdb", "_duckdb", "ibis", "pyspark")
_UNORDERED_CHOICE = ("Enum", "Categorical")
_TIMES = ("Date", "Datetime", "Time")
_NO_NUMBERS = ("String", "Binary", *_TIMES, *_UNORDERED_CHOICE)
_FLOATS = ("Float32", "Float64")
#: Types that an Int64 holds: a cast of them cannot fail by a value.
_WHOLE = ("Boolean", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32")
_WIDE = ("Int128", "UInt64", "UInt128", "Decimal")
#: Types whose values are ordered, and the same wherever they are equal. A nested value
#: has no order in some engines; intervals of a month and of 30 days are equal in some.
_ORDERED = (*_WHOLE, *_WIDE, *_FLOATS, *_NO_NUMBERS)
#: Added to a double of at most 2**31 and taken away, it rounds half to even. Engines
#: disagree on what their own ROUND does.
_ROUNDS = 1.5 * 2**52
_OURS = "_dpflow_"


def is_lazy(frame: object) -> bool:
    """Say whether a frame is lazy, by its type alone.

    Args:
        frame: Anything.
    """
    if comes_from(frame, "polars"):
        return type(frame).__name__ == "LazyFrame"
    return any(comes_from(frame, library) for library in _LIBRARIES)


def bounded(frame: Frame, wanted: Contributions) -> Frame:
    """Return a lazy table with few rows of each person and clipped columns.

    Args:
        frame: A polars LazyFrame, a DuckDB relation, a table of ibis or PySpark.
        wanted: Whose rows are kept, how many, and how they are clipped.

    Raises:
        ContributionsError: If nothing says which rows come first, or the table lacks a
            column, or one has another type.
    """
    unit, by, order_by = wanted.unit, wanted.by, wanted.order_by
    _check_order(order_by)
    nw = _narwhals()
    table = _table(nw, frame)
    kinds = _kinds(table)
    _check(kinds, (*unit, *by, *order_by), order_by, wanted.clip)
    table = table.filter(*(~_missing(nw, name, kinds) for name in unit))
    table = table.with_columns(
        **{
            name: _steps(nw, name, kinds, float(clip.step), *clip.steps)
            for name, clip in wanted.clip.items()
        },
        **{f"{_OURS}at_{n}": _last(nw, name, kinds) for n, name in enumerate(order_by)},
        **{f"{_OURS}by_{n}": _group(nw, name, kinds) for n, name in enumerate(by)},
    )
    ties = [name for name in kinds if name not in {*unit, *order_by}]
    order = [key for n, name in enumerate(order_by) for key in (f"{_OURS}at_{n}", name)]
    if wanted.max_rows_per_group is not None:
        groups = [f"{_OURS}by_{n}" for n in range(len(by))]
        table = _first(
            nw, table, [*unit, *groups], [*order, *ties], wanted.max_rows_per_group
        )
    table = _first(nw, table, unit, [*order, *ties], wanted.max_rows)
    kept: Frame = table.select(*kinds).to_native()
    return kept


def _check_order(order_by: Sequence[str]) -> None:
    if order_by:
        return
    msg = (
        "a lazy table needs order_by=, the columns that say which of a person's rows "
        "are kept. It has no order of its own, and seed= is refused: a database's "
        "random order or hash is not ours, and may be another one tomorrow"
    )
    raise PublicContributionsError(msg)


def _narwhals() -> Any:
    try:
        import narwhals  # noqa: PLC0415
    except ImportError:
        msg = f"lazy tables need narwhals; {how_to_install('lazy')}"
        raise PublicContributionsError(msg) from None
    return narwhals


def _table(nw: Any, frame: object) -> Any:
    table = nw.from_native(frame, pass_through=True)
    if isinstance(table, nw.LazyFrame):
        return table
    msg = (
        f"no rows can be bounded of {type(frame).__name__}; give a polars LazyFrame, a "
        "DuckDB relation, or a table of ibis or PySpark"
    )
    raise PublicContributionsError(msg)


def _kinds(table: Any) -> dict[str, str]:
    """Return the names of the columns' types, without their parts."""
    schema = table.collect_schema()
    return {name: type(kind).__name__ for name, kind in schema.items()}


def _check(
    kinds: Mapping[str, str],
    named: Sequence[str],
    order_by: Sequence[str],
    clip: Mapping[str, Any],
) -> None:
    """Refuse a table by its schema, never by its content."""
    missing = [name for name in (*named, *clip) if name not in kinds]
    if missing or any(name.lower().startswith(_OURS) for name in kinds):
        msg = (
            f"the table must have each of these columns once: {missing}, and none that "
            f"starts with {_OURS}. Compare them with the columns that it has"
        )
        raise PublicContributionsError(msg)
    for name in clip:
        _check_kind("clipped column", name, kinds[name], _NO_NUMBERS)
    for name in order_by:
        _check_kind("order_by column", name, kinds[name], _UNORDERED_CHOICE)
    for name in named:
        _check_kind("column", name, kinds[name], ())
    if any(kind not in _ORDERED for kind in kinds.values()):
        # Other columns' names may be made of data, by a pivot.
        msg = (
            "ties are broken by all columns, and one of the table's is of a type "
            "without an order of its own (nested, an interval, unknown). Select the "
            "columns that are needed, or make it text"
        )
        raise PublicContributionsError(msg)


def _check_kind(what: str, name: str, kind: str, refused: Sequence[str]) -> None:
    if kind in refused or kind not in _ORDERED:
        msg = (
            f"{what} {name!r} is of type {kind}; make it a number, or a string or time "
            "where it is not clipped"
        )
        raise PublicContributionsError(msg)


def _missing(nw: Any, name: str, kinds: Mapping[str, str]) -> Any:
    """Say of each row whether a column is null or NaN."""
    column = nw.col(name)
    if kinds[name] not in _FLOATS:
        return column.is_null()
    return column.is_null() | column.is_nan()


def _last(nw: Any, name: str, kinds: Mapping[str, str]) -> Any:
    """Return what puts null after NaN, and both after all numbers."""
    column = nw.col(name)
    rest = nw.lit(0)
    if kinds[name] in _FLOATS:
        rest = nw.when(column.is_nan()).then(nw.lit(1)).otherwise(rest)
    return nw.when(column.is_null()).then(nw.lit(2)).otherwise(rest)


def _group(nw: Any, name: str, kinds: Mapping[str, str]) -> Any:
    """Return a row's group; NaN is in the group of what is missing."""
    return nw.when(~_missing(nw, name, kinds)).then(nw.col(name))


def _steps(  # noqa: PLR0917
    nw: Any, name: str, kinds: Mapping[str, str], step: float, low: int, high: int
) -> Any:
    """Return clipped numbers of steps; whatever is no number counts as zero.

    No engine is asked to divide what overflows or underflows: some raise for it, and an
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


def _first(
    nw: Any, table: Any, whose: Sequence[str], order: Sequence[str], rows: int
) -> Any:
    """Return the first rows of each person, or of each person in a group."""
    # Nobody's person is missing here, so that this counts every row.
    place = nw.col(whose[0]).cum_count().over(*whose, order_by=list(order))
    ranked = table.with_columns(**{f"{_OURS}row": place})
    return ranked.filter(nw.col(f"{_OURS}row") <= rows)
