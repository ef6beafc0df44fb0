"""The noise that a cost declares, drawn through OpenDP.

`release` calls `draw`, so that a step's noise and its price come from the same cost.
Numpy's generators are not used anywhere: the floats they can produce depend on the
value they are added to, and one unlucky output tells two datasets apart.

Ints are noised as floats and then rounded, which is post-processing. A discrete
Gaussian on the integers would have the same zCDP, but the `gaussian` filter prices a
step at mu^2 = (sensitivity / sigma)^2, which holds for the continuous Gaussian and is
not known to hold for a coarse discrete one. OpenDP samples floats exactly on a grid of
2^-1074, finer than any float, and rounds the sum once.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, singledispatch
from typing import TYPE_CHECKING, Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
)
from dpflow.exceptions import ReleaseError, how_to_install
from dpflow.libraries import comes_from
from dpflow.noise.sources import replaced_stream
from dpflow.rounding import float_up

if TYPE_CHECKING:
    import numpy as np

#: Takes the true numbers, returns as many noisy ones.
Sampler = Callable[[Sequence[int] | Sequence[float]], list[float]]

#: Puts noisy numbers back into the container that the true ones came in.
_Rebuild = Callable[[list[float]], Any]
_Parts = tuple[list[int] | list[float], _Rebuild]

#: Every int up to here is a float; beyond, rounding would change the sensitivity.
LARGEST_INT = 2**53

#: Of integer noise, in steps: OpenDP's int64 then ends 2**14 scales away.
LARGEST_STEPS = 2**48

#: Floats above this round to ints that int64 cannot hold.
_LARGEST_INT64 = math.nextafter(2.0**63, 0)

_ACCEPTED = "an int, a float, a list of numbers, a numpy array or a pandas Series"


def draw(cost: Cost, value: Any) -> Any:
    """Return the value with the noise of the cost's mechanism added.

    Each number gets noise of its own; the sensitivity of the cost is that of the whole
    value (L1 norm for Laplace, L2 norm for Gaussian). Only the numbers are protected:
    the type, the length or shape, and the index and name of a Series are returned as
    they are and must not depend on private data. (The sum of no floats is the int 0:
    start such sums at 0.0.)

    Args:
        cost: What the step declared: a `Gaussian` or a `Laplace`, or for whole
            numbers `DiscreteGaussian` or `DiscreteLaplace`.
        value: An int, a float, a list of them, a numpy array of ints or floats, or a
            pandas Series of ints or floats.

    Returns:
        A noisy value of the same kind: ints come back as ints, a list as a list (of
        floats if one of its numbers is a float), an array with its shape (ints as
        int64), a Series with its index and name.

    Raises:
        ReleaseError: If the cost names no mechanism, the value cannot be noised, or
            OpenDP is missing. The text never holds the value.

    Examples:
        >>> isinstance(draw(Laplace(sensitivity=1, epsilon=1), 120), int)
        True
    """
    # The cost first: what it says about itself must not wait for private data.
    sampler = sampler_for(cost)
    numbers, rebuild = _take_apart(value)
    if not numbers:
        raise _refused(value, "it is empty", "Release at least one number")
    for number in numbers:
        _check(value, number)
    return rebuild(sampler(numbers))


@singledispatch
def sampler_for(cost: Cost) -> Sampler:
    """Return the sampler of a cost's mechanism.

    Costs with a mechanism of their own register an implementation.

    Args:
        cost: The cost that a step declared.

    Returns:
        A function from numbers to noisy numbers.

    Raises:
        ReleaseError: If the cost declares a guarantee and no mechanism.
    """
    name = type(cost).__name__
    msg = (
        f"release() cannot draw noise for {name}: this cost declares only a guarantee, "
        "not a mechanism. Let the body draw its own noise and return the noisy value "
        "(the journal then says noise: self-declared), or declare Laplace or Gaussian."
    )
    raise ReleaseError(msg, mechanism=name)


@sampler_for.register
def _(cost: Laplace) -> Sampler:
    return _continuous("laplace", cost.scale)


@sampler_for.register
def _(cost: Gaussian) -> Sampler:
    return _continuous("gaussian", cost.sigma)


@sampler_for.register
def _(cost: DiscreteLaplace) -> Sampler:
    return _whole("steps", cost.scale)


@sampler_for.register
def _(cost: DiscreteGaussian) -> Sampler:
    return _whole("gaussian steps", cost.sigma)


def has_sampler(cost: Cost) -> bool:
    """Say whether `release` would draw the noise of a cost."""
    return sampler_for.dispatch(type(cost)) is not sampler_for.dispatch(object)


def is_imported() -> bool:
    """Say whether this process has begun to load what draws the noise."""
    return sys.modules.get("opendp.prelude") is not None


def load() -> None:
    """Load what draws the noise, so that nothing is left to fail in a charged body.

    Python's own lock keeps other threads from seeing it loaded by half.

    Raises:
        ReleaseError: If it is not installed.
    """
    _opendp()


def integer_laplace(scale: Fraction, count: int) -> list[int]:
    """Draw integers k with probabilities proportional to exp(-abs(k) / scale).

    Args:
        scale: Positive, at most `LARGEST_STEPS`; rounded up to a float.
        count: How many to draw.

    Raises:
        ReleaseError: If the scale is out of range, or OpenDP is missing or fails.
    """
    noise: list[int] = _noisy("steps", _steps(scale), [0] * count)
    return noise


def _steps(scale: Fraction) -> float:
    """Return the scale of integer noise as a float, rounded up."""
    rounded = float_up(scale)
    if not 0 < rounded <= LARGEST_STEPS:
        msg = (
            f"integer noise of a scale of {rounded} steps cannot be drawn; at most "
            f"{LARGEST_STEPS}. Declare a larger epsilon or fewer answers."
        )
        raise ReleaseError(msg, mechanism="discrete laplace")
    return rounded


def _whole(mechanism: str, scale: Fraction) -> Sampler:
    """Return a sampler of integer noise for integers.

    Its prices fall with the scale, so that rounding the scale up is safe.
    """
    rounded = _steps(scale)

    def sample(numbers: Sequence[int] | Sequence[float]) -> list[float]:
        if not all(isinstance(number, int) for number in numbers):
            msg = (
                "release() adds discrete noise to whole numbers only, got floats. "
                "Count in whole steps (cents, not dollars), or declare Laplace or "
                "Gaussian."
            )
            raise ReleaseError(msg)
        return _noisy(mechanism, rounded, list(numbers))

    return sample


def _continuous(mechanism: str, scale: Fraction) -> Sampler:
    """Return a sampler of real-valued noise, its scale rounded up to a float."""
    rounded = float_up(scale)
    # At scale 0 OpenDP returns the true value.
    if not 0 < rounded < math.inf:
        msg = (
            f"{mechanism} noise of scale {rounded} cannot be drawn; "
            "declare a cost whose scale is a positive finite float."
        )
        raise ReleaseError(msg, mechanism=mechanism)

    def sample(numbers: Sequence[int] | Sequence[float]) -> list[float]:
        return _noisy(mechanism, rounded, [float(number) for number in numbers])

    return sample


def _noisy(mechanism: str, scale: float, numbers: list[Any]) -> list[Any]:
    """Add noise to numbers, by OpenDP unless a test has replaced it."""
    stream = replaced_stream()
    if stream is not None:
        return stream.noisy(mechanism, scale, numbers)
    return _invoke(_measurements.make(mechanism, scale), numbers)


def _invoke(measurement: Any, numbers: list[Any]) -> list[Any]:
    failure = None
    try:
        noisy: list[Any] = measurement(numbers)
    except Exception as error:  # noqa: BLE001
        failure = type(error).__name__
    # Raised outside the handler: OpenDP's message may quote the value, and an error
    # raised inside would carry it along as its context.
    if failure is not None:
        msg = (
            f"OpenDP failed to draw noise ({failure}); its text is withheld because it "
            "may hold private data. The charge stands."
        )
        raise ReleaseError(msg, error_type=failure)
    return noisy


class _Measurements(threading.local):
    """OpenDP measurements of one thread.

    OpenDP does not promise that one measurement may be called from several threads at
    once, and Prefect runs tasks in thread pools; making one takes well under a
    millisecond, so each thread makes its own.
    """

    def __init__(self) -> None:
        self.make = lru_cache(maxsize=64)(_make_measurement)


def _make_measurement(mechanism: str, scale: float) -> Any:
    """Build the OpenDP measurement of a mechanism on vectors.

    Of floats, or of integers for noise in whole steps. A single number is a vector of
    length one, where the norms agree. The grid is left at OpenDP's default, its finest.
    """
    dp = _opendp()
    dp.enable_features("contrib")
    whole = dp.vector_domain(dp.atom_domain(T="i64"))
    if mechanism == "steps":
        return dp.m.make_laplace(whole, dp.l1_distance(T="i64"), scale=scale)
    if mechanism == "gaussian steps":
        return dp.m.make_gaussian(whole, dp.l2_distance(T="i64"), scale=scale)
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    if mechanism == "laplace":
        return dp.m.make_laplace(domain, dp.l1_distance(T=float), scale=scale)
    return dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)


_measurements = _Measurements()


def _opendp() -> Any:
    # Not with this module: it loads a library of 275 MB.
    try:
        import opendp.prelude as dp  # noqa: PLC0415
    except ImportError:
        msg = (
            "release() draws noise through OpenDP, which is not installed; "
            f"{how_to_install('opendp')}"
        )
        raise ReleaseError(msg) from None
    return dp


def _take_apart(value: Any) -> _Parts:
    """Return the numbers in a value, and how to put noisy ones in their place."""
    if isinstance(value, list):
        return _take_list(value)
    if comes_from(value, "pandas"):
        import pandas as pd  # noqa: PLC0415

        if type(value) is pd.Series:
            return _take_series(value)
    if comes_from(value, "numpy"):
        import numpy as np  # noqa: PLC0415

        if type(value) is np.ndarray:
            return _take_array(value, value)
    number = plain_number(value)
    if number is None:
        what = f"only {_ACCEPTED} can be released"
        raise _refused(value, what, _todo(value))
    if isinstance(number, int):
        return [number], lambda noisy: round(noisy[0])
    return [number], lambda noisy: noisy[0]


def plain_number(value: object) -> int | float | None:
    """Return a plain int or float for any scalar that is one, else None."""
    # numpy.float64 is a subclass of float, numpy.bool is not one of bool.
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if not comes_from(value, "numpy"):
        return None
    import numpy as np  # noqa: PLC0415

    if not isinstance(value, np.generic) or isinstance(value, np.timedelta64):
        return None
    if not _fits_float(value.dtype):
        return None
    plain: int | float = value.item()
    return plain


def one_number(value: object) -> float:
    """Return a single number that noise can be added to, as a float.

    Raises:
        ReleaseError: If it is none, or noise would not hide it.
    """
    number = plain_number(value)
    if number is None:
        what = "only one number can be refined until it is good enough"
        raise _refused(value, what, "Release the int or float, each in its own step")
    _check(value, number)
    return float(number)


def _take_list(values: list[Any]) -> _Parts:
    numbers: list[Any] = []
    for item in values:
        number = plain_number(item)
        if number is None:
            what = f"it holds an entry of type {_type_name(item)}"
            raise _refused(values, what, _todo(item))
        numbers.append(number)
    if all(isinstance(number, int) for number in numbers):
        return numbers, lambda noisy: [round(number) for number in noisy]
    # One float makes all of them floats: which entries happened to be ints (a sum over
    # nothing is the int 0) would say something about the data.
    return numbers, list


def _take_series(series: Any) -> _Parts:
    import numpy as np  # noqa: PLC0415

    if not isinstance(series.dtype, np.dtype):
        todo = "Convert it with .astype('float64') or .astype('int64')"
        raise _refused(series, f"its dtype is {type(series.dtype).__name__}", todo)
    numbers, rebuild = _take_array(series.to_numpy(), series)

    def rebuild_series(noisy: list[float]) -> Any:
        kind = type(series)
        return kind(rebuild(noisy), index=series.index, name=series.name)

    return numbers, rebuild_series


def _take_array(array: np.ndarray[Any, Any], whole: object) -> _Parts:
    import numpy as np  # noqa: PLC0415

    if not _fits_float(array.dtype):
        todo = "Convert it to int64 or float64"
        raise _refused(whole, f"its dtype is {array.dtype.name}", todo)

    def rebuild(noisy: list[float]) -> np.ndarray[Any, Any]:
        result = np.array(noisy, dtype=np.float64)
        if array.dtype.kind != "f":
            held = np.clip(np.rint(result), -_LARGEST_INT64, _LARGEST_INT64)
            return held.astype(np.int64).reshape(array.shape)
        # A narrow float may overflow to infinity; that is post-processing.
        with np.errstate(over="ignore"):
            return result.astype(array.dtype.newbyteorder("=")).reshape(array.shape)

    return array.ravel().tolist(), rebuild


def _check(value: object, number: float) -> None:
    """Refuse a number that no float is, or that noise would not hide."""
    if isinstance(number, int):
        if abs(number) > LARGEST_INT:
            todo = "Divide by a unit first (thousands, say) or release a float"
            raise _refused(value, "it holds an int beyond 2**53", todo)
    elif not math.isfinite(number):
        todo = "Replace or clip such numbers before the release"
        raise _refused(value, "it holds NaN or infinity", todo)


def _fits_float(dtype: Any) -> bool:
    """Tell whether a numpy dtype is an int or a float that needs no rounding."""
    return dtype.kind in "iu" or (dtype.kind == "f" and dtype.itemsize <= 8)  # noqa: PLR2004


def _refused(value: object, what: str, todo: str) -> ReleaseError:
    """Build the error for a value; it names types only, for the value is private."""
    name = _type_name(value)
    msg = f"release() cannot noise a value of type {name}: {what}. {todo}."
    return ReleaseError(msg, type_name=name)


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"


def _todo(value: object) -> str:
    """Say what to do with a value of a type that is not accepted."""
    if _type_name(value) in {"bool", "numpy bool", "numpy bool_"}:
        return "Count with ints 0 and 1, or use randomised response"
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return "Pass its numbers as one flat list or one numpy array"
    return "Convert it to int or float, or draw the noise in the body"
