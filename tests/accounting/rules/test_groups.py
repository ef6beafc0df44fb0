"""Prices of groups of privacy units and of personal bounds."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, Gaussian
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.curves.prices import approx_zcdp, gdp_mu_squared
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import DELTAS, MP, ORDERS, assert_just_above, real
from tests.sizes import scaled
from tests.tables import read_costs, read_tables
from tests.wrong_odometers import windows_divergence

SIZES = st.integers(min_value=2, max_value=12)


#: A cost for one unit, and for three that change together.
GROUPED = [read_costs(pair) for pair in read_tables(__file__)["of three"].items()]


def test_a_group_of_three_units() -> None:
    """Losses add up along the row of neighbours; rho grows with the square."""
    for cost, grouped in GROUPED:
        assert group_cost(cost, 3) == grouped
        assert group_cost(cost, 1) is cost


@given(
    size=SIZES,
    epsilon=st.fractions(min_value="1e-6", max_value=2),
    exponent=st.integers(min_value=-35, max_value=-14),
)
def test_delta_is_the_iterated_definition_rounded_up(size, epsilon, exponent):
    """Compared with the sum of the geometric series in 50 digits."""
    delta = Fraction(10) ** exponent
    grouped = group_cost(ApproxDP(epsilon=epsilon, delta=delta), size)
    assert isinstance(grouped, ApproxDP)
    assert grouped.epsilon == size * epsilon
    truth = real(delta) * MP.fsum(MP.exp(k * real(epsilon)) for k in range(size))
    assert truth < real(grouped.delta) < truth * (1 + MP.mpf(10) ** -25)


def test_a_delta_that_only_adds_up_is_caught() -> None:
    """A tight row of neighbours reaches more than size times delta, and not ours.

    Each neighbour multiplies the probability of an output by e^epsilon and adds delta.
    """
    cost, leak = ApproxDP(epsilon=1, delta="1e-6"), 0.0
    for _ in range(4):
        leak = leak * math.e + 1e-6
    grouped = group_cost(cost, 4)
    assert isinstance(grouped, ApproxDP)
    assert 4e-6 < leak <= float(grouped.delta)


@given(size=SIZES, sigma=st.fractions(min_value="0.5", max_value=100))
def test_rho_and_mu_of_a_group_are_the_gaussians_own(size: int, sigma: Fraction):
    """Shifted by `size` sensitivities, a Gaussian has size squared times the rho.

    A rule that only multiplies by the size would stay below it; so for personal bounds.
    """
    rho, more = (
        approx_zcdp(Gaussian(sensitivity=n, sigma=sigma))[0] for n in (1, size)
    )
    grouped = group_cost(ZCDP(rho=rho), size)
    assert isinstance(grouped, ZCDP)
    assert size * rho < more <= grouped.rho
    bound = IndividualBound(measure="gdp", bound=2 * rho)
    assert gdp_mu_squared(group_cost(bound, size)) == 2 * more > size * bound.bound


@given(size=SIZES)
def test_a_group_never_costs_less(size: int) -> None:
    """Under every theorem that prices both."""
    for theorem in ("zcdp", "rdp"):
        rule = make_filter(theorem, epsilon=100, delta="1e-6")
        for cost, _ in GROUPED[:6]:
            grouped = rule.price(group_cost(cost, size))
            assert rule.price(cost).fits_within(grouped)


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
