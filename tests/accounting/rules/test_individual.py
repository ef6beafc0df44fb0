"""The public side of individual accounting, against 60-digit arithmetic."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import MP, real
from tests.sizes import scaled
from tests.wrong_odometers import windows_divergence

decades = st.floats(-9, 3).map(lambda x: Fraction(f"{10**x:.6g}"))
deltas = st.floats(-30, -0.302).map(lambda x: Fraction(f"{10**x:.6g}"))
orders = (
    st.floats(-4, 6)
    .map(lambda x: Fraction(f"{1 + 10**x:.9g}"))
    .filter(lambda a: Fraction("1.0001") <= a <= 10**6)
)


def divergence_allowed(epsilon: Fraction, delta: Fraction, order: Fraction):
    """Solve delta = exp((a-1)(r-eps)) / (a-1) * (1-1/a)**a for r."""
    a = real(order)
    tail = MP.log(real(delta)) + MP.log(a - 1) - a * MP.log(1 - 1 / a)
    return real(epsilon) + tail / (a - 1)


def gaussian_delta(epsilon: Fraction, mu_squared) -> mpmath.mpf:
    """Return the delta of mu-GDP at epsilon."""
    mu, eps = MP.sqrt(mu_squared), real(epsilon)
    first = MP.ncdf(mu / 2 - eps / mu)
    return first - MP.exp(eps) * MP.ncdf(-mu / 2 - eps / mu)


@settings(max_examples=scaled(30), deadline=None)
@given(decades, deltas, orders)
def test_bound_is_below_the_divergence_allowed(epsilon, delta, order):
    """The public bound is what the order allows, rounded down, or is refused."""
    truth = divergence_allowed(epsilon, delta, order)
    try:
        rule = make_filter("individual", epsilon=epsilon, delta=delta, order=order)
    except InvalidCost:
        assert truth < MP.mpf("1e-23")
        return
    bound = real(rule.bound)
    assert bound <= truth
    assert truth - bound <= max(truth * MP.mpf("1e-9"), MP.mpf("1.1e-36"))


@settings(max_examples=scaled(8), deadline=None)
@given(decades, deltas)
def test_gaussian_bound_spends_delta_and_no_more(epsilon, delta):
    """The squared mu that is allowed reaches delta from below."""
    rule = make_filter("individual", epsilon=epsilon, delta=delta, measure="gdp")
    bound = real(rule.bound)
    assert gaussian_delta(epsilon, bound) <= real(delta)
    assert gaussian_delta(epsilon, bound * (1 + MP.mpf("1e-9"))) > real(delta)


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
    filters = {
        name: make_filter(name, epsilon=1, delta="1e-6") for name in ("gdp", "zcdp")
    }
    assert filters["gdp"].price(gaussian) == Tally((half,))
    assert filters["zcdp"].price(gaussian) == Tally((half // 2, 0))


@pytest.mark.parametrize(
    "options",
    [
        {"measure": "rdp", "bound": 1},
        {"measure": "rdp", "bound": 1, "order": 1},
        {"measure": "rdp", "bound": 1, "order": 2 * 10**6},
        {"measure": "rdp", "bound": 1, "order": "nan"},
        {"measure": "rdp", "bound": 0, "order": 2},
        {"measure": "rdp", "bound": True, "order": 2},
        {"measure": "rdp", "bound": float("inf"), "order": 2},
        {"measure": "gdp", "bound": 1, "order": 2},
        {"measure": "gdp", "bound": -1},
        {"measure": "zcdp", "bound": 1},
        {"measure": None, "bound": 1},
    ],
)
def test_unusable_bounds_are_refused(options):
    """A bound that cannot be used says so when it is made."""
    with pytest.raises(InvalidCost):
        IndividualBound(**options)


@settings(max_examples=scaled(30), deadline=None)
@given(
    deltas,
    orders,
    st.integers(0, 40 * UNITS),
    st.sampled_from(["rdp", "gdp"]),
)
def test_reading_is_just_above_the_bound(delta, order, amount, measure):
    """The odometer reads R + log(1/delta) / (order - 1), at most 1e-9 too high."""
    odometer = make_odometer("individual", delta=delta, order=order, measure=measure)
    spent = MP.mpf(amount) / UNITS
    if measure == "gdp":
        spent *= real(order) / 2
    truth = spent - MP.log(real(delta)) / (real(order) - 1)
    reading = MP.mpf(odometer.read(Tally((amount, 0))))
    assert truth <= reading <= truth * (1 + MP.mpf("1e-9"))
    assert odometer.read(Tally((amount + 1, 0))) >= odometer.read(Tally((amount, 0)))
    assert odometer.read(Tally((amount, 1))) == float("inf")
    assert make_odometer(**odometer.parameters()) == odometer


def test_odometer_derives_its_order_or_asks_for_a_target():
    """Without order= there must be a reading to tune for."""
    derived = make_odometer("individual", delta="1e-6", halt_at_epsilon=3)
    assert derived.read(derived.zero()) < 3
    assert make_odometer(**derived.parameters()) == derived
    with pytest.raises(InvalidCost):
        make_odometer("individual", delta="1e-6")
    with pytest.raises(InvalidCost):
        make_odometer("individual", delta=0, order=8)


def test_windows_are_for_comparison_only():
    """Algorithm 2 counts windows, and no policy can name it."""
    assert windows_divergence([], window=1) == 1
    assert windows_divergence(["0.5", "0.5"], window=1) == 1
    assert windows_divergence(["0.6", "0.6", "0.6"], window=1) == 3
    with pytest.raises(InvalidCost, match="does not take these options"):
        make_odometer("individual", delta="1e-6", order=8, rule="windows")


@given(st.lists(st.integers(0, 1000), max_size=40))
def test_windows_waste_at_most_half(costs):
    """The windows cover the sum, and any two neighbours hold more than one window."""
    bound = windows_divergence([Fraction(c, 1000) for c in costs], window=1)
    total = Fraction(sum(costs), 1000)
    assert total <= bound <= 2 * total + 1
