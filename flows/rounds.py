"""Training in rounds, each of which may depend on earlier releases.

A filter and an odometer stay valid if decisions depend on releases only. `Strategy`
defines how a round's cost follows progress: in notches of saving, each of which is a
little more noise or a smaller batch. It reads noisy counts only, and every count is
charged like a round. `Meter` adds up costs by public arithmetic and counts the rounds
that still fit. `train` is the loop, for flows with DP steps and for studies of public
data without a budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpflow import Cost, Gaussian
from dpflow.accounting import make_filter, make_odometer


@dataclass(frozen=True, slots=True)
class Share:
    """What a policy gives a flow: the filter, and where the odometer halts."""

    filter: str
    epsilon: str
    delta: str
    halt: str


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the cost of a round follows progress, in notches of saving.

    Attributes:
        name: Part of the release keys.
        first: Notches of the first round.
        saves: Whether a notch is added after significant progress.
        spends: Whether a round without progress removes a notch.
        most: The most notches.
        goal: Share of the people that is good enough to end.
    """

    name: str
    first: int = 0
    saves: bool = False
    spends: bool = False
    most: int | None = None
    goal: float | None = None

    @property
    def counts(self) -> bool:
        """Whether it needs counts."""
        return self.saves or self.spends or self.goal is not None

    def after(self, notch: int, *, gained: bool, room: bool) -> int:
        """Return the notch of the next rounds.

        Args:
            notch: Of the last ones.
            gained: Whether the count rose significantly.
            room: Whether enough rounds would still fit for a saving to be of use.
        """
        if not gained:
            return max(0, notch - self.spends)
        more = notch + (self.saves and room)
        return more if self.most is None else min(more, self.most)


@dataclass(frozen=True, slots=True)
class Course:
    """What is public of a training.

    Attributes:
        people: How many are trained on.
        share: What may be spent.
        cost: Of a round at a notch.
        count: The noise of a count of the people for whom a model is right.
        room: Number of further rounds that must fit before a notch is saved.
        every: Number of rounds between counts.
        most: There are no more rounds than that.
    """

    people: int
    share: Share
    cost: Callable[[int], Cost]
    count: Gaussian
    room: int
    every: int = 1
    most: int | None = None

    @property
    def significant(self) -> float:
        """Three standard deviations of the difference of two counts.

        Noise alone reaches that once in 700 counts.
        """
        return 3 * math.sqrt(2) * float(self.count.sigma)


class Meter:
    """What was spent, by public arithmetic: what fits, and what the odometer reads."""

    def __init__(self, share: Share) -> None:
        self._filter = make_filter(
            share.filter, epsilon=share.epsilon, delta=share.delta
        )
        self._odometer = make_odometer(
            "rdp", delta=share.delta, halt_at_epsilon=share.halt
        )
        self._spent, self._lost = self._filter.zero(), self._odometer.zero()

    def fits(self, *costs: Cost) -> bool:
        """Say whether the filter admits all of these."""
        return self._filter.admits(sum(map(self._filter.price, costs), self._spent))

    def charge(self, cost: Cost) -> None:
        """Add a cost."""
        self._spent += self._filter.price(cost)
        self._lost += self._odometer.price(cost)

    def reading(self) -> float:
        """Return the odometer's reading: a bound on the loss, at any time."""
        return self._odometer.read(self._lost)

    def used(self) -> float:
        """Return the share of the filter's budget that was used."""
        return float(self._spent.amounts[0] / self._filter.thresholds[0])  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of training.

    Attributes:
        notch: Notches of saving.
        weights: The released model after it.
        counted: The released count, or None.
        reading: What the odometer reads after it.
        used: The share of the filter's budget that is used after it.
    """

    notch: int
    weights: Any
    counted: int | None
    reading: float
    used: float


#: Takes the number of a round, its notch and a model; returns the next model.
Descend = Callable[[int, int, Any], Any]
#: Takes the number of a round and a model; returns a noisy count.
Count = Callable[[int, Any], int]


def train(
    strategy: Strategy, course: Course, start: Any, descend_by: Descend, count_by: Count
) -> list[Round]:
    """Train round after round, until the goal or until no more round fits.

    Args:
        strategy: How the cost of a round follows progress.
        course: What is public.
        start: The first model.
        descend_by: Runs a round.
        count_by: Counts with noise.
    """
    meter, notch, best = Meter(course.share), strategy.first, 0
    rounds: list[Round] = []
    weights = start
    while len(rounds) != course.most:
        number = len(rounds) + 1
        looks = strategy.counts and number % course.every == 0
        test = (course.count,) if looks else ()
        if not meter.fits(course.cost(notch), *test):
            break
        weights = descend_by(number, notch, weights)
        counted = count_by(number, weights) if looks else None
        for cost in (course.cost(notch), *test):
            meter.charge(cost)
        rounds.append(Round(notch, weights, counted, meter.reading(), meter.used()))
        if counted is None:
            continue
        if strategy.goal is not None and counted >= strategy.goal * course.people:
            break
        room = meter.fits(*(course.room * (course.cost(notch), *test)))
        gained = counted >= best + course.significant
        notch = strategy.after(notch, gained=gained, room=room)
        best = max(best, counted)
    return rounds
