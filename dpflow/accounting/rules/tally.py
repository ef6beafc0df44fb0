"""The additive vector of exact integers that a theorem keeps."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, le, sub

_new, _set = object.__new__, object.__setattr__


@dataclass(frozen=True, slots=True)
class Tally:
    """A vector of non-negative integers, the sufficient statistics of a theorem.

    Integers make reserve, settle and void exact inverses of each other: the order of
    charges does not matter and ten charges of 0.1 fit a budget of 1.

    Args:
        amounts: int[components], in units (`dpflow.rounding.UNITS`), or in
            plain counts for components that count steps.

    Raises:
        ValueError: If the amounts are no tuple, or one is not a non-negative `int`.
    """

    amounts: tuple[int, ...]

    def __post_init__(self) -> None:
        # A list could be changed after a decision, and has no hash.
        if not isinstance(self.amounts, tuple):
            msg = f"a tally's amounts are a tuple, got {type(self.amounts).__name__}"
            raise ValueError(msg)  # noqa: TRY004
        for amount in self.amounts:
            # `type is int`: a bool, a float or a numpy integer that wraps is no tally.
            if type(amount) is not int or amount < 0:
                msg = f"a tally holds non-negative integers, got {amount!r}"
                raise ValueError(msg)

    def __add__(self, other: Tally) -> Tally:
        """Return the component-wise sum."""
        if len(self.amounts) != len(other.amounts):
            raise _of_different(self.amounts, other.amounts)
        # What was checked of both holds for their sum.
        total = _new(Tally)
        _set(total, "amounts", (*map(add, self.amounts, other.amounts),))
        return total

    def __sub__(self, other: Tally) -> Tally:
        """Return the component-wise difference, which may not be negative."""
        if len(self.amounts) != len(other.amounts):
            raise _of_different(self.amounts, other.amounts)
        return Tally(tuple(map(sub, self.amounts, other.amounts)))

    def times(self, count: int) -> Tally:
        """Return the tally times a count."""
        return Tally(tuple(count * amount for amount in self.amounts))

    def fits_within(self, other: Tally) -> bool:
        """Return whether no component is larger than the other tally's."""
        return self.within(other.amounts)

    def within(self, limits: tuple[int, ...]) -> bool:
        """Return whether no component is above its limit."""
        if len(self.amounts) != len(limits):
            raise _of_different(self.amounts, limits)
        return all(map(le, self.amounts, limits))

    def highest(self, other: Tally) -> Tally:
        """Return the component-wise maximum."""
        if len(self.amounts) != len(other.amounts):
            raise _of_different(self.amounts, other.amounts)
        return Tally(tuple(map(max, self.amounts, other.amounts)))


def _of_different(first: tuple[int, ...], second: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"tallies of {len(first)} and {len(second)} components belong to different "
        "theorems"
    )
