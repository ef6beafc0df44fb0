"""The workloads and budgets of `admitted.py`, and how steps are counted.

Only the standard library: each peer imports this file in a virtual environment of its
own, without dpflow.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

#: How many of the workloads and budgets are taken: all, or one of each for a test.
_TAKEN = 1 if "DPFLOW_BENCH_SMALLEST" in os.environ else None

#: No count goes beyond this.
CAP = 10_000_000

#: (epsilon, delta), as text so that every library reads the same number.
BUDGETS = (("1", "1e-6"), ("5", "1e-6"), ("10", "1e-5"))[:_TAKEN]


@dataclass(frozen=True)
class Step:
    """One step, described without any library.

    Args:
        kind: "gaussian" (amount: sigma), "laplace", "pure", "exponential" (amount:
            epsilon) or "sampled" (a Poisson-sampled Gaussian; amount: sigma). The
            sensitivity is always 1.
        amount: The number that the kind asks for.
        rate: Sampling rate, of "sampled" only.
    """

    kind: str
    amount: str
    rate: str = "1"


@dataclass(frozen=True)
class Workload:
    """A cycle of steps, repeated until the budget is gone.

    Args:
        name: Heading of its column.
        meaning: What it is, in a sentence.
        cycle: The steps, in the order in which they run.
    """

    name: str
    meaning: str
    cycle: tuple[Step, ...]

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of steps in the cycle."""
        return frozenset(step.kind for step in self.cycle)

    def first(self, steps: int) -> list[tuple[Step, int]]:
        """Return the first so many steps: which, and how often each ran."""
        whole, rest = divmod(steps, len(self.cycle))
        times: dict[Step, int] = {}
        for place, step in enumerate(self.cycle):
            times[step] = times.get(step, 0) + whole + (place < rest)
        return [(step, n) for step, n in times.items() if n]

    def step(self, index: int) -> Step:
        """Return the step at a place, counted from 0."""
        return self.cycle[index % len(self.cycle)]


def _alone(name: str, meaning: str, step: Step) -> Workload:
    return Workload(name, meaning, (step,))


WORKLOADS = (
    _alone("G5", "Gaussian, sigma 5", Step("gaussian", "5")),
    _alone("G20", "Gaussian, sigma 20", Step("gaussian", "20")),
    _alone("G100", "Gaussian, sigma 100", Step("gaussian", "100")),
    _alone("L.01", "Laplace, epsilon 0.01", Step("laplace", "0.01")),
    _alone("L.1", "Laplace, epsilon 0.1", Step("laplace", "0.1")),
    _alone("L1", "Laplace, epsilon 1", Step("laplace", "1")),
    _alone("P.01", "any (0.01, 0)-DP step", Step("pure", "0.01")),
    _alone("P.1", "any (0.1, 0)-DP step", Step("pure", "0.1")),
    _alone("P1", "any (1, 0)-DP step", Step("pure", "1")),
    _alone("SGD", "DP-SGD: sampling rate 0.01, noise 1", Step("sampled", "1", "0.01")),
    _alone("EM.1", "exponential mechanism, range 0.1", Step("exponential", "0.1")),
    Workload(
        "mixed",
        "Gaussian 20, Laplace 0.1, (0.05, 0)-DP, exponential mechanism 0.1, in turn",
        (
            Step("gaussian", "20"),
            Step("laplace", "0.1"),
            Step("pure", "0.05"),
            Step("exponential", "0.1"),
        ),
    ),
)[:_TAKEN]


#: Workloads with budgets of their own that took no part in choosing any default.
FURTHER = (
    (
        _alone("", "DP-SGD: rate 0.01, noise 0.8", Step("sampled", "0.8", "0.01")),
        "2",
        "1e-6",
    ),
    (
        _alone("", "DP-SGD: rate 0.001, noise 1", Step("sampled", "1", "0.001")),
        "3",
        "1e-6",
    ),
    (
        _alone("", "DP-SGD: rate 0.02, noise 2", Step("sampled", "2", "0.02")),
        "1",
        "1e-5",
    ),
    (_alone("", "Gaussian, sigma 50", Step("gaussian", "50")), "0.5", "1e-8"),
    (_alone("", "Laplace, epsilon 0.001", Step("laplace", "0.001")), "0.1", "1e-6"),
    (
        _alone("", "exponential mechanism, range 0.5", Step("exponential", "0.5")),
        "3",
        "1e-6",
    ),
    (
        Workload(
            "",
            "Gaussian 30, (0.02, 0)-DP, exponential mechanism 0.2, in turn",
            (Step("gaussian", "30"), Step("pure", "0.02"), Step("exponential", "0.2")),
        ),
        "1.5",
        "1e-7",
    ),
    (
        Workload(
            "",
            "DP-SGD (rate 0.01, noise 1), Laplace 0.05, in turn",
            (Step("sampled", "1", "0.01"), Step("laplace", "0.05")),
        ),
        "4",
        "1e-5",
    ),
)[:_TAKEN]


def largest(fits: Callable[[int], bool], guess: int | None = None) -> int:
    """Return the largest number of steps that fits, by doubling and bisection.

    Args:
        fits: Whether so many steps fit; once it is false it stays so.
        guess: Where to look first, for functions that take long.
    """
    if guess is not None and guess >= 0 and (guess == 0 or fits(guess)):
        low, ahead = guess, 1
    else:
        low, ahead = 0, 1
    while low + ahead <= CAP and fits(low + ahead):
        low, ahead = low + ahead, 2 * ahead
    high = min(low + ahead, CAP + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def stepwise(admit: Callable[[Step], bool], workload: Workload, most: int) -> int:
    """Return how many steps pass one after another, at most `most`."""
    for index in range(most):
        if not admit(workload.step(index)):
            return index
    return most
