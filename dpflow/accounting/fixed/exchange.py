"""What an unplanned step takes out of a plan: executions that it is no worse than.

A step may run in place of planned executions if it tells no more than they do together:
then whoever runs those can simulate it (docs/derivations/fixed.md#exchange).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import (
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampledGaussian,
)
from dpflow.accounting.costs.notions import ApproxDP, GaussianDP, PureDP
from dpflow.accounting.curves.prices import approx_dp, gdp_mu_squared
from dpflow.accounting.fixed.optimal import least_delta, without_substeps
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import bound_above, bound_below, to_real

#: So many randomized responses at most are looked at for one step.
MOST_RESPONSES = 1023

Counts = tuple[int, ...]


@lru_cache(maxsize=65536)
def worth(cost: Cost, planned: Cost) -> int | None:
    """Return how many executions of a planned cost a step takes out.

    That is a number n such that n executions of the planned cost dominate the step: at
    every real epsilon, in both orders of the neighbours. For Gaussians their mus, for
    randomized responses and (epsilon, delta)-DP steps one total variation distance
    decide that exactly; nothing is compared on a grid.

    Source: docs/derivations/fixed.md#exchange; Blackwell 1953; Kairouz, Oh, Viswanath
    2015 (arXiv 1311.0776v4) Thm 3.3; Dong, Roth, Su 2022 (arXiv 1905.02383v3).

    Assumes: nothing of the step but its cost.

    Rounding: up to a whole number; distances of planned steps down, of the step up.

    Checked by: tests/accounting/fixed/test_exchange.py and
    tests/adversaries/test_exchange.py.

    Args:
        cost: What the step does.
        planned: What a planned execution does.

    Returns:
        The number, or None if no number is known.
    """
    if cost == planned or _is_quieter(cost, planned):
        return 1
    mu_squared = planned_mu_squared(planned)
    if mu_squared is not None:
        needed = needed_mu_squared(cost)
        return None if needed is None else max(-(-needed // mu_squared), 1)
    return _responses(cost, planned)


def planned_mu_squared(planned: Cost) -> Fraction | None:
    """Return mu squared of a Gaussian; None of other steps."""
    if type(planned) is Gaussian:
        return (planned.sensitivity / planned.sigma) ** 2
    if type(planned) is GaussianDP:
        return planned.mu**2
    return None


def needed_mu_squared(cost: Cost) -> Fraction | None:
    """Return mu squared of a Gaussian that dominates a step, if one does."""
    if isinstance(cost, PoissonSampledGaussian):
        # A sample tells no more than everybody.
        return 1 / cost.noise_multiplier**2
    try:
        return gdp_mu_squared(cost)
    except UnsupportedCost:
        return None


def _is_quieter(cost: Cost, planned: Cost) -> bool:
    """Say whether a step is a post-processing of another one of its kind."""
    if type(cost) is Laplace and type(planned) is Laplace:
        return cost.sensitivity / cost.scale <= planned.sensitivity / planned.scale
    if type(cost) is ExponentialMechanism and type(planned) is ExponentialMechanism:
        return cost.epsilon <= planned.epsilon
    return (
        type(cost) is PoissonSampledGaussian
        and type(planned) is PoissonSampledGaussian
        and cost.sampling_rate <= planned.sampling_rate
        and cost.noise_multiplier >= planned.noise_multiplier
    )


def _response_in(planned: Cost) -> tuple[Fraction, Fraction] | None:
    """Return (epsilon, delta) of a randomized response that a planned step contains.

    A Laplace mechanism says on which side of the middle its answer lies; an exponential
    mechanism of range eta may be the randomized response of eta / 2.
    """
    if type(planned) in (PureDP, ApproxDP):
        return approx_dp(planned)
    if type(planned) is ExponentialMechanism:
        return planned.epsilon / 2, Fraction(0)
    if type(planned) is Laplace:
        bound = planned.sensitivity / planned.scale

        def side(mp: Any) -> Any:
            # 1 - e^(-b/2) / 2 against e^(-b/2) / 2.
            return mp.log1p(2 * mp.expm1(to_real(mp, bound) / 2))

        return bound_below(side), Fraction(0)
    return None


def _responses(cost: Cost, planned: Cost) -> int | None:
    """Return how many randomized responses dominate an (epsilon, delta)-DP step."""
    response = _response_in(planned)
    try:
        epsilon, delta = approx_dp(cost)
    except UnsupportedCost:
        return None
    if response is None or response[0] <= 0:
        return None
    if epsilon <= response[0] and delta <= response[1]:
        return 1
    if delta and not response[1]:
        return None
    needed = _distance(epsilon, delta)

    def dominates(count: int) -> bool:
        lost = 1 - (1 - response[1]) ** count
        parts = ((_step(*response), count),)
        return lost >= delta and least_delta(parts, Fraction(0)) >= needed

    return _least(dominates)


def _step(epsilon: Fraction, delta: Fraction) -> Cost:
    # Of any size and length: no journal ever reads it.
    step = object.__new__(ApproxDP)
    object.__setattr__(step, "epsilon", epsilon)
    object.__setattr__(step, "delta", delta)
    return step


def _distance(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest distance of an (epsilon, delta)-DP step, rounded up."""

    def value(mp: Any) -> Any:
        lost = to_real(mp, delta)
        return lost + (1 - lost) * mp.tanh(to_real(mp, epsilon) / 2)

    return bound_above(value)


def _least(holds: Callable[[int], bool]) -> int | None:
    """Return the least number for which it holds, up to the most looked at."""
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high + 1
        if high > MOST_RESPONSES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def exchanged(
    cost: Cost, kinds: Sequence[Cost], limits: Sequence[int], used: Sequence[int]
) -> Counts | None:
    """Return what a step takes out of a plan.

    Its own execution if one is left. Else each of its parts takes executions of the
    kind of which that is the smallest share, or of several Gaussians together.

    Source, assumes: as `worth`; domination survives composition.

    Rounding: up to whole executions.

    Checked by: tests/accounting/fixed/test_exchange.py and
    tests/adversaries/test_exchange.py.

    Args:
        cost: What the step does.
        kinds: The planned costs, no two equal.
        limits: How often each is planned.
        used: How often each was taken out.

    Returns:
        A count for each kind, larger than what is left if nothing fits; None if
        nothing in the plan is known to dominate the step.
    """
    left = [max(most - n, 0) for most, n in zip(limits, used, strict=True)]
    if cost in kinds and left[kinds.index(cost)]:
        return tuple(int(kind == cost) for kind in kinds)
    total = [0] * len(kinds)
    for part, times in without_substeps(((cost, 1),)):
        taken = _taken(part, times, kinds, limits, left)
        if taken is None:
            return None
        total = [a + b for a, b in zip(total, taken, strict=True)]
        left = [max(a - b, 0) for a, b in zip(left, taken, strict=True)]
    return tuple(total)


def _taken(
    part: Cost,
    times: int,
    kinds: Sequence[Cost],
    limits: Sequence[int],
    left: Sequence[int],
) -> list[int] | None:
    if part in kinds and times <= left[kinds.index(part)]:
        return [times * int(kind == part) for kind in kinds]
    offers = [
        (Fraction(count, limits[i]), i, count)
        for i, kind in enumerate(kinds)
        if (count := _worth_together(part, times, kind)) is not None
    ]
    fitting = [offer for offer in offers if offer[2] <= left[offer[1]]]
    if not fitting and (pooled := _pooled(part, times, kinds, left)) is not None:
        return pooled
    if not offers:
        return None
    _, place, count = min(fitting or offers)
    return [count * int(i == place) for i in range(len(kinds))]


def _worth_together(part: Cost, times: int, planned: Cost) -> int | None:
    """Return how many executions dominate some equal steps together."""
    mu_squared, needed = planned_mu_squared(planned), needed_mu_squared(part)
    if mu_squared is not None and needed is not None:
        return max(-(-needed * times // mu_squared), 1)
    rate = worth(part, planned)
    return None if rate is None else times * rate


def _pooled(
    part: Cost, times: int, kinds: Sequence[Cost], left: Sequence[int]
) -> list[int] | None:
    """Take several Gaussians together, small ones first."""
    needed = needed_mu_squared(part)
    if needed is None:
        return None
    sizes = [(planned_mu_squared(kind), i) for i, kind in enumerate(kinds)]
    taken, rest = [0] * len(kinds), needed * times
    for size, i in sorted((size, i) for size, i in sizes if size is not None):
        taken[i] = min(left[i], -(-rest // size))
        rest = max(rest - taken[i] * size, Fraction(0))
    return None if rest else taken
