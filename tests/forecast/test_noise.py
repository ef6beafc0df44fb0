"""What noise means in the units of the data, and costs with another noise."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from docs._site.prices import EXAMPLES
from dpflow.accounting.costs.composed import Repeated
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import (
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
)
from dpflow.accounting.costs.notions import PureDP, RenyiCurve
from dpflow.accounting.costs.outcomes import OutputDP
from dpflow.accounting.rules.individual import PersonBudgets
from dpflow.exceptions import InvalidCost
from dpflow.forecast.noise import scale_noise
from dpflow.noise.accuracy import half_width

pytestmark = pytest.mark.quick


def test_the_interval_holds_95_of_100_releases():
    """By the laws of the noise: 95 of 100 draws are within the half-width."""
    gaussian = half_width(Gaussian(sensitivity=1, sigma=40))
    laplace = half_width(Laplace(sensitivity=1, scale=10))
    inside = math.erf(gaussian / 40 / math.sqrt(2)), 1 - math.exp(-laplace / 10)
    assert inside == pytest.approx((0.95, 0.95), rel=1e-6)


def test_whole_numbers_are_covered_by_the_least_that_does():
    """One less covers less than 95 of 100."""
    x = np.arange(-40_000, 40_001)
    for kind, field, power in (
        (DiscreteGaussian, "sigma", 2),
        (DiscreteLaplace, "scale", 1),
    ):
        for spread in ("0.3", "1", "30", "900"):
            width = half_width(kind(sensitivity=1, **{field: spread}))
            assert width.denominator == 1
            weights = np.exp(-(np.abs(x / float(spread)) ** power) / power)
            shares = np.cumsum(weights[40_000:]) * 2 - weights[40_000]
            shares /= weights.sum()
            assert shares[int(width)] >= 0.95
            assert width == 0 or shares[int(width) - 1] < 0.95


def test_a_repeated_step_has_the_half_width_each_time():
    """And a step that only states its epsilon has none that is known."""
    once = Gaussian(sensitivity=1, sigma=40)
    assert half_width(Repeated(once, 5)) == half_width(once)
    assert half_width(EarlyStopping(once, stops=(5,))) == half_width(once)
    assert half_width(PureDP(epsilon=1)) is None


def test_less_noise_is_more_noise_backwards():
    """What a quarter of the noise gives, four times that gives back, or is unknown."""
    for cost, factor in product(EXAMPLES, (Fraction(1, 2), Fraction(1, 4))):
        if isinstance(cost, OutputDP | PersonBudgets | RenyiCurve):
            with pytest.raises(InvalidCost, match="cannot be scaled"):
                scale_noise(cost, factor)
            continue
        quieter = scale_noise(cost, factor)
        assert quieter != cost
        assert quieter.noisier(1 / factor) == cost
        assert scale_noise(cost, Fraction(3)) == cost.noisier(3)
