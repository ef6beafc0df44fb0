"""Rows of people, clipped and cut to a grid, and their sums without rounding.

Rows are clipped and then cut to a grid, toward zero, and summed as whole numbers. So
one person moves the sum by no more than the clip, to the last bit, whatever the order
of the rows; a sum of floats would round, and by how much depends on everybody.

The gradient of a linear model with many classes is a product of a person's features
and of their errors. `Factors` sums such products without ever writing them down: what
would be 60,000 rows of 7,840 numbers is a product of two matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpflow.exceptions import ReleaseError
from dpflow.people.costs import clip_rows, squared_norms
from dpflow.people.state import PrivateMask
from dpflow.rounding import SCALE_HIGH, SCALE_LOW, Number, exact

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

#: Bits of the clip that the grid of a row keeps.
_BITS = 29
#: The sum of so many people is a float without rounding.
MOST_PEOPLE = 2**23
#: Bits of each factor. A product has at most 2 * 14 + 1, and a sum of 2**23 products
#: 52: every partial sum is a float without rounding, in whatever order they are added.
_FACTOR_BITS = 14
_MATRIX = 2


class ClippedRows(Protocol):
    """Clipped rows of all people: private data."""

    @property
    def people(self) -> int:
        """How many rows there are."""

    def squares(self) -> Floats:
        """Return the squared norm of each row as it is summed, rounded up."""

    def total(self, who: PrivateMask | None = None) -> Floats:
        """Return the sum of the rows of those who take part, exactly."""


@dataclass(frozen=True, slots=True)
class Clip:
    """How rows are clipped and cut to the grid; public.

    Attributes:
        norm: Longest L2 norm of a person's row.
        step: Width of the grid, a power of two.
    """

    norm: Fraction
    step: float

    @classmethod
    def to(cls, norm: Number) -> Clip:
        """Check the norm and choose the grid.

        Raises:
            InvalidCost: If the norm is no positive number of sane size.
        """
        longest = exact(norm, name="norm", low=SCALE_LOW, high=SCALE_HIGH)
        return cls(longest, _step(longest, _BITS))

    def rows(self, rows: NDArray[Any]) -> Rows:
        """Return clipped rows in steps of the grid; rows that are no numbers as zeros.

        Rounding: toward zero, so that no norm grows.

        Raises:
            ReleaseError: If there are no people, or more than `MOST_PEOPLE`.
        """
        values = np.asarray(rows)
        _check_people(values.shape, values.ndim >= _MATRIX)
        clipped, _ = clip_rows(values, norm=self.norm)
        return _cut(clipped, self.step).astype(np.int64)

    def floats(self, steps: Rows) -> Floats:
        """Return numbers of steps as the floats that they stand for, exactly."""
        return np.asarray(steps.astype(np.float64) * self.step, np.float64)

    def apply(self, rows: NDArray[Any] | OuterRows) -> ClippedRows:
        """Return the rows of all people, clipped.

        Raises:
            ReleaseError: If there are no people, or more than `MOST_PEOPLE`.
        """
        if isinstance(rows, OuterRows):
            return _clipped_products(rows, self.norm)
        return _Plain(self, self.rows(rows))


@dataclass(frozen=True, slots=True)
class _Plain:
    """Rows in steps of the grid."""

    clip: Clip
    steps: Rows

    @property
    def people(self) -> int:
        return len(self.steps)

    def squares(self) -> Floats:
        return squared_norms(self.clip.floats(self.steps))

    def total(self, who: PrivateMask | None = None) -> Floats:
        steps = self.steps.sum(axis=0) if who is None else who.sum(self.steps)
        return self.clip.floats(steps)


class Factors:
    """One vector of features for each person, prepared once for many sums of products.

    Each person's features are scaled to norm 1 and cut to a grid, toward zero; their
    length is kept for the other factor. Somebody whose features are all zero or no
    numbers has rows of zeros.

    Args:
        features: number[people, features].

    Raises:
        ReleaseError: If there are no people, or more than `MOST_PEOPLE`.

    Example:
        >>> import numpy as np
        >>> from dpflow.mechanisms.rows import Clip, Factors
        >>> rows = Factors(np.array([[3.0, 4.0]])).outer(np.array([[0.5, -0.5]]))
        >>> Clip.to(10).apply(rows).total().round(2).tolist()
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
            msg = (
                "the other factor must have one row for each of the people of this "
                "one, as a vector or a matrix"
            )
            raise ReleaseError(msg)
        return OuterRows(self, values)


_FACTOR_STEP = 2.0**-_FACTOR_BITS


@dataclass(frozen=True, slots=True, repr=False)
class OuterRows:
    """For each person a product of two vectors: private data, not clipped yet."""

    left: Factors
    right: Floats


@dataclass(frozen=True, slots=True, repr=False)
class _Products:
    """Products of two factors on grids; the second one is clipped."""

    left: Factors
    right: Floats
    step: float
    shape: tuple[int, ...]

    @property
    def people(self) -> int:
        return len(self.right)

    def squares(self) -> Floats:
        # Each factor is rounded up; this covers the rounding of their product.
        widened = 1 + 2.0**-50
        right = squared_norms(self.right * self.step)
        return np.asarray(self.left.squares * right * widened, np.float64)

    def total(self, who: PrivateMask | None = None) -> Floats:
        right = self.right if who is None else who.apply(self.right)
        # Whole numbers below 2**53 throughout: a float product of matrices is exact.
        steps = self.left.steps.T @ right
        return np.asarray(steps * (_FACTOR_STEP * self.step), np.float64).reshape(
            self.shape
        )


def _clipped_products(rows: OuterRows, norm: Fraction) -> _Products:
    """Clip products: the first factor has norm 1 at most, so the second one is cut.

    Rounding: toward zero in both factors, so that no norm grows.
    """
    people, features = rows.left.steps.shape
    right = rows.right.reshape(people, -1)
    with np.errstate(all="ignore"):
        scaled = right * rows.left.lengths[:, None]
    clipped, _ = clip_rows(scaled, norm=norm)
    step = _step(norm, _FACTOR_BITS)
    shape = (features, *rows.right.shape[1:])
    return _Products(rows.left, _cut(clipped, step), step, shape)


def _step(longest: Fraction, bits: int) -> float:
    """Return a power of two; the longest has 2**bits of it, or up to twice that."""
    return float(2.0 ** (math.floor(math.log2(float(longest))) - bits))


def _cut(values: Floats, step: float) -> Floats:
    """Return whole numbers of steps, toward zero; rows that are no numbers as zeros."""
    whole = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    values[~whole] = 0
    values /= step
    return np.asarray(np.trunc(values, out=values), np.float64)


def _check_people(shape: tuple[int, ...], fits: bool) -> None:  # noqa: FBT001
    if not fits or not 0 < shape[0] <= MOST_PEOPLE:
        msg = (
            "gradients must be an array with one row for each of 1 to "
            f"{MOST_PEOPLE} people: number[people, ...]"
        )
        raise ReleaseError(msg)
