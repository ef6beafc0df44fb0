"""Costs of steps for groups of privacy units that change together."""

from __future__ import annotations

from fractions import Fraction
from functools import singledispatch
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import OfSteps
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
)
from dpflow.accounting.costs.notions import (
    ZCDP,
    ApproxDP,
    ApproxZCDP,
    GaussianDP,
    PureDP,
)
from dpflow.accounting.costs.refined import Refined
from dpflow.accounting.curves.prices import approx_dp
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import bound_above, to_real


def group_cost(cost: Cost, size: int) -> Cost:
    """Return the cost of a step for `size` privacy units that change together.

    Source: docs/derivations/ledger.md#groups. Mechanisms that add noise: `size`
    neighbours in a row change the value by at most `size` times the sensitivity. Pure
    and bounded-range steps: the loss adds up along the row. rho-zCDP: Bun and Steinke,
    arXiv:1605.02065v1, on group privacy. mu-GDP: Dong, Roth and Su, arXiv:1905.02383v3,
    on group privacy. (epsilon, delta): iterating the definition gives
    delta (e^(size epsilon) - 1) / (e^epsilon - 1). Steps of several parts, and those
    that may end early: each part for the group, then composed as before.

    Assumes: the group's size is fixed before data is read.

    Rounding: exact, but for that delta, which is rounded up.

    Checked by: tests/accounting/rules/test_groups.py.

    Args:
        cost: The step, for one privacy unit.
        size: Number of units that change together, at least 1.

    Raises:
        UnsupportedCost: If no theorem prices the step for such a group.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        msg = f"a group has a whole number of units, at least 1, got {size!r}"
        raise InvalidCost(msg, name="size", value=size)
    if size == 1:
        return cost
    try:
        return scale_to_group(cost, size)
    except InvalidCost as error:
        msg = f"{cost!r} for a group of {size}: {error.message}"
        raise UnsupportedCost(msg, mechanism=cost.mechanism) from error


@singledispatch
def scale_to_group(cost: Cost, size: int) -> Cost:
    """Return the same for two or more: the costs of groups register here."""
    try:
        epsilon, delta = approx_dp(cost)
    except UnsupportedCost:
        epsilon, delta = Fraction(0), Fraction(1)
    if delta:
        msg = (
            f"{cost!r} has no price for a group of {size} units. Let the step "
            "touch one partition at a time, or declare its zCDP or pure guarantee."
        )
        raise UnsupportedCost(msg, mechanism=cost.mechanism)
    return PureDP(epsilon=epsilon * size)


@scale_to_group.register
def _(cost: Gaussian | Laplace | DiscreteLaplace | DiscreteGaussian, size: int) -> Cost:
    return cost.but(sensitivity=cost.sensitivity * size)


@scale_to_group.register
def _(cost: ExponentialMechanism, size: int) -> Cost:
    return ExponentialMechanism(epsilon=cost.epsilon * size)


@scale_to_group.register
def _(cost: ApproxDP, size: int) -> Cost:
    epsilon = cost.epsilon * size

    def delta(mp: Any) -> Any:
        growth = mp.expm1(to_real(mp, epsilon)) / mp.expm1(to_real(mp, cost.epsilon))
        return to_real(mp, cost.delta) * growth

    if cost.delta == 0:
        return PureDP(epsilon=epsilon)
    return ApproxDP(epsilon=epsilon, delta=bound_above(delta))


@scale_to_group.register
def _(cost: ZCDP, size: int) -> Cost:
    return ZCDP(rho=cost.rho * size**2)


@scale_to_group.register
def _(cost: GaussianDP, size: int) -> Cost:
    return GaussianDP(mu=cost.mu * size)


@scale_to_group.register
def _(cost: ApproxZCDP, size: int) -> Cost:
    if cost.delta:
        return scale_to_group.dispatch(Cost)(cost, size)
    return ZCDP(rho=cost.rho * size**2)


@scale_to_group.register
def _(cost: OfSteps, size: int) -> Cost:
    return cost.with_steps(lambda step: group_cost(step, size))


@scale_to_group.register
def _(cost: Refined, size: int) -> Cost:
    return cost.but(finest=group_cost(cost.finest, size))
