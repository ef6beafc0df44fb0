"""Estimates: numbers with the interval of their own noise."""

from __future__ import annotations

import copy
import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from dpflow import (
    DiscreteGaussian,
    DiscreteLaplace,
    EarlyStopping,
    Estimate,
    Gaussian,
    IntEstimate,
    Laplace,
    Repeated,
)
from dpflow.exceptions import InvalidCost
from dpflow.ledger.codec import decode, encode
from dpflow.noise.draws import draw

pytestmark = pytest.mark.quick

DRAWN = [
    (Gaussian(sensitivity=1, sigma=20), {}, Estimate),
    (Laplace(sensitivity=1, epsilon="0.1"), {}, Estimate),
    (Gaussian(sensitivity=1, sigma=20), {"as_int": True}, IntEstimate),
    (DiscreteGaussian(sensitivity=1, sigma=20), {}, IntEstimate),
    (DiscreteLaplace(sensitivity=1, epsilon="0.1"), {"as_int": True}, IntEstimate),
]


@pytest.mark.parametrize(("cost", "options", "kind"), DRAWN)
def test_one_number_is_an_estimate(cost, options, kind):
    """It is its number in repr, JSON and arithmetic, and copies keep its interval."""
    made = draw(cost, 300, **options)
    plain = int(made) if kind is IntEstimate else float(made)
    assert type(made) is kind
    assert (repr(made), json.dumps(made)) == (repr(plain), json.dumps(plain))
    assert type(made + 1) is type(plain)
    low, high = made.interval
    assert low <= made <= high
    slack = 0.5 if options and isinstance(cost, Gaussian) else 0
    assert made.half_width == pytest.approx(cost.half_width() + slack)
    assert (high - low) / 2 == pytest.approx(made.half_width)
    copies = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    for other in (*copies, decode(encode(made))):
        assert (type(other), other, vars(other)) == (kind, made, vars(made))


@pytest.mark.parametrize(("cost", "options", "kind"), DRAWN)
def test_an_interval_has_any_confidence(cost, options, kind):
    """Also of a number in another unit; the words are those of its interval."""
    made = draw(cost, 300, **options)
    wider = made.at("99%")
    assert (type(wider), wider, wider.confidence) == (kind, made, 0.99)
    assert wider.half_width > made.half_width > made.at(0.9).half_width
    dollars = made.scaled("0.01")
    assert (type(dollars), dollars) == (Estimate, pytest.approx(made / 100))
    assert dollars.interval == pytest.approx([end / 100 for end in made.interval])
    assert dollars.at("99%").half_width == pytest.approx(wider.half_width / 100)
    assert made.scaled(-1).interval == pytest.approx([-e for e in made.interval[::-1]])
    low, high = made.interval
    assert made.describe() == f"{made:.10g} ({low:.10g} to {high:.10g} at 95 %)"
    for confidence in ("100%", "40%", "most"):
        with pytest.raises(InvalidCost):
            made.at(confidence)


def test_a_derived_estimate_has_one_confidence():
    """As one whose noise was refined."""
    made = Estimate(5.0, interval=(1.0, 7.0), confidence=0.95)
    assert (made.half_width, made.scaled(2).interval) == (4.0, (2.0, 14.0))


FAR = Laplace(sensitivity="0.001", scale="0.1")


@pytest.mark.parametrize("number", [0, 5, 1e16, -1e16, 1e300, -1.79e308])
@pytest.mark.parametrize("as_int", [False, True])
@pytest.mark.parametrize("factor", ["0.1", "-0.3", 0, "1e-320"])
def test_an_interval_is_rounded_outward(number, as_int, factor):
    """Of numbers whose last place is wider than the noise, and of scaled ones."""
    made = draw(FAR, number, as_int=as_int)
    for each in (made, made.scaled(factor), made.at("99%").scaled(factor)):
        low, high = map(Fraction, each.interval)
        assert Fraction(each) - low <= Fraction(each.half_width)
        assert high - Fraction(each) <= Fraction(each.half_width)
        assert math.copysign(1, each.interval[1]) > 0 or high
    times = Fraction(factor)
    half = made.noise.half_width(Fraction(19, 20)) + made.noise.rounding(made)
    ends = sorted(times * end for end in (Fraction(made) - half, Fraction(made) + half))
    low, high = map(Fraction, made.scaled(factor).at("95%").interval)
    assert low <= ends[0] <= ends[1] <= high
    assert abs(made - Fraction(number)) <= max(abs(Fraction(number)) / 2**50, 10)


@pytest.mark.parametrize("factor", [10**300, "-1e300", math.inf, math.nan, "ten"])
def test_a_factor_keeps_a_number_finite(factor):
    """Else it is refused as what it is."""
    made = draw(FAR, 1e16)
    with pytest.raises(InvalidCost, match="factor must"):
        made.scaled(factor)


WIDTHS: list[tuple[Any, float]] = [
    (Gaussian(sensitivity=1, sigma=20), 2.5758293),
    (Laplace(sensitivity=1, scale=20), math.log(100)),
]


@pytest.mark.parametrize(("cost", "factor"), WIDTHS)
def test_a_cost_says_the_error_of_each_number(cost, factor):
    """By the noise as it is drawn, which is a little wider than declared."""
    wide = cost.half_width("99%")
    drawn = Fraction(20) * (1 + Fraction(1, 2**20))
    assert wide == pytest.approx(float(drawn) * factor, rel=1e-7)
    assert wide > 20 * factor
    assert EarlyStopping(cost, stops=(5,)).half_width("99%") == wide
    assert Repeated(cost, 5).half_width("99%") == wide


@pytest.mark.parametrize("cost", [cost for cost, _ in WIDTHS])
@pytest.mark.parametrize(("share", "holds"), [(0.9999, True), (1.0001, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_interval_reaches_as_far_as_its_half_width(
    cost, share, holds, sign, monkeypatch
):
    """Noise within it leaves the true number inside, larger noise outside."""
    noise = sign * share * cost.half_width()
    shift = lambda _, __, numbers: [number + noise for number in numbers]
    monkeypatch.setattr("dpflow.noise.draws._noisy", shift)
    for true in (0, Decimal("300.25"), 1e9):
        low, high = draw(cost, true).interval
        assert (low <= true <= high) == holds
