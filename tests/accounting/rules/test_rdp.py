"""The RDP rules of one order: thresholds and readings."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import Gaussian
from dpflow.accounting import make_odometer
from dpflow.accounting.rules.rdp import RdpFilter
from dpflow.exceptions import InvalidCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import MP, powers, real
from tests.sizes import scaled

pytestmark = pytest.mark.quick


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


TWENTY = Gaussian(sensitivity=1, sigma=20)


@pytest.mark.parametrize("delta", ["1e-35", "1e-6", "0.999"])
@pytest.mark.parametrize("order", ["1.0001", "8", "63.25", "1e6"])
def test_a_reading_is_the_theorem_rounded_up(order, delta):
    """The float is the first one that is not below R + log(1/delta)/(order-1)."""
    rule = make_odometer("rdp", delta=delta, order=order)
    for count in (0, 1, 1000):
        reading = rule.read(rule.price(TWENTY).times(count))
        truth = count * real(order) / 800 - MP.log(real(delta)) / (real(order) - 1)
        assert MP.mpf(math.nextafter(reading, 0)) < truth * (1 + MP.mpf("1e-25"))
        assert truth <= MP.mpf(reading)
