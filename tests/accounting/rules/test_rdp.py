"""The RDP rules of one order and of several, and the doubling odometer."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow import Gaussian, PoissonSampledGaussian
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.rules.exponential_sums import ExponentialSum
from dpflow.accounting.rules.rdp import RdpFilter
from dpflow.accounting.rules.rdp_doubling import PAPER_ORDERS
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import InvalidCost
from dpflow.rounding import UNITS
from tests.accounting.oracle import DELTAS, MP, assert_just_above, maximum, powers, real
from tests.accounting.oracle import ORDERS as ORDER
from tests.sizes import scaled
from tests.tables import read_tables

TABLES = read_tables(__file__)
TIGHT = MP.mpf("1e-9")
CONVERSIONS = st.sampled_from(["tight", "classic"])


@settings(max_examples=scaled(40), deadline=None)
@given(epsilon=powers(-9, 3), delta=DELTAS, order=ORDER, conversion=CONVERSIONS)
def test_thresholds_are_just_below_the_truth(epsilon, delta, order, conversion):
    """Within one unit or 1e-9, never above, with one order written either way."""
    e, d, a = real(epsilon), real(delta), real(order)
    truth = e + MP.log(d) / (a - 1)
    if conversion == "tight":
        truth = e - MP.log((a - 1) / a) + (MP.log(d) + MP.log(a)) / (a - 1)
    options = {"epsilon": epsilon, "delta": delta, "conversion": conversion}
    if truth <= 0:
        with pytest.raises(InvalidCost, match="allows nothing"):
            RdpFilter(order=order, **options)
        with pytest.raises(InvalidCost, match="allow nothing"):
            make_filter("rdp", orders=[order], **options)
        return
    threshold, units = RdpFilter(order=order, **options).thresholds[0], truth * UNITS
    assert threshold <= units * (1 + MP.mpf("1e-50"))
    assert threshold >= units * (1 - TIGHT) - 1
    several = make_filter("rdp", orders=[order], **options)
    shrink = Fraction(threshold) / 10**9
    assert several.admits(Tally((max(math.floor(threshold - shrink) - 1, 0),)))
    assert not several.admits(Tally((math.ceil(threshold + shrink) + 1,)))


def test_a_reading_of_one_order_is_the_theorem_rounded_up():
    """The float is the first one that is not below R + log(1/delta)/(order-1)."""
    twenty = Gaussian(sensitivity=1, sigma=20)
    for delta in ("1e-35", "1e-6", "0.999"):
        for order in ("1.0001", "8", "63.25", "1e6"):
            rule = make_odometer("rdp", delta=delta, order=order)
            for count in (0, 1, 1000):
                reading = rule.read(rule.price(twenty).times(count))
                spent = count * real(order) / 800
                truth = spent - MP.log(real(delta)) / (real(order) - 1)
                assert MP.mpf(math.nextafter(reading, 0)) < truth * (1 + TIGHT**3)
                assert truth <= MP.mpf(reading)


# -- several orders ----------------------------------------------------------------


def mixture(orders, weights, amounts, loss):
    """Return the weighted mean N at a loss, term by term."""
    return MP.fsum(
        real(w) * MP.exp((real(a) - 1) * (loss - real(Fraction(r, UNITS))))
        for a, w, r in zip(orders, weights, amounts, strict=True)
    )


def certified_delta(orders, weights, tally: Tally, epsilon):
    """Return the maximum of (1 - exp(epsilon - L)) / N, by golden section in log x."""

    def ratio(point):
        x = MP.exp(point)
        mean = mixture(orders, weights, tally.amounts, real(epsilon) + x)
        return MP.log(-MP.expm1(-x)) - MP.log(mean)

    # The maximum is at log(1 + 1/A), A between the smallest and the largest order - 1.
    low, high = (MP.log(MP.log1p(1 / (real(a) - 1))) for a in (orders[-1], orders[0]))
    return MP.exp(maximum(ratio, low - 1, high + 1))


ORDERS = st.lists(ORDER, min_size=1, max_size=5, unique=True).map(sorted)
PARTS = st.lists(st.integers(1, 1000), min_size=5, max_size=5)


def normalised(parts: list[int], count: int) -> list[Fraction]:
    """Return positive weights that sum to one."""
    return [Fraction(part, sum(parts[:count])) for part in parts[:count]]


def boundary(rule, direction: list[int]) -> Tally | None:
    """Return the largest admitted tally along a direction, to 1e-11."""
    if not rule.admits(Tally(tuple(min(1, d) for d in direction))):
        return None

    def at(power: Fraction) -> Tally:
        scale = Fraction(2) ** math.floor(power) * (1 + power - math.floor(power))
        return Tally(tuple(math.ceil(scale * d) for d in direction))

    if not rule.admits(at(Fraction(-100))):
        return None
    low, high = Fraction(-100), Fraction(320)
    for _ in range(49):
        middle = (low + high) / 2
        low, high = (middle, high) if rule.admits(at(middle)) else (low, middle)
    return at(low)


@pytest.mark.parametrize("conversion", ["tight", "classic"])
@settings(max_examples=scaled(12, push=6), deadline=None)
@given(epsilon=powers(-9, 3), delta=DELTAS, shape=st.tuples(ORDERS, PARTS, PARTS))
def test_the_decision_is_sound_and_tight_at_its_boundary(
    conversion, epsilon, delta, shape
):
    """What is just admitted certifies delta; 1e-9 more would not."""
    orders, parts, directions = shape
    weights = normalised(parts, len(orders))

    def certified(tally: Tally):
        if conversion == "tight":
            return certified_delta(orders, weights, tally, epsilon)
        return 1 / mixture(orders, weights, tally.amounts, real(epsilon))

    options = {"epsilon": epsilon, "delta": delta, "conversion": conversion}
    try:
        rule = make_filter("rdp", orders=orders, weights=weights, **options)
    except InvalidCost:
        truth = certified(Tally((0,) * len(orders)))
        assert truth > real(delta) * (1 - TIGHT)
        return
    tally = boundary(rule, directions[: len(orders)])
    if tally is None:
        return
    assert certified(tally) <= real(delta) * (1 + MP.mpf("1e-30"))
    more = Tally(tuple(a + a // 10**9 + 2 for a in tally.amounts))
    assert not rule.admits(more)
    assert certified(more) >= real(delta) * (1 - TIGHT)


@given(delta=DELTAS, orders=ORDERS, parts=PARTS, spent=st.lists(powers(-12, 6)))
def test_odometer_readings_are_just_above_the_root(delta, orders, parts, spent):
    """The reading solves the equation, and is no more than any single order's."""
    weights = normalised(parts, len(orders))
    mixed = make_odometer("rdp", delta=delta, orders=orders, weights=weights)
    amounts = [math.ceil(r * UNITS) for r in [*spent, *[Fraction(0)] * 5]]
    tally = Tally((*amounts[: len(orders)], 0))
    closed = min(
        real(Fraction(r, UNITS)) - MP.log(real(w * delta)) / (real(a) - 1)
        for a, w, r in zip(orders, weights, tally.amounts, strict=False)
    )
    reading = real(mixed.read(tally))
    assert reading <= closed * (1 + TIGHT)
    mean = partial(mixture, orders, weights, tally.amounts[:-1])
    assert mean(reading) >= 1 / real(delta) >= mean(reading * (1 - TIGHT))


@pytest.mark.parametrize(("count", "stated"), TABLES["readings"].items())
def test_the_readings_of_the_sheet(count, stated):
    """The mixture reads less than the doubling odometer."""
    step, orders = Gaussian(sensitivity=1, sigma=20), list(PAPER_ORDERS)
    doubling = make_odometer("rdp-doubling", delta="1e-6")
    mixed = make_odometer("rdp", delta="1e-6", orders=orders)
    readings = [rule.read(rule.price(step).times(count)) for rule in (doubling, mixed)]
    assert readings == pytest.approx(stated, rel=1e-7)
    assert readings == sorted(readings, reverse=True)
    assert readings[0] == pytest.approx(stated[0], rel=1e-14)


def test_the_privacy_axis_of_lecuyers_figure_2() -> None:
    """Batches of 512 of 50,000, noise 1: 50 epochs by RDP, 20 and 6 by odometers."""
    rate = Fraction(512, 50_000)
    batch = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=1)

    def reading(epochs: int, **options: Any) -> float:
        rule = make_odometer(delta="1e-6", **options)
        return round(rule.read(rule.price(batch).times(98 * epochs)), 3)

    plain = [reading(50, theorem="rdp", order=order) for order in PAPER_ORDERS]
    # The paper has 5.76, and 4.7 with the constants of its code.
    assert min(plain) == 5.762
    mixture = {"theorem": "rdp", "orders": [4, 6, 8, 12, 16]}
    for epochs, doubling, five in TABLES["epochs"]:
        assert reading(epochs, theorem="rdp-doubling") == doubling
        assert reading(epochs, **mixture) == five


@settings(max_examples=scaled(12), deadline=None)
@given(delta=DELTAS, orders=ORDERS, spent=st.lists(powers(-12, 6)))
def test_the_doubling_odometer_is_its_formula(delta, orders, spent):
    """The referee tries filters one by one."""
    rule = make_odometer("rdp-doubling", delta=delta, orders=orders)
    amounts = [math.ceil(r * UNITS) for r in [*spent, *[Fraction(0)] * 5]]
    tally = Tally((*amounts[: len(orders)], 0))
    log = MP.log(2 * len(orders) / real(delta))
    each = []
    for order, amount in zip(orders, tally.amounts, strict=False):
        number = 1
        first = log / (real(order) - 1)
        while 2 ** (number - 1) * first < real(Fraction(amount, UNITS)):
            number += 1
        each.append(2 ** (number - 1) * first + first * (1 + 2 * MP.log(number) / log))
    assert_just_above(rule.read(tally), min(each))


@settings(max_examples=scaled(30), deadline=None)
@given(
    orders=ORDERS,
    parts=PARTS,
    gaps=st.lists(
        st.one_of(powers(-12, 4), powers(-12, 14).map(lambda x: -x)),
        min_size=5,
        max_size=5,
    ),
)
def test_guarded_sums_are_below_the_truth(orders, parts, gaps):
    """Also where exponents of a billion cancel."""
    weights = normalised(parts, len(orders))
    units = [math.floor(gap * UNITS) for gap in gaps[: len(orders)]]
    bound = ExponentialSum(tuple(orders), tuple(weights)).at(units).log_below()
    truth = MP.log(mixture(orders, weights, [-unit for unit in units], MP.mpf(0)))
    assert MP.mpf(bound) <= truth
    assert MP.mpf(bound) >= truth - MP.mpf("2e-12") - abs(truth) * MP.mpf("1e-13")
