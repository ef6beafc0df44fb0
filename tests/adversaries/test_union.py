"""What an adversary gets of a union of filters who chooses its member as it goes.

It spends a budget by small Gaussian steps and watches the loss. At any moment it may
take the best pair that `rdp` still has room for, which ends it, or go on to the end
of `residue`. What it gets is an optimal stopping problem of the loss, solved backwards
on a grid (docs/derivations/auto.md#what-the-union-leaves).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special, stats

from dpflow.accounting import make_filter
from dpflow.accounting.curves.conversions import gaussian_delta
from dpflow.accounting.rules.auto import AutoFilter
from dpflow.rounding import UNITS

Floats = NDArray[np.float64]
ROUNDS, POINTS = 100, 6001


@dataclass(frozen=True)
class Union:
    """A budget of squared mu, and one of Renyi divergence at an order."""

    epsilon: float
    mu_squared: float
    renyi: float
    order: float

    def gaussian_worth(self, losses: Floats, spent: float) -> Floats:
        """Return what one Gaussian of all that `residue` has left adds to delta."""
        mu = np.sqrt(max(self.mu_squared - spent, 1e-12))
        e = self.epsilon - losses
        lower = np.exp(e + special.log_ndtr(-mu / 2 - e / mu))
        return special.ndtr(mu / 2 - e / mu) - lower

    def pair_worth(self, losses: Floats, spent: float) -> Floats:
        """Return what the best pair adds that `rdp` admits after Gaussians."""
        a, e = self.order, self.epsilon - losses
        left = (a - 1) * (self.renyi - a * spent / 2)
        loss = np.maximum(e + np.log(a / (a - 1)), np.log(a) / (a - 1))
        p = np.minimum(np.expm1(max(left, 1e-300)) * np.exp((1 - a) * loss), 0.9)
        p = np.maximum(p, 1e-300)
        q = p * np.exp(-loss)
        fits = np.maximum(moment(p, q, a), moment(q, p, a)) <= left
        return np.where(fits, np.maximum(0, p - np.exp(e) * q), 0)

    def reached(self) -> float:
        """Return the delta at epsilon of the best choice of moments to stop."""
        end = min(self.mu_squared, 2 * self.renyi / self.order)
        step, width = end / ROUNDS, 6 * np.sqrt(self.mu_squared) + 1
        losses = np.linspace(-width, 3 * self.epsilon + width, POINTS)
        apart = losses[1] - losses[0]
        reach = int(8 * np.sqrt(step) / apart) + 2
        steps = apart * np.arange(-reach, reach + 1)
        moves = apart * stats.norm.pdf(steps, step / 2, np.sqrt(step))
        worth = self.gaussian_worth(losses, end)
        for done in reversed(range(ROUNDS)):
            around = np.pad(worth, reach, mode="edge")
            worth = np.convolve(around, moves[::-1], "valid")
            now = self.pair_worth(losses, step * done)
            worth = np.maximum(worth, now)
            worth = np.maximum(worth, self.gaussian_worth(losses, step * done))
        return float(np.interp(0, losses, worth))


def moment(p: Floats, q: Floats, order: float) -> Floats:
    """Return (order - 1) times the divergence of a pair, one way."""
    top = order * np.log(p) + (1 - order) * np.log(q)
    rest = order * np.log1p(-p) + (1 - order) * np.log1p(-q)
    return np.logaddexp(top, rest)


def union_of(rule: AutoFilter) -> Union:
    """Return the budgets of the `residue` and `rdp` in `auto`."""
    gaussian = next(m for m in rule.members if m.theorem == "residue")
    renyi = next(m for m in rule.members if m.theorem == "rdp")
    return Union(
        float(rule.epsilon),
        gaussian.thresholds[0] / UNITS,
        renyi.thresholds[0] / UNITS,
        float(renyi.order),
    )


def halves(first: str, second: str, order: int = 16) -> Union:
    """Return the union at epsilon 5 of two members with deltas of their own."""
    members = [
        {"theorem": "residue", "delta": first},
        {"theorem": "rdp", "delta": second, "order": order},
    ]
    return union_of(make_filter("auto", epsilon=5, delta="1e-6", members=members))


def test_the_sum_of_the_deltas_is_reached():
    """Two members with half of delta each: no rule can promise less for the union."""
    assert 0.98 < halves("5e-7", "5e-7").reached() / 1e-6 <= 1


@pytest.mark.parametrize(
    ("epsilon", "delta", "least"),
    [("1", "1e-6", 0.69), ("5", "1e-6", 0.71), ("10", "1e-5", 0.69)],
)
def test_the_default_members_stay_below_the_sum(epsilon, delta, least):
    """More than any member's own part, and not all: they want the same outputs."""
    rule = make_filter("auto", epsilon=epsilon, delta=delta)
    assert least < union_of(rule).reached() / float(delta) <= 1


def test_members_that_have_the_whole_delta_each_are_caught():
    """The same adversary gets nearly twice what such a union would promise."""
    gaussian, renyi = halves("999999e-12", "1e-12"), halves("1e-12", "999999e-12")
    whole = Union(5, gaussian.mu_squared, renyi.renyi, renyi.order)
    assert whole.reached() / 1e-6 > 1.9


class WithoutPairs(Union):
    """The Gaussian steps alone, whose worth is known."""

    def pair_worth(self, losses: Floats, spent: float) -> Floats:
        """Return nothing."""
        return np.zeros_like(losses + spent)


def test_gaussian_steps_alone_are_worth_their_own_part():
    """However many they are; the grid adds nothing."""
    union = halves("5e-7", "5e-7")
    alone = WithoutPairs(5, union.mu_squared, union.renyi, union.order)
    mu = Fraction(union.mu_squared) ** Fraction(1, 2)
    own = float(gaussian_delta(Fraction(5), Fraction(mu)))
    assert alone.reached() == pytest.approx(own, rel=1e-3)
