"""OpenDP: its privacy filters add up pure, approximate and zCDP costs.

A filter takes time proportional to the queries so far. So their costs are read off its
measurements and added here with its rounding, upward at each addition; the outcome is
confirmed by its own composition, and short runs are repeated with a real filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import opendp.prelude as dp
from answers import (
    ADAPTIVE,
    Fits,
    NotOfferedError,
    Rule,
    Step,
    Workload,
    always,
    answer,
    largest_within,
)

dp.enable_features("contrib", "honest-but-curious")

NUMBER = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
PURE, ZCDP = dp.max_divergence(), dp.zero_zcdp_divergence()
APPROX = dp.approximate(dp.max_divergence())

#: A split of delta over n steps whose sum, rounded up, is still at most delta.
_BELOW = 1 - 1e-9


def _by_map(measure: Any, cost: Any) -> Any:
    """Return a measurement that says it costs so much."""
    return dp.m.make_user_measurement(
        *NUMBER,
        output_measure=measure,
        function=lambda _: 0.0,
        privacy_map=lambda _: cost,
        TO=float,
    )


@lru_cache
def _noisy_max_cost(measure: str, epsilon: float) -> float:
    """Return what OpenDP charges for its noisy maximum, an exponential mechanism."""
    scores = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    mechanism = dp.m.make_noisy_max(
        scores,
        dp.linf_distance(T=float),
        PURE if measure == "pure" else ZCDP,
        scale=2 / epsilon,
    )
    return float(mechanism.map(1.0))


@lru_cache
def _pure(step: Step) -> Any:
    epsilon = float(step.amount)
    if step.kind == "laplace":
        return dp.m.make_laplace(*NUMBER, scale=1 / epsilon)
    if step.kind == "pure":
        return _by_map(PURE, epsilon)
    if step.kind == "exponential":
        return _by_map(PURE, _noisy_max_cost("pure", epsilon))
    msg = f"a {step.kind} step is not purely private"
    raise NotOfferedError(msg)


@lru_cache
def _zcdp(step: Step) -> Any:
    if step.kind == "gaussian":
        return dp.m.make_gaussian(*NUMBER, scale=float(step.amount))
    if step.kind == "exponential":
        return _by_map(ZCDP, _noisy_max_cost("zcdp", float(step.amount)))
    if step.kind == "sampled":
        msg = "OpenDP has no Poisson-sampled Gaussian"
        raise NotOfferedError(msg)
    return dp.c.make_pureDP_to_zCDP(_pure(step))


@lru_cache
def _approx(step: Step, delta: float) -> Any:
    if step.kind == "gaussian":
        profile = dp.c.make_zCDP_to_approxDP(_zcdp(step))
        # Its filter converts every query again at each new one; once is enough.
        return _by_map(APPROX, dp.c.make_fix_delta(profile, delta=delta).map(1.0))
    if step.kind == "sampled":
        msg = "OpenDP has no Poisson-sampled Gaussian"
        raise NotOfferedError(msg)
    return dp.c.make_approximate(_pure(step))


def _total(parts: list[tuple[Any, int]]) -> Any:
    steps = [measurement for measurement, times in parts for _ in range(times)]
    return dp.c.make_composition(steps).map(1.0)


@lru_cache
def _rho(epsilon: float, delta: float) -> float:
    """Return the largest rho whose epsilon at delta, as OpenDP converts it, fits."""

    def converted(rho: float) -> float:
        profile = dp.c.make_zCDP_to_approxDP(_by_map(ZCDP, rho)).map(1.0)
        return float(profile.epsilon(delta))

    return largest_within(converted, epsilon, 0.0, 100.0)


def _delta_each(workload: Workload, delta: float, steps: int) -> float:
    shared = sum(n for step, n in workload.first(steps) if step.kind == "gaussian")
    return delta / max(shared, 1) * _BELOW


def _sum_up(costs: list[tuple[float, int]]) -> float:
    """Add costs, rounding up at each addition as its composition does."""
    total = 0.0
    for cost, times in costs:
        for _ in range(times):
            near = total + cost
            # What the addition lost, exactly (Knuth's two-sum).
            shift = near - total
            lost = (total - (near - shift)) + (cost - shift)
            total = math.nextafter(near, math.inf) if lost > 0 else near
    return total


def _test(
    workload: Workload,
    within: Callable[[Any], bool],
    cost: Callable[[Step, int], Any],
    *,
    slow: bool,
) -> Fits:
    """Return the test whether the composition of the first steps is within a budget."""
    for step in workload.cycle:
        cost(step, 1)

    def fits(steps: int) -> bool:
        parts = [(cost(step, steps), times) for step, times in workload.first(steps)]
        if slow:
            return within(_total(parts))
        maps = [(m.map(1.0), times) for m, times in parts]
        if isinstance(maps[0][0], tuple):
            sums = [_sum_up([(c[i], times) for c, times in maps]) for i in (0, 1)]
            return within(tuple(sums))
        return within(_sum_up(maps))

    return fits


def _pure_test(*, slow: bool) -> Callable[[Workload, float, float], Fits]:
    def make(workload: Workload, epsilon: float, _: float) -> Fits:
        return _test(
            workload, lambda d: bool(d <= epsilon), lambda s, _: _pure(s), slow=slow
        )

    return make


def _approx_test(*, slow: bool) -> Callable[[Workload, float, float], Fits]:
    """Delta is split in the best way: evenly over the Gaussians."""

    def make(workload: Workload, epsilon: float, delta: float) -> Fits:
        return _test(
            workload,
            lambda d: bool(d[0] <= epsilon and d[1] <= delta),
            lambda step, steps: _approx(step, _delta_each(workload, delta, steps)),
            slow=slow,
        )

    return make


def _zcdp_test(*, slow: bool) -> Callable[[Workload, float, float], Fits]:
    def make(workload: Workload, epsilon: float, delta: float) -> Fits:
        rho = _rho(epsilon, delta)
        return _test(
            workload, lambda d: bool(d <= rho), lambda s, _: _zcdp(s), slow=slow
        )

    return make


def _filter(
    measure: Any, budget: Any, cost: Callable[[Step], Any]
) -> Callable[[Step], bool]:
    odometer = dp.c.make_fully_adaptive_composition(*NUMBER, measure)
    queryable = dp.c.make_privacy_filter(odometer, d_in=1.0, d_out=budget)(0.0)

    def admit(step: Step) -> bool:
        try:
            queryable(cost(step))
        except dp.OpenDPException as error:
            # The approximate filter refuses by failing to compare two pairs.
            if "exceed" in str(error) or "unknown ordering" in str(error):
                return False
            raise
        return True

    return admit


RULES = (
    Rule(
        "pure filter",
        always(ADAPTIVE),
        _pure_test(slow=False),
        lambda _, epsilon, __, ___: _filter(PURE, epsilon, _pure),
        certain=_pure_test(slow=True),
    ),
    Rule(
        "(eps, delta) filter",
        always(ADAPTIVE),
        _approx_test(slow=False),
        lambda workload, epsilon, delta, steps: _filter(
            APPROX,
            (epsilon, delta),
            lambda step: _approx(step, _delta_each(workload, delta, steps)),
        ),
        certain=_approx_test(slow=True),
    ),
    Rule(
        "zCDP filter",
        always(ADAPTIVE),
        _zcdp_test(slow=False),
        lambda _, epsilon, delta, __: _filter(ZCDP, _rho(epsilon, delta), _zcdp),
        certain=_zcdp_test(slow=True),
    ),
)

if __name__ == "__main__":
    answer("OpenDP", version("opendp"), RULES)
