"""Odds: how often the best guess about one privacy unit is right."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.rules.rule import Filter
from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import bound_above, bound_below, from_units, to_real

#: The order at which zCDP is read; each order is sound, and low ones allow the least.
_NEAR_ONE = 1 + Fraction(1, 2**20)
#: Steps of the search for an advantage between 0 and 1.
_STEPS = 2**24
#: Filters whose first component, if it is in `CURVES`, bounds a trade-off curve.
_THEOREMS = ("gdp", "zcdp", "rdp", "individual")
_CURVES = ("mu_squared", "rho", "rdp")


def bound_right_guesses(
    epsilon: Fraction,
    delta: Fraction,
    rule: Filter | None = None,
    limit: Tally | None = None,
) -> Fraction:
    """Return how often of 100 times the best guess between two neighbours is right.

    Source: docs/derivations/odds.md: (1 + TV) / 2, where TV is the largest advantage
    that the guarantee allows, by the filter's own curve if it has one.

    Assumes: both neighbours are equally likely before the releases; all releases
    together are (epsilon, delta)-DP, and their tally is within the limit.

    Rounding: up to one decimal place.

    Checked by: tests/accounting/test_odds.py.

    Args:
        epsilon: Of the guarantee, positive.
        delta: Of the guarantee, in [0, 1).
        rule: The filter, if its tally bounds the same releases.
        limit: Threshold of each component of that tally.
    """
    advantages = [_budget_advantage(epsilon, delta)]
    if rule and limit and rule.theorem in _THEOREMS and rule.components[0] in _CURVES:
        loss, *deltas = map(from_units, limit.amounts)
        advantages.append(_curve_advantage(rule, loss) + sum(deltas))
    return min(Fraction(math.ceil(500 * (1 + min(advantages))), 10), Fraction(100))


def _budget_advantage(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), rounded up."""
    tanh = bound_above(lambda mp: mp.tanh(to_real(mp, epsilon) / 2))
    return tanh + delta * (1 - tanh)


def _curve_advantage(rule: Filter, loss: Fraction) -> Fraction:
    if rule.components[0] == "mu_squared":
        return bound_above(lambda mp: mp.erf(mp.sqrt(to_real(mp, loss) / 8)))
    order: Fraction | None = getattr(rule, "order", None)
    if order is None:
        return _renyi_advantage(_NEAR_ONE, loss * _NEAR_ONE)
    return _renyi_advantage(order, loss)


@lru_cache(maxsize=64)
def _renyi_advantage(order: Fraction, divergence: Fraction) -> Fraction:
    """Return the largest advantage that a Renyi divergence allows, rounded up."""
    low, high = 0, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        above = _symmetric_divergence(order, Fraction(middle, _STEPS)) > divergence
        low, high = (low, middle) if above else (middle, high)
    return Fraction(high, _STEPS)


def _symmetric_divergence(order: Fraction, advantage: Fraction) -> Fraction:
    """Return the divergence of two coins that differ by an advantage, rounded down."""

    def divergence(mp: Any) -> Any:
        a, t = to_real(mp, order), to_real(mp, advantage)
        p, q = (1 + t) / 2, (1 - t) / 2
        return mp.log(p**a * q ** (1 - a) + q**a * p ** (1 - a)) / (a - 1)

    return bound_below(divergence)
