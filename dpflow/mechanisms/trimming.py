"""Trimmed means by propose-test-release, the median among them.

The values after trimming lie between order statistics. How far one person can move
its mean is a difference of two of them, and how many people must be replaced before
one more could move it farther than proposed is read off wider differences.

Values are rounded to a grid first, each on its own, so all that follows is arithmetic
of integers: no sum rounds, and the noise is OpenDP's discrete Laplace.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.outcomes import ProposeTestRelease
from dpflow.exceptions import PublicError
from dpflow.mechanisms.drawn import Drawn, draws_for
from dpflow.mechanisms.propose_test_release import passes
from dpflow.noise.draws import integer_laplace
from dpflow.rounding import Number, exact, exact_scale

Whole = NDArray[np.int64]

#: Steps of the grid in the proposed bound.
GRID = 2**10
MOST_PEOPLE = 2**23
FEWEST_PEOPLE = 3
#: Values end here, in steps of the grid; beyond the ends of the data is farther.
_FARTHEST = 2**58
_BEYOND = 2**61


@dataclass(frozen=True, slots=True)
class Span:
    """The places, among sorted values, of those whose mean is released; public.

    Attributes:
        first: Place of the lowest, counted from 0.
        last: Place of the highest.
    """

    first: int
    last: int

    @classmethod
    def middle(cls, people: int) -> Span:
        """Return the place of the median, the lower one of two."""
        return cls((people - 1) // 2, (people - 1) // 2)

    @classmethod
    def without(cls, share: Number, people: int) -> Span:
        """Return the window without a share of the people at each end.

        Raises:
            ReleaseError: If it leaves out no person, or all.
        """
        low, high = Fraction(1, MOST_PEOPLE), Fraction(1, 2)
        left_out = int(exact(share, name="trim", low=low, high=high) * people)
        if not 1 <= left_out <= (people - 1) // 2:
            msg = "a trim leaves out at least 1 person at each end, and not everybody"
            raise PublicError(msg)
        return cls(left_out, people - 1 - left_out)

    @property
    def size(self) -> int:
        """Number of people in the window."""
        return self.last - self.first + 1

    def total(self, ordered: Whole) -> int:
        """Return the sum over the people in the window."""
        return int(ordered[self.first : self.last + 1].sum(dtype=object))


def distance(ordered: Whole, window: Span, width: int) -> int:
    """Return how many people must be replaced until the sum may jump beyond a width.

    The last of them is the one that makes it jump, so it is at least 1; and where one
    replacement moves the sum farther than the width, it is 1 on both sides of it.

    With m replaced, t of them upwards, the order statistics above the window rise by
    at most t places and those below it fall by at most m - t. So one more moves the sum
    by at most the largest x[last + t] - x[first - (m + 1 - t)] over t = 0 .. m + 1. One
    replacement turns each such difference into one of those for m + 1, so the distance
    changes by at most one.

    Source: Dwork, Lei 2009, Sec. 5 (median, trimmed mean); the differences are those
    of Nissim, Raskhodnikova, Smith 2007, Sec. 3.1. Proof:
    docs/derivations/output-dp.md#trimmed-means.

    Checked by: tests/mechanisms/test_propose_test_release.py, against all replacements.

    Args:
        ordered: Sorted values in steps.
        window: Who counts.
        width: Largest jump that the noise hides, in steps.
    """
    people = len(ordered)
    ends = np.full(people, _BEYOND, np.int64)
    padded = np.concatenate([-ends, ordered, ends])

    def jumps(replaced: int) -> bool:
        up = np.arange(replaced + 1)
        tops = padded[people + window.last + up]
        bottoms = padded[people + window.first - up[::-1]]
        return bool((tops - bottoms).max() > width)

    # All places above the window, or all below it, lead beyond the data.
    farthest = min(people - window.last, window.first + 1)
    return 1 + bisect.bisect_left(range(1, farthest), x=True, key=jumps)


@draws_for(ProposeTestRelease, relation="replace-one")
def trimmed_mean(
    cost: ProposeTestRelease, values: NDArray[Any], *, bound: Number, trim: Number
) -> Drawn[float | None]:
    """Release the mean of the middle values by propose-test-release, or None.

    The running step must have declared `ProposeTestRelease` with one try, under a
    policy whose relation is replace-one. Noise hides a move by `bound`; whether one
    person could move the mean farther is tested.

    Source: Dwork, Lei 2009, Sec. 5, with a bound that is proposed from outside, say
    from the interquartile range; guarantee: docs/derivations/output-dp.md#trimmed-means
    and docs/derivations/output-dp.md#propose-test-release.

    Assumes: neighbours differ in one person's value (replace-one); how many people
    there are is public; the bound is public or computed from released outputs.

    Rounding: values down to a grid of 2**-10 of the bound, each on its own, and from
    there on none; the test's threshold and the noise's scale up. Values are clipped to
    2**48 bounds; those that are no numbers count as 0.

    Checked by: tests/mechanisms/test_propose_test_release.py.

    Args:
        cost: The cost of the running step.
        values: number[people], one for each person.
        bound: How far one person may move the mean; public, or computed from releases
            such as an `interquartile_range`.
        trim: Share of people to leave out at each end, below one half.

    Returns:
        The mean, or None where no answer is safe.

    Raises:
        ReleaseError: Outside a step with such a cost and relation, if the step has
            drawn noise already, or if the numbers cannot be used.
    """
    return _middle(cost, values, bound, trim)


@draws_for(ProposeTestRelease, relation="replace-one")
def median(
    cost: ProposeTestRelease, values: NDArray[Any], *, bound: Number
) -> Drawn[float | None]:
    """Release the median by propose-test-release, or None.

    As `trimmed_mean`, with the middle one alone (the lower one of two).

    Args:
        cost: The cost of the running step.
        values: number[people], one for each person.
        bound: How far one person may move the median; public, or computed from
            releases.

    Returns:
        The median, or None where no answer is safe.

    Raises:
        ReleaseError: As `trimmed_mean`.
    """
    return _middle(cost, values, bound, None)


def _middle(
    cost: ProposeTestRelease, values: NDArray[Any], bound: Number, trim: Number | None
) -> Drawn[float | None]:
    if cost.tries != 1:
        msg = "a second try needs another bound: declare tries=1 and ask again"
        raise PublicError(msg)
    proposed = exact_scale(bound, name="bound")
    ordered = np.sort(_steps(values, float(proposed)))
    people = len(ordered)
    window = Span.middle(people) if trim is None else Span.without(trim, people)
    width = GRID * window.size
    # The answer's noise is drawn in any case: how long this takes says less.
    (noise,) = integer_laplace(width / cost.epsilon, 1)
    if not passes(cost, distance(ordered, window, width)):
        return Drawn(None, "none")
    return Drawn(float((window.total(ordered) + noise) * proposed / width), "answer")


def _steps(values: NDArray[Any], bound: float) -> Whole:
    """Return values in whole steps of the grid, each of itself alone."""
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != 1 or not FEWEST_PEOPLE <= numbers.size <= MOST_PEOPLE:
        msg = f"give one value for each of {FEWEST_PEOPLE} to {MOST_PEOPLE} people"
        raise PublicError(msg)
    with np.errstate(over="ignore"):
        steps = np.floor(np.nan_to_num(numbers) / bound * GRID)
    return np.clip(steps, -_FARTHEST, _FARTHEST).astype(np.int64)
