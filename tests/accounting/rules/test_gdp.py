"""The GDP filter: squared mus add up, without loss for Gaussians."""

from __future__ import annotations

import pytest

from dpflow import ZCDP, ApproxDP
from dpflow.accounting import make_filter
from dpflow.exceptions import UnsupportedCost

pytestmark = pytest.mark.quick

RULE = make_filter("gdp", epsilon=1, delta="1e-6")


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
