"""Composition on a grid: never below the truth, and close to it."""

from __future__ import annotations

import logging
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr  # type: ignore[import-untyped]

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian, Laplace, PoissonSampledGaussian
from dpflow.accounting.costs.notions import ZCDP, ApproxDP, PureDP
from dpflow.accounting.fixed import loss_distribution, loss_grid
from dpflow.accounting.fixed.loss_distribution import curves, grid_delta, grid_epsilon
from dpflow.accounting.fixed.loss_grid import (
    ComposedMasses,
    Curve,
    Masses,
    curve_masses,
    response_masses,
)
from dpflow.accounting.fixed.optimal import Parts, fixed_delta, fixed_epsilon
from dpflow.exceptions import InvalidCost, UnsupportedCost
from tests.sizes import scaled

mp = mpmath.mp.clone()
mp.dps = 50

MILLIONTH = Fraction(1, 10**6)
#: How far above the optimum an epsilon may be, relatively.
GAP = Fraction(3, 10**5)


def laplace_delta(epsilon: mpmath.mpf, size: mpmath.mpf) -> mpmath.mpf:
    """Return the delta of one Laplace at an epsilon of any sign."""
    if epsilon >= size:
        return mp.mpf(0)
    if epsilon <= -size:
        return -mp.expm1(epsilon)
    return -mp.expm1((epsilon - size) / 2)


def two_laplace_delta(
    epsilon: mpmath.mpf, size: mpmath.mpf, other: mpmath.mpf
) -> mpmath.mpf:
    """Return the delta of two independent Laplaces, conditioning on the second."""
    both_ends = laplace_delta(epsilon - other, size) / 2
    both_ends += mp.exp(-other) / 2 * laplace_delta(epsilon + other, size)
    kinks = [(size + other - epsilon) / 2, (other - size - epsilon) / 2]
    points = [mp.mpf(0), *(k for k in sorted(kinks) if 0 < k < other), other]
    inner = mp.quad(
        lambda s: mp.exp(-s) / 2 * laplace_delta(epsilon - other + 2 * s, size),
        points,
    )
    return both_ends + inner


@settings(max_examples=scaled(4), deadline=None)
@given(
    st.sampled_from(["0.01", "0.3", "2"]),
    st.integers(1, 40),
    st.sampled_from([None, "0.5", "4", "100"]),
    st.sampled_from(["0.4", "1e-3", "1e-6", "1e-12", "1e-25"]),
)
def test_exact_compositions_are_met_from_above(
    epsilon: str, count: int, sigma: str | None, delta: str
) -> None:
    """Where the exact composition is known, the grid is just above it."""
    parts: Parts = ((PureDP(epsilon=epsilon), count),)
    if sigma is not None:
        parts = (*parts, (Gaussian(sensitivity=1, sigma=sigma), 3))
    true, found = (
        fixed_epsilon(parts, Fraction(delta)),
        grid_epsilon(parts, Fraction(delta)),
    )
    assert true <= found
    assert found <= true * (1 + GAP) + Fraction(1, 10**6)


def test_deltas_of_steps_are_lost_once() -> None:
    """Steps with a delta of their own compose like the exact form."""
    parts: Parts = (
        (ApproxDP(epsilon="0.2", delta="1e-8"), 20),
        (Gaussian(sensitivity=1, sigma=9), 2),
    )
    true, found = fixed_epsilon(parts, MILLIONTH), grid_epsilon(parts, MILLIONTH)
    assert true <= found <= true * (1 + GAP)
    found_delta = grid_delta(parts, Fraction(2))
    true_delta = fixed_delta(parts, Fraction(2))
    assert true_delta <= found_delta <= true_delta * Fraction(1001, 1000)


@pytest.mark.parametrize("epsilon", ["0", "0.05", "0.4", "0.9", "1.15"])
def test_laplaces_by_quadrature(epsilon: str) -> None:
    """Two Laplaces have the delta of the double integral."""
    parts: Parts = tuple((Laplace(sensitivity=1, epsilon=e), 1) for e in ("0.5", "0.7"))
    found = grid_delta(parts, Fraction(epsilon))
    true = two_laplace_delta(mp.mpf(epsilon), mp.mpf("0.5"), mp.mpf("0.7"))
    assert true <= mp.mpf(found.numerator) / found.denominator <= true * 1.001


def test_one_laplace_is_its_curve() -> None:
    """A single Laplace has the delta of its closed form."""
    parts: Parts = ((Laplace(sensitivity=3, scale=2), 1),)
    for epsilon in ("0", "0.3", "1", "1.3"):
        true = laplace_delta(mp.mpf(epsilon), mp.mpf("1.5"))
        found = grid_delta(parts, Fraction(epsilon))
        assert true <= mp.mpf(found.numerator) / found.denominator <= true * 1.001


def test_no_vector_is_worse_than_one_laplace() -> None:
    """Splitting the L1 sensitivity over two numbers never raises delta."""
    for size in ("0.01", "0.4", "1", "3"):
        for share in ("0.01", "0.2", "0.5"):
            small = mp.mpf(size) * mp.mpf(share)
            for place in ("0", "0.1", "0.5", "0.9", "0.999"):
                at = mp.mpf(size) * mp.mpf(place)
                with mp.workdps(20):
                    split = two_laplace_delta(at, mp.mpf(size) - small, small)
                assert split <= laplace_delta(at, mp.mpf(size)) * (1 + mp.mpf("1e-15"))


@pytest.mark.parametrize(("epsilon", "count"), [("0.1", 100), ("1", 20), ("0.02", 900)])
def test_laplaces_against_dp_accounting(epsilon: str, count: int) -> None:
    """Our epsilon is above their optimistic one and close to their pessimistic one."""
    logging.getLogger().setLevel(logging.ERROR)
    bounds = [
        theirs.from_laplace_mechanism(
            1 / float(epsilon),
            value_discretization_interval=float(epsilon) / 1000,
            pessimistic_estimate=pessimistic,
        )
        .self_compose(count)
        .get_epsilon_for_delta(1e-6)
        for pessimistic in (False, True)
    ]
    found = grid_epsilon(((Laplace(sensitivity=1, epsilon=epsilon), count),), MILLIONTH)
    assert bounds[0] <= found <= bounds[1] * (1 + 2e-5)


def test_sampled_gaussians_against_dp_accounting() -> None:
    """So it is for sampled Gaussians, in the worse of both directions."""
    count = 254
    logging.getLogger().setLevel(logging.ERROR)
    bounds = [
        theirs.from_gaussian_mechanism(
            1,
            sampling_prob=0.01,
            value_discretization_interval=1e-4,
            pessimistic_estimate=pessimistic,
        )
        .self_compose(count)
        .get_epsilon_for_delta(1e-5)
        for pessimistic in (False, True)
    ]
    cost = PoissonSampledGaussian(sampling_rate="0.01", noise_multiplier=1)
    found = grid_epsilon(((cost, count),), Fraction(1, 10**5))
    assert bounds[0] <= found <= bounds[1] * (1 + 1e-4)


def hockey_stick(masses: Masses, step: float, epsilon: float) -> mpmath.mpf:
    """Return the divergence of masses on a grid, in 50 digits."""
    total = mp.mpf(masses.infinite)
    for index, mass in enumerate(masses.masses):
        loss = mp.mpf((masses.first + index) * step)
        if loss > epsilon:
            total += mp.mpf(float(mass)) * -mp.expm1(mp.mpf(epsilon) - loss)
    return total


def step_curves() -> list[tuple[str, Curve, mpmath.mpf]]:
    """Return the curves of a Laplace and of a Gaussian, with their parameters."""
    laplace = curves(Laplace(sensitivity=1, epsilon="0.7"))[0]
    sampled = curves(PoissonSampledGaussian(sampling_rate=1, noise_multiplier=2))[0]
    return [("laplace", laplace, mp.mpf("0.7")), ("gdp", sampled, mp.mpf("0.5"))]


def test_masses_dominate_their_curve() -> None:
    """On grid points and between them, the masses' divergence is not below."""
    step = 2.0**-5
    for name, curve, size in step_curves():
        masses = curve_masses(curve, step, -64, 96, 1)
        for epsilon in [*(np.arange(-40, 60) / 37.0), 0.0, step, -3 * step]:
            at = mp.mpf(float(epsilon))
            if name == "laplace":
                true = laplace_delta(at, size)
            else:
                true = mp.ncdf(size / 2 - at / size)
                true -= mp.exp(at) * mp.ncdf(-size / 2 - at / size)
            assert hockey_stick(masses, step, float(epsilon)) >= true


def test_response_masses_dominate() -> None:
    """Responses off the grid are split between their neighbours, upwards."""
    step, size, count = 2.0**-5, Fraction("0.37"), 9
    masses = response_masses(size, count, step, 1e-30)
    for i in range(40):
        epsilon = i / 12
        true = fixed_delta(((PureDP(epsilon=size), count),), Fraction(epsilon))
        found = hockey_stick(masses, step, epsilon)
        assert found >= mp.mpf(true.numerator) / true.denominator


def test_dropping_the_guards_would_be_noticed() -> None:
    """Rounding losses down instead of up falls below the exact composition."""
    step, parts = 2.0**-6, ((PureDP(epsilon="0.37"), 9),)
    up = response_masses(Fraction("0.37"), 9, step, 1e-30)
    down = Masses(up.masses, up.first - 1, up.infinite, up.count)
    true = float(fixed_delta(parts, Fraction(1)))
    assert ComposedMasses([up], step).delta(1.0) >= true
    assert ComposedMasses([down], step).delta(1.0) < true


def test_tiny_deltas_keep_their_digits() -> None:
    """Tilting keeps a delta of 1e-28 within a thousandth."""
    parts: Parts = (
        (Gaussian(sensitivity=1, sigma=3), 4),
        (PureDP(epsilon="0.2"), 5),
    )
    epsilon = fixed_epsilon(parts, Fraction(1, 10**28))
    found = grid_delta(parts, epsilon)
    assert 1 <= found * 10**28 <= Fraction(1001, 1000)


def sampled(rate: str, noise: str) -> PoissonSampledGaussian:
    """Return one step of DP-SGD."""
    return PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)


def sampled_delta(
    epsilon: mpmath.mpf, rate: mpmath.mpf, mu: mpmath.mpf, *, more: bool
) -> mpmath.mpf:
    """Return the delta of one sampled Gaussian from its two tails, in 50 digits."""
    odds = (mp.exp(-epsilon if more else epsilon) - 1 + rate) / rate
    if odds <= 0:
        return mp.mpf(0) if more else -mp.expm1(epsilon)
    point = mp.log(odds) / mu + mu / 2
    if more:
        low, high = mp.ncdf(point), mp.ncdf(point - mu)
        return low - mp.exp(epsilon) * ((1 - rate) * low + rate * high)
    low, high = mp.ncdf(-point), mp.ncdf(mu - point)
    return (1 - rate) * low + rate * high - mp.exp(epsilon) * low


@pytest.mark.parametrize("noise", ["0.3", "0.8", "1", "7"])
@pytest.mark.parametrize("rate", ["1e-9", "0.001", "0.01", "0.4", "0.999"])
def test_sampled_curves_are_just_above_the_truth(rate: str, noise: str) -> None:
    """Both directions, also next to the largest loss, where digits cancel."""
    fewer, more = curves(sampled(rate, noise))
    end = -np.log1p(-float(rate))
    near = end * (1 - np.array([1e-3, 1e-6, 1e-9, 1e-12, 0, -1e-12, -1e-3]))
    losses = np.sort(np.concatenate([np.linspace(-4, 30, 18), near, -near]))
    for curve, is_more in ((fewer, False), (more, True)):
        for loss, found in zip(losses, curve(losses), strict=True):
            numbers = mp.mpf(float(loss)), mp.mpf(rate), 1 / mp.mpf(noise)
            true = sampled_delta(*numbers, more=is_more)
            assert true <= mp.mpf(float(found)) <= true * 1.001 + mp.mpf("3e-12")


def test_a_sampled_curve_without_its_margin_would_be_noticed() -> None:
    """The same formula in plain floats falls below the truth next to its end."""
    rate, mu = 0.4, 1.0
    losses = -np.log1p(-rate) * (1 - np.logspace(-14, -10, 50))
    part = 1 + np.expm1(-losses) / rate
    point = np.log(part) / mu + mu / 2
    plain = rate * np.exp(losses) * (part * ndtr(point) - ndtr(point - mu))
    true = [
        sampled_delta(mp.mpf(float(x)), mp.mpf(rate), mp.mpf(mu), more=True)
        for x in losses
    ]
    assert any(mp.mpf(float(a)) < b for a, b in zip(plain, true, strict=True))


@pytest.mark.parametrize(
    ("cost", "delta", "count", "epsilon"),
    [
        (sampled("0.001", "0.8"), "1e-6", 100, 0.260338),
        (sampled("0.001", "0.8"), "1e-6", 1000, 0.467685),
        (sampled("0.001", "0.8"), "1e-6", 20000, 1.285944),
        (sampled("0.001", "0.8"), "1e-6", 50000, 2.024564),
        (sampled("0.01", "1"), "1e-5", 1, 0.199451),
        (sampled("0.01", "1"), "1e-5", 2, 0.245466),
        (sampled("0.01", "0.7"), "1e-5", 1, 0.851645),
        (sampled("0.01", "0.7"), "1e-5", 2, 1.037040),
        (sampled("0.01", "0.7"), "1e-5", 5, 1.298896),
        (sampled("0.01", "0.7"), "1e-5", 50, 2.062048),
    ],
)
def test_plans_of_sampled_steps_need_few_points(
    monkeypatch: pytest.MonkeyPatch,
    cost: Cost,
    delta: str,
    count: int,
    epsilon: float,
) -> None:
    """Few and many sampled steps fit on a small grid, next to dp-accounting."""
    sizes = []
    masses, transform = loss_distribution.curve_masses, loss_grid._points

    def counted(curve: Curve, step: float, low: int, high: int, count: int) -> Masses:
        sizes.append(high - low)
        return masses(curve, step, low, high, count)

    def transformed(needed: float) -> int:
        sizes.append(transform(needed))
        return sizes[-1]

    monkeypatch.setattr(loss_distribution, "curve_masses", counted)
    monkeypatch.setattr(loss_grid, "_points", transformed)
    found = grid_epsilon.__wrapped__(((cost, count),), Fraction(delta))
    assert max(sizes) <= 2**21
    # Its pessimistic estimates on a grid of 1e-4 are at most 3e-4 above.
    assert float(found) == pytest.approx(epsilon, abs=2e-6)


@pytest.mark.parametrize("cost", [ZCDP(rho=1), Gaussian(sensitivity=1, sigma=1)])
def test_costs_without_a_curve(cost: Cost) -> None:
    """A cost without a curve of its own says so."""
    with pytest.raises(UnsupportedCost, match="loss distribution"):
        curves(cost)


def test_what_delta_cannot_cover() -> None:
    """A delta below that of the steps, or below 1e-32, is refused."""
    laplace = (Laplace(sensitivity=1, scale=1), 1)
    with pytest.raises(InvalidCost, match="does not cover"):
        grid_epsilon((laplace, (ApproxDP(epsilon=1, delta="0.1"), 1)), Fraction(1, 20))
    with pytest.raises(InvalidCost, match="does not cover"):
        grid_epsilon((laplace,), Fraction(1, 10**33))
