"""The public side of individual accounting, against 60-digit arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import Gaussian
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import DELTAS, MP, ORDERS, assert_just_above, real
from tests.sizes import scaled
from tests.wrong_odometers import windows_divergence


def test_opening_takes_the_whole_budget_once():
    """The bound is reserved in full; a second opening and any step are refused."""
    for measure in ("rdp", "gdp"):
        rule = make_filter("individual", epsilon=1, delta="1e-6", measure=measure)
        opened = rule.price(rule.opening())
        assert opened == rule.limit
        assert rule.admits(opened)
        assert rule.used_fraction(opened) == 1.0
        assert not rule.admits(opened + Tally((1,)))
        assert not rule.admits(opened + rule.price(rule.opening()))
        assert not rule.admits(opened + rule.price(Gaussian(sensitivity=1, sigma=1e6)))
        assert rule.settlements == frozenset({"full"})


def test_unusable_bounds_are_refused():
    """A bound that cannot be used says so when it is made."""
    for measure, bound, order in (
        ("rdp", 1, None),
        ("rdp", 1, 1),
        ("rdp", 1, "nan"),
        ("rdp", 0, 2),
        ("rdp", True, 2),
        ("gdp", 1, 2),
        ("gdp", -1, None),
        ("zcdp", 1, None),
    ):
        with pytest.raises(InvalidCost):
            IndividualBound(measure=measure, bound=bound, order=order)


def test_bound_under_other_theorems():
    """An RDP bound covers lower orders only; a GDP one covers all notions."""
    renyi = IndividualBound(measure="rdp", order=8, bound="0.5")
    at = lambda order: make_odometer("rdp", delta="1e-6", order=order)
    half = UNITS // 2
    assert at(8).price(renyi) == at(2).price(renyi) == Tally((half, 0))
    with pytest.raises(UnsupportedCost):
        at("8.1").price(renyi)
    for theorem in ("gdp", "zcdp", "basic"):
        with pytest.raises(UnsupportedCost):
            make_filter(theorem, epsilon=1, delta="1e-6").price(renyi)
    gaussian = IndividualBound(measure="gdp", bound="0.5")
    assert at(8).price(gaussian) == Tally((2 * UNITS, 0))
    for name, amounts in (("gdp", (half,)), ("zcdp", (half // 2, 0))):
        rule = make_filter(name, epsilon=1, delta="1e-6")
        assert rule.price(gaussian).amounts == amounts


@settings(max_examples=scaled(30), deadline=None)
@given(DELTAS, ORDERS, st.integers(0, 40 * UNITS), st.sampled_from(["rdp", "gdp"]))
def test_reading_is_just_above_the_bound(delta, order, amount, measure):
    """The odometer reads R + log(1/delta) / (order - 1), at most 1e-9 too high."""
    odometer = make_odometer("individual", delta=delta, order=order, measure=measure)
    spent = real(Fraction(amount, UNITS)) * (real(order) / 2 if measure == "gdp" else 1)
    truth = spent - MP.log(real(delta)) / (real(order) - 1)
    reading = odometer.read(Tally((amount, 0)))
    assert_just_above(reading, truth)
    assert odometer.read(Tally((amount + 1, 0))) >= reading
    assert odometer.read(Tally((amount, 1))) == float("inf")


@given(st.lists(st.integers(0, 1000), max_size=40))
def test_windows_waste_at_most_half(costs):
    """The windows cover the sum, and any two neighbours hold more than one window."""
    bound = windows_divergence([Fraction(c, 1000) for c in costs], window=1)
    total = Fraction(sum(costs), 1000)
    assert total <= bound <= 2 * total + 1
