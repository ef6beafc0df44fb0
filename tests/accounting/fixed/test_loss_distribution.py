"""Composition on a grid: never below the truth, and close to it."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr  # type: ignore[import-untyped]

from dpflow.accounting.costs.noise import Gaussian, Laplace, PoissonSampledGaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.accounting.fixed.loss_distribution import curves, grid_epsilon
from dpflow.accounting.fixed.loss_grid import (
    ComposedMasses,
    Curve,
    Masses,
    curve_masses,
    response_masses,
)
from dpflow.accounting.fixed.optimal import Parts, fixed_delta, fixed_epsilon
from dpflow.exceptions import InvalidCost
from tests.sizes import scaled

mp = mpmath.mp.clone()
mp.dps = 50

#: How far above the optimum an epsilon may be, relatively.
GAP = Fraction(3, 10**5)


def laplace_delta(epsilon: mpmath.mpf, size: mpmath.mpf) -> mpmath.mpf:
    """Return the delta of one Laplace at an epsilon of any sign."""
    if epsilon >= size:
        return mp.mpf(0)
    if epsilon <= -size:
        return -mp.expm1(epsilon)
    return -mp.expm1((epsilon - size) / 2)


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


def test_one_laplace_is_its_curve() -> None:
    """A single Laplace has the delta of its closed form."""
    parts: Parts = ((Laplace(sensitivity=3, scale=2), 1),)
    for epsilon in ("0.3", "1", "1.3"):
        delta = laplace_delta(mp.mpf(epsilon), mp.mpf("1.5"))
        found = grid_epsilon(parts, Fraction(str(delta)))
        assert Fraction(epsilon) <= found <= Fraction(epsilon) * Fraction("1.001")


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


def test_what_delta_cannot_cover() -> None:
    """A delta below that of the steps, or below 1e-32, is refused."""
    laplace = (Laplace(sensitivity=1, scale=1), 1)
    with pytest.raises(InvalidCost, match="does not cover"):
        grid_epsilon((laplace, (ApproxDP(epsilon=1, delta="0.1"), 1)), Fraction(1, 20))
    with pytest.raises(InvalidCost, match="does not cover"):
        grid_epsilon((laplace,), Fraction(1, 10**33))
