"""Plans whose epsilon is next to the largest loss: there few masses decide delta.

The truths are closed forms in 50 digits, none of which the accountant uses: the curve
of one Laplace step, and for others the event that all steps lose most at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.noise import Gaussian, Laplace, RandomizedResponse
from dpflow.accounting.costs.notions import PureDP
from dpflow.accounting.fixed import loss_distribution
from dpflow.accounting.fixed.loss_distribution import grid_epsilon
from dpflow.accounting.fixed.loss_grid import Array, ComposedMasses, Masses
from dpflow.accounting.fixed.optimal import Parts
from dpflow.accounting.fixed.stops import composed_epsilon
from tests.sizes import spread

mp = mpmath.mp.clone()
mp.dps = 50

#: Epsilons of one Laplace step and deltas, some of them found by search.
STEPS = [("1", "1e-10"), ("1.54", "1e-8"), ("2.34", "5.2e-11"), ("4.21", "1e-8")]
STEPS += [("0.01", "1e-7"), ("0.3", "1e-12"), ("7.7", "1e-7"), ("20.3", "1.2e-12")]


def real(value: Fraction | str) -> mpmath.mpf:
    """Return a number in 50 digits."""
    fraction = Fraction(value)
    return mp.mpf(fraction.numerator) / fraction.denominator


def laplace_epsilon(size: str, delta: str) -> mpmath.mpf:
    """Return the epsilon of one Laplace step, by the inverse of its curve."""
    return real(size) + 2 * mp.log1p(-real(delta))


def gaussian_delta(epsilon: mpmath.mpf, mu: mpmath.mpf) -> mpmath.mpf:
    """Return the delta of Gaussians together at an epsilon of any sign."""
    if not mu:
        return max(-mp.expm1(epsilon), mp.mpf(0))
    upper = mp.ncdf(mu / 2 - epsilon / mu)
    return upper - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def losses_of(cost: Cost) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Return losses of a step with their probabilities, not all of them."""
    if isinstance(cost, Laplace):
        return [(real(cost.sensitivity / cost.scale), mp.mpf(1) / 2)]
    assert isinstance(cost, PureDP | RandomizedResponse)
    epsilon = real(cost.epsilon)
    chance = 1 / (1 + mp.exp(-epsilon))
    return [(epsilon, chance), (-epsilon, 1 - chance)]


def delta_below(parts: Parts, epsilon: Fraction) -> mpmath.mpf:
    """Return a lower bound of the delta of a sequence: of some of its losses."""
    kinds, mu_squared = [], mp.mpf(0)
    for cost, count in parts:
        if isinstance(cost, Gaussian):
            mu_squared += count * real(cost.sensitivity / cost.sigma) ** 2
            continue
        losses = losses_of(cost)
        whole = [(count * losses[0][0], losses[0][1] ** count)]
        for low in range(1, count + 1 if len(losses) > 1 else 0):
            (top, often), (bottom, rarely) = losses
            ways = mp.binomial(count, low) * often ** (count - low) * rarely**low
            whole.append(((count - low) * top + low * bottom, ways))
        kinds.append(whole)
    total, mu = mp.mpf(0), mp.sqrt(mu_squared)
    for case in product(*kinds):
        loss = mp.fsum(each for each, _ in case)
        rest = gaussian_delta(real(epsilon) - loss, mu)
        total += mp.fprod(chance for _, chance in case) * rest
    return total


def in_blocks(masses: Array, losses: Array) -> tuple[Array, Array]:
    """Return log masses and mean losses of blocks of equal length."""
    starts = np.arange(0, len(masses), -(-len(masses) // 4096))
    sums = np.add.reduceat(masses, starts)
    kept = sums > 0
    means = np.add.reduceat(masses * losses, starts)[kept] / sums[kept]
    return np.log(sums[kept]), means


class Capped(ComposedMasses):
    """The negative control: a factor is taken out of the exponents, and capped.

    Its tilts have no bound, and are chosen by the means of blocks, of the largest
    losses too.
    """

    def __init__(self, groups: Sequence[Masses], step: float) -> None:
        super().__init__(groups, step)
        self._coarse = [
            in_blocks(group.masses, losses)
            for group, losses in zip(groups, self._losses, strict=True)
        ]

    def _best(self, epsilon: float) -> int:
        low, high = -320, 1280
        while high - low > 1:
            middle = (low + high) // 2
            below = self._moment(middle)[0] < epsilon
            low, high = (middle, high) if below else (low, middle)
        return min(low, high, key=lambda notch: self._exponent(notch, epsilon))

    def delta(self, epsilon: float) -> float:
        """Return the masses above epsilon, but for what underflows."""
        if epsilon >= self.top:
            return self.infinite
        notch = self._best(epsilon)
        tilt, found = 2.0 ** (notch / 32), self._transform(notch, epsilon)
        losses = (np.arange(len(found.density)) + found.base) * self.step
        excess = np.maximum(losses - epsilon, 0.0)
        weights = -np.expm1(-excess) * np.exp(-tilt * excess)
        size = float(weights @ found.density)
        size += float(np.linalg.norm(weights)) * found.error
        main = math.exp(min(found.cumulant - tilt * epsilon, 700.0)) * size
        return min((self.infinite + main + found.above) * (1 + 1e-9), 1.0)


def with_cap(parts: Parts, delta: Fraction) -> Fraction:
    """Compose with the negative control."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_distribution, "ComposedMasses", Capped)
        return grid_epsilon.__wrapped__(parts, delta)


@pytest.mark.parametrize(("size", "delta"), spread(STEPS, 2))
def test_one_laplace_step_has_its_closed_form(size: str, delta: str) -> None:
    """Never below b + 2 log(1 - delta), and close to it, however near b that is."""
    true = laplace_epsilon(size, delta)
    parts: Parts = ((Laplace(sensitivity=1, epsilon=size), 1),)
    found = real(composed_epsilon(parts, Fraction(delta), "pld"))
    assert true <= found <= true * (1 + mp.mpf("3e-5"))


#: Steps and deltas, and by how many times delta the control is below the truth.
CAUGHT = [("20.3", "1.2e-12", 10**6), ("4.21", "1e-8", 40)]


def test_a_capped_exponent_is_caught_on_one_step() -> None:
    """The closed form notices the negative control, by many times delta."""
    for size, delta, times in spread(CAUGHT, 1):
        parts: Parts = ((Laplace(sensitivity=1, epsilon=size), 1),)
        found = with_cap(parts, Fraction(delta))
        assert real(found) < laplace_epsilon(size, delta)
        assert delta_below(parts, found) / real(delta) > times
