"""Exact losses of first rules' costs, and rules that are a little too loose."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpflow import Gaussian
from dpflow.accounting import Filter
from dpflow.accounting.costs.base import Cost
from tests.accounting.oracle import MP, real


def heads(epsilon: Fraction) -> Any:
    """Return how often randomized response shows a loss of +epsilon under P."""
    return 1 / (1 + MP.exp(-real(epsilon)))


# -- filters: what saturating sequences really leak --------------------------------


def gaussian_stick(epsilon: Any, mu_squared: Fraction) -> Any:
    """Return E[(1 - e^(epsilon - L))+] for Gaussians of that mu**2, any epsilon."""
    if mu_squared == 0:
        return MP.mpf(0) if epsilon >= 0 else 1 - MP.exp(epsilon)
    mu = MP.sqrt(real(mu_squared))
    low = MP.erfc((epsilon / mu - mu / 2) / MP.sqrt(2)) / 2
    high = MP.erfc((epsilon / mu + mu / 2) / MP.sqrt(2)) / 2
    return low - MP.exp(epsilon) * high


def true_delta(epsilon: Fraction, costs: list[Cost]) -> Any:
    """Return the exact delta at epsilon of a fixed sequence of worst-case steps.

    Gaussians add their mu**2. A pure step is randomized response. An (e, d)-DP step
    reveals everything with probability d and is randomized response otherwise, which
    no (e, d)-DP mechanism leaks more than (Kairouz, Oh, Viswanath 2015).
    """
    mu_squared = sum(
        ((c.sensitivity / c.sigma) ** 2 for c in costs if isinstance(c, Gaussian)),
        Fraction(0),
    )
    hidden, losses = MP.mpf(1), {Fraction(0): MP.mpf(1)}
    for cost in costs:
        if isinstance(cost, Gaussian):
            continue
        hidden *= 1 - real(getattr(cost, "delta", Fraction(0)))
        chance, moved = heads(cost.epsilon), {}
        for loss, weight in losses.items():
            for step, part in ((1, chance), (-1, 1 - chance)):
                place = loss + step * cost.epsilon
                moved[place] = moved.get(place, 0) + weight * part
        losses = moved
    sticks = (
        weight * gaussian_stick(real(epsilon - loss), mu_squared)
        for loss, weight in losses.items()
        if mu_squared or loss > epsilon
    )
    return 1 - hidden + hidden * MP.fsum(sticks)


def loosened(rule: Filter, factor: Fraction) -> Filter:
    """Return the rule with its thresholds wrongly made larger by a factor."""
    rule.thresholds = tuple(math.floor(t * factor) for t in rule.thresholds)
    return rule
