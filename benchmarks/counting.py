"""How many steps of a workload a dpflow filter admits."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from workloads import Step, Workload, largest

from dpflow.accounting import Filter, Rule, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import (
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
)
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost

#: Counts up to this are run again step by step.
CHECKED = 3000

_COARSE, _FINE, _FINEST = 1.3, 24, 1e6


def cost_of(step: Step) -> Cost:
    """Return the step as a dpflow cost."""
    if step.kind == "gaussian":
        return Gaussian(sensitivity=1, sigma=step.amount)
    if step.kind == "laplace":
        return Laplace(sensitivity=1, epsilon=step.amount)
    if step.kind == "pure":
        return PureDP(epsilon=step.amount)
    if step.kind == "exponential":
        return ExponentialMechanism(epsilon=step.amount)
    return PoissonSampledGaussian(sampling_rate=step.rate, noise_multiplier=step.amount)


def scaled(tally: Tally, times: int) -> Tally:
    """Return the tally of a step that runs so often."""
    return Tally(tuple(times * amount for amount in tally.amounts))


def total_of(rule: Rule, workload: Workload, steps: int) -> Tally:
    """Return the tally after the first steps."""
    total = rule.zero()
    for step, times in workload.first(steps):
        total += scaled(rule.price(cost_of(step)), times)
    return total


def admitted(rule: Filter, workload: Workload) -> int:
    """Return how many steps a filter admits before the first refusal.

    Raises:
        UnsupportedCost: If the filter has no price for a step.
        AssertionError: If running a short count step by step gives another number.
    """
    if not rule.steady:
        return _one_by_one(rule, workload)
    prices = {step: rule.price(cost_of(step)) for step in workload.cycle}

    def fits(steps: int) -> bool:
        total = rule.zero()
        for step, times in workload.first(steps):
            total += scaled(prices[step], times)
        return rule.admits(total)

    steps = largest(fits)
    if steps <= CHECKED:
        tally, count = rule.zero(), 0
        while rule.admits(tally + prices[workload.step(count)]):
            tally, count = tally + prices[workload.step(count)], count + 1
        if count != steps:
            msg = f"{rule!r} admits {count} of {workload.name}, bisection says {steps}"
            raise AssertionError(msg)
    return steps


def _one_by_one(rule: Filter, workload: Workload) -> int:
    """Run the steps, each priced at what is used when it asks."""
    costs = {step: cost_of(step) for step in workload.cycle}
    tally, count = rule.zero(), 0
    while True:
        after = tally + rule.price(costs[workload.step(count)], tally)
        if not rule.admits(after):
            return count
        tally, count = after, count + 1


@lru_cache(maxsize=4096)
def tuned_order(workload: Workload, epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the order that admits most steps of the workload.

    Searched coarsely, then between the neighbours of the best; whole numbers and
    tenths are tried too, for sampled Gaussians are priced exactly at whole orders.
    """

    def admits(order: Fraction) -> int:
        try:
            rule = make_filter("rdp", epsilon=epsilon, delta=delta, order=order)
        except InvalidCost:
            return -1  # the order allows nothing
        return largest(lambda n: rule.admits(total_of(rule, workload, n)))

    reach = math.ceil(math.log(_FINEST / 0.02) / math.log(_COARSE))
    coarse = [_order(1 + 0.02 * _COARSE**k) for k in range(reach)]
    best = max(coarse, key=admits)
    low, high = 1 + (best - 1) / 2, 1 + (best - 1) * 2
    ratio = float(high - 1) / float(low - 1)
    near = {_order(1 + float(low - 1) * ratio ** (k / _FINE)) for k in range(_FINE)}
    first, last = math.ceil(low), math.floor(high)
    near |= {Fraction(n) for n in range(first, min(last, first + 64) + 1)}
    if high < 20:  # noqa: PLR2004
        near |= {Fraction(n, 10) for n in range(math.ceil(10 * low), int(10 * high))}
    return max(sorted(near | {best}), key=admits)


def _order(value: float) -> Fraction:
    return Fraction(f"{value:.6g}")
