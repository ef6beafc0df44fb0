"""The rest of each person's budget, in memory, for millions of people."""

from __future__ import annotations

import os
import threading
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import InvalidCost, LedgerCorrupt, PublicError
from dpflow.people.withheld import Withheld

Floats = NDArray[np.float64]

#: Bits of a person's budget: between 2**51 and 2**52 whole units.
_BITS = 51
#: People per block: what a block needs stays in the processor's cache.
_BLOCK = 131_072
_UNSIGNED = np.uint64
_INFINITE = np.float64(np.inf).view(_UNSIGNED)


class PrivateMask(Withheld):
    """Who takes part in one step, usable on arrays and never printed.

    Source: the active set S_t of Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 1. Its
    members and its size are private (docs/derivations/individual.md#individual-filter):
    do not divide by its size.
    """

    __slots__ = ("_active",)

    def __init__(self, active: NDArray[np.bool_]) -> None:
        self._active = active

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values with zeros in the rows of people who do not take part.

        Args:
            values: number[people, ...], already clipped.

        Returns:
            number[people, ...]: private data, like the values.
        """
        result = np.zeros_like(_rows(values, self._active))
        np.copyto(result, values, where=self._along(values))
        return result

    def sum(self, values: NDArray[Any]) -> Any:
        """Return the sum over the people who take part.

        It is private data until noise is added. Floating addition rounds, and the
        rounding may depend on everybody: sum integers, or values on a grid, where that
        matters next to the noise.

        Args:
            values: number[people, ...], already clipped.

        Returns:
            number[...]: the sum over the first axis.
        """
        return np.sum(_rows(values, self._active), axis=0, where=self._along(values))

    def among(self, drawn: NDArray[np.bool_]) -> PrivateMask:
        """Return those of them who were drawn into a sample too.

        Args:
            drawn: bool[people], the sample; private data like the mask.
        """
        return PrivateMask(_rows(drawn, self._active) & self._active)

    def at(self, places: NDArray[np.int64]) -> PrivateMask:
        """Return who of some people takes part; no one without a place (-1)."""
        active = np.zeros(len(places), np.bool_)
        placed = places >= 0
        active[placed] = self._active[places[placed]]
        return PrivateMask(active)

    def _along(self, values: NDArray[Any]) -> NDArray[np.bool_]:
        return self._active.reshape(-1, *([1] * (values.ndim - 1)))


def _rows(values: NDArray[Any], active: NDArray[np.bool_]) -> NDArray[Any]:
    if type(values) is not np.ndarray or values.shape[:1] != active.shape:
        msg = "values must be a numpy array with one row for each person of the tally"
        raise InvalidCost(msg, name="values")
    return values


class PrivateTally(Withheld):
    """The rest of each person's bound.

    A person's budget is a whole number of units between 2**51 and 2**52, stored as a
    float64. A unit is a power of two, so turning a cost into units (times a power of
    two, then upwards to a whole number) rounds in one place only and upwards. A charge
    that fits is a whole number below 2**53, as is what it is taken from: their
    difference is exact. One that does not fit gives a negative difference, however it
    rounds, and is not stored. So nothing wraps, saturates or absorbs, and each charge
    is at most one unit, 4.5e-16 of the bound, too high. It stores the rest, not
    the spent part, so that memory or disk that reads as zeros grants nothing.

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193) Alg. 1: a person whom the step
    does not fit is excluded before it runs, is charged nothing, and may return for a
    cheaper step. docs/derivations/individual.md#individual-filter.

    Assumes: `bound` is reserved in the ledger, in full and for this tally alone; the
    costs of a person depend on their record and on outputs released before.

    Rounding: the bound down to units, costs up.

    Checked by: tests/people/test_state.py,
    tests/adversaries/test_individual_filter.py.

    Args:
        bound: What no person may exceed, and in which measure.
        people: How many people (slots) there are.
    """

    __slots__ = ("_bound", "_left", "_limit", "_lock", "_pid", "_scale")

    def __init__(self, bound: IndividualBound, *, people: int) -> None:
        if type(people) is not int or people < 1:
            msg = f"people must be a positive whole number, got {people!r}"
            raise InvalidCost(msg, name="people", value=repr(people))
        self._bound = bound
        self._scale, self._limit = _grid(bound.bound)
        self._left: Floats = np.full(people, float(self._limit))
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def bound(self) -> IndividualBound:
        """The public bound that this tally keeps."""
        return self._bound

    def admit(self, costs: Floats) -> PrivateMask:
        """Charge everyone whom the step fits and say, privately, who that is.

        A cost that is negative, infinite or no number leaves its person out: an error
        would tell everybody that such a record exists.

        Args:
            costs: float64[people], each person's cost of this step in the measure of
                the bound, rounded up (`gaussian_costs`). Everyone is charged their
                own, sampled into the step or not.

        Returns:
            Who takes part. Apply it to the data before anything is computed from all.

        Raises:
            InvalidCost: If the costs are no float64 array with one entry per person.
            ReleaseError: In a forked child, whose copy would spend the budget twice.
        """
        if os.getpid() != self._pid:
            msg = (
                "this PrivateTally belongs to the process that created it; use it there"
            )
            raise PublicError(msg)
        check_costs(costs, self._left.shape)
        active = np.empty(self._left.shape, np.bool_)
        work = np.empty(min(_BLOCK, self._left.size))
        # A warning about one person's overflow would be an output.
        with self._lock, np.errstate(all="ignore"):
            for start in range(0, self._left.size, _BLOCK):
                block = slice(start, start + _BLOCK)
                left = self._left[block]
                _charge(
                    costs[block], left, active[block], work[: left.size], self._scale
                )
        return PrivateMask(active)

    def grow(self, people: int) -> None:
        """Let people join, each with a whole budget, until this number is reached."""
        with self._lock:
            joining = max(people - self._left.size, 0)
            fresh = np.full(joining, float(self._limit))
            self._left = np.concatenate([self._left, fresh])

    def to_store(self) -> memoryview:
        """Return the rests as bytes (little-endian float64), for a store only."""
        return self._left.astype("<f8", copy=False).data.cast("B")

    @classmethod
    def from_store(cls, bound: IndividualBound, left: bytes) -> PrivateTally:
        """Rebuild a tally from the bytes of `to_store`.

        Raises:
            LedgerCorrupt: If they are no tally under this bound.
        """
        tally = cls(bound, people=1)
        values = np.frombuffer(left, "<f8").astype(np.float64)
        blocks = range(0, values.size, _BLOCK)
        if not all(_is_whole(values[at : at + _BLOCK], tally._limit) for at in blocks):
            msg = (
                "the people's tallies are damaged: not all are whole units of the bound"
            )
            raise LedgerCorrupt(msg)
        tally._left = values
        return tally


def _is_whole(left: Floats, limit: int) -> bool:
    """Return True if all are whole numbers from zero to a limit; NaN is not."""
    in_range = left.min() >= 0 and left.max() <= limit
    return bool(in_range and np.array_equal(left, np.floor(left)))


def _grid(bound: Fraction) -> tuple[Fraction, int]:
    """Return units per one of the measure (a power of two) and the bound in units."""
    scale = Fraction(1)
    while bound * scale >= 2 ** (_BITS + 1):
        scale /= 2
    while bound * scale < 2**_BITS:
        scale *= 2
    return scale, int(bound * scale)


def check_costs(costs: object, shape: tuple[int, ...]) -> None:
    """Refuse costs that are no float64 array of a shape.

    Raises:
        InvalidCost: If so.
    """
    fits = type(costs) is np.ndarray and costs.dtype == np.float64
    if not fits or costs.shape != shape:  # type: ignore[attr-defined]
        msg = (
            "costs must be a float64 numpy array with one entry for each person of the "
            "tally"
        )
        raise InvalidCost(msg, name="costs")


def _charge(
    costs: Floats,
    left: Floats,
    active: NDArray[np.bool_],
    work: Floats,
    scale: Fraction,
) -> None:
    # Passes over a block that take the same time whatever the values are. As unsigned
    # bits, floats without a sign bit are ordered as numbers; negatives, infinities and
    # NaNs come after all of them. -0.0 becomes 0.0 first, for it is no negative.
    np.multiply(costs, float(scale), out=work)
    np.add(work, 0.0, out=work)
    np.minimum(work.view(_UNSIGNED), _INFINITE, out=work.view(_UNSIGNED))
    np.ceil(work, out=work)
    np.subtract(left, work, out=work)
    # What would be left is negative where the step does not fit: more than any number.
    would, is_left = work.view(_UNSIGNED), left.view(_UNSIGNED)
    np.less_equal(would, is_left, out=active)
    np.minimum(would, is_left, out=is_left)
