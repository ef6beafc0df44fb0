"""The Rogers, Whitehouse, mixture and stitched rules against their papers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpflow import ApproxDP, Laplace, PureDP
from dpflow.accounting import make_filter, make_odometer
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.rules.tally import Tally
from dpflow.costs import ProbabilisticDP
from dpflow.exceptions import UnsupportedCost
from dpflow.rounding import UNITS, from_units
from tests.accounting.oracle import DELTAS, MP, assert_just_above, powers, real
from tests.sizes import scaled
from tests.tables import read_tables

TABLES = read_tables(__file__)
RARE = DELTAS.filter(lambda delta: delta < Fraction("0.3679"))


def root(variance, beta, log) -> mpmath.mpf:
    """Return sqrt(2 (V + b)(1 + log(V/b + 1)/2) log)."""
    return MP.sqrt(2 * (variance + beta) * (1 + MP.log1p(variance / beta) / 2) * log)


def true_drift(epsilon) -> mpmath.mpf:
    """Return epsilon (exp(epsilon) - 1) / 2."""
    return real(epsilon) * MP.expm1(real(epsilon)) / 2


def boundary(variance, least, log) -> mpmath.mpf:
    """Return the boundary of Thm 6.5 and the remark after it, for a granularity."""
    if least <= variance <= 1:
        return 2 * MP.sqrt(real(variance) * (1 + MP.log(3) / 2) * log)
    return root(real(variance), real(least), log)


def true_people(variance, n, delta, *, repaired: bool) -> mpmath.mpf:
    """Return the boundary as printed or with the repaired union count."""
    points = MP.log(n, 2) * 2
    log = MP.log(2 * (MP.ceil(points) if repaired else points) / real(delta))
    return boundary(variance, Fraction(1, n**2), log)


def tally_of(rule, *steps: tuple[int, str]) -> Tally:
    """Return the tally of several runs of equal pure steps."""
    prices = (rule.price(PureDP(epsilon=e)).times(count) for count, e in steps)
    return sum(prices, rule.zero())


def test_the_bound_of_the_filter_is_the_stated_one():
    """K of Thm 5.1 matches from above, and refuses since it exceeds the budget."""
    for epsilon, delta, steps, stated in TABLES["rogers"]:
        rule = make_filter("rogers", epsilon=epsilon, delta=delta)
        tally = tally_of(rule, *steps)
        bound = from_units(tally.amounts[1] + rule._width(tally.amounts[0]))
        assert_just_above(bound, real(stated), "1e-11")
        assert rule.admits(tally) is (bound <= epsilon)


@settings(max_examples=scaled(60), deadline=None)
@given(
    epsilon=powers(-9, 3),
    delta=RARE,
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


def test_readings_are_the_stated_ones():
    """Lemma 6.4 matches the vector; Thm 6.5 the print, where n is a power of two."""
    odometer = make_odometer("rogers", delta="1e-6", beta=1)
    reading = odometer.read(tally_of(odometer, (100, "0.1")))
    assert_just_above(reading, real("9.36598475709136562616878153701"), "1e-11")
    for people, steps in ((1024, 50), (2, 400)):
        odometer = make_odometer("rogers", delta="1e-6", people=people)
        printed = true_people(Fraction(steps, 100), people, "1e-6", repaired=False)
        reading = odometer.read(tally_of(odometer, (steps, "0.1")))
        assert_just_above(reading, steps * true_drift("0.1") + printed, "1e-11")


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
        true = boundary(from_units(steps.amounts[0]), least, log)
        assert_just_above(odometer.read(steps), true, "1e-11")


@settings(max_examples=scaled(40), deadline=None)
@given(
    delta=RARE,
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


def test_the_bound_on_the_loss_is_the_stated_one():
    """A budget just below the stated loss refuses the sum of squares; above, admits."""
    for spent, stated in TABLES["losses"]:
        for factor, fits in (("1.000000000001", True), ("0.999999999999", False)):
            epsilon = Fraction(stated) * Fraction(factor)
            rule = make_filter("whitehouse", epsilon=epsilon, delta="1e-6")
            assert rule.admits(Tally((int(Fraction(spent) * UNITS), 0))) is fits


@settings(max_examples=scaled(30), deadline=None)
@given(epsilon=powers(-9, 3), delta=DELTAS)
def test_thresholds_and_prices_lie_on_the_safe_side(epsilon, delta):
    """Thresholds below the root, prices above epsilon**2 or epsilon tanh(epsilon/2)."""
    log, place = -MP.log(real(delta)), Fraction(1, 10**36)
    # The root y of sqrt(2 log(1/delta) y) + y/2 = epsilon.
    root = (MP.sqrt(2 * (real(epsilon) + log)) - MP.sqrt(2 * log)) ** 2
    rate = real(epsilon) * MP.tanh(real(epsilon) / 2)
    for drift, truth, price in (
        ("classic", root, real(epsilon**2)),
        ("tanh", root / 2, rate),
    ):
        rule = make_filter("whitehouse", epsilon=epsilon, delta=delta, drift=drift)
        limit = real(from_units(rule.limit.amounts[0]))
        assert limit <= truth
        assert limit + real(place) >= truth * (1 - MP.mpf("1e-9"))
        charged = rule.price(PureDP(epsilon=epsilon)).amounts[0]
        assert_just_above(from_units(charged), price, unit=place)


def test_deltas_of_steps_are_paid_from_their_share():
    """Delta - delta_loss bounds the sum of the steps' deltas; equality admits."""
    rule = make_filter("whitehouse", epsilon=5, delta="1e-5", delta_loss="6e-6")
    step = rule.price(ApproxDP(epsilon="0.01", delta="1e-6"))
    assert step.amounts == (UNITS // 10**4, UNITS // 10**6)
    assert rule.admits(step.times(4))
    assert not rule.admits(step.times(5))
    same = make_filter("whitehouse", epsilon=5, delta="6e-6")
    assert same.limit.amounts[0] == rule.limit.amounts[0]


def test_each_notion_is_charged_what_it_implies():
    """(epsilon, delta)-DP enters at epsilon squared, rho-zCDP at twice rho."""
    rule = make_filter("whitehouse", epsilon=1, delta="1e-6", delta_loss="5e-7")
    for text, *amounts in TABLES["whitehouse"]:
        expected = tuple(Fraction(amount) * UNITS for amount in amounts)
        assert expected == rule.price(cost_from_text(text)).amounts


def mixture(v: Fraction, rho: Fraction, delta: Fraction, sides: int = 1) -> Any:
    """Return the boundary of the mixture, with one side or two."""
    spread, ratio = real(v + rho), MP.sqrt(real((v + rho) / rho))
    inside = 1 + ratio / (2 * real(delta)) if sides == 1 else ratio / real(delta)
    return MP.sqrt(2 * spread * MP.log(inside))


def stitched(v: Fraction, v0: Fraction, delta: Fraction) -> Any:
    """Return the stitched boundary, at max(v, v0)."""
    spread = real(max(v, v0))
    tail = real("0.72") * MP.log(real("5.2") / real(delta))
    log = MP.log(MP.log(2 * spread / real(v0)))
    return real("1.7") * MP.sqrt(spread * (log + tail))


def tally_at(variance: Fraction, form: str) -> Tally:
    """Return the tally at which V (or 2 R) is as given."""
    return Tally((int(variance * UNITS) // (1 if form == "pure" else 2), 0, 0))


@pytest.mark.parametrize(
    ("name", "options", "variance", "stated"), TABLES["time uniform"]
)
def test_time_uniform_readings_are_the_stated_ones(name, options, variance, stated):
    """The published values with their drift, met from above in both forms."""
    for form in ("pure", "zcdp"):
        odometer = make_odometer(name, delta="1e-6", form=form, **options)
        reading = Fraction(odometer.read(tally_at(Fraction(variance), form)))
        slack = Fraction("1e-11")
        if form == "zcdp" and "sides" in options:
            slack = Fraction("1e-6")  # 1 + inside the logarithm
        assert Fraction(stated) <= reading <= Fraction(stated) * (1 + slack)


@settings(max_examples=scaled(50), deadline=None)
@given(
    delta=DELTAS,
    variance=st.one_of(powers(-18, 8), st.just(Fraction(0))),
    constant=powers(-12, 6),
    form=st.sampled_from(["pure", "zcdp"]),
)
def test_time_uniform_readings_are_rounded_up(delta, variance, constant, form):
    """Never below the formula, within 1e-9 of it, at every corner."""
    tally = tally_at(variance, form)
    amount = Fraction(tally.amounts[0], UNITS)
    v, drift = (amount, amount / 2) if form == "pure" else (2 * amount, amount)
    two = mixture(v, constant, delta, sides=2)
    if form == "zcdp":
        two = mixture(v, constant, delta / 2)
    for name, options, width in (
        ("mixture", {"rho": constant}, mixture(v, constant, delta)),
        ("stitched", {"v0": constant}, stitched(v, constant, delta)),
        ("mixture", {"rho": constant, "sides": "two"}, two),
    ):
        odometer = make_odometer(name, delta=delta, form=form, **options)
        truth = real(drift) + width
        assert_just_above(odometer.read(tally), truth, unit=Fraction(2, UNITS))


def test_deltas_of_steps_join_the_drift_and_have_a_limit():
    """The reading grows by a step's delta; beyond their share it is undefined."""
    step = ProbabilisticDP(epsilon="0.1", delta="1e-3")
    for name, option in (("mixture", "rho"), ("stitched", "v0")):
        for form in ("pure", "zcdp"):
            room = {"delta": "0.05", "delta_loss": "0.047", option: 1}
            odometer = make_odometer(name, form=form, **room)
            price = odometer.price(step)
            assert price.amounts[1] == UNITS // 1000
            without = Tally((3 * price.amounts[0], 0, 0))
            risen = odometer.read(price.times(3)) - odometer.read(without)
            assert abs(risen - 0.003) < 1e-12
            assert odometer.read(price.times(4)) == math.inf
            no_room = make_odometer(name, form=form, delta="0.05", **{option: 1})
            with pytest.raises(UnsupportedCost, match="Set delta_loss below delta"):
                no_room.price(step)


@settings(max_examples=scaled(40), deadline=None)
@given(epsilon=powers(-6, 2), delta=powers(-12, 0), t=powers(-6, 6))
def test_the_moment_bound_behind_the_delta_term(epsilon, delta, t):
    """Randomized response moved by delta / (2 sinh(epsilon)) obeys the stated bound.

    E exp(t loss) <= exp(t delta + t (1 + t) rho), rho = epsilon tanh(epsilon / 2). The
    step's deltas go up to one, and the pair is a pair of distributions or worse.
    """
    e, d, s = real(epsilon), real(min(delta, Fraction(1))), real(t)
    lean = MP.tanh(e / 2) + d / MP.sinh(e)
    moment = MP.cosh(s * e) + lean * MP.sinh(s * e)
    bound = s * d + s * (1 + s) * e * MP.tanh(e / 2)
    assert MP.log(moment) <= bound * (1 + MP.mpf("1e-60"))
