"""Steps of bounded range: no adaptive analyst reaches more than is claimed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.accounting.costs.noise import ExponentialMechanism, Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.fixed import bounded_range
from dpflow.accounting.fixed.bounded_range import Game, range_curves
from dpflow.accounting.fixed.loss_distribution import grid_delta, grid_epsilon
from dpflow.accounting.fixed.optimal import Parts, fixed_delta, fixed_epsilon
from dpflow.accounting.fixed.plan import PlanFilter
from dpflow.accounting.fixed.stops import composed_epsilon
from dpflow.exceptions import InvalidCost
from tests.sizes import scaled, spread

mp = mpmath.mp.clone()
mp.dps = 50

MILLIONTH = Fraction(1, 10**6)


def steps(eta: str, count: int) -> Parts:
    """Return some exponential mechanisms."""
    return ((ExponentialMechanism(epsilon=eta), count),)


def upper(eta: mpmath.mpf, t: mpmath.mpf) -> mpmath.mpf:
    """Return the probability of the loss t, the other loss being t - eta."""
    return mp.expm1(t - eta) / mp.expm1(-eta)


def one(eta: mpmath.mpf, x: mpmath.mpf) -> mpmath.mpf:
    """Return the largest delta of one step, in closed form: t = (eta + x) / 2."""
    if x >= eta:
        return mp.mpf(0)
    if x <= -eta:
        return -mp.expm1(x)
    return mp.expm1((x - eta) / 2) ** 2 / -mp.expm1(-eta)


def best(of: Callable[[mpmath.mpf], mpmath.mpf], eta: mpmath.mpf) -> mpmath.mpf:
    """Return the largest value found on [0, eta]: many points, then ever finer ones."""
    low, high = mp.mpf(0), eta
    for _ in range(12):
        places = [low + (high - low) * k / 32 for k in range(33)]
        found = max(places, key=of)
        low = max(found - (high - low) / 32, mp.mpf(0))
        high = min(found + (high - low) / 32, eta)
    return of(found)


def two(eta: mpmath.mpf, x: mpmath.mpf) -> mpmath.mpf:
    """Return the largest delta of two adaptive steps."""

    def at(t: mpmath.mpf) -> mpmath.mpf:
        p = upper(eta, t)
        return p * one(eta, x - t) + (1 - p) * one(eta, x - t + eta)

    return best(at, eta)


def real(value: Fraction) -> mpmath.mpf:
    """Return a fraction in 50 digits."""
    return mp.mpf(value.numerator) / value.denominator


@pytest.mark.parametrize("eta", ["0.01", "0.1", "1", "4"])
@pytest.mark.parametrize("share", spread(["0", "0.013", "0.3", "0.77", "0.99"], 2))
def test_one_and_two_steps_in_50_digits(eta: str, share: str) -> None:
    """Never below the recursion that is maximised in 50 digits, and close to it."""
    size = mp.mpf(str(eta))
    for count, exact in ((1, one), (2, two)):
        at = Fraction(share) * Fraction(eta) * count
        true = exact(size, real(at))
        found = real(grid_delta(steps(eta, count), at))
        assert true <= found <= true * mp.mpf("1.02") + mp.mpf("3e-5")


@pytest.mark.parametrize("cells", spread([16, 24, 32, 48, 64], 1))
@pytest.mark.parametrize("eta", ["0.1", "2"])
def test_every_point_of_the_grid(cells: int, eta: str) -> None:
    """On grid points, also of coarse grids, one and two steps are not below."""
    game = Game(Fraction(eta), cells, 10.0)
    size = mp.mpf(str(eta))
    for count, exact in ((1, one), (2, two)):
        values = game.after(count)
        for place in range(0, count * cells, max(1, 13 // scaled(1))):
            true = exact(size, mp.mpf(game.step) * place)
            assert true <= mp.mpf(float(values[place]))


def test_dropping_the_guards_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what is added between grid points, one step falls below the truth."""
    monkeypatch.setattr(bounded_range, "_over", lambda gap, _: 0 * gap)
    monkeypatch.setattr(bounded_range, "_RAISE", 1.0)
    game = Game(Fraction(1), 32, 5.0)
    values = game.after(1)
    assert any(
        mp.mpf(float(values[place])) < one(mp.mpf(1), mp.mpf(game.step) * place)
        for place in range(1, 32, 2)
    )


def test_leaving_parts_out_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first look excludes a part of the range, there is nothing."""
    pruned = Game(Fraction("0.5"), 64, 6.0).after(20)
    monkeypatch.setattr(np, "flatnonzero", lambda mask: np.arange(mask.size))
    whole = Game(Fraction("0.5"), 64, 6.0).after(20)
    assert np.all(whole >= pruned * (1 - 1e-13))
    assert np.all(whole <= pruned * (1 + 1e-3) + 1e-13)


def restricted(eta: float, count: int, places: int, points: int) -> np.ndarray:
    """Return what an analyst reaches with t on a grid, at x = 0, 1, ... grid steps.

    Exact up to rounding, for losses stay on the grid: whatever holds must be above.
    """
    t = np.arange(places + 1) * eta / places
    upper = np.expm1(t - eta) / math.expm1(-eta)
    values = np.zeros(points)
    for _ in range(count):
        below = -t[:0:-1]
        mirrored = -np.expm1(below) + np.exp(below) * values[places:0:-1]
        known = np.concatenate([mirrored, values, np.zeros(places)])
        near = np.lib.stride_tricks.sliding_window_view(known, points)
        options = [
            near[places - k] * p + near[2 * places - k] * (1 - p)
            for k, p in enumerate(upper)
        ]
        values = np.maximum.reduce(options)
    return values


@pytest.mark.parametrize("cells", spread([16, 24, 32, 48], 2))
@pytest.mark.parametrize(("eta", "count"), [(0.2, 30), (1.5, 12)])
def test_an_analyst_on_a_finer_grid(cells: int, eta: float, count: int) -> None:
    """With t on a grid four times as fine nothing goes beyond, and it comes close."""
    game = Game(Fraction(eta), cells, count * eta)
    claimed = game.after(count)[: count * cells]
    # The grid of the claim is a little longer: the same places are read there.
    reached = restricted(eta, count, 4 * cells, 4 * count * cells)[::4]
    places = np.arange(count * cells)
    moved = np.interp(places * game.step, places * eta / cells, reached)
    seen = moved > 1e-12
    assert np.all(claimed[seen] >= moved[seen] * (1 - 1e-6))
    assert np.all(claimed <= reached * 1.1 + 1e-3)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_the_bend_of_a_part_is_its_largest(width: int) -> None:
    """Every cell of a part counts, whatever its number of cells."""
    values = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 0.0, 0.0, 0.0, 2.0])
    found = bounded_range._highest(values, width)
    assert found.tolist() == [max(values[k : k + width]) for k in range(9)]


def test_leaving_out_what_is_next_to_nothing() -> None:
    """The curve beyond is raised to a constant, never lowered."""
    whole = Game(Fraction("0.3"), 32, 12.0).after(60)
    short = Game(Fraction("0.3"), 32, 12.0, 1e-9).after(60)
    assert np.ptp(short[short < 2e-9][-100:]) < 1e-18
    assert np.all(short >= whole * (1 - 1e-12))
    assert np.all(short <= whole * (1 + 1e-9) + 60e-9)


def test_a_close_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only just above a limit, and never below what the finest grid finds."""
    monkeypatch.setattr(bounded_range, "_MOST_WORK", 6e5)
    grid_epsilon.cache_clear()
    parts = steps("0.1", 100)
    first = composed_epsilon(parts, MILLIONTH, "pld")
    near, far = first * Fraction(9999, 10000), first * Fraction(99, 100)
    close = composed_epsilon(parts, MILLIONTH, "pld", limit=near)
    assert composed_epsilon(parts, MILLIONTH, "pld", limit=first) == first
    assert composed_epsilon(parts, MILLIONTH, "pld", limit=far) == first
    monkeypatch.setattr(bounded_range, "_MOST_WORK", 6e7)
    grid_epsilon.cache_clear()
    finest = composed_epsilon(parts, MILLIONTH, "pld")
    grid_epsilon.cache_clear()
    assert finest <= close < first <= finest * Fraction(1001, 1000)


def test_earlier_and_later_numbers_of_steps() -> None:
    """What is remembered gives the same numbers as a fresh start."""
    game = Game(Fraction("0.2"), 32, 4.0)
    asked = [game.after(n).copy() for n in (7, 3, 12)]
    for count, values in zip((7, 3, 12), asked, strict=True):
        assert np.array_equal(values, Game(Fraction("0.2"), 32, 4.0).after(count))


def played(kinds: Sequence[Fraction], epsilon: float, places: int) -> float:
    """Return the delta of an analyst who chooses order and t by the outputs so far.

    Args:
        kinds: The ranges of the steps.
        epsilon: Where delta is read.
        places: How many values of t are tried at each step.
    """
    # Losses are whole numbers of this unit: exact, and quick to add and to look up.
    unit = Fraction(1, math.lcm(*(kind.denominator for kind in kinds)) * places)
    outcomes = {kind: _outcomes(kind, unit, places) for kind in kinds}

    @cache
    def value(left: tuple[Fraction, ...], spent: int) -> float:
        if not left:
            return max(-math.expm1(epsilon - spent / unit.denominator), 0.0)
        options = [0.0]
        for index in {left.index(kind) for kind in left}:
            kind, rest = left[index], left[:index] + left[index + 1 :]
            for p, t, low in outcomes[kind]:
                options.append(
                    p * value(rest, spent + t) + (1 - p) * value(rest, spent + low)
                )
        return max(options)

    return value(tuple(sorted(kinds)), 0)


def _outcomes(
    kind: Fraction, unit: Fraction, places: int
) -> list[tuple[float, int, int]]:
    """Return each step of a range: a chance, and the losses, in units, of both ends."""
    found = []
    for k in range(1, places):
        t = kind * k / places
        low = t - kind
        p = math.expm1(-float(low)) / (math.exp(-low) - math.exp(-t))
        found.append((p, int(t / unit), int(low / unit)))
    return found


SIZES = st.sampled_from([Fraction(x) for x in ("0.1", "0.4", "0.5", "2")])


@settings(max_examples=scaled(6), deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 9))
def test_no_adaptive_order_reaches_more(sizes: list[Fraction], tenths: int) -> None:
    """Ranges that differ, in any adaptive order: their blocks together dominate."""
    epsilon = sum(sizes, Fraction(0)) * tenths / 10
    reached = played(sizes, float(epsilon), 8)
    parts = tuple((ExponentialMechanism(epsilon=size), 1) for size in sizes)
    assert reached <= float(grid_delta(parts, epsilon)) * (1 + 1e-12)


@pytest.mark.parametrize(("eta", "count"), [("0.3", 6), ("1", 9)])
def test_equal_ranges_are_met_closely(eta: str, count: int) -> None:
    """An analyst on a grid of t gets within a hundredth of the claim."""
    for share in (Fraction(1, 5), Fraction(1, 2)):
        epsilon = Fraction(eta) * count * share
        reached = played([Fraction(eta)] * count, float(epsilon), 24)
        claimed = float(grid_delta(steps(eta, count), epsilon))
        assert reached <= claimed <= reached * 1.02


def not_adaptive(eta: float, count: int, epsilon: float) -> float:
    """Return the largest delta if one t is fixed for all steps (Dong et al., Thm 2)."""
    largest = 0.0
    for t in np.linspace(0, eta, 801)[1:-1]:
        p = math.expm1(t - eta) / math.expm1(-eta)
        total = 0.0
        for high in range(count + 1):
            loss = high * t + (count - high) * (t - eta)
            weight = math.comb(count, high) * p**high * (1 - p) ** (count - high)
            total += weight * max(-math.expm1(epsilon - loss), 0.0)
        largest = max(largest, total)
    return largest


def test_the_bound_for_fixed_mechanisms_would_be_caught() -> None:
    """The adaptive analyst exceeds the optimum of mechanisms fixed in advance."""
    reached = played([Fraction(1)] * 9, 4.5, 24)
    assert not_adaptive(1.0, 9, 4.5) * 1.02 < reached
    assert reached <= float(grid_delta(steps("1", 9), Fraction("4.5")))


def test_other_steps_come_first() -> None:
    """Exponential mechanisms that see other steps' outputs: met, not exceeded."""
    eta, other, epsilon = Fraction("0.5"), Fraction("0.8"), Fraction("1.6")
    top = 1 / (1 + math.exp(-0.8))
    reached = top * played([eta] * 4, float(epsilon - other), 24)
    reached += (1 - top) * played([eta] * 4, float(epsilon + other), 24)
    parts = (*steps("0.5", 4), (PureDP(epsilon=other), 1))
    claimed = float(grid_delta(parts, epsilon))
    assert reached <= claimed <= reached * 1.02


def mechanism(utilities: Sequence[float], eta: float) -> list[float]:
    """Return the probabilities of an exponential mechanism of sensitivity 1."""
    weights = [math.exp(eta * u / 2) for u in utilities]
    return [weight / sum(weights) for weight in weights]


UTILITIES = st.lists(
    st.tuples(st.floats(-5, 5), st.floats(-1, 1)), min_size=2, max_size=4
)


@settings(max_examples=scaled(8), deadline=None)
@given(st.lists(UTILITIES, min_size=4, max_size=4), st.sampled_from([0.2, 1.0, 3.0]))
def test_real_exponential_mechanisms(
    tables: list[list[tuple[float, float]]], eta: float
) -> None:
    """Two real mechanisms, the second chosen by the first one's output."""
    pairs = []
    for table in tables:
        before = mechanism([u for u, _ in table], eta)
        after = mechanism([u + change for u, change in table], eta)
        pairs.append(list(zip(before, after, strict=True)))
    outputs = [
        (p * r, q * s)
        for output, (p, q) in enumerate(pairs[0])
        for r, s in pairs[1 + output % 3]
    ]
    for share in (0.0, 0.2, 0.6, 1.1):
        ratio = math.exp(share * eta)
        for way in (1, -1):
            delta = sum(max(a - ratio * b, 0.0) for a, b in (o[::way] for o in outputs))
            claimed = grid_delta(steps(str(eta), 2), Fraction(share * eta))
            assert delta <= float(claimed) + 1e-12


def test_never_worse_than_pure_steps() -> None:
    """A bounded range is worth something at every length."""
    for eta, count in (("0.1", 1), ("0.1", 15), ("1", 3), ("3", 4)):
        pure: Parts = ((PureDP(epsilon=eta), count),)
        mine = composed_epsilon(steps(eta, count), MILLIONTH, "pld")
        assert mine <= fixed_epsilon(pure, MILLIONTH) * (1 + Fraction(1, 10**5))
        for epsilon in (Fraction(eta) / 3, Fraction(eta) * count * 2 / 3):
            found = grid_delta(steps(eta, count), epsilon)
            assert found <= fixed_delta(pure, epsilon) * Fraction(1001, 1000)


def test_blocks_are_not_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a long run into blocks costs about one step for each cut."""
    whole = grid_epsilon(steps("0.1", 100), MILLIONTH)
    longer = grid_epsilon(steps("0.1", 104), MILLIONTH)
    monkeypatch.setattr(bounded_range, "_MOST_WORK", 6e4)
    grid_epsilon.cache_clear()
    curves = range_curves(Fraction("0.1"), 100, 1e-15)
    cut = grid_epsilon(steps("0.1", 100), MILLIONTH)
    grid_epsilon.cache_clear()
    assert sum(times for _, times in curves) in {2, 3, 4, 5}
    assert whole <= cut <= longer


def test_a_long_run_takes_little_time() -> None:
    """Ten thousand small steps compose, below their Renyi bound."""
    count = min(scaled(10**4), 10**5)
    parts = steps("0.001", count)
    found = composed_epsilon(parts, MILLIONTH, "pld")
    assert found <= composed_epsilon(parts, MILLIONTH, "renyi")
    gaussian: Parts = ((Gaussian(sensitivity=1, sigma=2000), count),)
    assert fixed_epsilon(gaussian, MILLIONTH) <= found * Fraction(1001, 1000)


@pytest.mark.parametrize(
    ("epsilon", "delta", "most"),
    [
        ("1", "1e-6", 22),
        ("5", "1e-6", 416),
        pytest.param("10", "1e-5", 1601, marks=pytest.mark.slow),
    ],
)
def test_plans_reach_the_adaptive_optimum(epsilon: str, delta: str, most: int) -> None:
    """One step more is beyond what an adaptive analyst can be held to."""

    def plan(times: int) -> PlanFilter:
        step = {"cost": ExponentialMechanism(epsilon="0.1"), "times": times}
        return PlanFilter(epsilon=epsilon, delta=delta, steps=[step])

    assert plan(most).length == most
    with pytest.raises(InvalidCost, match="the plan needs"):
        plan(most + 1)


def test_values_on_both_sides_of_zero() -> None:
    """A curve is 1 - e^x + e^x times itself mirrored, and falls."""
    ((curve, times),) = range_curves(Fraction("0.3"), 5, 1e-15)
    places = np.linspace(-2, 2, 401)
    values = curve(places)
    assert times == 1
    assert np.all(np.diff(values) <= 0)
    mirrored = -np.expm1(places) + np.exp(places) * values[::-1]
    left = places < 0
    assert np.allclose(values[left], mirrored[left], rtol=1e-12)
    assert values[-1] == 0
