"""The Rogers filter and odometer against the paper and 60-digit arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpflow import Laplace, PureDP
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import UNITS, from_units
from tests.accounting.oracle import (
    DELTAS,
    EPSILONS,
    MP,
    assert_just_above,
    powers,
    real,
)
from tests.sizes import scaled

pytestmark = pytest.mark.quick


DELTAS = DELTAS.filter(lambda delta: delta < Fraction("0.3679"))


def root(variance, beta, log) -> mpmath.mpf:
    """Return sqrt(2 (V + b)(1 + log(V/b + 1)/2) log)."""
    return MP.sqrt(2 * (variance + beta) * (1 + MP.log1p(variance / beta) / 2) * log)


def true_drift(epsilon) -> mpmath.mpf:
    """Return epsilon (exp(epsilon) - 1) / 2."""
    return real(epsilon) * MP.expm1(real(epsilon)) / 2


def true_people(variance, n, delta, *, repaired: bool) -> mpmath.mpf:
    """Return the boundary of Thm 6.5, as printed or with the repaired union count."""
    points = MP.log(n, 2) * 2
    log = MP.log(2 * (MP.ceil(points) if repaired else points) / real(delta))
    spread = real(variance)
    if Fraction(1, n**2) <= variance <= 1:
        return 2 * MP.sqrt(spread * (1 + MP.log(MP.sqrt(3))) * log)
    return root(spread, real(Fraction(1, n**2)), log)


def tally_of(rule, *steps: tuple[int, str]) -> Tally:
    """Return the tally of several runs of equal pure steps."""
    total = rule.zero()
    for count, epsilon in steps:
        price = rule.price(PureDP(epsilon=epsilon)).amounts
        total = total + Tally(tuple(count * amount for amount in price))
    return total


K_VECTORS = [
    (1, "1e-6", [(10, "0.1")], "2.9606964135048663639890593326"),
    (5, "1e-6", [(10, "0.1")], "2.69995474198458835037472324775"),
    (2, "1e-5", [(20, "0.05"), (5, "0.2")], "4.15917004561776973145879339162"),
]


@pytest.mark.parametrize(("epsilon", "delta", "steps", "stated"), K_VECTORS)
def test_the_bound_of_the_filter_is_the_stated_one(epsilon, delta, steps, stated):
    """K of Thm 5.1 matches from above, and refuses since it exceeds the budget."""
    rule = make_filter("rogers", epsilon=epsilon, delta=delta)
    tally = tally_of(rule, *steps)
    bound = from_units(tally.amounts[1] + rule._width(tally.amounts[0]))
    assert Fraction(stated) <= bound <= Fraction(stated) * (1 + Fraction(1, 10**11))
    assert rule.admits(tally) is (bound <= epsilon)


@settings(max_examples=scaled(60), deadline=None)
@given(
    epsilon=EPSILONS,
    delta=DELTAS,
    share=st.integers(1, 3 * 10**6),
    drift=st.integers(0, 10**6),
)
@example(epsilon=Fraction(1), delta=Fraction("1e-6"), share=1, drift=0)
def test_no_decision_is_on_the_unsafe_side(epsilon, delta, share, drift):
    """Admitted only if K <= epsilon; refused only if K is within 1e-9 of it."""
    rule = make_filter("rogers", epsilon=epsilon, delta=delta)
    scale = epsilon**2 / Fraction(-math.log(delta))
    variance = int(scale * Fraction(share, 10**6) * UNITS)
    mean = int(epsilon * Fraction(drift, 10**6) * UNITS)
    # K of Thm 5.1, with log(2/delta) inside the root.
    beta = real(epsilon) ** 2 / (real("28.04") * MP.log(1 / real(delta)))
    width = root(real(from_units(variance)), beta, MP.log(2 / real(delta)))
    truth = real(from_units(mean)) + width
    if rule.admits(Tally((variance, mean, 0))):
        assert truth <= real(epsilon)
    else:
        assert truth > real(epsilon) * (1 - real("1e-9"))


@settings(max_examples=scaled(30), deadline=None)
@given(epsilon=powers(-9, 4))
def test_prices_lie_just_above_the_truth(epsilon):
    """Squares are exact up to a unit, drifts within 1e-9 until they are capped."""
    rule = make_filter("rogers", epsilon=1, delta="1e-6")
    square, drift, delta = rule.price(Laplace(sensitivity=1, epsilon=epsilon)).amounts
    assert 0 <= square - epsilon**2 * UNITS < UNITS // 10**36
    assert delta == 0
    if true_drift(epsilon) < 10**40:
        unit = Fraction(1, 10**36)
        assert_just_above(from_units(drift), true_drift(epsilon), unit=unit)
    else:
        # Far above epsilon, which bounds the mean loss anyway.
        assert from_units(drift) == 10**40


ODOMETER_VECTORS = [
    ({"beta": 1}, 100, "9.36598475709136562616878153701"),
    ({"people": 1024}, 50, None),
    ({"people": 2}, 400, None),
]


@pytest.mark.parametrize(("options", "steps", "stated"), ODOMETER_VECTORS)
def test_readings_are_the_stated_ones(options, steps, stated):
    """Lemma 6.4 matches the vector; Thm 6.5 the print, where n is a power of two."""
    odometer = make_odometer("rogers", delta="1e-6", **options)
    tally = tally_of(odometer, (steps, "0.1"))
    if stated is None:
        variance = Fraction(steps, 100)
        printed = true_people(variance, options["people"], "1e-6", repaired=False)
        truth = steps * true_drift("0.1") + printed
    else:
        truth = real(stated)
    assert truth <= odometer.read(tally) <= truth * (1 + real("1e-11"))


def test_the_repaired_union_counts_every_beta():
    """The betas 2**j / n**2 below 1 are as many as the logarithm pays for."""
    for people in (2, 3, 4, 5, 999, 1000, 1024, 10**9, 10**15):
        betas = (people**2 - 1).bit_length()
        assert 2 ** (betas - 1) < people**2 <= 2**betas
        odometer = make_odometer("rogers", delta="1e-6", people=people)
        truth = MP.log(2 * betas / real("1e-6"))
        assert truth <= odometer._log <= truth * (1 + real("1e-15"))


@pytest.mark.parametrize("grain", ["1/4", "1/10", "1e-12", "1/30000000"])
def test_any_granularity_takes_the_place_of_the_people(grain):
    """The remark after Thm 6.5, in its range and on both sides of it."""
    least = Fraction(grain)
    odometer = make_odometer("rogers", delta="1e-6", granularity=least)
    points = sum(1 for j in range(200) if least * 2**j < 1)
    log = MP.log(2 * points / real("1e-6"))
    for variance in (least / 2, least * 101 / 100, Fraction(9, 10), Fraction(2)):
        steps = Tally((int(variance * UNITS), 0, 0, 0))
        spread = from_units(steps.amounts[0])
        true = root(real(spread), real(least), log)
        if least <= spread <= 1:
            true = 2 * MP.sqrt(real(spread) * (1 + MP.log(3) / 2) * log)
        assert_just_above(odometer.read(steps), true, "1e-11")


@settings(max_examples=scaled(40), deadline=None)
@given(
    delta=DELTAS,
    variance=st.one_of(powers(-18, 6), st.just(Fraction(1)), st.just(Fraction(0))),
    beta=powers(-18, 6),
    people=st.one_of(st.none(), st.integers(2, 10**9)),
)
def test_readings_lie_just_above_the_truth(delta, variance, beta, people):
    """Never below 60-digit arithmetic, within 1e-9 of it, at every corner."""
    tally = Tally((int(variance * UNITS), 0, 0, 0))
    if people is None:
        odometer = make_odometer("rogers", delta=delta, beta=beta)
        truth = root(real(variance), real(beta), MP.log(2 / real(delta)))
    else:
        odometer = make_odometer("rogers", delta=delta, people=people)
        truth = true_people(variance, people, delta, repaired=True)
    assert_just_above(odometer.read(tally), truth)
