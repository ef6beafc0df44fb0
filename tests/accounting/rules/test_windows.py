"""Amounts of parts and fullest windows."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import ZCDP, ApproxDP, PoissonSampledGaussian, PureDP
from dpflow.accounting import FILTERS, make_filter
from dpflow.accounting.rules import windows
from dpflow.accounting.rules.groups import group_cost
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import RenyiDP
from dpflow.rounding import UNITS, from_units
from tests.accounting.oracle import (
    MP,
    assert_just_above,
    real,
    renyi_divergence,
    response,
)
from tests.tables import read_costs, read_tables

TABLES = read_tables(__file__)
COSTS = read_costs(TABLES["costs"])


def test_each_part_of_a_step_is_charged_its_share() -> None:
    """Squares of mu and rho grow with the number of parts, a pure loss does not."""
    for name, cost, four in (
        ("gdp", COSTS[0], {"mu_squared": "0.01"}),
        ("zcdp", ZCDP(rho="0.001"), {"rho": "0.004", "delta": "0"}),
        ("basic", PureDP(epsilon="0.1"), {"epsilon": "0.1", "delta": "0"}),
    ):
        rule = make_filter(name, epsilon=1, delta="1e-6")
        assert rule.label(windows.part_price(rule, cost, 4)) == four
        assert windows.part_price(rule, cost, 1) == rule.price(cost)


@pytest.mark.parametrize(("name", "options"), TABLES["filters"])
@given(cost=st.sampled_from(COSTS), most=st.integers(1, 9))
def test_the_amounts_of_parts_cover_every_group(name, options, cost, most):
    """A user in m of the parts loses the price of a group of m, and pays m amounts."""
    rule = make_filter(name, epsilon=3, delta="1e-6", **options)
    amount = windows.part_price(rule, cost, most)
    for size in range(1, most + 1):
        assert rule.price(group_cost(cost, size)).fits_within(amount.times(size))


@given(
    epsilon=st.fractions("0.01", 4),
    most=st.integers(1, 6),
    order=st.sampled_from(["4", "32"]),
)
def test_amounts_are_the_largest_share_in_50_digits(epsilon, most, order):
    """The Renyi divergence of m times epsilon, over m, is largest at one of the m."""
    rule = make_filter("rdp", epsilon=9, delta="1e-6", order=order)
    (amount,) = windows.part_price(rule, PureDP(epsilon=epsilon), most).amounts
    with MP.workdps(50):
        truth = max(
            renyi_divergence(response(m * real(epsilon)), real(order)) / m
            for m in range(1, most + 1)
        )
    assert_just_above(from_units(amount), truth, "1e-20", unit=Fraction(1, UNITS))


def test_a_delta_grows_along_the_row_of_parts() -> None:
    """Four parts with epsilon 1 lose 1 + e + e^2 + e^3 deltas, a quarter in each."""
    rule = make_filter("basic", epsilon=9, delta="0.1")
    step = ApproxDP(epsilon=1, delta="1e-6")
    epsilon, delta = windows.part_price(rule, step, 4).amounts
    truth = real("1e-6") * MP.fsum(MP.exp(k) for k in range(4)) / 4
    assert epsilon == UNITS
    assert_just_above(from_units(delta), truth, "1e-20", unit=Fraction(1, UNITS))


def test_what_has_no_price_for_a_group_has_one_in_a_single_part():
    """Costs that no theorem prices for groups; a step of several parts is refused."""
    renyi = make_filter("rdp", epsilon=3, delta="1e-6", order=8)
    sampled = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)
    for cost in (sampled, RenyiDP(order=8, epsilon="0.1")):
        assert windows.part_price(renyi, cost, 1) == renyi.price(cost)


TALLIES = st.builds(lambda *amounts: Tally(amounts), *[st.integers(0, 9)] * 2)
AMOUNTS = st.dictionaries(st.integers(0, 12), TALLIES)


@given(amounts=AMOUNTS, place=st.integers(0, 12), length=st.integers(1, 6))
def test_the_fullest_window_is_the_largest_sum(amounts, place, length):
    """Compared with every window in turn; parts that were never charged are empty."""
    zero = Tally((0, 0))
    amounts.setdefault(place, zero)
    sums = [
        sum((amounts.get(first + n, zero) for n in range(length)), zero)
        for first in range(place - length + 1, place + 1)
    ]
    expected = tuple(map(max, *(total.amounts for total in sums), (0, 0)))
    assert windows.fullest_window(amounts, place, length).amounts == expected


@given(places=st.sets(st.integers(0, 12), min_size=1), length=st.integers(1, 6))
def test_the_most_parts_of_a_step_in_one_window(places, length):
    """The largest number over all windows that contain the part."""
    for place in places:
        firsts = range(place - length + 1, place + 1)
        expected = max(sum(f <= p < f + length for p in places) for f in firsts)
        assert windows.most_in_window([*places], place, length) == expected


def test_steady_filters_with_one_price_guard_windows():
    """Prices that depend on the used amount, lists of steps and people do not."""
    numbers = {"epsilon": 3, "delta": "1e-6"}
    steady = {"basic", "gdp", "output-dp", "rdp", "zcdp"}
    listed = {"sequence", "individual"}
    rules = {name: make_filter(name, **numbers) for name in FILTERS.keys() - listed}
    guards = {name for name, rule in rules.items() if windows.guards_windows(rule)}
    assert guards == steady
    person = make_filter("individual", **numbers, measure="gdp")
    sequence = make_filter("sequence", **numbers, steps=[PureDP(epsilon=1)])
    assert not windows.guards_windows(person)
    assert not windows.guards_windows(sequence)
