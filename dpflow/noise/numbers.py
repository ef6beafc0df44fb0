"""One kind of number by the cost: doubles under continuous noise, ints under integer.

Neither the kind of a private number nor its size may show in a noisy one. So every
number becomes the nearest double, and the noise is that much wider (`widen`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import DiscreteGaussian, DiscreteLaplace
from dpflow.exceptions import PublicError, public_kind
from dpflow.interrupts import without_interrupts
from dpflow.libraries import comes_from
from dpflow.noise.accuracy import ADDED_SHARE

#: Every int up to here is a double.
LARGEST_INT = 2**53

#: The refusals that depend on private numbers: one text each, without a value.
TOO_LARGE = (
    "release() refuses a number that is too large: an infinite one, an int beyond "
    "2**53 under integer noise, or a Decimal or such an int whose nearest float is too "
    "far away for this sensitivity. Bound the numbers, or release a larger unit."
)
FRACTION = (
    "release() refuses a number with a fraction under integer noise. Count in whole "
    "steps (cents, not dollars), or declare Laplace or Gaussian."
)
WHOLE_ONLY = (
    'Integer noise takes ints: convert with int(...), .astype("int64") or '
    "reindex(..., fill_value=0), or declare Laplace or Gaussian"
)
NO_BOOL = "Count with ints 0 and 1, or use randomised response"


def is_whole(cost: Cost) -> bool:
    """Return whether a cost's noise is integer noise."""
    return isinstance(cost, DiscreteGaussian | DiscreteLaplace)


def numbers_for(
    cost: Cost, value: object, entries: Sequence[Any], *, labelled: bool = False
) -> list[Any]:
    """Return private entries as the numbers that a cost's noise is added to.

    Args:
        cost: A cost with noise of its own.
        value: The whole value, for messages, which name its type.
        entries: All its entries, of any type.
        labelled: Whether whole floats are ints: an absent group makes floats of counts.

    Raises:
        ReleaseError: If an entry is no number of the cost's kind, or is too large.
    """
    if is_whole(cost):
        return _whole_numbers(value, entries, labelled=labelled)
    mechanism: Any = getattr(cost, "finest", cost)
    return _doubles(value, entries, mechanism.sensitivity)


def _doubles(
    value: object, entries: Sequence[Any], sensitivity: Fraction
) -> list[float]:
    """Return the nearest double of each entry.

    Doubles of ints beyond 2**53 and of Decimals move apart by less than the part of
    the sensitivity by which the noise is wider.
    """
    doubles, are_rounded = list[float](), False
    for entry in entries:
        number = _plain(entry)
        if number is None or type(number) is bool:
            refuse(value, *_problem(value, entry))
        is_large = type(number) is int and abs(number) > LARGEST_INT
        are_rounded |= is_large or isinstance(number, Decimal)
        try:
            doubles.append(float(number))
        # An int beyond the largest double, and a signalling NaN.
        except without_interrupts(OverflowError, ValueError):
            doubles.append(math.inf if is_large else math.nan)
    if any(map(math.isnan, doubles)):
        refuse(value, "it holds NaN", "Replace such numbers before the release")
    largest = max(map(abs, doubles), default=0.0)
    apart = len(doubles) * Fraction(math.ulp(largest)) if largest < math.inf else 0
    if largest == math.inf or (are_rounded and apart > sensitivity * ADDED_SHARE):
        raise PublicError(TOO_LARGE)
    return doubles


def _whole_numbers(
    value: object, entries: Sequence[Any], *, labelled: bool
) -> list[int]:
    """Return each entry as an int, by its type; with labels also whole floats."""
    result = list[int]()
    for entry in entries:
        number = _plain(entry)
        is_float = labelled and type(number) is float
        if not (is_float or isinstance(number, int)):
            what = f"it holds an entry of type {type_name(entry)}"
            refuse(value, what, WHOLE_ONLY)
        # NaN is no size, either.
        if not abs(number) <= LARGEST_INT:
            raise PublicError(TOO_LARGE)
        if int(number) != number:
            raise PublicError(FRACTION)
        result.append(int(number))
    return result


def plain_number(value: object) -> int | float | None:
    """Return a plain int or float for any scalar that is one, else None."""
    number = _plain(value)
    return None if isinstance(number, bool | Decimal) else number


def _plain(value: object) -> Any:
    """Return a plain bool, int, float or Decimal; None for anything else."""
    if not isinstance(value, int | float | Decimal):
        value = without_numpy(value)
    if isinstance(value, bool | Decimal):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else None


def without_numpy(value: Any) -> Any:
    """Return a number or text of numpy as Python's own, if Python has its kind."""
    if not comes_from(value, "numpy"):
        return value
    import numpy as np  # noqa: PLC0415

    is_plain = isinstance(value, np.generic) and value.dtype.kind in "biufUS"
    return value.item() if is_plain else value


def is_missing(entry: Any) -> bool:
    """Return whether an entry stands for a missing value: None, NaN, NaT or NA."""
    if entry is None or type(entry).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(entry, Decimal):
        return entry.is_nan()
    is_scalar = isinstance(entry, float) or hasattr(entry, "dtype")
    return is_scalar and not getattr(entry, "shape", ()) and bool(entry != entry)  # noqa: PLR0124


def refuse(value: object, what: str, todo: str) -> NoReturn:
    """Refuse a value by an error that names types only, for the value is private."""
    name = type_name(value)
    msg = f"release() cannot noise a value of type {name}: {what}. {todo}."
    raise PublicError(msg, type_name=name) from None


def type_name(value: object) -> str:
    """Return the name of a value's type with its package, as code defines it."""
    return name_of(public_kind(type(value)))


def name_of(kind: type) -> str:
    """Return the name of a type with its package."""
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"


def _problem(value: object, entry: object) -> tuple[str, str]:
    """Return what is wrong with an entry that is no number, and what to do."""
    what = f"it holds an entry of type {type_name(entry)}"
    if value is entry:
        what = "it is not a number, and not a container of numbers"
    todo = "Convert it to an int of a fixed unit (cents) or to a float"
    if isinstance(_plain(entry), bool):
        todo = NO_BOOL
    elif entry is None:
        todo = (
            "In SQL a sum of no rows is NULL: write COALESCE(SUM(x), 0); elsewhere put "
            "a number in its place"
        )
    elif isinstance(entry, list | tuple | dict | set | frozenset):
        todo = "Pass its numbers as one flat list or one numpy array"
    return what, todo
