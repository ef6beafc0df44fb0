"""diffprivlib: its accountant takes the least of three bounds on (epsilon, delta).

The slack and, for Gaussians, the split of delta are searched in a copy of its formula;
what is reported is decided by the accountant itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version

import numpy as np
from answers import (
    ADAPTIVE,
    FIXED,
    Fits,
    NotOfferedError,
    Rule,
    Step,
    Workload,
    always,
    answer,
    largest,
    largest_within,
)
from diffprivlib import BudgetAccountant
from diffprivlib.utils import BudgetError
from scipy.special import log_ndtr, ndtr

SLACKS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)
_BELOW = 1 - 1e-9


@lru_cache(maxsize=100_000)
def gaussian_epsilon(sigma: float, delta: float) -> float:
    """Return the epsilon of a Gaussian at delta (Balle, Wang 2018)."""
    mu = 1 / sigma

    def minus_delta(epsilon: float) -> float:
        above = ndtr(mu / 2 - epsilon / mu)
        return -float(above - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))

    # The largest epsilon whose delta is still too large, rounded up by a little.
    return largest_within(minus_delta, -delta, 0.0, 100.0) * (1 + 1e-9)


def _spend(step: Step, delta: float) -> tuple[float, float]:
    if step.kind == "gaussian":
        return gaussian_epsilon(float(step.amount), delta), delta
    if step.kind == "sampled":
        msg = "diffprivlib's accountant has no Poisson-sampled Gaussian"
        raise NotOfferedError(msg)
    return float(step.amount), 0.0


def _total(spends: list[tuple[float, int]], slack: float) -> float:
    """Return the epsilon of the accountant's formula."""
    epsilons = np.array([epsilon for epsilon, _ in spends])
    times = np.array([n for _, n in spends])
    plain = float(times @ epsilons)
    if slack == 0:
        return plain
    drift = float(times @ (epsilons * np.tanh(epsilons / 2)))
    square = float(times @ epsilons**2)
    drv = drift + math.sqrt(2 * square * math.log(1 / slack))
    inner = math.e + math.sqrt(square) / slack
    return min(plain, drv, drift + math.sqrt(2 * square * math.log(inner)))


def _each(workload: Workload, steps: int, rest: float) -> float:
    """Return the delta of each Gaussian among the first steps."""
    shared = sum(n for step, n in workload.first(steps) if step.kind == "gaussian")
    return rest / max(shared, 1) * _BELOW


def _by_formula(workload: Workload, epsilon: float, delta: float, slack: float) -> int:
    def fits(steps: int) -> bool:
        each = _each(workload, steps, delta - slack)
        spends = [(_spend(s, each)[0], n) for s, n in workload.first(steps)]
        return _total(spends, slack) <= epsilon

    return largest(fits)


def _accepts(
    workload: Workload, epsilon: float, delta: float, slack: float, steps: int
) -> bool:
    """Ask the accountant itself about so many steps."""
    each = _each(workload, steps, delta - slack)
    spends = [
        spend for s, n in workload.first(steps) for spend in [_spend(s, each)] * n
    ]
    total = BudgetAccountant(delta=delta).total(spent_budget=spends, slack=slack)
    return bool(total[0] <= epsilon and total[1] <= delta)


def fits_with(slacks: tuple[float, ...]) -> Callable[[Workload, float, float], Fits]:
    """Return the test of the accountant with the best of some slacks."""

    def make(workload: Workload, epsilon: float, delta: float) -> Fits:
        slack = _best(workload, epsilon, delta, slacks)
        return lambda n: _accepts(workload, epsilon, delta, slack, n)

    return make


@lru_cache
def _best(
    workload: Workload, epsilon: float, delta: float, slacks: tuple[float, ...]
) -> float:
    shares = [share * delta for share in slacks]
    if not workload.kinds & {"gaussian", "sampled"} and slacks != (0,):
        shares += [delta]
    return max(shares, key=lambda slack: _by_formula(workload, epsilon, delta, slack))


def admit_with(
    slacks: tuple[float, ...],
) -> Callable[[Workload, float, float, int], Callable[[Step], bool]]:
    """Return a maker of real accountants with the best of some slacks."""

    def make(
        workload: Workload, epsilon: float, delta: float, steps: int
    ) -> Callable[[Step], bool]:
        slack = _best(workload, epsilon, delta, slacks)
        each = _each(workload, steps, delta - slack)
        accountant = BudgetAccountant(epsilon, delta, slack)

        def admit(step: Step) -> bool:
            try:
                accountant.spend(*_spend(step, each))
            except BudgetError:
                return False
            return True

        return admit

    return make


RULES = (
    Rule("sum (no slack)", always(ADAPTIVE), fits_with((0,)), admit_with((0,))),
    Rule(
        "best slack", always(FIXED), fits_with((0, *SLACKS)), admit_with((0, *SLACKS))
    ),
)

if __name__ == "__main__":
    answer("diffprivlib", version("diffprivlib"), RULES)
