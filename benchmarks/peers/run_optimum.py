"""What the best accountant could admit if the sequence were fixed in advance.

No filter: a ceiling for all of them. Gaussians and (epsilon, 0)-DP steps by their exact
curves, the others by privacy loss distributions on a grid so fine that half of it gives
the same number (else the answer says so).

An exponential mechanism of range eta has losses in [t - eta, t] for some t that is not
known. "optimum": the analyst chooses t at each step, knowing the outputs before it, for
that is what a sequence allows: the recursion of Dong, Durfee, Rogers 2020 (arXiv
1909.13830) for an analyst who keeps to a grid of t, a strategy that exists; so no sound
rule admits more. Other steps come first, which is worst. "EM not adaptive": all t are
fixed in advance, and then the same t for all is worst (their Thm 2); a sequence that
admits so many is wrong if the mechanisms look at earlier outputs. The last row takes it
as any (eta, 0)-DP step.
"""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
from answers import (
    FIXED,
    Fits,
    NotOfferedError,
    Rule,
    Step,
    Workload,
    always,
    answer,
    largest,
)
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import gammaln, log_ndtr, ndtr

COARSE = 1e-3
FINEST = 4e-6
_WORST = 24  # values of t tried
_CELLS = 64  # of a range, for adaptive t
_HIGH = 26.0  # losses above are taken as harmless


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the delta of mu-GDP (Balle, Wang 2018)."""
    above = ndtr(mu / 2 - epsilon / mu)
    return float(above - math.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu)))


def two_point_delta(high: float, low: float, steps: int, epsilon: float) -> float:
    """Return the delta of steps whose loss is `high` or `low` (which is negative)."""
    # p exp(-high) + (1 - p) exp(-low) = 1
    p = math.expm1(-low) / (math.exp(-low) - math.exp(-high))
    k = np.arange(steps + 1)
    loss = (steps - k) * high + k * low
    ways = gammaln(steps + 1) - gammaln(k + 1) - gammaln(steps - k + 1)
    mass = np.exp(ways + (steps - k) * math.log(p) + k * math.log1p(-p))
    over = loss > epsilon
    return float(mass[over] @ -np.expm1(epsilon - loss[over]))


def range_delta(eta: float, steps: int, epsilon: float) -> float:
    """Return the delta of steps of bounded range, the worst t for all of them."""

    def at(t: float) -> float:
        return two_point_delta(t, t - eta, steps, epsilon)

    tries = np.linspace(0, eta, _WORST + 2)[1:-1]
    best = max(tries, key=at)
    width = eta / (_WORST + 1)
    fine = np.linspace(max(best - width, 1e-9), min(best + width, eta - 1e-9), 81)
    return max(at(t) for t in fine)


class Chooser:
    """What an analyst reaches who chooses t at each step, on a grid.

    Args:
        eta: The range of the steps.
    """

    def __init__(self, eta: float) -> None:
        self.step = eta / _CELLS
        self._points = math.ceil(_HIGH / self.step)
        t = np.arange(_CELLS + 1) * self.step
        self._upper = np.expm1(t - eta) / math.expm1(-eta)
        self._values = [np.zeros(self._points)]

    def after(self, steps: int) -> Any:
        """Return the delta of so many steps at losses 0, 1, ... times the step."""
        while len(self._values) <= steps:
            self._values.append(self.further(self._values[-1]))
        return self._values[steps]

    def further(self, values: Any) -> Any:
        """Return the delta of one step more."""
        low = -np.arange(_CELLS, 0, -1) * self.step
        mirrored = -np.expm1(low) + np.exp(low) * values[_CELLS:0:-1]
        known = np.concatenate([mirrored, values, np.zeros(_CELLS)])
        best = np.zeros(self._points)
        for place, upper in enumerate(self._upper):
            first = _CELLS - place
            near = known[first : first + self._points]
            far = known[first + _CELLS : first + _CELLS + self._points]
            np.maximum(best, far + upper * (near - far), out=best)
        return best

    def count(self, epsilon: float, delta: float) -> int:
        """Return how many steps have at most this delta."""
        steps, values = 0, self.further(np.zeros(self._points))
        while values[round(epsilon / self.step)] <= delta:
            steps, values = steps + 1, self.further(values)
        return steps

    def mean(self, distribution: Any, steps: int, epsilon: float) -> float:
        """Return the delta of other steps, then so many of this range."""
        pmf = distribution._pmf_remove.to_dense_pmf()  # noqa: SLF001
        losses = np.arange(len(pmf._probs)) + pmf._lower_loss  # noqa: SLF001
        left = epsilon - losses * pmf._discretization  # noqa: SLF001
        places = np.arange(self._points) * self.step
        value = np.interp(np.abs(left), places, self.after(steps), right=0.0)
        low = np.minimum(left, 0.0)
        value = np.where(left < 0, -np.expm1(low) + np.exp(low) * value, value)
        return float(pmf._probs @ value + pmf._infinity_mass)  # noqa: SLF001


def two_point(high: float, low: float, interval: float) -> Any:
    """Return the distribution of a step with two losses, both on the grid."""
    p = math.expm1(-low) / (math.exp(-low) - math.exp(-high))
    masses = {round(high / interval): p, round(low / interval): 1 - p}
    return pld.PrivacyLossDistribution(pld_pmf.create_pmf(masses, interval, 0.0, True))


@lru_cache
def _alone(step: Step, interval: float, t: float | None) -> Any:
    amount = float(step.amount)
    if step.kind == "laplace":
        return pld.from_laplace_mechanism(
            1 / amount, value_discretization_interval=interval
        )
    if step.kind == "sampled":
        return pld.from_gaussian_mechanism(
            amount,
            sampling_prob=float(step.rate),
            value_discretization_interval=interval,
        )
    if step.kind == "exponential" and t is not None:
        return two_point(t, t - amount, interval)
    return two_point(amount, -amount, interval)


def _composed(
    workload: Workload,
    steps: int,
    interval: float,
    t: float | None,
    without: str | None = None,
) -> Any:
    whole = pld.identity(value_discretization_interval=interval)
    for step, times in workload.first(steps):
        if step.kind == without:
            continue
        if step.kind == "gaussian":
            part = pld.from_gaussian_mechanism(
                float(step.amount) / math.sqrt(times),
                value_discretization_interval=interval,
            )
        else:
            part = _alone(step, interval, t).self_compose(times)
        whole = whole.compose(part)
    return whole


@lru_cache
def _chooser(eta: float) -> Chooser:
    return Chooser(eta)


def _adaptively(
    workload: Workload, epsilon: float, delta: float, interval: float
) -> Fits:
    eta = next(float(s.amount) for s in workload.cycle if s.kind == "exponential")

    def fits(steps: int) -> bool:
        ranges = sum(n for s, n in workload.first(steps) if s.kind == "exponential")
        others = _composed(workload, steps, interval, None, "exponential")
        return _chooser(eta).mean(others, ranges, epsilon) <= delta

    return fits


def _on_grid(
    workload: Workload, epsilon: float, delta: float, interval: float, *, worst: bool
) -> Fits:
    ranges = [float(s.amount) for s in workload.cycle if s.kind == "exponential"]
    tries: list[float | None] = [None]
    if worst and ranges:
        # Near the middle; multiples of the coarsest grid.
        places = range(30, 71, 4)
        tries = [round(ranges[0] * place / 100 / COARSE) * COARSE for place in places]
        tries = sorted(set(tries))

    def fits(steps: int) -> bool:
        return all(
            _composed(workload, steps, interval, t).get_delta_for_epsilon(epsilon)
            <= delta
            for t in tries
        )

    return fits


def adaptive_ceiling(workload: Workload, epsilon: float, delta: float) -> Fits:
    """Return the test of the optimum where every t may depend on earlier outputs."""
    if "exponential" not in workload.kinds:
        return ceiling(workload, epsilon, delta, worst=True)
    if len(workload.kinds) == 1:
        steps = Chooser(float(workload.cycle[0].amount)).count(epsilon, delta)
    else:
        steps = largest(_adaptively(workload, epsilon, delta, COARSE / 2))
        finer = largest(_adaptively(workload, epsilon, delta, COARSE / 8), steps)
        if finer != steps:
            msg = f"{steps} steps on one grid, {finer} on a finer one"
            raise AssertionError(msg)
    return lambda n: n <= steps


def _fixed_ceiling(workload: Workload, epsilon: float, delta: float) -> Fits:
    if "exponential" not in workload.kinds:
        msg = "the same as optimum"
        raise NotOfferedError(msg)
    return ceiling(workload, epsilon, delta, worst=True)


def ceiling(workload: Workload, epsilon: float, delta: float, *, worst: bool) -> Fits:
    """Return the test where one `worst` t is fixed, or any (epsilon, 0)-DP step."""
    only = next(iter(workload.kinds)) if len(workload.kinds) == 1 else None
    if worst is False and "exponential" not in workload.kinds:
        msg = "the same as optimum"
        raise NotOfferedError(msg)
    each = float(workload.cycle[0].amount)
    if only == "gaussian":
        return lambda n: gaussian_delta(math.sqrt(n) / each, epsilon) <= delta
    if only == "exponential" and worst:
        return lambda n: range_delta(each, n, epsilon) <= delta
    if only in {"pure", "exponential"}:
        return lambda n: two_point_delta(each, -each, n, epsilon) <= delta
    return _finer(workload, epsilon, delta, worst=worst)


@lru_cache
def _settled(workload: Workload, epsilon: float, delta: float, *, worst: bool) -> int:
    """Return the count on grids that are halved until it stays the same."""
    narrow = min(float(s.amount) for s in workload.cycle if s.kind != "gaussian")
    interval = min(COARSE, 2.0 ** math.floor(math.log2(narrow / 100)))
    if len(workload.kinds) > 1:
        interval = COARSE / 2
    found = largest(_on_grid(workload, epsilon, delta, interval, worst=worst))
    before = None
    while found != before and interval > FINEST:
        interval /= 2
        fits = _on_grid(workload, epsilon, delta, interval, worst=worst)
        before, found = found, largest(fits, found)
    return found


def _finer(workload: Workload, epsilon: float, delta: float, *, worst: bool) -> Fits:
    steps = _settled(workload, epsilon, delta, worst=worst)
    return lambda n: n <= steps


RULES = (
    Rule("optimum", always(FIXED), adaptive_ceiling),
    Rule("optimum, EM not adaptive", always(FIXED), _fixed_ceiling),
    Rule(
        "optimum, EM as (eps, 0)-DP",
        always(FIXED),
        lambda w, e, d: ceiling(w, e, d, worst=False),
    ),
)

if __name__ == "__main__":
    answer("fixed sequence", version("dp-accounting"), RULES)
