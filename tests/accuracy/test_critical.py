"""The interval of a refined number holds the true one as often as it says.

The rule that decides is the one that `release` runs, on noise of Python itself:
thousands of runs for each true number. The same test catches the interval that would
do for one draw, and one whose draws may not depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random

import mpmath
import numpy as np
import pytest

from dpflow import Gaussian, Laplace, Refined, RefinedLaplace
from dpflow.accounting.costs.base import Cost
from dpflow.accuracy.critical import factor, missed
from dpflow.accuracy.estimate import Estimate
from dpflow.accuracy.target import StoppingRule, Target
from dpflow.noise.refining import gaussian_numbers, laplace_numbers, rule_for
from tests.sizes import scaled

RUNS = scaled(10_000, push=2_000)
COST = Refined(Gaussian(sensitivity=1, noise_multiplier=5), coarsest=80)
PURE = RefinedLaplace(Laplace(sensitivity=1, scale=5), coarsest=80)
#: True numbers, from none to one that an early draw is good enough for.
TRUTHS = (0, 60, 528)


def noisy(random: Random) -> Callable[[Gaussian, float], float]:
    """Add normal noise, as OpenDP would."""
    return lambda part, number: number + random.gauss(0, float(part.sigma))


def whole(random: Random) -> Callable[[Fraction], int]:
    """Draw integer noise, as OpenDP would."""

    def draw(scale: Fraction) -> int:
        first, second = (random.expovariate(1 / float(scale)) for _ in range(2))
        return int(first) - int(second)

    return draw


def run(cost: Cost, rule: StoppingRule, truth: float, random: Random) -> Estimate:
    """Refine one number."""
    if isinstance(cost, Refined):
        return rule.refine(gaussian_numbers(cost, truth, noisy(random)))[1]
    assert isinstance(cost, RefinedLaplace)
    return rule.refine(laplace_numbers(cost, truth, whole(random)))[1]


def covered(cost: Cost, rule: StoppingRule, truth: float, runs: int = RUNS) -> int:
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
def test_the_interval_at_the_stop_holds_the_true_number(
    truth: float, within: str
) -> None:
    """At least 95 of 100 times, whatever the true number is."""
    rule = rule_for(COST, Target.read(within))
    assert covered(COST, rule, truth) >= 0.95 * RUNS


@pytest.mark.parametrize("within", ["10%", 25])
def test_so_does_that_of_laplace_noise(within: str | int) -> None:
    """Fewer runs: its draws are compared bit by bit."""
    rule = rule_for(PURE, Target.read(within))
    for truth in (0, 528):
        assert covered(PURE, rule, truth, 500) >= 0.95 * 500 - 10


@pytest.mark.parametrize("truth", [3e12, 1e15, -1e15, 1.7e308])
def test_numbers_of_every_size_are_in_their_interval(truth: float) -> None:
    """The noise of a script that ends in zero leaves the number where it is."""
    cost = RefinedLaplace(Laplace(sensitivity="0.01", epsilon=1), coarsest=10)
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


def test_a_distance_is_met_at_a_draw_that_is_known_before() -> None:
    """So its factor is that of one draw, and the share is what it says."""
    rule = rule_for(COST, Target.read(25))
    draws = {
        rule.refine(gaussian_numbers(COST, truth, noisy(Random(1))))[0]
        for truth in TRUTHS
    }
    (draw,) = draws
    assert rule.half_widths[draw - 1] <= 25 < rule.half_widths[draw - 2]
    assert rule.half_widths[0] == pytest.approx(80 * 1.959964, rel=1e-5)
    assert 0.945 * RUNS < covered(COST, rule, 528) < 0.96 * RUNS


def test_the_factor_is_not_much_larger_than_it_must_be() -> None:
    """At 10 % it is near that of one draw; more certainty and larger shares cost."""
    spreads = tuple(map(float, COST.spreads))
    at = {
        share: factor(spreads, Fraction(share), Fraction(1, 20), "gaussian")
        for share in ("0.1", "0.5", "1")
    }
    assert 1.97 < at["0.1"] < 2.12 < at["0.5"] < at["1"] < 3
    surer = factor(spreads, Fraction(1, 10), Fraction(1, 100), "gaussian")
    assert 2.58 < surer < 2.75
    each = factor(spreads, Fraction(1, 10), Fraction(1, 20), "laplace")
    assert each == pytest.approx(math.log(len(spreads) * 20), rel=1e-5)


def exactly(
    share: float, times: float, spreads: tuple[float, ...], truth: float
) -> float:
    """Return how often two draws' interval misses, to 50 digits."""
    mp = mpmath.mp.clone() if hasattr(mpmath.mp, "clone") else mpmath.mp
    with mp.workdps(50):
        first, second = spreads
        ends, near = mp.mpf(times) / mp.mpf(share), mp.mpf(truth)
        rho = mp.mpf(second) / first

        def density(z: object) -> object:
            return mp.npdf(z)

        def stays(z: object) -> object:
            spread = mp.sqrt(1 - rho**2)
            low = (-ends - near / first - rho * z) / spread
            high = (ends - near / first - rho * z) / spread
            return mp.ncdf(high) - mp.ncdf(low)

        at_once = mp.mpf(0)
        for low, high in (
            (max(times, ends - near / first), mp.inf),
            (ends - near / first, -times),
            (-mp.inf, min(-times, -ends - near / first)),
        ):
            if low < high:
                at_once += mp.ncdf(high) - mp.ncdf(low)
        late = [
            mp.quad(lambda z: density(z) * stays(z), ends_of)
            for ends_of in ([-12, -6, -times], [times, 6, 12])
        ]
        return float(at_once + sum(late))


@pytest.mark.parametrize("truth", [0.0, 40.0, 100.0, 150.0, 200.0, 400.0])
def test_what_is_missed_is_bounded_by_50_digit_sums(truth: float) -> None:
    """For two draws the bound is exact but for the cells, which only add to it."""
    spreads, times, share = (20.0, 10.0), 2.1, 0.25
    bound = missed(times, share, spreads)
    from dpflow.accuracy.critical import _cells

    lowest, highest = _cells(spreads, times / share)
    (place,) = np.nonzero((lowest <= truth) & (truth < highest))[0]
    exact = exactly(share, times, spreads, truth)
    assert exact * (1 - 1e-9) <= bound[place] <= exact * 1.3 + 1e-6


def test_events_of_draws_that_forget_the_one_before_are_more() -> None:
    """Without what was not stopped before, nothing of the bound would be left."""
    spreads = tuple(map(float, COST.spreads))
    alone = len(spreads) * 0.05
    assert missed(1.959964, 0.1, spreads).max() < 0.1 < alone


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_finer_cells_do_not_find_more(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell is as bad as its worst number: smaller ones are at most as bad."""
    spreads = tuple(map(float, COST.spreads))
    rough = missed(2.1, share, spreads).max()
    monkeypatch.setattr("dpflow.accuracy.critical._CELL", 0.02)
    fine = missed(2.1, share, spreads).max()
    assert 0.93 * rough < fine <= rough * (1 + 1e-9)
