"""The noise of `draw`: its law, its price, its containers, and what it never says."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpflow import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from dpflow.exceptions import ReleaseError
from dpflow.noise import draws as noise
from dpflow.noise.draws import add_noise, draw
from dpflow.noise.shape import read_shape
from dpflow.rounding import float_up
from tests.sizes import scaled

DRAWS = 20_000


def ks_limit(number):
    """Return Massart's bound, which a sample of its law passes once in 10^9 times.

    P(sup |empirical - true| > t) <= 2 exp(-2 n t^2).
    """
    return float(np.sqrt(np.log(2 / 1e-9) / (2 * number)))


KS_LIMIT = ks_limit(DRAWS)
#: For a law of which another test looks at all draws.
FEW = 4_000

MECHANISMS = [Gaussian(sensitivity=1, sigma=3), Laplace(sensitivity=1, scale=3)]
DISCRETE = [
    (DiscreteGaussian(sensitivity=1, sigma=3), lambda x: -(x**2) / 18),
    (DiscreteLaplace(sensitivity=1, scale=3), lambda x: -np.abs(x) / 3),
]
NAMES = ["gaussian", "laplace"]


def true_law(cost):
    """Return the continuous distribution that a cost promises."""
    if isinstance(cost, Gaussian):
        return stats.norm(scale=float(cost.sigma))
    assert isinstance(cost, Laplace)
    return stats.laplace(scale=float(cost.scale))


def distance(sample, law):
    """Return the Kolmogorov-Smirnov distance of a sample to a distribution."""
    ordered = np.sort(sample)
    below = np.arange(len(ordered)) / len(ordered)
    true = law(ordered)
    step = 1 / len(ordered)
    return float(np.max(np.maximum(np.abs(true - below), np.abs(true - below - step))))


def below(sample, points):
    """Return the shares of a sample up to each of some points."""
    return np.searchsorted(np.sort(sample), points, side="right") / len(sample)


@cache
def floats_near_half(cost):
    """Return draws around one half."""
    return add_noise(cost, np.full(DRAWS, 0.5))


class TestLaw:
    """The noise has the distribution that was declared."""

    @pytest.mark.parametrize("cost", MECHANISMS, ids=NAMES)
    def test_continuous(self, cost):
        """Numbers get the continuous noise, and by `as_int` that noise rounded.

        The control: a scale that is a fifth too small is noticed.
        """
        law = true_law(cost).cdf
        sample = floats_near_half(cost) - 0.5
        assert distance(sample, law) < KS_LIMIT < distance(sample * 0.8, law)
        sevens = draw(cost, np.full(FEW, 7), read_shape(FEW), as_int=True)
        whole, points = sevens - 7, np.arange(-40, 41)
        assert np.max(np.abs(below(whole, points) - law(points + 0.5))) < ks_limit(FEW)

    @pytest.mark.parametrize(("cost", "weight"), DISCRETE, ids=NAMES)
    def test_whole_numbers(self, cost, weight):
        """Discrete noise has the weights that its cost says; a fifth less is seen."""
        sample, points = add_noise(cost, [7] * DRAWS) - 7, np.arange(-200, 201)
        for factor, fits in ((1, True), (0.8, False)):
            law = np.cumsum(np.exp(weight(points / factor)))
            difference = np.max(np.abs(below(sample, points) - law / law[-1]))
            assert (difference < KS_LIMIT) == fits
        with pytest.raises(ReleaseError, match=r"int\(\.\.\.\)"):
            draw(cost, 7.0)

    def test_entries_are_independent(self):
        """Every entry has noise of its own: neighbours do not correlate."""
        sample = floats_near_half(MECHANISMS[0])
        correlation = np.corrcoef(sample[:-1], sample[1:])[0, 1]
        # Six and a half standard deviations of the correlation of independent draws.
        assert abs(correlation) < 6.5 / np.sqrt(DRAWS)
        # Two exact draws may meet by chance (about once in 10^8 runs), three never.
        assert len(set(sample)) > DRAWS - 3


numbers = st.fractions(min_value=Fraction(1, 10**6), max_value=10**6)
ratios = st.fractions(min_value=Fraction(1, 100), max_value=10**4)


class TestPrice:
    """OpenDP's own privacy map never exceeds what dpflow charges."""

    @given(sensitivity=numbers, ratio=ratios)
    @settings(max_examples=scaled(8), deadline=None)
    def test_map(self, sensitivity, ratio):
        """Its rho is at most (sensitivity / sigma)^2 / 2, its epsilon 1 / ratio."""
        scale, slack = float_up(sensitivity * ratio), 1 + 1e-9
        gaussian = noise._measurement("gaussian", scale, 0)
        assert gaussian.map(float(sensitivity)) <= float(1 / (2 * ratio**2)) * slack
        laplace = noise._measurement("laplace", scale, 0)
        assert laplace.map(float(sensitivity)) <= float(1 / ratio) * slack

    def test_scale_is_rounded_up(self):
        """A scale of one third is drawn a little wider, with the float above it."""
        cost = Laplace(sensitivity=1, epsilon=3)
        noise._measurement.cache_clear()
        draw(cost, 0.0)
        scale = float_up(Fraction(1, 3) * (1 + Fraction(1, 2**20)))
        thread = threading.get_ident()
        measurement = noise._measurement("laplace", scale, thread)
        assert noise._measurement.cache_info().hits == 1
        assert measurement.map(1 + 2.0**-20) <= 3.0000000000000005
        assert Fraction(float_up(Fraction(1, 3))) >= Fraction(1, 3)

    @pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
    def test_no_noise_is_refused(self, scale):
        """OpenDP returns the true value at scale 0; dpflow does not get there."""
        with pytest.raises(ReleaseError, match="cannot be drawn"):
            noise._noisy("laplace", scale, [7.0])


def test_an_error_of_opendp_keeps_its_text(monkeypatch):
    """It may quote the value."""

    def measurement(values):
        raise ValueError(values)

    monkeypatch.setattr(noise, "_measurement", lambda *_: measurement)
    with pytest.raises(ReleaseError, match="ValueError") as caught:
        draw(MECHANISMS[0], 731_954_286)
    assert "731" not in str(caught.value)
    assert caught.value.__context__ is None


def fork_draw(_):
    """Draw in a child process."""
    return list(add_noise(Laplace(sensitivity=1, scale=1), [0.0] * 20))


class TestConcurrency:
    """Threads and forks never share noise."""

    def test_threads(self):
        """Concurrent draws of many threads do not repeat, and the law holds."""
        cost = Laplace(sensitivity=1, scale=1)
        with ThreadPoolExecutor(8) as pool:
            parts = pool.map(lambda _: add_noise(cost, [0.0] * 25), range(FEW // 25))
            drawn = [*chain.from_iterable(parts)]
        assert len(set(drawn)) > FEW - 3
        assert distance(np.array(drawn), true_law(cost).cdf) < ks_limit(FEW)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_forks(self):
        """Forked workers do not repeat the parent's noise or each other's."""
        first = fork_draw(0)
        with multiprocessing.get_context("fork").Pool(3) as pool:
            drawn = pool.map(fork_draw, range(6), chunksize=1)
        drawn += [first, fork_draw(0)]
        assert len(set(chain.from_iterable(drawn))) == 8 * 20


def coarse(outputs, low):
    """Count the outputs in (low, 2 low), and those of them on the 2^-53 grid."""
    window = outputs[(outputs > low) & (outputs < 2 * low)]
    return len(window), int(np.sum(window * 2.0**53 % 1 == 0))


class TestFloatingPoint:
    """Where a noisy float lies on the grid of floats says nothing about the value."""

    def test_numpy_has_the_fault(self):
        """Near 0, sums of 1 and numpy's noise lie on a coarser grid than the noise."""
        rng = np.random.default_rng(20261121)
        total, on_grid = coarse(rng.laplace(0, 1, 2_000_000), 0.001)
        assert on_grid < 0.02 * total
        total, on_grid = coarse(1 + rng.laplace(0, 1, 2_000_000), 0.001)
        assert total == on_grid > 200

    def test_draw_has_not(self):
        """The same statistic is the same for both values: 2^-4 of the window."""
        # Floats in (2^-5, 2^-4) have a grid of 2^-57, of which 1 in 16 is coarse.
        low, share, wanted = 2.0**-5, 2.0**-4, 1e-9
        cost = Laplace(sensitivity=1, scale=1)
        for value, count in ((0.0, 6_000), (1.0, 14_000)):
            total, on_grid = coarse(add_noise(cost, np.full(count, value)), low)
            assert on_grid <= stats.binom.isf(wanted, total, share)
            # The same limit would catch the fault, which puts all of them there.
            assert total > 2 * stats.binom.isf(wanted, total, share)
