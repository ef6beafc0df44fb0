"""Costs that are declared by their guarantee: prices, refusals and texts."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from dpflow import (
    ZCDP,
    ApproxDP,
    Composed,
    Gaussian,
    Laplace,
    OutputDP,
    PureDP,
    Repeated,
)
from dpflow.accounting.curves.prices import (
    approx_dp,
    gdp_mu_squared,
    probabilistic_dp,
    renyi,
)
from dpflow.costs import ApproxZCDP, GaussianDP, ProbabilisticDP, RenyiDP, TopK
from dpflow.exceptions import UnsupportedCost
from tests.accounting.oracle import MP, ORDERS, powers, real
from tests.sizes import scaled

pytestmark = pytest.mark.quick


TINY = Fraction("1e-8")
PDP = ProbabilisticDP(epsilon="0.1", delta="1e-8")
AZCDP = ApproxZCDP(rho="0.01", delta="1e-8")
RDP = RenyiDP(order=8, epsilon="0.1")
GDP = GaussianDP(mu="0.1")
#: Cost, then (epsilon, delta), mu squared, and Renyi of order 4; None: refused.
EXACT = [
    (PDP, (Fraction("0.1"), TINY), None, None),
    (ProbabilisticDP(epsilon=2, delta=0), (Fraction(2), Fraction(0)), ..., ...),
    (AZCDP, None, None, None),
    (ApproxZCDP(rho="0.01", delta=0), None, None, Fraction("0.04")),
    (RDP, None, None, Fraction("0.1")),
    (GDP, None, Fraction("0.01"), Fraction("0.02")),
]


def test_a_cost_is_worth_what_its_notion_implies():
    """Exact prices where the notion implies one, a refusal where it does not."""
    for cost, pair, square, divergence in EXACT:
        for price, arguments, expected in (
            (approx_dp, (), pair),
            (gdp_mu_squared, (), square),
            (renyi, (Fraction(4),), divergence),
        ):
            if expected is None:
                with pytest.raises(UnsupportedCost, match="has no sound price"):
                    price(cost, *arguments)
            elif expected is ...:
                same = price(PureDP(epsilon=2), *arguments)
                assert price(cost, *arguments) == same
            else:
                assert expected == price(cost, *arguments)


@settings(max_examples=scaled(20), deadline=None)
@given(order=ORDERS, wanted=ORDERS, bound=powers(-9, 3))
def test_a_bound_at_one_order_holds_for_lower_orders_only(order, wanted, bound):
    """The divergence grows with the order, so no bound holds above."""
    cost = RenyiDP(order=order, epsilon=bound)
    if wanted <= order:
        assert renyi(cost, wanted) == bound
    else:
        with pytest.raises(UnsupportedCost, match="use at most that order"):
            renyi(cost, wanted)


def test_only_a_declared_bound_on_the_loss_counts_as_one():
    """(epsilon, delta)-DP with a delta is not probabilistic DP."""
    tenth = (Fraction("0.1"), 0)
    assert probabilistic_dp(PureDP(epsilon="0.1")) == tenth
    assert probabilistic_dp(ApproxDP(epsilon="0.1", delta=0)) == tenth
    assert probabilistic_dp(PDP) == (Fraction("0.1"), TINY)
    for cost in (ApproxDP(epsilon="0.1", delta="1e-8"), GDP, RDP, AZCDP):
        with pytest.raises(UnsupportedCost, match="Declare"):
            probabilistic_dp(cost)


@settings(max_examples=scaled(20), deadline=None)
@given(epsilon=powers(-3, 1), delta=powers(-9, -1), gap=powers(-3, 1))
def test_how_far_approximate_privacy_bounds_the_loss(epsilon, delta, gap):
    """P(loss > epsilon + g) reaches delta / (1 - exp(-g)), above the printed lemma.

    The pair p = delta / (1 - exp(-g)), q = p exp(-epsilon - g) is (epsilon, delta)-DP
    in both orders as long as p is below one half.
    """
    e, d, g = map(real, (epsilon, delta, gap))
    p = d / (1 - MP.exp(-g))
    q = p * MP.exp(-e - g)
    if p >= MP.mpf(1) / 2:
        return
    grown, slack = MP.exp(e), MP.mpf(10) ** -40
    for first, second in ((p, q), (q, p), (1 - p, 1 - q), (1 - q, 1 - p)):
        assert first <= grown * second + d + slack
    assert MP.log(p / q) > e + g - slack
    if gap <= epsilon <= Fraction(1, 2):
        assert p > 2 * d / grown


def test_rounded_noise_can_be_typed():
    """Four digits, never less noise."""
    both = Composed(Repeated(Gaussian(sensitivity=3, sigma="0.7123456"), 2))
    picks = TopK(epsilon=1, delta="1e-9", most=4)
    for cost, text in (
        (PureDP(epsilon=1), "PureDP(epsilon=0.1428)"),
        (Laplace(sensitivity=1, scale=3), "Laplace(sensitivity=1, scale=21)"),
        (ZCDP(rho="0.1"), "ZCDP(rho=0.00204)"),
        (picks, "TopK(epsilon=0.1428, delta=1e-9, most=4, among=1000)"),
        (OutputDP({"a": 1, "b": 0}), "OutputDP({'a': 0.1428, 'b': 0}, delta=0)"),
        (both, "Composed(Repeated(Gaussian(sensitivity=3, sigma=4.987), 2))"),
    ):
        rounded = cost.noisier(Fraction(7)).rounded()
        assert repr(rounded) == text
        assert rounded.rounded() == rounded
