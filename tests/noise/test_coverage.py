"""The interval of a refined number holds the true one as often as it says.

The rule that decides is the one that `release` runs, on noise of Python itself:
thousands of runs for each true number. The same test catches the interval that would
do for one draw, and one whose draws may not depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from random import Random

import mpmath
import numpy as np
import pytest
from scipy import signal, special

from dpflow import Gaussian, Laplace, Refined
from dpflow.coverage import factor, missed
from dpflow.noise.accuracy import Estimate, StoppingRule, Target, stopping_rule
from dpflow.noise.refining import (
    chance_to_stay,
    gaussian_numbers,
    laplace_numbers,
    rule_for,
)
from tests.sizes import scaled

RUNS = scaled(10_000, push=2_000)
COST = Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
PURE = Refined(Laplace(sensitivity=1, scale=5), coarsest=80)


def gaussian(truth: float, random: Random) -> Iterator[float]:
    """Yield the averages of normal noise, as OpenDP would draw it."""

    def noisy(part: Gaussian, numbers: Sequence[float]) -> list[float]:
        return [number + random.gauss(0, float(part.sigma)) for number in numbers]

    return (numbers[0] for numbers in gaussian_numbers(COST, [truth], noisy))


def whole(random: Random) -> Callable[[Fraction], int]:
    """Draw integer noise, as OpenDP would."""

    def draw(scale: Fraction) -> int:
        first, second = (random.expovariate(1 / float(scale)) for _ in range(2))
        return int(first) - int(second)

    return draw


def run(cost: Refined, rule: StoppingRule, truth: float, random: Random) -> Estimate:
    """Refine one number."""
    if cost == COST:
        return rule.refine(gaussian(truth, random))[1]
    return rule.refine(laplace_numbers(cost, truth, whole(random)))[1]


def covered(cost: Refined, rule: StoppingRule, truth: float, runs: int = RUNS) -> int:
    """Count the runs whose interval holds the true number."""
    random = Random(f"{cost!r} {rule.target} {truth}")
    found = (run(cost, rule, truth, random).interval for _ in range(runs))
    return sum(low <= truth <= high for low, high in found)


def naive(cost: Refined, target: Target) -> StoppingRule:
    """Stop by the interval of a single draw, as if it were the only one."""
    return StoppingRule(target, tuple(1.96 * float(s) for s in cost.spreads))


@pytest.mark.parametrize(
    ("truth", "within"),
    [(0, "100%"), (10, "50%"), (60, "50%"), (60, "10%"), (528, "10%")],
)
def test_the_interval_at_the_stop_holds_the_true_number(truth, within):
    """At least 95 of 100 times, whatever the true number is."""
    rule = rule_for(COST, Target.read(within))
    assert covered(COST, rule, truth) >= 0.95 * RUNS


#: Scales of Laplace noise in whole steps of a grid, so that its law is a sum.
SCALES = [Fraction(n) for n in (300, 270, 243, 219, 197, 177, 159, 143, 129, 116)]


def misses(rule: StoppingRule, truth: float) -> float:
    """Return how often the last interval misses, by the law of the noise in steps.

    From the coarsest draw to the finest: with which chance no earlier one ended it,
    given the noise of this one.
    """
    reach = 40 * int(SCALES[0])
    noise = np.arange(-reach, reach + 1)
    number = math.floor(truth) + noise
    far = np.abs(number) * float(rule.target.size) if rule.target.relative else 0
    size = float(rule.target.size)
    going, total = np.ones(len(noise)), 0.0
    for draw, half in enumerate(rule.half_widths):
        law = laplace_law(SCALES[draw], noise)
        ended = half <= (far if rule.target.relative else np.full(len(noise), size))
        last = draw == len(SCALES) - 1
        missing = np.abs(number - truth) > half
        total += float((law * going * (ended | last) * missing).sum())
        if last:
            return total
        going = np.where(ended, 0, going)
        chance = chance_to_stay(SCALES[draw + 1], SCALES[draw], 128)
        moved = signal.fftconvolve(going, law, mode="same")
        going = float(chance) * going + (1 - float(chance)) * moved
    raise AssertionError


def laplace_law(scale: Fraction, noise: np.ndarray) -> np.ndarray:
    """Return the discrete Laplace law."""
    ratio = math.exp(-1 / scale)
    return (1 - ratio) / (1 + ratio) * np.exp(-np.abs(noise) / float(scale))


@pytest.mark.parametrize(
    ("within", "least"),
    [("10%", 0.04), ("50%", 0.035), ("100%", 0.02), ("300%", 0.03), (500, 0.045)],
)
def test_laplace_intervals_hold_the_true_number(within, least):
    """By the exact law, for each of many numbers, and not by much too wide."""
    rule = stopping_rule(Target.read(within), tuple(SCALES), Fraction(1))
    truths = np.concatenate([[0.0], np.geomspace(20, 12_000, 40)]).round() + 0.999
    worst = max(misses(rule, truth) for truth in truths)
    assert least < worst <= 0.05


def test_the_interval_of_a_single_laplace_draw_does_not() -> None:
    """The control: the same law tells an interval that noise may end."""
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
    rule = naive(COST, Target.read("100%"))
    assert covered(COST, rule, 0) < 0.8 * RUNS
    rule = naive(COST, Target.read("50%"))
    assert covered(COST, rule, 20) < 0.935 * RUNS


def exactly(
    share: float, times: float, spreads: tuple[float, ...], truth: float, step: float
) -> float:
    """Return how often two draws' interval misses, to 50 digits."""
    with mpmath.workdps(50):
        first, second = map(mpmath.mpf, spreads)
        ends, near = mpmath.mpf(times) / mpmath.mpf(share), mpmath.mpf(truth)
        rho = second / first

        def cdf(z: object) -> object:
            if not step:
                return mpmath.ncdf(z)
            return mpmath.exp(z) / 2 if z < 0 else 1 - mpmath.exp(-z) / 2

        def density(z: object) -> object:
            return mpmath.exp(-abs(z)) / 2 if step else mpmath.npdf(z)

        spread, stay = mpmath.sqrt(1 - rho**2), mpmath.mpf(0)
        if step:
            spread, ratio = mpmath.mpf(1), mpmath.mpf(step) / 2
            stay = (mpmath.sinh(ratio / first) / mpmath.sinh(ratio / second)) ** 2
        window = [(-ends - near / first) / rho, (ends - near / first) / rho]

        def goes_on(z: object) -> object:
            low, high = ((end - z) * rho / spread for end in window)
            inside = stay if window[0] <= z <= window[1] else 0
            return inside + (1 - stay) * (cdf(high) - cdf(low))

        at_once = mpmath.mpf(0)
        for low, high in (
            (max(times, ends - near / first), mpmath.inf),
            (ends - near / first, -times),
            (-mpmath.inf, min(-times, -ends - near / first)),
        ):
            if low < high:
                at_once += cdf(high) - cdf(low)
        far = 60 if step else 12
        width = far * spread / rho if not step else 0
        kinks = [e + width * at for e in window for at in (-1, 0, 1)] + [-6, 6]
        late = mpmath.mpf(0)
        for low, high in ((-far, -times), (times, far)):
            inner = sorted({low, high, *(k for k in kinks if low < k < high)})
            late += mpmath.quad(lambda z: density(z) * goes_on(z), inner)
        return float(at_once + late)


@pytest.mark.parametrize("truth", [0.0, 40.0, 100.0, 150.0, 200.0, 400.0])
@pytest.mark.parametrize(
    ("spreads", "step"),
    [((20.0, 10.0), 0), ((20.0, 10.0), 1e-6), ((10.0, 9.9999), 1e-6)]
    # Spreads that nearly agree: the integrand falls within a small part of a spread.
    + [((first, last), 0) for first, last in ((10.0, 9.99), (10.0, 9.9999999))],
)
def test_what_is_missed_is_bounded_by_50_digit_sums(truth, spreads, step):
    """For two draws the bound is exact but for the cells, which only add to it."""
    times, share = 2.1, 0.25
    bound = missed(times, share, spreads, step)
    from dpflow.coverage import _cells

    lowest, highest = _cells(spreads, times / share, 50.0 if step else 8.5)
    (place,) = np.nonzero((lowest <= truth) & (truth < highest))[0]
    exact = exactly(share, times, spreads, truth, step)
    assert exact * (1 - 1e-9) <= bound[place] <= exact * 1.3 + 1e-6


def test_events_of_draws_that_forget_the_one_before_are_more() -> None:
    """Without what was not stopped before, nothing of the bound would be left."""
    spreads = tuple(map(float, COST.spreads))
    alone = len(spreads) * 0.05
    assert missed(1.959964, 0.1, spreads).max() < 0.1 < alone


def test_errors_of_the_sums_are_taken_off_the_smallest_share() -> None:
    """The errors of 200 draws, 4e-15 in each of three events, stay as they are."""
    share = 1e-9 - 200 * 3 * 4e-15
    exact = -special.ndtri(share / 2)
    assert factor((1.0,), None, Fraction(1, 10**9)) > exact
