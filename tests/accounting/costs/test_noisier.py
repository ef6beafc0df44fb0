"""More noise never costs more, and less is refused."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs._site.prices import EXAMPLES
from dpflow import ZCDP, ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.curves.prices import (
    approx_dp,
    approx_zcdp,
    gdp_mu_squared,
    renyi,
)
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.accounting.costs.test_base import costs

ORDERS = [Fraction(10001, 10000), Fraction(2), Fraction(63, 2), Fraction(10**6)]
PRICES = [
    *[lambda cost, i=i: approx_dp(cost)[i] for i in (0, 1)],
    *[lambda cost, i=i: approx_zcdp(cost)[i] for i in (0, 1)],
    gdp_mu_squared,
    *[lambda cost, order=order: renyi(cost, order) for order in ORDERS],
]


def prices(cost: Cost) -> list[Fraction | None]:
    """Return the price of a cost in every notion, None where it has none."""
    found: list[Fraction | None] = []
    for price in PRICES:
        try:
            found.append(price(cost))
        except UnsupportedCost:
            found.append(None)
    return found


@given(costs, st.fractions(1, 1000, max_denominator=1000))
def test_more_noise_never_costs_more(cost, factor):
    """No price of any notion goes up when the noise grows, and none appears."""
    quieter, louder = prices(cost), prices(cost.noisier(factor))
    assert [p is None for p in quieter] == [p is None for p in louder]
    assert all(
        after <= before
        for before, after in zip(quieter, louder, strict=True)
        if before is not None
    )


def test_noise_scales_as_the_mechanism_says():
    """Twice the noise is half an epsilon and a quarter of a rho."""
    two = Fraction(2)
    assert PureDP(epsilon=1).noisier(two) == PureDP(epsilon="0.5")
    assert ZCDP(rho=1).noisier(two) == ZCDP(rho="0.25")
    assert Gaussian(sensitivity=3, sigma=1).noisier(two) == Gaussian(
        sensitivity=3, sigma=2
    )
    assert Laplace(sensitivity=3, scale=1).noisier(two) == Laplace(
        sensitivity=3, scale=2
    )
    assert ApproxDP(epsilon=1, delta="1e-6").noisier(two) == ApproxDP(
        epsilon="0.5", delta="1e-6"
    )


@pytest.mark.parametrize(
    "cost",
    [
        Gaussian(sensitivity=1, sigma=10**9),
        Laplace(sensitivity=1, scale=10**9),
        PureDP(epsilon="1e-12"),
        ApproxDP(epsilon="1e-12", delta=0),
        ZCDP(rho="1e-24"),
    ],
    ids=repr,
)
def test_noise_beyond_the_limits_is_refused(cost):
    """A step that would be noisier than a cost may say is refused, not clipped."""
    with pytest.raises(InvalidCost):
        cost.noisier(Fraction(1001, 1000))


@pytest.mark.parametrize("cost", EXAMPLES, ids=repr)
@pytest.mark.parametrize(
    "factor", [Fraction(1, 2), "0.999", 0, -2, Fraction(10**30 - 1, 10**30)], ids=str
)
def test_less_noise_is_no_more_noise(cost, factor):
    """A factor below 1 would make a step cheaper to ask for and dearer to run."""
    with pytest.raises(InvalidCost, match="at least 1, got") as caught:
        cost.noisier(factor)
    assert (caught.value.name, caught.value.low) == ("factor", 1)


def test_a_cost_that_does_not_say_its_noise_is_not_made_noisier():
    """It would come back as it was, as if that were enough."""

    @dataclass(frozen=True)
    class SilentStep(Cost):
        epsilon: Fraction

    with pytest.raises(InvalidCost, match="which of its numbers are its noise"):
        SilentStep(Fraction(1)).noisier(Fraction(2))
