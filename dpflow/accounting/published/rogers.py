"""The first filter and odometers of adaptive composition, for comparison."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.prices import approx_dp, probabilistic_dp
from dpflow.accounting.rules.rule import Filter, Odometer, share_used
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.time_uniform import (
    readable,
    target_epsilon,
    tune_variance,
    widen,
)
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    UNITS,
    Number,
    bound_above,
    exact,
    exact_delta,
    exact_epsilon,
    exact_rho,
    float_of_units,
    float_up,
    number_text,
    to_real,
    units_down,
    units_up,
)

#: 1/e, rounded down: the theorems hold below it.
_DELTA_HIGH = Fraction("0.367879441171442321595")
_PEOPLE_HIGH = Fraction(10**15)
#: Of V, in place of 1/n**2: that of n = 2, and that of the largest n.
_GRAIN_LOW, _GRAIN_HIGH = 1 / _PEOPLE_HIGH**2, Fraction(1, 4)
#: Solves 2 + log(1 + y) = y; V/y is the best beta for V, and 8 y is the paper's 28.04.
_BEST_RATIO = 3.505241495795883
#: Beyond this epsilon the drift is capped: its mean loss is epsilon at most.
_DRIFT_EPSILON_HIGH, _DRIFT_HIGH = 100, Fraction(10**40)


class RogersFilter(Filter):
    """Admit while drift + sqrt(2 (V + b)(1 + log(V/b + 1)/2) log(2/delta)) <= epsilon.

    Source: Rogers, Roth, Ullman, Vadhan 2016 (arXiv 1605.08294v1) Thm 5.1, with
    log(2/delta) inside the root: docs/derivations/composition.md#rogers-filter. V sums
    epsilon_i**2, the drift sums epsilon_i (exp(epsilon_i) - 1) / 2, and b is
    epsilon**2 / (28.04 log(1/delta)). `whitehouse` admits more; this one is for
    comparison.

    Assumes: each step is (epsilon_i, delta_i)-DP given the outputs before it. Half of
    delta is for the deltas of steps. 0 < delta < 1/e.

    Rounding: prices up; the root in floats, widened by a relative 1e-12 before the
    comparison.

    Checked by: tests/accounting/published/test_formulas.py.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1/e).
    """

    theorem = "rogers"
    components = ("epsilon_squared", "drift", "delta")

    def __init__(self, *, epsilon: Number, delta: Number) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = _small_delta(delta)
        self._limit = units_down(self.epsilon)
        self._room = units_down(self.delta / 2)
        self._log = _log_of(2 / self.delta)
        # Any fixed b is sound, so this one may be rounded either way.
        self._beta = float(self.epsilon**2) / (28.04 * _log_of(1 / self.delta))
        self._idle = self._width(0)

    def step_price(self, cost: Cost) -> Tally:
        """Return (epsilon**2, drift, delta) of the step."""
        epsilon, delta = approx_dp(cost)
        return Tally((units_up(epsilon**2), _drift(epsilon), units_up(delta)))

    def _width(self, variance: int) -> int:
        width = _boundary(variance / UNITS, self._beta, self._log)
        return units_up(Fraction(width))

    def admits(self, tally: Tally) -> bool:
        """Return whether the bound on the loss, rounded up, is at most epsilon."""
        variance, drift, spent = tally.amounts
        if spent > self._room or drift > self._limit:
            return False
        return drift + self._width(variance) <= self._limit

    def used_fraction(self, tally: Tally) -> float:
        """Return the larger share used, of delta/2 or of the room for the bound."""
        variance, drift, spent = tally.amounts
        bound = max(drift + self._width(variance) - self._idle, 0)
        return max(
            share_used(bound, self._limit - self._idle), share_used(spent, self._room)
        )


class RogersOdometer(Odometer):
    """Read drift + sqrt(2 (V + beta)(1 + log(V/beta + 1)/2) log(2/delta)).

    Source: Rogers, Roth, Ullman, Vadhan 2016 (arXiv 1605.08294v1) Lemma 6.4. With
    `people` instead of `beta`, Thm 6.5: a union over beta = 1/n**2, 2/n**2, 4/n**2, ...
    below 1, repaired to count all of them
    (docs/derivations/composition.md#union-of-betas). With `granularity`, the remark
    after it: that number in place of 1/n**2. V and the drift as in the `rogers`
    filter; the deltas of steps are added to the drift
    (docs/derivations/time-uniform.md#deltas-of-steps). `mixture` reads less; this one
    is for comparison.

    Assumes: each step is (epsilon_i, 0)-DP, or (epsilon_i, delta_i)-probabilistic DP,
    given the outputs before it. Half of delta is for the deltas of steps. 0 < delta <
    1/e; the constants are fixed in advance, and the number of people is public.
    Two-sided while no step has a delta, else one-sided.

    Rounding: prices up; the root in floats, widened by a relative 1e-12.

    Checked by: tests/accounting/published/test_formulas.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in (0, 1/e).
        beta: Constant of Lemma 6.4. Default: the best at a reading of
            `halt_at_epsilon`.
        people: Number of people (n of Thm 6.5), an integer, at least 2; give this or
            `beta`, or:
        granularity: Least V that is bounded closely, say the square of the first
            step's epsilon, in (0, 1/4].
        halt_at_epsilon: Reading to tune for; only used to derive beta.
    """

    theorem = "rogers"
    made_from = ("delta", "beta", "people", "granularity")
    components = ("epsilon_squared", "drift", "delta", "uncovered")

    def __init__(
        self,
        *,
        delta: Number,
        beta: Number | None = None,
        people: Number | None = None,
        granularity: Number | None = None,
        halt_at_epsilon: Number | None = None,
    ) -> None:
        self.delta: Fraction = _small_delta(delta)
        self._room = units_down(self.delta / 2)
        self.people = None if people is None else _whole(people)
        self._grain = _grain(beta, self.people, granularity)
        self.granularity = None if self.people else self._grain
        self.beta = None
        if self._grain is not None:
            self._log = _log_of(2 * _points(self._grain) / self.delta)
        else:
            self._log = _log_of(2 / self.delta)
            if beta is None:
                target = target_epsilon(self.theorem, "beta", halt_at_epsilon)
                beta = _tune_beta(target, self._log)
            self.beta = exact_rho(beta, name="beta")
        self._beta = float(self.beta or self._grain or 0)

    def step_price(self, cost: Cost) -> Tally:
        """Return (epsilon**2, drift, delta, 0) of the step."""
        epsilon, delta = probabilistic_dp(cost)
        return Tally((units_up(epsilon**2), _drift(epsilon), units_up(delta), 0))

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss so far."""
        variance, drift, spent, uncovered = tally.amounts
        if uncovered or spent > self._room:
            return float("inf")
        width = units_up(Fraction(self._width(variance)))
        return float_of_units(drift + spent + width)

    def _width(self, variance: int) -> float:
        spread, grain = variance / UNITS, self._grain
        if grain is not None and grain * UNITS <= variance <= UNITS:
            factor = 1 + math.log(3) / 2
            return widen(2 * math.sqrt(spread * factor * self._log))
        return _boundary(spread, self._beta, self._log)


def _boundary(variance: float, beta: float, log: float) -> float:
    """Return sqrt(2 (V + beta)(1 + log(V/beta + 1)/2) log), rounded up."""
    factor = 1 + math.log1p(variance / beta) / 2
    return widen(math.sqrt(2 * (variance + beta) * factor * log))


@lru_cache(maxsize=4096)
def _drift(epsilon: Fraction) -> int:
    """Return epsilon (exp(epsilon) - 1) / 2 in units, rounded up."""
    if epsilon > _DRIFT_EPSILON_HIGH:
        return units_up(_DRIFT_HIGH)

    def value(mp: Any) -> Any:
        real = to_real(mp, epsilon)
        return real * mp.expm1(real) / 2

    return units_up(min(bound_above(value), _DRIFT_HIGH))


def _log_of(value: Fraction) -> float:
    return float_up(bound_above(lambda mp: mp.log(to_real(mp, value))))


def _small_delta(delta: Number) -> Fraction:
    number = exact_delta(delta, zero=False)
    if number >= _DELTA_HIGH:
        msg = f"the rogers theorems need a delta below 1/e, got {number_text(number)}"
        raise InvalidCost(msg, name="delta", value=delta, high=_DELTA_HIGH)
    return number


def _whole(people: Number) -> int:
    number = exact(people, name="people", low=Fraction(2), high=_PEOPLE_HIGH)
    if number.denominator != 1:
        msg = f"people must be a whole number, got {number_text(number)}"
        raise InvalidCost(msg, name="people", value=people)
    return int(number)


def _grain(
    beta: Number | None, people: int | None, granularity: Number | None
) -> Fraction | None:
    """Return the least V of the union of betas, or None without a union."""
    options = {"beta": beta, "people": people, "granularity": granularity}
    names = [name for name, value in options.items() if value is not None]
    if len(names) > 1:
        msg = f"the rogers odometer takes {'= or '.join(names)}=, not both"
        raise InvalidCost(msg, name=names[1], value=options[names[1]])
    if people is not None:
        return Fraction(1, people**2)
    if granularity is None:
        return None
    return exact(granularity, name="granularity", low=_GRAIN_LOW, high=_GRAIN_HIGH)


def _points(granularity: Fraction) -> int:
    """Return how many betas 2**j * granularity lie below 1."""
    return (math.ceil(1 / granularity) - 1).bit_length()


def _tune_beta(epsilon: Fraction, log: float) -> Fraction:
    """Return the best beta at the V where the reading is epsilon, in small steps."""
    share = 1 / _BEST_RATIO
    factor = (1 + share) * (1 + math.log1p(_BEST_RATIO) / 2)
    return readable(float(tune_variance(epsilon, math.sqrt(2 * factor * log))) * share)
