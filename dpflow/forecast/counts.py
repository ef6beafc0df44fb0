"""How often steps are admitted, one after another, from where an account stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.costs.base import Cost, Outcome
from dpflow.accounting.rules.tally import Tally

#: A count above this is said to have no end.
NO_END = 10**12


@dataclass(frozen=True, slots=True)
class WorkloadStep:
    """A step of a workload.

    Attributes:
        cost: Its worst case, which is reserved.
        times: How often it runs.
        outcome: How it comes out each time: sub-steps that ran, or the cell of its
            output. None: it settles in full.
    """

    cost: Cost
    times: int = 1
    outcome: Outcome | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the step for programs."""
        return {"cost": repr(self.cost), "times": self.times, "outcome": self.outcome}


Workload = tuple[WorkloadStep, ...]
#: What is reserved and posted for a step where so much is used.
Ask = Callable[[WorkloadStep, Tally], tuple[Tally, Tally]]
#: From what is used to what is used afterwards; None if it is refused.
Once = Callable[[Tally], Tally | None]


def times(tally: Tally, count: int) -> Tally:
    """Return a tally that was added so many times."""
    return Tally(tuple(count * amount for amount in tally.amounts))


def count_admitted(admits: Callable[[int], bool]) -> int | None:
    """Return the largest count that a gate admits; None if there is no end.

    Args:
        admits: Says whether so many are admitted, from 1 on. It must be monotone: once
            it refuses, it refuses every larger number.
    """
    # Double until it refuses, then halve the interval.
    low, high = 0, 1
    while admits(high):
        low, high = high, 2 * high
        if low > NO_END:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admits(middle) else (low, middle)
    return low


def repeated(once: Once, total: Tally, most: int = NO_END) -> tuple[Tally, int]:
    """Do again and again what costs more as more is used.

    What is equal in a row is taken at once: prices never fall, so those between two
    equal ones are equal.

    Args:
        once: From what is used to what is used after it; None if that is refused.
        total: What is used at first.
        most: How often at most.

    Returns:
        What is used then, and how often it was admitted.
    """
    found = 0
    while found < most and (after := once(total)) is not None:
        fit = _alike(once, total, after - total, most - found)
        total, found = total + times(after - total, fit), found + fit
    return total, found


def _alike(once: Once, total: Tally, each: Tally, most: int) -> int:
    """Count how often the same is added in a row, at most `most` times."""

    def same(count: int) -> bool:
        before = total + times(each, count - 1)
        return count <= most and once(before) == before + each

    return count_admitted(same) or most


def in_turn(ask: Ask, admits: Callable[[Tally], bool], step: WorkloadStep) -> Once:
    """Return what one execution of a step makes of what is used."""

    def once(used: Tally) -> Tally | None:
        reserved, posted = ask(step, used)
        return used + posted if admits(used + reserved) else None

    return once


def round_of(ask: Ask, admits: Callable[[Tally], bool], workload: Workload) -> Once:
    """Return what a whole workload makes of what is used."""

    def once(used: Tally) -> Tally | None:
        for step in workload:
            used, fit = repeated(in_turn(ask, admits, step), used, step.times)
            if fit < step.times:
                return None
        return used

    return once
