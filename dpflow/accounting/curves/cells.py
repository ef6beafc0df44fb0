"""Renyi divergences cell by cell: the cost of a cheap output at one order."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.costs.base import Outcome
from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.accounting.curves.prices import renyi
from dpflow.rounding import arithmetic, bound_above, to_fraction, to_real

_SLOPE_DIGITS = 160
_DOWN = 1 - Fraction(1, 10**100)


def cell_renyi(cost: OutcomeCost, outcome: Outcome, order: Fraction) -> Fraction:
    """Return the cost of an output at an order of the Renyi divergence.

    With x = P/Q, the cell's x lies between e^-epsilon and e^epsilon; r is such that
    x^order e^(-(order - 1) r) <= 1 + slope (x - 1) there, with one slope for all cells
    of the mechanism. The right side has the mean 1 under Q, so the left side, summed
    over the cells, has at most that: the realised r keep the supermartingale of the
    RDP filter and of the Ville odometer (docs/derivations/rdp.md#cells).

    The slope is that of the randomized response of the largest epsilon: for its cell, r
    is the worst case's divergence, which a rule reserves. Where that is no less than
    the epsilon itself, the slope is 1 and r each cell's epsilon.

    Source: docs/derivations/rdp.md#cells. It answers the question of Hartmann et al.
    2022, App. A, in the manner of Rogers, Samorodnitsky, Wu, Ramdas 2023 (arXiv
    2306.13824).

    Assumes: the mechanism has no delta; the order is fixed in advance. The cell is read
    off the mechanism's own output, which counts as released.

    Rounding: up by a relative 1e-30. The slope is rounded down by a relative 1e-100,
    which raises what the worst cell needs by at most 1e-100 / (order - 1), far less
    than the relative 1e-30 by which the worst case's divergence is rounded up.

    Checked by: tests/accounting/curves/test_cells.py and
    tests/adversaries/test_output_dp.py.

    Args:
        cost: What was reserved; its delta is 0.
        outcome: What the step reported.
        order: Above 1.

    Raises:
        InvalidCost: If the mechanism has no such outcome.
        ValueError: If the mechanism has a delta of its own.
    """
    cells = cost.output_dp()
    largest, delta = cells.highest()
    if delta:
        msg = f"{cost!r} has a delta; no finite divergence covers it"
        raise ValueError(msg)
    epsilon = dict(cells.cells)[cost.cell(outcome)]
    worst = renyi(cost, order)
    if epsilon == largest:
        return worst
    if worst >= largest:
        return epsilon  # slope 1, where r is epsilon and nothing is rounded
    return _divergence(epsilon, _slope(largest, order), order)


@lru_cache(maxsize=4096)
def _slope(epsilon: Fraction, order: Fraction) -> Fraction:
    """Return the slope at which both ends of the largest cell need the same r."""
    with arithmetic(_SLOPE_DIGITS) as mp:
        eps, alpha = to_real(mp, epsilon), to_real(mp, order)
        # (X^a - X^-a) / (X^a (1 - 1/X) + X^-a (X - 1)) with X = e^epsilon, by X^a.
        high = -mp.expm1(-2 * alpha * eps)
        low = -mp.expm1(-eps) + mp.exp(-2 * alpha * eps) * mp.expm1(eps)
        return to_fraction(high / low) * _DOWN


@lru_cache(maxsize=65536)
def _divergence(epsilon: Fraction, slope: Fraction, order: Fraction) -> Fraction:
    if not epsilon:
        return Fraction(0)

    def at(mp: Any, eps: Any) -> Any:
        # Too few digits may leave nothing of it: then more are tried.
        line = max(1 + to_real(mp, slope) * mp.expm1(eps), mp.eps)
        return to_real(mp, order) * eps - mp.log(line)

    def value(mp: Any) -> Any:
        eps = to_real(mp, epsilon)
        return max(at(mp, eps), at(mp, -eps)) / to_real(mp, order - 1)

    return max(bound_above(value), Fraction(0))
