"""Composition of fixed sequences: optimal, and on a grid never below the truth."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr  # type: ignore[import-untyped]

from dpflow import ApproxDP, Gaussian, Laplace, PoissonSampledGaussian, PureDP
from dpflow.accounting.fixed.loss_distribution import _compose, curves, grid_epsilon
from dpflow.accounting.fixed.loss_grid import ComposedMasses, Masses, response_masses
from dpflow.accounting.fixed.optimal import (
    MOST_LOSSES,
    Parts,
    optimal_delta,
    optimal_epsilon,
    shortest_improvable,
)
from dpflow.accounting.fixed.stops import compose_epsilon
from tests.accounting.oracle import (
    MP,
    assert_just_above,
    gaussian_delta,
    real,
    response,
)
from tests.sizes import scaled, spread
from tests.tables import read_tables

TABLES = read_tables(__file__)


def decimals(low: float, high: float) -> st.SearchStrategy[Fraction]:
    """Draw numbers of few digits, evenly on a log scale."""
    exponents = st.floats(float(MP.log10(low)), float(MP.log10(high)))
    return exponents.map(lambda x: Fraction(f"{10**x:.6g}"))


def gaussians(sigma: Any, count: int = 1) -> Parts:
    """Return a part of Gaussians, or none."""
    return ((Gaussian(sensitivity=1, sigma=sigma), count),) if sigma else ()


@settings(max_examples=scaled(12), deadline=None)
@given(
    decimals(1e-9, 20),
    st.integers(1, 60),
    st.data(),
    st.one_of(st.just(Fraction(0)), decimals(1e-30, 0.01)),
)
def test_kov_theorem(epsilon, count, data, own):
    """On the lattice, delta is KOV's sum, for steps with and without a delta."""
    i = data.draw(st.integers(1, count // 2)) if count > 1 else 0
    eps = real(epsilon)
    terms = (
        MP.binomial(count, low)
        * (MP.exp((count - low) * eps) - MP.exp((count - 2 * i + low) * eps))
        for low in range(i)
    )
    with MP.workdps(400):
        lattice = MP.fsum(terms) / (1 + MP.exp(eps)) ** count
        true = 1 - (1 - real(own)) ** count * (1 - lattice)
    parts = ((ApproxDP(epsilon=epsilon, delta=own), count),)
    computed = optimal_delta(parts, (count - 2 * i) * epsilon)
    if true > MP.mpf(10) ** -300:
        assert_just_above(computed, true)


@settings(max_examples=scaled(8), deadline=None)
@given(
    st.lists(
        st.tuples(decimals(0.001, 5), st.sampled_from(["0", "1e-9", "0.01", "0.2"])),
        min_size=1,
        max_size=5,
    ),
    decimals(0.0001, 6),
    st.sampled_from([None, "0.5", "2.5"]),
)
def test_unequal_steps_by_enumeration(steps, epsilon, sigma):
    """Over all outcomes of randomized responses that reveal: the delta that remains.

    A Gaussian among them has its own delta at the remaining epsilon.
    """
    laws, mu_squared = [], 0 if sigma is None else 1 / real(sigma) ** 2
    for size, lost in steps:
        share = MP.mpf(lost)
        shown = [((1 - share) * p, (1 - share) * q) for p, q in response(real(size))]
        laws.append([*shown, (share, MP.mpf(0))] if share else shown)
    true = MP.mpf(0)
    for outcome in itertools.product(*laws):
        p, q = (MP.fprod(pair[side] for pair in outcome) for side in (0, 1))
        rest = real(epsilon) - MP.log(p / q) if q else None
        true += p if rest is None else p * gaussian_delta(rest, mu_squared)
    parts = [(ApproxDP(epsilon=e, delta=d), 1) for e, d in steps]
    computed = optimal_delta((*parts, *gaussians(sigma)), epsilon)
    if true > MP.mpf(10) ** -40:
        assert_just_above(computed, true)


@settings(max_examples=scaled(8), deadline=None)
@given(
    decimals(1e-6, 2),
    st.integers(1, 30),
    st.one_of(st.none(), decimals(0.5, 1e3)),
    decimals(1e-25, 0.4),
)
def test_epsilon_inverts_delta(epsilon, count, sigma, delta):
    """The epsilon at delta is sound, and nothing smaller is."""
    parts = ((PureDP(epsilon=epsilon), count), *gaussians(sigma))
    computed = optimal_epsilon(parts, delta)
    assert optimal_delta(parts, computed) <= delta * (1 + Fraction(1, 10**25))
    if computed:
        smaller = computed * (1 - Fraction(1, 10**9))
        assert optimal_delta(parts, smaller) > delta


def test_a_delta_that_just_covers_the_steps_is_enough() -> None:
    """One below it is refused: tests/snapshots/wrong_calls.txt."""
    part = (ApproxDP(epsilon=1, delta="0.1"), 1)
    assert optimal_epsilon((part,), Fraction("0.1")) == 1
    assert MOST_LOSSES < 2**15


def test_minimal_lengths_of_hartmann_table_1() -> None:
    """The shortest sequences that optimal composition improves are Table 1's."""
    for epsilon, row in TABLES["lengths"].items():
        for places, length in enumerate(row, start=3):
            delta = Fraction(1, 10**places)
            assert length == shortest_improvable(Fraction(epsilon), delta)


@settings(max_examples=scaled(4, push=2), deadline=None)
@given(
    st.sampled_from(["0.01", "0.3", "2"]),
    st.integers(1, 40),
    st.sampled_from([None, "0.5", "4", "100"]),
    st.sampled_from(["0.4", "1e-3", "1e-6", "1e-12", "1e-25"]),
)
def test_exact_compositions_are_met_from_above(epsilon, count, sigma, delta):
    """Where the exact composition is known, the grid is just above it."""
    parts = ((PureDP(epsilon=epsilon), count), *gaussians(sigma, 3))
    true = optimal_epsilon(parts, Fraction(delta))
    computed = grid_epsilon(parts, Fraction(delta))
    assert true <= computed
    assert computed <= true * (1 + Fraction(3, 10**5)) + Fraction(1, 10**6)


@pytest.mark.parametrize(("size", "delta"), spread(TABLES["laplace"], 2))
def test_one_laplace_step_has_its_closed_form(size: str, delta: str) -> None:
    """Never below b + 2 log(1 - delta), and close to it, however near b that is."""
    true = real(size) + 2 * MP.log1p(-real(delta))
    parts: Parts = ((Laplace(sensitivity=1, epsilon=size), 1),)
    computed = compose_epsilon(parts, Fraction(delta), "pld")
    assert_just_above(computed, true, "3e-5")


def test_response_masses_dominate() -> None:
    """Responses off the grid are split between their neighbours, upwards.

    Negative control: losses that are rounded down fall below the exact composition.
    """
    step, size, count = 2.0**-5, Fraction("0.37"), 9
    up = response_masses(size, count, step, 1e-30)
    down = Masses(up.masses, up.first - 1, up.infinite, up.count)
    for masses, holds in ((up, True), (down, False)):
        above = []
        for epsilon in spread((i / 12 for i in range(40)), 14):
            total = MP.mpf(masses.infinite)
            for index, mass in enumerate(masses.masses):
                loss = MP.mpf((masses.first + index) * step)
                if loss > epsilon:
                    total += MP.mpf(float(mass)) * -MP.expm1(MP.mpf(epsilon) - loss)
            true = optimal_delta(((PureDP(epsilon=size), count),), Fraction(epsilon))
            above.append(total >= real(true))
            assert ComposedMasses([masses], step).delta(epsilon) >= float(total) * 0.999
        assert all(above) == holds


def sampled_delta(epsilon: Any, rate: Any, mu: Any, *, more: bool) -> Any:
    """Return the delta of one sampled Gaussian from its two tails, in 50 digits."""
    odds = (MP.exp(-epsilon if more else epsilon) - 1 + rate) / rate
    if odds <= 0:
        return MP.mpf(0) if more else -MP.expm1(epsilon)
    point = MP.log(odds) / mu + mu / 2
    if more:
        low, high = MP.ncdf(point), MP.ncdf(point - mu)
        return low - MP.exp(epsilon) * ((1 - rate) * low + rate * high)
    low, high = MP.ncdf(-point), MP.ncdf(mu - point)
    return (1 - rate) * low + rate * high - MP.exp(epsilon) * low


@pytest.mark.parametrize("noise", ["0.3", "1", "7"])
@pytest.mark.parametrize("rate", ["1e-9", "0.01", "0.4", "0.999"])
def test_sampled_curves_are_just_above_the_truth(rate: str, noise: str) -> None:
    """Both directions, also next to the largest loss, where digits cancel."""
    cost = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
    end = -np.log1p(-float(rate))
    near = end * (1 - np.array([1e-3, 1e-6, 1e-9, 1e-12, 0, -1e-12, -1e-3]))
    losses = np.sort(np.concatenate([np.linspace(-4, 30, 18), near, -near]))
    for curve, more in zip(curves(cost), (False, True), strict=True):
        for loss, computed in zip(losses, curve(losses), strict=True):
            numbers = MP.mpf(float(loss)), MP.mpf(rate), 1 / MP.mpf(noise)
            true = sampled_delta(*numbers, more=more)
            assert true <= MP.mpf(float(computed)) <= true * 1.001 + MP.mpf("3e-12")


def test_a_sampled_curve_without_its_margin_would_be_noticed() -> None:
    """The same formula in plain floats falls below the truth next to its end."""
    rate, mu = 0.4, 1.0
    losses = -np.log1p(-rate) * (1 - np.logspace(-14, -10, 50))
    part = 1 + np.expm1(-losses) / rate
    point = np.log(part) / mu + mu / 2
    plain = rate * np.exp(losses) * (part * ndtr(point) - ndtr(point - mu))
    numbers = MP.mpf(rate), MP.mpf(mu)
    exact = lambda loss: sampled_delta(MP.mpf(float(loss)), *numbers, more=True)
    pairs = zip(plain, losses, strict=True)
    assert any(MP.mpf(float(delta)) < exact(loss) for delta, loss in pairs)


def test_one_sampled_step_needs_few_points() -> None:
    """Both reaches of its losses limit the grid, in both directions."""
    step = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier="0.7")
    both = [_compose(((step, 1),), 1e-5, direction)[0] for direction in (0, 1)]
    assert all(len(masses.groups[0].masses) < 2**21 for masses in both)
