"""Combinations with the least noise, and intervals compared with 50 digits."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.answers.sums import Noisy, combination, interval, ratio
from dpflow.exceptions import ReleaseError
from tests.sizes import spread
from tests.tables import read_tables

pytestmark = pytest.mark.quick

MP = mpmath.mp.clone()
MP.dps = 50
ONE, ZERO = Fraction(1), Fraction(0)
TABLES = read_tables(__file__)


def noisy(number=0, spread=1, *, laplace=False, draws=1, slack=0):
    """Return a number with noise."""
    numbers = map(Fraction, (number, spread))
    return Noisy(*numbers, not laplace, draws, Fraction(slack))


def half(*terms):
    """Return half the width of an interval."""
    value, low, high = interval(terms)
    assert value - low == high - value
    return high - value


def exact(number):
    """Return a fraction with 50 digits."""
    return MP.mpf(number.numerator) / number.denominator


def covered(scales, variance, width):
    """Return the share of sums within a width, by an integral of 50 digits."""

    def wave(u):
        laplace = MP.fprod(1 / (1 + (b * u) ** 2) for b in scales)
        return MP.exp(-variance * u**2 / 2) * laplace * MP.sin(u * width) / u

    # Between zeros of the sine, as far as 50 digits of a fast decay need.
    return 2 / MP.pi * MP.quad(wave, [MP.pi * k / width for k in range(60)])


def erlang_tail(count, width):
    """Return P(|sum of `count` Laplace numbers of scale 1| > width), exact."""
    terms = (
        math.comb(count - 1 + k, k)
        * MP.mpf(2) ** -(count - 1 + k)
        * MP.gammainc(count - k, width, regularized=True)
        for k in range(count)
    )
    return MP.fsum(terms)


@pytest.mark.parametrize(("count", "wanted"), TABLES["laplace"])
def test_laplace_intervals_cover_what_they_say(count, wanted):
    """Exactly 95 % and no more than a millionth above; 1.96 deviations miss more."""
    width = half(*[(ONE, noisy(spread=3, laplace=True))] * count) / 3
    missed = erlang_tail(count, exact(width))
    assert 0.05 * (1 - 2e-5) < missed <= 0.05
    usual = 1 - erlang_tail(count, MP.mpf("1.959963984540054") * MP.sqrt(2 * count))
    assert wanted <= 100 * usual < wanted + 0.1


def test_intervals_of_two_laplace_scales_cover_what_they_say():
    """By the exact tail of a sum of draws of scales 2 and 1, without Gaussian noise."""
    width = exact(half(*[(ONE, noisy(spread=s, laplace=True)) for s in (2, 1)]))
    missed = (4 * MP.exp(-width / 2) - MP.exp(-width)) / 3
    assert 0.05 * (1 - 2e-5) < missed <= 0.05


@pytest.mark.parametrize(("scales", "sigma"), spread(TABLES["mixed"], 3))
def test_mixed_intervals_agree_with_50_digits(scales, sigma):
    """Laplace and Gaussian noise of several scales: outward, by less than 1e-5."""
    terms = [(ONE, noisy(spread=s, laplace=True)) for s in scales]
    terms += [(-ONE, noisy(spread=sigma))] if sigma else []
    share = covered(scales, MP.mpf(sigma) ** 2, exact(half(*terms)))
    assert 0.95 <= share < 0.95 + 1e-6


def test_gaussian_intervals_agree_with_50_digits():
    """The quantile times the root of all variances, outward in the last digits."""
    width, rounded = (
        half((Fraction(2), noisy(spread="1.5", slack=slack)), (-ONE, noisy(spread=4)))
        for slack in (0, "0.5")
    )
    true = MP.sqrt(2) * MP.erfinv(MP.mpf("0.95")) * 5
    assert 0 <= exact(width) / true - 1 < 1e-25
    assert rounded == width + 1


def test_refined_noise_holds_for_all_draws_together():
    """52 numbers of 21 draws are 15 times as wide as independent noise."""
    alone = half(*[(ONE, noisy(spread=7))] * 52)
    refined = half(*[(ONE, noisy(spread=7, draws=21))] * 52)
    assert 14.5 < refined / alone < 15.5
    unused = [(ZERO, noisy(draws=21))] * 51
    assert half((ONE, noisy(draws=21)), *unused) > half((ONE, noisy(draws=21)))
    laplace = half((ONE, noisy(draws=2, laplace=True)))
    assert abs(float(laplace) - math.log(2 / 0.05)) < 1e-9


def test_ratios_cover_with_the_covariance_and_too_often_without():
    """A share's numerator is in its denominator: 95.0 %; as if apart 98.5 %."""
    draws = np.random.default_rng(5).normal(size=(250, 4)) * 20
    true, hits = np.array([300.0, 200.0, 400.0, 500.0]), [0, 0]
    for noise in draws:
        numbers = [noisy(number, 20) for number in map(float, true + noise)]
        under = [(ONE, number) for number in numbers]
        over = [(ONE, numbers[0]), *((ZERO, number) for number in numbers[1:])]
        apart = [(ONE, numbers[0]), *((ZERO, number) for number in numbers)]
        rest = [(ZERO, numbers[0]), *under]
        for place, pair in enumerate([(over, under), (apart, rest)]):
            _, low, high = ratio(*pair)
            hits[place] += low <= Fraction(300, 1400) <= high
    assert 0.93 < hits[0] / 250 < 0.97 < hits[1] / 250


def test_ratios_without_an_interval_are_refused():
    """Where the denominator may be 0, and where noise is no plain Gaussian."""
    good = noisy(100, 1)
    assert ratio([(ONE, good)], [(ONE, good)])[0] == 1
    for number, options, problem in TABLES["ratios"]:
        terms = [(ONE, noisy(number, 1, **options))]
        with pytest.raises(ReleaseError, match=problem):
            ratio(terms, terms)
    over, under = [(ONE, noisy(-50, 1)), (ZERO, good)], [(ZERO, good), (ONE, good)]
    value, low, high = ratio(over, under)
    assert low < value < high < 0


def test_a_ratio_is_rounded_outward_with_its_slack():
    """Fieller's ends by 50 digits, over the corners of what rounding may have moved."""
    over, under = noisy(300, 20, slack="0.5"), noisy(900, 30, slack="0.5")
    _, low, high = ratio([(ONE, over), (ZERO, under)], [(ZERO, over), (ONE, under)])
    z = (MP.sqrt(2) * MP.erfinv(MP.mpf("0.95"))) ** 2
    ends = []
    for top, bottom in product((299.5, 300.5), (899.5, 900.5)):
        a, b, c = bottom**2 - z * 900, top * bottom, top**2 - z * 400
        ends += [(b - s * MP.sqrt(b**2 - a * c)) / a for s in (1, -1)]
    for ours, true in ((low, min(ends)), (high, max(ends))):
        assert abs(exact(ours) - true) < 1e-20


PARTS = "abcd"
SETS = st.frozensets(st.sampled_from(PARTS), min_size=1)
ROWS = st.lists(SETS, min_size=1, max_size=6)


@given(ROWS, st.lists(st.integers(1, 9), min_size=6, max_size=6), SETS)
def test_a_combination_is_the_target_with_the_least_variance(rows, spreads, target):
    """It sums to the target exactly, as least squares does; else nothing does."""
    numbers = [noisy(spread=spread) for spread in spreads[: len(rows)]]
    times = combination(rows, numbers, target)
    matrix = np.array([[float(p in row) for row in rows] for p in PARTS])
    wanted = np.array([float(p in target) for p in PARTS])
    scales = np.array([float(n.spread) for n in numbers])
    best, *_ = np.linalg.lstsq(matrix / scales, wanted, rcond=None)
    exists = np.allclose(matrix / scales @ best, wanted)
    assert exists == (times is not None)
    if times is not None:
        for part in PARTS:
            added = (t for t, row in zip(times, rows, strict=True) if part in row)
            assert sum(added) == (part in target)
        assert np.allclose([float(t) for t in times], best / scales)


def test_the_cheapest_combination_comes_first():
    """A quarter less a week, two draws of one week, and nothing for half a part."""
    week, quarter = noisy(spread=10), noisy(spread=12)
    assert combination(["abcd", "d"], [quarter, week], "abc") == [1, -1]
    rows, numbers = ["a", "b", "ab"], [week, week, quarter]
    times = combination(rows, numbers, "ab")
    assert times[0] == times[1] == 1 - times[2]
    assert combination(["a", "a"], [week, week], "a") == [Fraction(1, 2)] * 2
    assert combination(["ab"], [week], "a") is None
    assert combination([], [], "a") is None
