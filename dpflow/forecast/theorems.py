"""What other theorems would admit, and the budget that would have been enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting import FILTERS, LISTING, Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import PoissonSampledGaussian
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.searches import NO_END, most_steps
from dpflow.exceptions import ConfigurationError, InvalidCost, UnsupportedCost
from dpflow.forecast.counting import Workload, runs_of

#: Budgets between which a theorem's need is searched, and how closely.
_MOST, _CLOSE, _NEXT = Fraction(10**4), Fraction(1005, 1000), Fraction(996, 1000)
#: A share of a budget that is aimed at, a power that is none, and the most guesses.
_ALMOST, _FLAT, _TRIES = 0.995, 0.01, 60
#: Orders that are tried for sampled steps, whose prices are exact at whole ones.
_ORDERS = (*range(2, 33), 40, 48, 64)
#: Steps of a sequence, at most.
_LONGEST = 10**6
_NO_SUM = "it keeps a tally for each person, so a list of steps does not say what fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How often a workload fits under one filter.

    Attributes:
        theorem: The filter's name.
        rounds: How often the whole workload fits; None if there is no end.
        problem: Why the theorem has no price for it, or "".
        order: The best whole order of `rdp`, tried for sampled steps.
    """

    theorem: str
    rounds: int | None = 0
    problem: str = ""
    order: int | None = None

    @property
    def filter(self) -> str:
        """What a policy writes after `filter:`."""
        if self.order is None:
            return self.theorem
        return f"{{theorem: {self.theorem}, order: {self.order}}}"


def fits(
    workload: Workload,
    *,
    epsilon: Fraction,
    delta: Fraction,
    own: Mapping[str, Any] | None = None,
    sequence: bool = False,
) -> list[Fit]:
    """Return how often a workload fits under every filter, most often first.

    For sampled steps `rdp` is there twice: as it is, and with its best whole order.

    Args:
        workload: At least one step.
        epsilon: The budget's.
        delta: The budget's.
        own: A policy's `theorem` with its options; others have their defaults.
        sequence: Whether a fixed sequence of them is counted, too; it takes seconds.
    """
    options = dict(own or {})
    theorem = options.pop("theorem", None)
    budget = {"epsilon": epsilon, "delta": delta}

    def fit(name: str, options: Mapping[str, Any]) -> Fit:
        try:
            if name in LISTING:
                furthest = max(fit.rounds or 0 for fit in result)
                rounds = _count_fixed(name, workload, budget, furthest)
                return Fit(theorem=name, rounds=rounds)
            rule = make_filter(name, **{**options, **budget})
            if rule.per_person:
                return Fit(theorem=name, problem=_NO_SUM)
            return Fit(theorem=name, rounds=runs_of(rule, workload))
        except (UnsupportedCost, InvalidCost, ConfigurationError) as error:
            return Fit(theorem=name, problem=error.message)

    adaptive = [name for name in FILTERS if name not in LISTING]
    result = [fit(name, options if name == theorem else {}) for name in adaptive]
    if any(_is_sampled(step.cost) for step in workload):
        tried = [
            replace(fit("rdp", {"order": order}), order=order) for order in _ORDERS
        ]
        best = min(tried, key=_furthest)
        result += [best] if best.rounds != 0 else []
    if sequence:
        result += [fit(name, {}) for name in LISTING]
    return sorted(result, key=_furthest)


def _is_sampled(cost: Cost) -> bool:
    parts = getattr(cost, "costs", getattr(cost, "substeps", (cost,))[:1])
    if parts == (cost,):
        return isinstance(cost, PoissonSampledGaussian)
    return any(map(_is_sampled, parts))


def _furthest(fit: Fit) -> tuple[bool, int, int]:
    rounds = NO_END if fit.rounds is None else fit.rounds
    return bool(fit.problem), -rounds, list(FILTERS).index(fit.theorem)


def _count_fixed(
    name: str, workload: Workload, budget: Mapping[str, Fraction], start: int
) -> int | None:
    """Return how often a workload fits if it is fixed in advance."""
    counts: dict[Cost, int] = {}
    for step in workload:
        counts[step.cost] = counts.get(step.cost, 0) + step.times

    def admits(rounds: int) -> bool:
        if rounds * sum(counts.values()) > _LONGEST:
            return False
        steps = [{"cost": cost, "times": n * rounds} for cost, n in counts.items()]
        try:
            make_filter(name, **budget, steps=steps)
        except InvalidCost as error:
            if error.high != budget["epsilon"]:
                raise
            return False
        return True

    return most_steps(admits, start)


@lru_cache(maxsize=512)
def epsilon_used(rule: Filter, used: Tally) -> Fraction | None:
    """Return the least epsilon of a budget that would have admitted this usage.

    It is the theorem's own reading of a tally, as if that budget had been set in
    advance: the same theorem, delta and constants. It is no bound of its own at a time
    that outputs chose; what is guaranteed is the budget of the rule.

    Args:
        rule: The filter.
        used: What is settled and held under it.

    Returns:
        An epsilon that was tried and admits it, within about a percent of the least;
        zero without usage, and None if no budget admits it.
    """
    if not any(used.amounts):
        return Fraction(0)
    if rule.lists_steps:
        return rule.spent(used)
    if rule.members:
        # Any member may admit, with its own part of delta.
        readings = [epsilon_used(member, own) for member, own in rule.covering(used)]
        return min((e for e in readings if e is not None), default=None)
    constants = {k: v for k, v in rule.parameters().items() if k != "epsilon"}

    def share(epsilon: Fraction) -> float:
        try:
            return make_filter(**constants, epsilon=epsilon).used_fraction(used)
        except (InvalidCost, ConfigurationError):
            return float("inf")

    high, of_high = rule.epsilon, share(rule.epsilon)
    while of_high > 1:
        if high > _MOST:
            return None
        high, of_high = 2 * high, share(2 * high)
    return _least_share(share, high, of_high)


def _least_share(
    share: Callable[[Fraction], float], high: Fraction, of_high: float
) -> Fraction:
    """Search the least epsilon of which a tally uses at most all.

    The share falls about as a power of epsilon, which a line through logarithms finds.
    Where delta is what was used, it does not fall: there the search is by halves.
    """
    low, power = Fraction(0), 2.0
    for _ in range(_TRIES):
        if low and high / low < _CLOSE:
            break
        aim = min(of_high / _ALMOST, 1) ** (1 / power) if power > _FLAT else 0
        guess = high * min(Fraction(aim), _NEXT)
        # What lies next to a budget that was tried tells nothing new.
        guess = guess if guess > low * _CLOSE else (low + high) / 2
        guess = Fraction(f"{float(guess):.5g}")
        of_guess = share(guess)
        falls = 0 < of_high < of_guess < float("inf")
        power = math.log(of_guess / of_high) / math.log(high / guess) if falls else 0
        if of_guess <= 1:
            high, of_high = guess, of_guess
        else:
            low = guess
    return high
