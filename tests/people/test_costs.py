"""Costs per person, against 120-digit arithmetic on the very floats that are summed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.people import clip_rows, gaussian_costs, squared_norms
from dpflow.people import sampled_gaussian_costs as sampled_costs
from tests.accounting.oracle import MP, real, sampled_divergence
from tests.sizes import scaled

GAUSSIAN = IndividualBound(measure="gdp", bound=1)

floats = st.floats(-1e150, 1e150, allow_subnormal=True)
tables = st.integers(1, 5).flatmap(
    lambda width: arrays(np.float64, (3, width), elements=floats)
)
sigmas = st.floats(-3, 6).map(lambda x: Fraction(f"{10**x:.6g}"))
rates = st.floats(-6, -0.01).map(lambda x: Fraction(f"{10**x:.6g}"))


def renyi(order) -> IndividualBound:
    """Return a bound of this order."""
    return IndividualBound(measure="rdp", order=order, bound=1)


def true_squares(rows) -> list[Fraction]:
    """Return the squared norms of rows of floats, exactly."""
    return [sum((Fraction(float(x)) ** 2 for x in row), Fraction(0)) for row in rows]


@given(tables)
def test_squares_are_never_below_the_truth(rows):
    """Squared norms are rounded up, zero only for zeros, and within 1e-13."""
    room, least = 1 + Fraction(1, 10**13), Fraction(2) ** -899
    for got, truth in zip(squared_norms(rows), true_squares(rows), strict=True):
        assert truth <= Fraction(float(got)) <= truth * room + least
        assert (got == 0) == (truth == 0)


@given(tables, st.floats(-6, 6).map(lambda x: 10**x))
def test_clipped_rows_are_short_and_charged_as_they_are(rows, norm):
    """After clipping no row is longer, and the squares cover what is really there."""
    clipped, squares = clip_rows(rows, norm=norm)
    limit = Fraction(norm) ** 2 * (1 + Fraction(1, 10**14))
    for before, after, square in zip(rows, clipped, squares, strict=True):
        (truth,) = true_squares([after])
        assert truth <= Fraction(float(square))
        assert truth <= limit
        if true_squares([before])[0] < Fraction(norm) ** 2 * (1 - Fraction(1, 10**13)):
            assert np.array_equal(before, after)


def test_rows_that_cannot_be_clipped_cost_what_no_tally_admits():
    """NaN and infinity do not become zeros or small numbers on the way."""
    rows = np.array([[np.nan, 1.0], [np.inf, 1.0], [-np.inf, np.nan], [3.0, 4.0]])
    _, squares = clip_rows(rows, norm=1)
    for costs in (
        gaussian_costs(GAUSSIAN, squares, sigma=1),
        sampled_costs(renyi(8), squares, sigma=1, rate="0.1"),
    ):
        assert not np.isfinite(costs[:3]).any()
        assert np.isfinite(costs[3])


@settings(deadline=None)
@given(st.floats(0, 1e300), sigmas, st.sampled_from(["1.0001", 2, "6.5", 10**6]))
def test_gaussian_costs_are_above_the_truth(square, sigma, order):
    """The cost is order * square / (2 sigma**2), rounded up, within 1e-14."""
    squares = np.array([square])
    for bound, factor in ((renyi(order), Fraction(order) / 2), (GAUSSIAN, Fraction(1))):
        (got,) = gaussian_costs(bound, squares, sigma=sigma)
        truth = Fraction(square) * factor / sigma**2
        if np.isinf(got):
            assert truth > Fraction(10) ** 300
            continue
        most = truth * (1 + Fraction(1, 10**14)) + Fraction(2) ** -1000
        assert Fraction(float(got)) <= most
        assert Fraction(float(got)) >= truth or 0 < square < 2.0**-900


@settings(max_examples=scaled(16, push=8), deadline=None)
@given(rates, sigmas, st.floats(-8, 3), st.integers(2, 512))
def test_sampled_costs_are_above_the_truth(rate, sigma, scale, order):
    """Never below the divergence, and within 1e-11 while nothing overflows."""
    square = float(sigma) ** 2 * 10**scale
    ratio = real(Fraction(square) / sigma**2)
    truth = sampled_divergence(order, rate, ratio)
    (got,) = sampled_costs(renyi(order), np.array([square]), sigma=sigma, rate=rate)
    plain = ratio * order / 2
    assert truth <= MP.mpf(float(got)) <= plain * (1 + MP.mpf("1e-13"))
    if order * (order - 1) / 2 * ratio < 700:
        # Binomial terms below 1e-308 are rounded up to a subnormal number.
        assert MP.mpf(float(got)) <= truth * (1 + MP.mpf("1e-11")) + MP.mpf("1e-15")


@settings(max_examples=scaled(8, push=4), deadline=None)
@given(rates, st.floats(-4, 1), st.floats(1.0001, 12))
def test_sampled_costs_between_whole_orders(rate, scale, order):
    """A fractional order is charged no less than its divergence by quadrature."""
    alpha, ratio = MP.mpf(order), MP.mpf(float(10**scale))
    q, mu = real(rate), MP.sqrt(ratio)

    def integrand(x):
        relative = 1 - q + q * MP.exp(mu * x - ratio / 2)
        return MP.npdf(x) * relative**alpha

    top = float(alpha * mu)
    with MP.workdps(25):
        points = sorted({-14, -6, 0, float(mu), top, top + 6, top + 14})
        truth = MP.log(MP.quad(integrand, points)) / (alpha - 1)
    (got,) = sampled_costs(
        renyi(Fraction(f"{order!r}")), np.array([10**scale]), sigma=1, rate=rate
    )
    assert MP.mpf(float(got)) >= truth * (1 - MP.mpf("1e-12")) - MP.mpf("1e-21")


def test_sampled_costs_refuse_what_has_no_price():
    """Sampled Gaussians are not Gaussian DP; rates of 0 and 1 sample nothing."""
    squares = np.ones(2)
    with pytest.raises(UnsupportedCost):
        sampled_costs(GAUSSIAN, squares, sigma=1, rate="0.1")
    with pytest.raises(UnsupportedCost):
        sampled_costs(renyi(513), squares, sigma=1, rate="0.1")
    for rate in (0, 1, "1.1", "nan", True):
        with pytest.raises(InvalidCost):
            sampled_costs(renyi(8), squares, sigma=1, rate=rate)
    for sigma in (0, -1, "inf", None):
        with pytest.raises(InvalidCost):
            gaussian_costs(GAUSSIAN, squares, sigma=sigma)


def test_costs_warn_about_no_record():
    """An overflow in one record is no warning: a warning would be an output."""
    rows = np.array([[1e200, 1e200], [np.nan, 0.0], [1e-200, 0.0]])
    with np.errstate(all="raise"):
        _, squares = clip_rows(rows, norm=1)
        gaussian_costs(renyi(8), squares, sigma=1)
        sampled_costs(renyi(64), squares, sigma="0.001", rate="0.5")
