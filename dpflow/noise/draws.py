"""Declared noise of costs, drawn through OpenDP.

`release` calls `draw`, so that a step's noise and its price come from the same cost.
No module uses numpy's generators: the floats they can produce depend on the value to
which they are added, and one unlucky output distinguishes two datasets.

Under continuous noise ints are noised as floats, and rounded afterwards where the step
says `as_int=True`, which is post-processing. A discrete
Gaussian on the integers would have the same zCDP, but the `gdp` filter prices a
step at mu^2 = (sensitivity / sigma)^2, which is proved for the continuous Gaussian and
not for a coarse discrete one. OpenDP samples floats exactly on a grid of 2^-1074,
finer than any float, and rounds the sum once.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, singledispatch
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import OfSteps
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
)
from dpflow.exceptions import PublicError, how_to_install, public_name
from dpflow.interrupts import without_interrupts
from dpflow.noise.accuracy import Estimate, IntEstimate, noise_of
from dpflow.noise.columns import Column
from dpflow.noise.containers import take_apart
from dpflow.noise.numbers import is_whole, name_of, numbers_for, refuse
from dpflow.noise.shape import Shape
from dpflow.noise.sources import current_stream
from dpflow.rounding import float_up

#: Takes the true numbers, returns as many noisy ones.
Sampler = Callable[[Sequence[int] | Sequence[float]], list[float]]

#: Of integer noise, in steps: OpenDP's int64 then ends 2**14 scales away.
LARGEST_STEPS = 2**48
#: Confidence of an interval where a step says no other.
CONFIDENCE = Fraction(95, 100)
NO_SHAPE = Shape()
_LARGEST_INT64 = 2**63 - 1


def draw(
    cost: Cost,
    value: Any,
    shape: Shape = NO_SHAPE,
    *,
    as_int: bool = False,
    confidence: Fraction = CONFIDENCE,
) -> Any:
    """Return the value with the noise of the cost's mechanism added.

    Each number gets noise of its own; the sensitivity of the cost is that of the whole
    value (L1 norm for Laplace, L2 norm for Gaussian), all columns of a frame together.

    Args:
        cost: What the step declared: a `Gaussian` or a `Laplace`, or for whole
            numbers `DiscreteGaussian` or `DiscreteLaplace`.
        value: An int, a float or a Decimal, or numbers of the declared shape: a list,
            a tuple, a dict, rows, a numpy array, a Series or frame of pandas or
            polars, or an Arrow array or table.
        shape: Length, or groups and columns, of several numbers.
        as_int: Whether the numbers are rounded after the draw.
        confidence: Of the interval of one number.

    Returns:
        One number as an `Estimate` or an `IntEstimate`; else a new container of the
        same kind with the declared labels: of floats, or of ints.

    Raises:
        ReleaseError: If the cost names no mechanism, the value is not of the declared
            shape or cannot be noised, or OpenDP is missing. The text never holds the
            value.

    Examples:
        >>> isinstance(draw(Laplace(sensitivity=1, epsilon=1), 120), float)
        True
    """
    # The cost first: its own errors must not depend on private data.
    sampler = sampler_for(cost)
    numbers, rebuild = take_apart(cost, value, shape)
    noisy = sampler(numbers)
    if as_int and not is_whole(cost):
        # An int of Python's own has no ends.
        noisy = list(map(round if shape == NO_SHAPE else round_to_int64, noisy))
    released, noise = rebuild(noisy), noise_of(cost, as_int=as_int)
    if noise is None or shape != NO_SHAPE:
        return released
    kind = IntEstimate if isinstance(released, int) else Estimate
    return kind.from_draw(released, noise, confidence)


def round_to_int64(number: float) -> int:
    """Return the nearest int that an int64 holds."""
    return max(min(round(number), _LARGEST_INT64), -_LARGEST_INT64)


def add_noise(cost: Cost, numbers: Any) -> Any:
    """Return numbers of a mechanism's own with noise, as floats.

    Args:
        cost: The cost that names the noise.
        numbers: A number, a list of numbers, or an array of any shape, such as a
            gradient, whose size is public.

    Returns:
        A float, or a float64 array of the same shape.

    Raises:
        ReleaseError: If it is anything else, or cannot be noised.
    """
    import numpy as np  # noqa: PLC0415

    sampler, sizes, kind = sampler_for(cost), None, name_of(type(numbers))
    entries = [numbers]
    if kind == "numpy ndarray":
        column, sizes = Column.read(numbers), numbers.shape
        column.check(cost, numbers, labelled=False)
        entries = column.entries
    elif kind == "list":
        entries, sizes = numbers, (len(numbers),)
    if not entries:
        refuse(numbers, "it is empty", "Release at least one number")
    noisy = sampler(numbers_for(cost, numbers, entries))
    if sizes is None:
        return float(noisy[0])
    return np.array(noisy, np.float64).reshape(sizes)


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
    own = (
        "let the body draw its own noise and return the noisy value (the journal then "
        "says noise: self-declared)"
    )
    why = (
        "declares only a guarantee, not a mechanism. Declare Laplace or Gaussian, or "
        f"{own}."
    )
    if isinstance(cost, EarlyStopping):
        why = (
            "has sub-steps, each with noise of its own: `for step in iterations(): "
            "step.release(value)`."
        )
    elif isinstance(cost, OfSteps):
        why = f"has several mechanisms. Write a step for each, or {own}."
    msg = f"release() cannot draw noise for {name}: this cost {why}"
    raise PublicError(msg, mechanism=name)


def _sampler(cost: Cost) -> Sampler:
    """Return a sampler of the noise of which the intervals of a cost are, too.

    Its scale is rounded up: the prices of noise fall with it.
    """
    noise: Any = noise_of(cost)
    scale = whole_scale(noise.spread) if is_whole(cost) else float(noise.spread)
    return lambda numbers: _noisy(noise.law, scale, list(numbers))


for _kind in (Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian):
    sampler_for.register(_kind, _sampler)


def has_sampler(cost: Cost) -> bool:
    """Return whether `release` would draw the noise of a cost."""
    return sampler_for.dispatch(type(cost)) is not sampler_for.dispatch(object)


def is_imported() -> bool:
    """Return whether this process has begun to load OpenDP."""
    return sys.modules.get("opendp.measurements") is not None


def integer_laplace(scale: Fraction, count: int) -> list[int]:
    """Draw integers k with probabilities proportional to exp(-abs(k) / scale).

    Args:
        scale: Positive, at most `LARGEST_STEPS`; rounded up to a float.
        count: How many to draw.

    Raises:
        ReleaseError: If the scale is out of range, or OpenDP is missing or fails.
    """
    return _noisy("discrete laplace", whole_scale(scale), [0] * count)


def whole_laplace(scale: Fraction) -> int:
    """Draw one integer, as `integer_laplace` does."""
    return integer_laplace(scale, 1)[0]


def whole_scale(scale: Fraction) -> float:
    """Return the scale of integer noise as a float, rounded up."""
    rounded = float_up(scale)
    if not 0 < rounded <= LARGEST_STEPS:
        msg = (
            f"integer noise of a scale of {rounded} steps cannot be drawn; at most "
            f"{LARGEST_STEPS}. Declare a larger epsilon or fewer answers."
        )
        raise PublicError(msg, mechanism="discrete laplace")
    return rounded


def _noisy(law: str, scale: float, numbers: list[Any]) -> list[Any]:
    """Add noise of a law to numbers, by OpenDP unless a test has replaced it."""
    # At scale 0 OpenDP returns the true value.
    if not 0 < scale < math.inf:
        msg = (
            f"{law} noise of scale {scale} cannot be drawn; "
            "declare a cost whose scale is a positive finite float."
        )
        raise PublicError(msg, mechanism=law)
    stream = current_stream()
    if stream is not None:
        return stream.noisy(law, scale, numbers)
    # OpenDP does not promise that several threads may call one measurement.
    measurement = _measurement(law, scale, threading.get_ident())
    try:
        noisy: list[Any] = measurement(numbers)
    except without_interrupts(Exception) as error:
        failure = public_name(type(error))
    else:
        return noisy
    # Raised outside the handler: OpenDP's message may quote the value, and an error
    # raised inside would carry it along as its context.
    msg = (
        f"OpenDP failed to draw noise ({failure}); its text is withheld because it "
        "may hold private data. The charge stands."
    )
    raise PublicError(msg, error_type=failure)


@lru_cache(maxsize=512)
def _measurement(law: str, scale: float, _thread: int) -> Any:
    """Build the OpenDP measurement of a law on vectors, for one thread.

    A discrete law adds integers. A single number is a vector of length one, where the
    norms agree. The grid is OpenDP's default, its finest.
    """
    mod, domains, metrics, measures = load()
    mod.enable_features("contrib")
    kind: Any = "i64" if law.startswith("discrete") else float
    options = {"nan": False} if kind is float else {}
    vectors = domains.vector_domain(domains.atom_domain(T=kind, **options))
    if law.endswith("gaussian"):
        return measures.make_gaussian(vectors, metrics.l2_distance(T=kind), scale=scale)
    return measures.make_laplace(vectors, metrics.l1_distance(T=kind), scale=scale)


def load() -> tuple[Any, Any, Any, Any]:
    """Load OpenDP, so that this cannot fail in a charged body.

    Python's own lock protects other threads from a half-loaded library.

    Raises:
        ReleaseError: If it is not installed.
    """
    # Not with this module: it loads a library of 275 MB. Nor by its prelude, which
    # loads scikit-learn and polars where they are, in ten times the time.
    try:
        from opendp import domains, measurements, metrics, mod  # noqa: PLC0415
    except ImportError:
        msg = (
            "release() draws noise through OpenDP, which is not installed; "
            f"{how_to_install('opendp')}"
        )
        raise PublicError(msg) from None
    return mod, domains, metrics, measurements
