"""Rows of people, clipped and cut to a grid, and their sums without rounding.

Rows are clipped and then cut to a grid, toward zero, and summed as whole numbers. So
one person moves the sum by no more than the clip, to the last bit, whatever the order
of the rows; a sum of floats would round, and by how much depends on everybody.

The gradient of a linear model with many classes is a product of a person's features
and of their errors. `Factors` sums such products without ever writing them down: what
would be 60,000 rows of 7,840 numbers is a product of two matrices. `LayerRows` does so
for a network, whose gradient has such a product for each layer: all of them are clipped
together, by the norm of the whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.exceptions import PublicError
from dpflow.people.costs import clip_rows, squared_norms
from dpflow.people.state import PrivateMask
from dpflow.rounding import Number, exact_scale

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

#: Bits of the clip that the grid of a row keeps.
_BITS = 29
#: The sum over this many people is a float without rounding.
MOST_PEOPLE = 2**23
#: Bits of each factor. A product has at most 2 * 14 + 1, and a sum of 2**23 products
#: 52: every partial sum is a float without rounding, in whatever order they are added.
_FACTOR_BITS = 14
_MATRIX = 2


@dataclass(frozen=True, slots=True)
class NormClip:
    """How rows are clipped and cut to the grid; public.

    Attributes:
        norm: Longest L2 norm of a person's row.
        step: Width of the grid, a power of two.
    """

    norm: Fraction
    step: float

    @classmethod
    def to(cls, norm: Number) -> NormClip:
        """Check the norm and choose the grid.

        Args:
            norm: Longest L2 norm of a person's row.

        Raises:
            InvalidCost: If the norm is no positive number of sane size.
        """
        longest = exact_scale(norm, name="norm")
        return cls(longest, _step(longest, _BITS))

    def rows(self, rows: NDArray[Any]) -> Rows:
        """Return clipped rows in steps of the grid; rows that are no numbers as zeros.

        Rounding: toward zero, so that no norm grows. A row of one number is compared
        with the norm in steps, so that one as long as the norm stays what it is.

        Raises:
            ReleaseError: If there are no people, or more than `MOST_PEOPLE`.
        """
        values = np.asarray(rows)
        _check_people(values.shape, values.ndim >= _MATRIX)
        if values[0].size == 1:
            longest = int(self.norm / Fraction(self.step))
            # A warning about one person's overflow would be an output.
            with np.errstate(all="ignore"):
                cut = _cut(np.array(values, np.float64), self.step)
            return cut.clip(-longest, longest).astype(np.int64)
        clipped, _ = clip_rows(values, norm=self.norm)
        return _cut(clipped, self.step).astype(np.int64)

    def apply(self, rows: Gradient) -> Clipped:
        """Return the rows of all people, clipped.

        Raises:
            ReleaseError: If there are no people, or more than `MOST_PEOPLE`.
        """
        if isinstance(rows, OuterRows):
            return Clipped(_clip_products((rows,), self.norm), rows.shape)
        if isinstance(rows, LayerRows):
            return Clipped(_clip_products(rows.layers, self.norm), (-1,))
        steps = self.rows(rows)
        return Clipped((_Layer(None, steps, self.step),), steps.shape[1:])


@dataclass(frozen=True, slots=True, repr=False)
class _Layer:
    """Clipped rows in steps of a grid, or second factors of products: private data."""

    left: Factors | None
    right: Floats | Rows
    step: float

    def squares(self) -> Floats:
        squares = squared_norms(self.right * self.step)
        # Each factor is rounded up; this covers the rounding of their product.
        return squares if self.left is None else self.left.squares * squares * _WIDENED

    def total(self, who: PrivateMask | None) -> Floats:
        if self.left is None:
            steps = self.right.sum(axis=0) if who is None else who.sum(self.right)
            return np.asarray(steps.astype(np.float64) * self.step, np.float64)
        right = self.right if who is None else who.apply(self.right)
        # Whole numbers below 2**53 throughout: a float product of matrices is exact.
        return (self.left.steps.T @ right) * (_FACTOR_STEP * self.step)


@dataclass(frozen=True, slots=True, repr=False)
class Clipped:
    """Clipped rows of all people, of one layer or several ones: private data."""

    layers: tuple[_Layer, ...]
    shape: tuple[int, ...]

    @property
    def people(self) -> int:
        """How many people there are."""
        return len(self.layers[0].right)

    def squares(self) -> Floats:
        """Return the squared norm of each row as it is summed, rounded up."""
        total: Floats = np.sum([layer.squares() for layer in self.layers], axis=0)
        # Each is rounded up; this covers the rounding of their sum.
        return total * (1 + len(self.layers) * 2.0**-52)

    def total(self, who: PrivateMask | None = None) -> Floats:
        """Return the sum of the rows of those who take part, exactly."""
        totals = [layer.total(who).ravel() for layer in self.layers]
        return np.concatenate(totals).reshape(self.shape)


class Factors:
    """One vector of features for each person, prepared once for many sums of products.

    Each person's features are scaled to norm 1 and cut to a grid, toward zero; their
    length goes to the other factor. Somebody whose features are all zero or no
    numbers has rows of zeros.

    Args:
        features: number[people, features].

    Raises:
        ReleaseError: If there are no people, or more than `MOST_PEOPLE`.

    Example:
        >>> import numpy as np
        >>> from dpflow.mechanisms.rows import NormClip, Factors
        >>> rows = Factors(np.array([[3.0, 4.0]])).outer(np.array([[0.5, -0.5]]))
        >>> NormClip.to(10).apply(rows).total().round(2).tolist()
        [[1.5, -1.5], [2.0, -2.0]]
    """

    def __init__(self, features: NDArray[Any]) -> None:
        values = np.array(features, np.float64)
        _check_people(values.shape, values.ndim == _MATRIX)
        with np.errstate(all="ignore"):
            self.lengths: Floats = np.sqrt(squared_norms(values))
            values /= self.lengths[:, None]
        unit, _ = clip_rows(values, norm=1)
        self.steps: Floats = _cut(unit, _FACTOR_STEP)
        self.squares: Floats = squared_norms(self.steps * _FACTOR_STEP)

    def outer(self, right: NDArray[Any]) -> OuterRows:
        """Return, for each person, the product of their features with other numbers.

        Args:
            right: number[people, classes] or number[people].

        Returns:
            Rows of shape [features, classes] or [features], to be clipped as such.

        Raises:
            ReleaseError: If the people are not as many.
        """
        values = np.asarray(right, np.float64)
        if values.shape[:1] != self.lengths.shape or values.ndim > _MATRIX:
            msg = "the other factor must be a vector or matrix of the same people"
            raise PublicError(msg)
        return OuterRows(self, values)


_FACTOR_STEP = 2.0**-_FACTOR_BITS
#: Covers the rounding of a product of two squares.
_WIDENED = 1 + 2.0**-50


@dataclass(frozen=True, slots=True, repr=False)
class OuterRows:
    """For each person a product of two vectors: private data, not clipped yet."""

    left: Factors
    right: Floats

    def __len__(self) -> int:
        """Count the people."""
        return len(self.right)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one person's product."""
        return (self.left.steps.shape[1], *self.right.shape[1:])


@dataclass(frozen=True, slots=True, repr=False)
class LayerRows:
    """For each person a product for each layer, one behind the other as one row.

    Source: docs/derivations/notions.md#sums-of-clipped-products.

    Assumes: what goes into a layer and its error are those of the person alone.

    Rounding: both factors toward zero; what is charged, up; the sum is exact.

    Checked by: tests/mechanisms/test_gradient_descent.py.

    Args:
        layers: Of the same people in the same order; the model is one vector of all
            layers' parameters.

    Raises:
        ReleaseError: If there is no layer, or the people are not as many in each.
    """

    layers: tuple[OuterRows, ...]

    def __post_init__(self) -> None:
        if len(set(map(len, self.layers))) != 1:
            msg = "all layers must have a row for each of the same people"
            raise PublicError(msg)

    def __len__(self) -> int:
        """Count the people."""
        return len(self.layers[0])


#: What `NormClip.apply` takes.
Gradient = NDArray[Any] | OuterRows | LayerRows


def _clip_products(layers: tuple[OuterRows, ...], norm: Fraction) -> tuple[_Layer, ...]:
    """Clip products together: first factors have norm 1 at most; second ones are cut.

    So the squared norm of all products is at most that of the second factors side by
    side, which is what is clipped.

    Rounding: toward zero in both factors, so that no norm grows.
    """
    people = len(layers[0].right)
    with np.errstate(all="ignore"):
        scaled = [
            layer.right.reshape(people, -1) * layer.left.lengths[:, None]
            for layer in layers
        ]
    clipped, _ = clip_rows(np.concatenate(scaled, axis=1), norm=norm)
    step = _step(norm, _FACTOR_BITS)
    cut = _cut(clipped, step)
    ends = np.cumsum([part.shape[1] for part in scaled])
    parts = np.split(cut, ends[:-1], axis=1)
    return tuple(
        _Layer(layer.left, part, step)
        for layer, part in zip(layers, parts, strict=True)
    )


def _step(longest: Fraction, bits: int) -> float:
    """Return a power of two; the longest has 2**bits of it, or up to twice that."""
    return float(2.0 ** (math.floor(math.log2(float(longest))) - bits))


def _cut(values: Floats, step: float) -> Floats:
    """Return whole numbers of steps, toward zero; rows that are no numbers as zeros."""
    is_finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    values[~is_finite] = 0
    values /= step
    return np.asarray(np.trunc(values, out=values), np.float64)


def _check_people(shape: tuple[int, ...], fits: bool) -> None:  # noqa: FBT001
    if not fits or not 0 < shape[0] <= MOST_PEOPLE:
        msg = f"gradients must be number[people, ...] of 1 to {MOST_PEOPLE} people"
        raise PublicError(msg)
