"""The numbers in a value, and noisy ones put back in their place.

Only the numbers are protected. Types, lengths, keys, indexes, names and columns of
labels come back as they are, and must not depend on private data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from dpflow.exceptions import PublicError, ReleaseError, public_kind
from dpflow.libraries import comes_from

if TYPE_CHECKING:
    import numpy as np

#: Puts noisy numbers back into the container that the true ones came in.
Rebuild = Callable[[list[float]], Any]
Parts = tuple[list[int] | list[float], Rebuild]

#: Every int up to here is a float; beyond, rounding would change the sensitivity.
LARGEST_INT = 2**53

#: Decimals with places are noised as whole numbers of this unit.
MILLION = 10**6
_LAST_PLACE = Decimal(1).scaleb(-6)
#: Digits for every number of millionths up to `LARGEST_INT`.
_EXACT = Context(prec=40)


class Millionths(int):
    """A Decimal with places, as a whole number of millionths.

    A float may be farther from a neighbour's than the Decimals are from each other.
    The unit is the same for all of them: places may depend on private data.
    """


#: Floats above this round to ints that int64 cannot hold.
_LARGEST_INT64 = math.nextafter(2.0**63, 0)

_ACCEPTED = (
    "an int, a float, a Decimal, a list, tuple or dict of numbers, rows of them, a "
    "numpy array, a Series or frame of pandas or polars, or an Arrow array or table"
)


def take_apart(value: Any) -> Parts:
    """Return the numbers in a value, and how to put noisy ones in their place."""
    name = _name(type(value))
    take = _TAKERS.get("Arrow" if _ARROW_ARRAY.fullmatch(name) else name)
    if take is not None:
        return take(value)
    if isinstance(value, list | tuple):
        return _take_list(value)
    if isinstance(value, dict):
        return _take_dict(value)
    number = _number(value)
    if number is None:
        what = f"only {_ACCEPTED} can be released"
        raise refused(value, what, _todo(value))
    if type(number) is int:
        return [number], lambda noisy: round(noisy[0])
    return [number], lambda noisy: noisy[0]


def plain_number(value: object) -> int | float | None:
    """Return a plain int or float for any scalar that is one, else None."""
    # numpy.float64 is a subclass of float, numpy.bool is not one of bool.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value) if isinstance(value, int) else float(value)
    if not comes_from(value, "numpy"):
        return None
    import numpy as np  # noqa: PLC0415

    scalar: Any = value
    is_number = isinstance(scalar, np.number) and not isinstance(scalar, np.timedelta64)
    if not is_number or not _fits_float(scalar.dtype):
        return None
    plain: int | float = scalar.item()
    return plain


def _number(value: object) -> int | float | None:
    """Return a scalar as a plain number; a Decimal by its places, not by its value.

    A column has one number of places, and 12.00 is as little whole as 12.34.
    """
    if not isinstance(value, Decimal):
        return plain_number(value)
    if not value.is_finite():
        return math.nan
    if value.copy_abs() > LARGEST_INT:
        return LARGEST_INT + 1
    if int(value.as_tuple().exponent) >= 0:
        return int(value)
    held = value.quantize(_LAST_PLACE, context=_EXACT)
    if held != value:
        todo = "Round it in the query, as ROUND(x, 2) does, or release a float"
        raise refused(value, "it holds a Decimal of more than six places", todo)
    return Millionths(held.scaleb(6, _EXACT))


def one_number(value: object) -> int | float:
    """Return a single number that noise can be added to.

    Raises:
        ReleaseError: If it is not a number, or noise would not hide it.
    """
    number = _number(value)
    if number is None:
        what = "only one number can be refined until it is good enough"
        raise refused(value, what, "Release the int or float, each in its own step")
    check_number(value, number)
    return number


def _take_list(values: Sequence[Any], whole: object = None) -> Parts:
    """Take the numbers of a list or tuple, or of a list of rows, which are tuples."""
    whole = values if whole is None else whole
    numbers: list[Any] = []
    for item in _flat(values):
        number = _number(item)
        if number is None:
            what = f"it holds an entry of type {_name(public_kind(type(item)))}"
            raise refused(whole, what, _todo(item))
        numbers.append(number)
    # One float makes all of them floats: which entries happened to be ints (a sum over
    # nothing is the int 0) would say something about the data.
    kinds = {type(number) for number in numbers}
    if Millionths in kinds:
        if float in kinds:
            todo = "Make all of them Decimals, or release the floats in another step"
            raise refused(whole, "it holds floats and Decimals with places", todo)
        numbers = [
            number if type(number) is Millionths else Millionths(number * MILLION)
            for number in numbers
        ]
    ints = kinds <= {int}
    return numbers, lambda noisy: _filled(values, map(round, noisy) if ints else noisy)


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for item in values:
        yield from _flat(item) if isinstance(item, tuple) else (item,)


def _filled(values: Sequence[Any], numbers: Iterable[float]) -> Any:
    """Return a list, or plain tuples, of the same form with these numbers."""
    rest = iter(numbers)
    result = [
        _filled(each, rest) if isinstance(each, tuple) else next(rest)
        for each in values
    ]
    return tuple(result) if isinstance(values, tuple) else result


def _take_dict(values: dict[Any, Any]) -> Parts:
    """Take the numbers of a dict; its keys are public."""
    numbers, rebuild = _take_list(list(values.values()), values)
    return numbers, lambda noisy: dict(zip(values, rebuild(noisy), strict=True))


def _take_together(
    parts: Sequence[Parts],
) -> tuple[list[Any], Callable[..., list[Any]]]:
    """Join the numbers of several containers, which one vector of noise covers."""
    numbers = [number for result, _ in parts for number in result]

    def rebuild(noisy: list[float]) -> list[Any]:
        rest = iter(noisy)
        return [put([next(rest) for _ in result]) for result, put in parts]

    return numbers, rebuild


def _take_frame(frame: Any) -> Parts:
    """Take the numbers of a pandas frame; its other columns are labels."""
    import numpy as np  # noqa: PLC0415

    places = []
    for place, dtype in enumerate(frame.dtypes):
        plain = isinstance(dtype, np.dtype)
        if _fits_float(dtype) if plain else _may_be_missing(dtype):
            places.append(place)
        elif str(dtype.name) not in _LABELS and dtype.kind != "M":
            what = f"it has a column of dtype {bare_type(dtype.name)}"
            raise refused(frame, what, _COLUMNS_TAKEN)
    parts = [_take_series(frame.iloc[:, place]) for place in places]
    numbers, rebuild = _take_together(parts)

    def rebuild_frame(noisy: list[float]) -> Any:
        result = frame.copy()
        # They may hold anything, and no noise hides it.
        result.attrs = {}
        for place, column in zip(places, rebuild(noisy), strict=True):
            result.isetitem(place, column)
        return result

    return numbers, rebuild_frame


#: Floats of exact decimals may be farther apart than the decimals.
_NUMBERS_TAKEN = "Convert decimals to int64 in cents, other numbers to int64 or float64"

#: Columns of a pandas frame that are labels and no numbers.
_LABELS = ("str", "string", "category")
_COLUMNS_TAKEN = (
    "Numbers are int or float columns without missing ones, labels are text, "
    "categories or moments; convert it or leave it out"
)


def _take_polars(series: Any) -> Parts:
    import numpy as np  # noqa: PLC0415
    import polars as pl  # noqa: PLC0415

    if not (series.dtype.is_numeric() or series.dtype == pl.Boolean):
        what = f"its dtype is {bare_type(series.dtype)}"
        raise refused(series, what, "Cast it to Int64 or Float64")
    if series.null_count():
        raise refused(series, "it holds missing numbers", "Fill them first")
    if isinstance(series.dtype, pl.Decimal):
        kind = np.dtype(np.float64 if series.dtype.scale else np.int64)
        numbers: list[Any] = [_number(each) for each in series.to_list()]
        return numbers, lambda noisy: pl.Series(series.name, _held(noisy, kind))
    numbers, rebuild = _take_array(series.to_numpy(), series)
    return numbers, lambda noisy: pl.Series(series.name, rebuild(noisy))


def _take_polars_frame(frame: Any) -> Parts:
    """Take the numbers of a polars frame; its other columns are labels."""
    names = []
    for name, dtype in frame.schema.items():
        if dtype.is_numeric() or str(dtype) == "Boolean":
            names.append(name)
        elif dtype.base_type().__name__ not in _POLARS_LABELS:
            what = f"it has a column of dtype {bare_type(dtype)}"
            raise refused(frame, what, _COLUMNS_TAKEN)
    numbers, rebuild = _take_together([_take_polars(frame[name]) for name in names])
    return numbers, lambda noisy: frame.with_columns(rebuild(noisy))


_POLARS_LABELS = ("String", "Categorical", "Enum", "Date", "Datetime", "Time")


def _take_series(series: Any) -> Parts:
    import numpy as np  # noqa: PLC0415

    if _may_be_missing(series.dtype):
        return _take_filled(series)
    if not isinstance(series.dtype, np.dtype):
        todo = "Convert it with .astype('float64') or .astype('int64')"
        raise refused(series, f"its dtype is {type(series.dtype).__name__}", todo)
    numbers, rebuild = _take_array(series.to_numpy(), series)

    def rebuild_series(noisy: list[float]) -> Any:
        kind = type(series)
        return kind(rebuild(noisy), index=series.index, name=series.name)

    return numbers, rebuild_series


def _may_be_missing(dtype: Any) -> bool:
    """Tell a pandas dtype such as Int64 or double[pyarrow]: numbers or missing."""
    plain = getattr(dtype, "numpy_dtype", None)
    return plain is not None and _fits_float(plain)


def _take_filled(series: Any) -> Parts:
    """Take the numbers of a Series that could have missing ones, and has none."""
    if series.isna().any():
        # Which are missing may be private, and no noise hides it.
        raise refused(series, "it holds missing numbers", "Fill them first")
    dtype = series.dtype
    numbers, rebuild = _take_series(series.astype(dtype.numpy_dtype))
    whole = "int64[pyarrow]" if dtype.name.endswith("[pyarrow]") else "Int64"
    result = dtype if dtype.kind == "f" else whole
    return numbers, lambda noisy: rebuild(noisy).astype(result)


def _take_arrow(array: Any) -> Parts:
    """Take the numbers of an Arrow array, chunked or not."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    kind, whole = array.type, pa.types.is_integer(array.type)
    if not whole and kind not in (pa.float32(), pa.float64()):
        raise refused(array, f"its type is {bare_type(kind)}", _NUMBERS_TAKEN)
    if array.null_count:
        raise refused(array, "it holds missing numbers", "Fill them first")
    numbers, rebuild = _take_array(array.to_numpy(), array)

    def rebuild_arrow(noisy: list[float]) -> Any:
        result = pa.array(rebuild(noisy), type=pa.int64() if whole else kind)
        return pa.chunked_array([result]) if hasattr(array, "chunks") else result

    return numbers, rebuild_arrow


def _take_table(table: Any) -> Parts:
    """Take the numbers of an Arrow table; its other columns are labels."""
    import pyarrow.types as kinds  # noqa: PLC0415

    labels = (
        *(kinds.is_string, kinds.is_large_string, kinds.is_dictionary),
        *(kinds.is_date, kinds.is_timestamp),
    )
    numbers = kinds.is_integer, kinds.is_floating, kinds.is_boolean
    places = []
    for place, kind in enumerate(table.schema.types):
        if any(has(kind) for has in numbers):
            places.append(place)
        elif not any(is_label(kind) for is_label in labels):
            what = f"it has a column of type {bare_type(kind)}"
            raise refused(table, what, _COLUMNS_TAKEN)
    taken, rebuild = _take_together([_take_arrow(table.column(p)) for p in places])

    def rebuild_table(noisy: list[float]) -> Any:
        columns = dict(zip(places, rebuild(noisy), strict=True))
        arrays = [columns.get(at, own) for at, own in enumerate(table.columns)]
        # Not the schema: its metadata may hold anything.
        return type(table).from_arrays(arrays, names=table.column_names)

    return taken, rebuild_table


def _take_array(array: np.ndarray[Any, Any], whole: object) -> Parts:
    if not _fits_float(array.dtype):
        raise refused(whole, f"its dtype is {array.dtype.name}", _NUMBERS_TAKEN)

    numbers: list[Any] = array.ravel().tolist()
    return numbers, lambda noisy: _held(noisy, array.dtype).reshape(array.shape)


def _held(noisy: list[float], dtype: Any) -> np.ndarray[Any, Any]:
    """Return noisy numbers as floats of a type, or as int64 in place of others."""
    import numpy as np  # noqa: PLC0415

    result = np.array(noisy, dtype=np.float64)
    if dtype.kind != "f":
        whole = np.clip(np.rint(result), -_LARGEST_INT64, _LARGEST_INT64)
        return whole.astype(np.int64)
    # A narrow float may overflow to infinity; that is post-processing.
    with np.errstate(over="ignore"):
        return result.astype(f"f{dtype.itemsize}")


def check_number(value: object, number: float) -> None:
    """Refuse a number that no float is, or that noise would not hide."""
    if isinstance(number, int):
        if abs(number) > LARGEST_INT:
            unit = " millionths" if isinstance(number, Millionths) else ""
            todo = "Divide by a unit first (thousands, say) or release a float"
            raise refused(value, f"it holds an int beyond 2**53{unit}", todo)
    elif not math.isfinite(number):
        todo = "Replace or clip such numbers before the release"
        raise refused(value, "it holds NaN or infinity", todo)


def bare_type(kind: object) -> str:
    """Return a column's type without its parts: categories and fields are data."""
    return re.split(r"\W", str(kind), maxsplit=1)[0]


def _fits_float(dtype: Any) -> bool:
    """Tell whether a numpy dtype is a bool, int or float that needs no rounding."""
    return dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8)  # noqa: PLR2004


def refused(value: object, what: str, todo: str) -> ReleaseError:
    """Build the error for a value; it names types only, for the value is private."""
    name = _name(public_kind(type(value)))
    msg = f"release() cannot noise a value of type {name}: {what}. {todo}."
    return PublicError(msg, type_name=name)


def _name(kind: type) -> str:
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"


def _todo(value: object) -> str:
    """Return advice for a value of a refused type."""
    if _name(type(value)) in {"bool", "numpy bool", "numpy bool_"}:
        return "Count with ints 0 and 1, or use randomised response"
    if value is None:
        return (
            "In SQL a sum of no rows is NULL: write COALESCE(SUM(x), 0); elsewhere put "
            "a number in its place"
        )
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return "Pass its numbers as one flat list or one numpy array"
    return "Convert it to an int of a fixed unit (cents) or to a float"


_TAKERS: dict[str, Callable[[Any], Parts]] = {
    "numpy ndarray": lambda array: _take_array(array, array),
    "pandas Series": _take_series,
    "pandas DataFrame": _take_frame,
    "polars Series": _take_polars,
    "polars DataFrame": _take_polars_frame,
    "Arrow": _take_arrow,
    "pyarrow Table": _take_table,
}
_ARROW_ARRAY = re.compile(r"pyarrow \w*Array")
