"""Composition on a grid: never below the truth, and close to it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr  # type: ignore[import-untyped]

from dpflow import ApproxDP, Gaussian, Laplace, PoissonSampledGaussian, PureDP
from dpflow.accounting.fixed.loss_distribution import curves, grid_epsilon
from dpflow.accounting.fixed.loss_grid import ComposedMasses, Masses, response_masses
from dpflow.accounting.fixed.optimal import Parts, fixed_delta, fixed_epsilon
from dpflow.accounting.fixed.stops import composed_epsilon
from dpflow.exceptions import InvalidCost
from tests.accounting.oracle import MP, assert_just_above, real
from tests.sizes import scaled, spread

#: How far above the optimum an epsilon may be, relatively.
GAP = Fraction(3, 10**5)


@settings(max_examples=scaled(4), deadline=None)
@given(
    st.sampled_from(["0.01", "0.3", "2"]),
    st.integers(1, 40),
    st.sampled_from([None, "0.5", "4", "100"]),
    st.sampled_from(["0.4", "1e-3", "1e-6", "1e-12", "1e-25"]),
)
def test_exact_compositions_are_met_from_above(epsilon, count, sigma, delta):
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


#: Epsilons of one Laplace step and deltas, some of them found by search.
STEPS = [("1", "1e-10"), ("1.54", "1e-8"), ("2.34", "5.2e-11"), ("4.21", "1e-8")]
STEPS += [("0.01", "1e-7"), ("0.3", "1e-12"), ("7.7", "1e-7"), ("20.3", "1.2e-12")]


@pytest.mark.parametrize(("size", "delta"), spread(STEPS, 2))
def test_one_laplace_step_has_its_closed_form(size: str, delta: str) -> None:
    """Never below b + 2 log(1 - delta), and close to it, however near b that is."""
    true = real(size) + 2 * MP.log1p(-real(delta))
    parts: Parts = ((Laplace(sensitivity=1, epsilon=size), 1),)
    found = composed_epsilon(parts, Fraction(delta), "pld")
    assert_just_above(found, true, "3e-5")


def test_response_masses_dominate() -> None:
    """Responses off the grid are split between their neighbours, upwards.

    Negative control: losses that are rounded down fall below the exact composition.
    """
    step, size, count = 2.0**-5, Fraction("0.37"), 9
    up = response_masses(size, count, step, 1e-30)
    down = Masses(up.masses, up.first - 1, up.infinite, up.count)
    for masses, holds in ((up, True), (down, False)):
        above = []
        for epsilon in (i / 12 for i in range(40)):
            total = MP.mpf(masses.infinite)
            for index, mass in enumerate(masses.masses):
                loss = MP.mpf((masses.first + index) * step)
                if loss > epsilon:
                    total += MP.mpf(float(mass)) * -MP.expm1(MP.mpf(epsilon) - loss)
            true = fixed_delta(((PureDP(epsilon=size), count),), Fraction(epsilon))
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
        for loss, found in zip(losses, curve(losses), strict=True):
            numbers = MP.mpf(float(loss)), MP.mpf(rate), 1 / MP.mpf(noise)
            true = sampled_delta(*numbers, more=more)
            assert true <= MP.mpf(float(found)) <= true * 1.001 + MP.mpf("3e-12")


def test_a_sampled_curve_without_its_margin_would_be_noticed() -> None:
    """The same formula in plain floats falls below the truth next to its end."""
    rate, mu = 0.4, 1.0
    losses = -np.log1p(-rate) * (1 - np.logspace(-14, -10, 50))
    part = 1 + np.expm1(-losses) / rate
    point = np.log(part) / mu + mu / 2
    plain = rate * np.exp(losses) * (part * ndtr(point) - ndtr(point - mu))
    true = [
        sampled_delta(MP.mpf(float(x)), MP.mpf(rate), MP.mpf(mu), more=True)
        for x in losses
    ]
    assert any(MP.mpf(float(a)) < b for a, b in zip(plain, true, strict=True))


def test_what_delta_cannot_cover() -> None:
    """A delta below that of the steps, or below 1e-32, is refused."""
    laplace = (Laplace(sensitivity=1, scale=1), 1)
    with pytest.raises(InvalidCost, match="does not cover"):
        grid_epsilon((laplace, (ApproxDP(epsilon=1, delta="0.1"), 1)), Fraction(1, 20))
    with pytest.raises(InvalidCost, match="does not cover"):
        grid_epsilon((laplace,), Fraction(1, 10**33))
