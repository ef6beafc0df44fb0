"""The GDP filter: squared mus add up, without loss for Gaussians."""

from __future__ import annotations

import pytest

from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting import Filter, make_filter
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.conversions import gdp_budget
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS

pytestmark = pytest.mark.quick

RULE = make_filter("gdp", epsilon=1, delta="1e-6")
TWENTY = Gaussian(sensitivity=1, sigma=20)


def admitted(rule: Filter, cost: Cost) -> int:
    """Count identical steps until the rule refuses one, or give up."""
    tally, count = rule.zero(), 0
    while count < 1000 and rule.admits(tally + rule.price(cost)):
        tally, count = tally + rule.price(cost), count + 1
    return count


@pytest.mark.parametrize(
    ("epsilon", "cost", "count"),
    [
        (1, TWENTY, 22),
        (5, TWENTY, 416),
        (1, Gaussian(sensitivity=100, noise_multiplier=20), 22),
        (1, Gaussian(sensitivity=2, sigma=20), 5),
        (1, PureDP(epsilon=0.1), 3),
        (5, PureDP(epsilon=0.1), 66),
        (1, Laplace(sensitivity=1, scale=10), 3),
        (1, Gaussian(sensitivity=1, sigma="4.2246"), 0),
        (1, Gaussian(sensitivity=1, sigma="4.2247"), 1),
    ],
)
def test_known_numbers_of_steps(epsilon, cost, count):
    """The rule admits as many identical steps as theory says, and no more."""
    rule = make_filter("gdp", epsilon=epsilon, delta="1e-6")
    assert admitted(rule, cost) == count


@pytest.mark.parametrize(
    "cost",
    [
        ZCDP(rho="1e-9"),
        ApproxDP(epsilon="1e-9", delta="1e-35"),
        ApproxDP(epsilon="1e-9", delta="1e-6"),
    ],
)
def test_a_step_that_is_not_gaussian_dp_is_refused(cost):
    """ZCDP implies no GDP, and neither does anything with a delta of its own."""
    with pytest.raises(UnsupportedCost, match=type(cost).__name__) as caught:
        RULE.price(cost)
    assert caught.value.mechanism == type(cost).__name__


def test_the_limit_is_the_budget_in_whole_units_rounded_down():
    """A limit is what the conversion allows, rounded down to 36 decimals."""
    budget = gdp_budget(RULE.epsilon, RULE.delta)
    limit = RULE.limit.amounts[0]
    assert limit <= budget * UNITS < limit + UNITS // 10**36
