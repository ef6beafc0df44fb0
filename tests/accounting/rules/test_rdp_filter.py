"""The RDP filter of one order: thresholds, orders and laws."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_filter
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.rules.rdp import RdpFilter
from dpflow.exceptions import InvalidCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import MP, powers, real
from tests.sizes import scaled

pytestmark = pytest.mark.quick


def admitted(rule, cost) -> int:
    """Return how many equal steps fit."""
    price, count, tally = rule.price(cost), 0, rule.zero()
    while rule.admits(tally + price):
        tally, count = tally + price, count + 1
    return count


def allowed(epsilon, delta, order, *, tight=True):
    """Return the allowed divergence, written another way."""
    e, d, a = real(epsilon), real(delta), real(order)
    if not tight:
        return e - MP.log(1 / d) / (a - 1)
    return e - MP.log((a - 1) / a) + (MP.log(d) + MP.log(a)) / (a - 1)


DELTAS = st.one_of(powers(-30, -1), st.just(Fraction("0.5")))
ORDERS = st.one_of(powers(0, 6).filter(lambda a: a > 1), st.just(Fraction("1.0001")))


@settings(max_examples=scaled(40), deadline=None)
@given(epsilon=powers(-9, 3), delta=DELTAS, order=ORDERS, tight=st.booleans())
def test_thresholds_are_just_below_the_truth(epsilon, delta, order, tight):
    """Within one unit or 1e-9, never above; an order that allows nothing is refused."""
    truth = allowed(epsilon, delta, order, tight=tight)
    options = {
        "epsilon": epsilon,
        "delta": delta,
        "order": order,
        "conversion": "tight" if tight else "classic",
    }
    if truth <= 0:
        with pytest.raises(InvalidCost, match="allows nothing"):
            RdpFilter(**options)
        return
    threshold = RdpFilter(**options).thresholds[0]
    units = truth * UNITS
    assert threshold <= units * (1 + MP.mpf("1e-50"))
    assert threshold >= units * (1 - MP.mpf("1e-9")) - 1


def test_the_vectors_of_the_sheet():
    """rdp_basic and rdp_cks, read backwards: what they convert to fits exactly."""
    vectors = {
        "classic": "1.77921394055224760223221747482",
        "tight": "1.41801063678397178055827299902",
    }
    for conversion, epsilon in vectors.items():
        rule = RdpFilter(epsilon=epsilon, delta="1e-5", order=10, conversion=conversion)
        assert rule.thresholds[0] == pytest.approx(UNITS / 2, rel=1e-15)


#: Steps of the table in section 1 of the sheet: 0.1 and sigma = 20, at delta 1e-6.
TABLE = [
    (1, None, "tight", (7, 19)),
    (5, None, "tight", (97, 370)),
    (1, "21.9", "tight", (7, 19)),
    (5, "6.5", "tight", (97, 368)),
    (1, "1586", "tight", (10, 0)),
    (5, "6.01", "tight", (97, 370)),
    (5, None, "classic", (82, 308)),
]


@pytest.mark.parametrize(("epsilon", "order", "conversion", "counts"), TABLE)
def test_steps_admitted(epsilon, order, conversion, counts):
    """Generic steps of 0.1 and Gaussians of sigma 20."""
    rule = make_filter(
        "rdp", epsilon=epsilon, delta="1e-6", order=order, conversion=conversion
    )
    costs = PureDP(epsilon="0.1"), Gaussian(sensitivity=1, sigma=20)
    assert counts == tuple(admitted(rule, cost) for cost in costs)
