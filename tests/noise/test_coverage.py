"""Targets of accuracy, and how often the interval of a refined number holds the truth.

The rule that decides is the one that `release` runs, on noise of Python itself:
thousands of runs for each true number. The same test catches the interval that would
do for one draw, and one whose draws may not depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from random import Random

import numpy as np
import pytest
from scipy import signal, special

from dpflow import Gaussian, Laplace, Refined
from dpflow.coverage import _cells, bound_misses, factor
from dpflow.noise.accuracy import StoppingRule, Target, stopping_rule
from dpflow.noise.refining import (
    chance_to_stay,
    gaussian_numbers,
    laplace_numbers,
    rule_for,
)
from tests.accounting.oracle import MP
from tests.sizes import scaled, spread

#: Fewer would miss the share by luck.
RUNS = max(2_000, scaled(10_000, push=2_000))
COST = Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
PURE = Refined(Laplace(sensitivity=1, scale=5), coarsest=80)


def gaussian(truth: float, random: Random) -> Iterator[float]:
    """Yield the averages of normal noise, as OpenDP would draw it."""

    def noisy(part: Gaussian, numbers: Sequence[float]) -> list[float]:
        return [number + random.gauss(0, float(part.sigma)) for number in numbers]

    return (numbers[0] for numbers in gaussian_numbers(COST, [truth], noisy))


def covered(rule: StoppingRule, truth: float) -> int:
    """Count the runs whose interval holds the true number."""
    random = Random(f"{rule.target} {truth}")
    estimates = (rule.refine(gaussian(truth, random))[1] for _ in range(RUNS))
    return sum(low <= truth <= high for low, high in (e.interval for e in estimates))


def naive(within: str) -> StoppingRule:
    """Stop by the interval of a single draw, as if it were the only one."""
    widths = tuple(1.96 * float(s) for s in COST.spreads)
    return StoppingRule(Target.read(within), widths)


@pytest.mark.parametrize(
    ("truth", "within"),
    spread([(0, "100%"), (10, "50%"), (60, "50%"), (528, "10%"), (60, "10%")], 2),
)
def test_the_interval_at_the_stop_holds_the_true_number(truth, within):
    """At least 95 of 100 times, whatever the true number is."""
    rule = rule_for(COST, Target.read(within))
    assert covered(rule, truth) >= 0.95 * RUNS


#: Scales of Laplace noise in whole steps of a grid, so that its law is a sum.
SCALES = [Fraction(n) for n in (300, 270, 243, 219, 197, 177, 159, 143, 129, 116)]


def misses(rule: StoppingRule, truth: float) -> float:
    """Return how often the last interval misses, by the law of the noise in steps.

    From the coarsest draw to the finest: with which chance no earlier one ended it,
    given the noise of this one.
    """
    reach = 25 * int(SCALES[0])
    noise = np.arange(-reach, reach + 1)
    number = math.floor(truth) + noise
    size = float(rule.target.size)
    reached = np.abs(number) * size if rule.target.relative else size + 0 * number
    going, total = np.ones(len(noise)), 0.0
    for draw, half in enumerate(rule.half_widths[:-1]):
        law, ended = laplace_law(SCALES[draw], noise), half <= reached
        total += float((law * going * ended * (np.abs(number - truth) > half)).sum())
        going = np.where(ended, 0, going)
        chance = float(chance_to_stay(SCALES[draw + 1], SCALES[draw], 128))
        moved = signal.fftconvolve(going, law, mode="same")
        going = chance * going + (1 - chance) * moved
    missing = np.abs(number - truth) > rule.half_widths[-1]
    return total + float((laplace_law(SCALES[-1], noise) * going * missing).sum())


def laplace_law(scale: Fraction, noise: np.ndarray) -> np.ndarray:
    """Return the discrete Laplace law."""
    ratio = math.exp(-1 / scale)
    return (1 - ratio) / (1 + ratio) * np.exp(-np.abs(noise) / float(scale))


#: Zero, where the share of some targets is largest, and others.
TRUTHS = np.array([0, 581, 8573, *spread(np.geomspace(20, 12_000, 20), 2)])


LEAST = {"10%": 0.04, "50%": 0.035, "100%": 0.02, "300%": 0.03, 500: 0.045}


@pytest.mark.parametrize(("within", "least"), spread(LEAST.items(), 3))
def test_laplace_intervals_hold_the_true_number(within, least):
    """By the exact law, for each of many numbers, and not by much too wide."""
    rule = stopping_rule(Target.read(within), tuple(SCALES), Fraction(1))
    worst = max(misses(rule, truth.round() + 0.999) for truth in TRUTHS)
    assert least < worst <= 0.05


def test_the_interval_of_a_single_laplace_draw_does_not() -> None:
    """The control: the same law refuses an interval that noise may end."""
    target = Target.read("100%")
    alone = StoppingRule(target, tuple(math.log(20) * float(s) + 2 for s in SCALES))
    assert misses(alone, 0.999) > 0.15


def test_the_interval_is_that_of_the_noise_that_is_drawn() -> None:
    """Scales are widened for the grid, and the number is rounded down to it."""
    halves = rule_for(PURE, Target.read(25)).half_widths
    assert halves[0] >= math.log(20) * 80 * (1 + 2**-19) + 2**-19


@pytest.mark.parametrize("truth", [3e12, 1e15, -1e15, 1.7e308])
def test_numbers_of_every_size_are_in_their_interval(truth: float) -> None:
    """The noise of a script that ends in zero leaves the number where it is."""
    cost = Refined(Laplace(sensitivity="0.01", epsilon=1), coarsest=10)
    rule = rule_for(cost, Target.read(1))
    for noise in (0, 5, -5):
        numbers = laplace_numbers(cost, truth, lambda _, noise=noise: noise)
        low, high = rule.refine(numbers)[1].interval
        assert low <= truth <= high


def test_the_interval_of_a_single_draw_does_not() -> None:
    """Noise that makes a number large ends the refining, and the interval misses."""
    assert covered(naive("100%"), 0) < 0.8 * RUNS
    assert covered(naive("50%"), 20) < 0.935 * RUNS


def exactly(share: float, times: float, spreads: tuple, truth: float) -> float:
    """Return how often the interval of two Gaussian draws misses, to 50 digits."""
    with MP.workdps(50):
        first, second = map(MP.mpf, spreads)
        ends, near = MP.mpf(times) / MP.mpf(share), MP.mpf(truth)
        rho = second / first
        spread = MP.sqrt(1 - rho**2)
        window = [(-ends - near / first) / rho, (ends - near / first) / rho]

        def goes_on(z: object) -> object:
            low, high = (MP.ncdf((end - z) * rho / spread) for end in window)
            return high - low

        missing = MP.mpf(0)
        for low, high in (
            (max(times, ends - near / first), MP.inf),
            (ends - near / first, -times),
            (-MP.inf, min(-times, -ends - near / first)),
        ):
            if low < high:
                missing += MP.ncdf(high) - MP.ncdf(low)
        width = 12 * spread / rho
        kinks = [e + width * at for e in window for at in (-1, 0, 1)] + [-6, 6]
        for low, high in ((-12, -times), (times, 12)):
            inner = sorted({low, high, *(k for k in kinks if low < k < high)})
            missing += MP.quad(lambda z: MP.npdf(z) * goes_on(z), inner)
        return float(missing)


@pytest.mark.parametrize(
    ("last", "truth"),
    spread(product([5.0, 9.99, 9.9999999], [100.0, 0.0, 200.0, 400.0]), 4),
)
def test_missed_intervals_are_bounded_by_50_digit_sums(last, truth):
    """For two draws the bound is exact but for the cells, which only add to it.

    Of spreads that nearly agree, the integrand falls within a small part of a spread.
    """
    times, share, spreads = 2.1, 0.25, (10.0, last)
    bound = bound_misses(times, share, spreads, 0)
    lowest, highest = _cells(spreads, times / share, 8.5)
    (place,) = np.nonzero((lowest <= truth) & (truth < highest))[0]
    exact = exactly(share, times, spreads, truth)
    assert exact * (1 - 1e-9) <= bound[place] <= exact * 1.3 + 1e-6


def test_events_of_draws_that_forget_the_one_before_are_more() -> None:
    """Without what was not stopped before, nothing of the bound would be left."""
    spreads = tuple(map(float, COST.spreads))
    alone = len(spreads) * 0.05
    assert bound_misses(1.959964, 0.1, spreads).max() < 0.1 < alone


def test_errors_of_the_sums_are_taken_off_the_smallest_share() -> None:
    """The errors of 200 draws, 4e-15 in each of three events, stay as they are."""
    share = 1e-9 - 200 * 3 * 4e-15
    exact = -special.ndtri(share / 2)
    assert factor((1.0,), None, Fraction(1, 10**9)) > exact


def test_a_share_or_a_distance_is_read():
    """At 95 % where nothing else is said."""
    for within, size in (("10%", Fraction(1, 10)), (25, 25), ("2.5", Fraction(5, 2))):
        assert Target.read(within) == Target(size, within == "10%", Fraction(95, 100))
        assert Target.read(within, 0.9) == Target.read(within, "90%")


def test_refining_ends_at_the_first_number_that_shows_it() -> None:
    """And asks for no number behind it; the last stands where none shows it."""
    rule = StoppingRule(Target.read("10%"), (30.0, 20.0, 10.0))
    requested = []

    def numbers(*values: float) -> Iterator[float]:
        for value in values:
            requested.append(value)
            yield value

    draws, estimate = rule.refine(numbers(250.0, 210.0, 190.0))
    assert (draws, float(estimate), requested) == (2, 210.0, [250.0, 210.0])
    assert estimate.interval == pytest.approx((190, 230))
    draws, estimate = rule.refine(numbers(-50.0, 60.0, -70.0))
    assert (draws, float(estimate)) == (3, -70.0)
