"""The interquartile range by propose-test-release: an answer only where one is safe.

The logarithm of the range is sorted into bins of width one. If many people would have
to be replaced before it leaves its bin, noise of the bin's width hides everybody; how
many that is, is tested with noise. Where the range lies near the edge of a bin, a
second try with bins shifted by one half can still answer.
"""

from __future__ import annotations

import bisect
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.noise import Laplace
from dpflow.accounting.costs.outcomes import ProposeTestRelease
from dpflow.exceptions import PublicError
from dpflow.mechanisms.drawn import Drawn, draws_for
from dpflow.mechanisms.rows import Floats
from dpflow.noise.draws import add_noise
from dpflow.rounding import bound_above, float_up, to_real

FEWEST_PEOPLE = 8
#: Values are clipped to here; ranges outside the next two are in the outermost bins.
_FARTHEST = 1e300
_SMALLEST, _LARGEST = 1e-100, 1e100
_ROUNDED = Fraction(1, 2**50)


class Bins:
    """Bins of the logarithm of a range, each of width one; public.

    Args:
        base: Of the logarithm, in [1.0001, 1000].
        shift: The edges are at whole numbers plus this, in [0, 1).

    Attributes:
        first: The lowest inner edge, in the logarithm.
        edges: The inner edges, as ranges. The lowest bin starts at 0, the highest has
            no end.

    Raises:
        ReleaseError: If base or shift is out of range.
    """

    def __init__(self, base: float, shift: float) -> None:
        if not 1.0001 <= base <= 1000 or not 0 <= shift < 1:  # noqa: PLR2004
            msg = "the bins need a base in [1.0001, 1000] and a shift in [0, 1)"
            raise PublicError(msg)
        self.base = base
        self.first = math.floor(math.log(_SMALLEST, base)) + shift
        self.edges = [base**self.first]
        while self.edges[-1] <= _LARGEST:
            self.edges.append(base ** (self.first + len(self.edges)))

    def bin(self, spread: float) -> int:
        """Return the number of the bin that a range is in."""
        return bisect.bisect_right(self.edges, spread)

    def within(self, number: int) -> tuple[float, float]:
        """Return the ranges at which a bin starts, and before which it ends."""
        low = self.edges[number - 1] if number else 0.0
        high = self.edges[number] if number < len(self.edges) else math.inf
        return low, high

    def logarithm(self, spread: float) -> float:
        """Return the logarithm of a range, no farther than one from all of its bin."""
        start = self.first - 1 + self.bin(spread)
        value = math.log(spread, self.base) if spread > 0 else -math.inf
        return min(max(value, start), start + 1)


def quartiles(people: int) -> tuple[int, int]:
    """Return the places of the quartiles among sorted values, counted from 0."""
    return -(-people // 4) - 1, -(-3 * people // 4) - 1


def spread_of(ordered: Floats) -> float:
    """Return the interquartile range of sorted values."""
    low, high = quartiles(len(ordered))
    return float(ordered[high] - ordered[low])


def distance(ordered: Floats, bins: Bins) -> int:
    """Return how many people must be replaced until the range leaves its bin.

    Exactly: with m replaced, j of them beyond the top and m - j beyond the bottom, the
    quartiles move out by j and m - j places, and no replacement moves them farther;
    with j taken from above the upper and m - j from below the lower quartile they move
    in by as many. Being a distance to a set of datasets, it changes by at most one when
    one person is replaced.

    Source: Dwork, Lei 2009, Sec. 4; the sliding windows of their A.

    Checked by: tests/mechanisms/test_propose_test_release.py, against all replacements.

    Args:
        ordered: Finite values, sorted.
        bins: The bins.
    """
    low, high = bins.within(bins.bin(spread_of(ordered)))
    first, last = quartiles(len(ordered))
    # Beyond these a quartile can be put anywhere, or both in one place.
    farthest = max(len(ordered) - last, first + 1, last - first)
    outside = np.concatenate(
        [np.full(farthest, -np.inf), ordered, np.full(farthest, np.inf)]
    )

    def leaves(replaced: int) -> bool:
        up = np.arange(replaced + 1)
        tops = outside[farthest + last + up]
        bottoms = outside[farthest + first - up[::-1]]
        if (tops - bottoms).max() >= high:
            return True
        if replaced >= last - first:
            return low > 0
        tops, bottoms = ordered[last - up], ordered[first + up[::-1]]
        return bool((tops - bottoms).min() < low)

    return 1 + bisect.bisect_left(range(1, farthest + 1), x=True, key=leaves)


@draws_for(ProposeTestRelease, relation="replace-one")
def interquartile_range(
    cost: ProposeTestRelease,
    values: NDArray[Any],
    *,
    base: float | None = None,
    shift: float = 0.0,
) -> Drawn[float | None]:
    """Release an interquartile range by propose-test-release, or None.

    The running step must have declared `ProposeTestRelease`, under a policy whose
    relation is replace-one. With `tries=2` the second try has its bins shifted by one
    half; two steps with `tries=1`, the second after None with `shift=0.5`, do the same.

    Source: Dwork, Lei 2009, Alg. S; guarantee: docs/derivations/output-dp.md#two-tries
    and docs/derivations/output-dp.md#propose-test-release.

    Assumes: neighbours differ in one person's value (replace-one); how many people
    there are is public.

    Rounding: the test's threshold up; the logarithm stays within its bin. Values are
    clipped to 1e300, and those that are no numbers count as 0.

    Checked by: tests/mechanisms/test_propose_test_release.py.

    Args:
        cost: The cost of the running step.
        values: number[people], one for each person.
        base: Answers are within such factors of the truth; default: 1 + 1 / log of the
            number of people.
        shift: Of the bins of the first try, in [0, 1).

    Returns:
        The range, or None where no answer is safe.

    Raises:
        ReleaseError: Outside a step with such a cost and relation, if the step has
            drawn noise already, or if the values or bins cannot be used.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != 1 or numbers.size < FEWEST_PEOPLE:
        msg = f"a range needs one value for each of {FEWEST_PEOPLE} or more people"
        raise PublicError(msg)
    numbers = np.clip(np.nan_to_num(numbers), -_FARTHEST, _FARTHEST)
    chosen = 1 + 1 / math.log(numbers.size) if base is None else base
    # Half a bin further is half a bin back.
    shifts = (shift, shift - 0.5 if shift >= 0.5 else shift + 0.5)  # noqa: PLR2004
    tries = [Bins(chosen, offset) for offset in shifts[: cost.tries]]
    ordered = np.sort(numbers)
    for number, bins in enumerate(tries):
        # The answer's noise is drawn in any case: how long this takes says less.
        noise = Laplace(sensitivity=1, epsilon=cost.epsilon)
        power: float = add_noise(noise, bins.logarithm(spread_of(ordered)))
        if passes(cost, distance(ordered, bins)):
            limit = 700 / math.log(bins.base)
            answer = float(bins.base ** min(max(power, -limit), limit))
            return Drawn(answer, cost.answer_cell(number))
    return Drawn(None, "none")


def passes(cost: ProposeTestRelease, far: int) -> bool:
    """Return True if a distance is far enough, with noise."""
    room: float = add_noise(Laplace(sensitivity=1, epsilon=cost.epsilon), float(far))
    return room > passing(cost)


def passing(cost: ProposeTestRelease) -> float:
    """Return what the noisy distance must exceed: 1 + log(1 / (2 delta)) / epsilon.

    A wrong proposal has the distance 1, and the noise is above x >= 0 with probability
    e^(-x epsilon) / 2. Raised by more than a float of the sum is rounded.
    """

    def bound(mp: Any) -> Any:
        tail = -mp.log(2 * to_real(mp, cost.delta)) / to_real(mp, cost.epsilon)
        return 1 + max(tail, 0)

    return float_up(bound_above(bound) * (1 + _ROUNDED))
