"""The best adversary, who sees all outputs and picks each next step, by recursion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from dpflow.accounting.rules.tally import Tally

#: Probability of an output, its loss, and what it is charged.
Branch = tuple[float, Any, Tally]
#: The worst case that must be admitted, and the outputs.
Step = tuple[Tally, Sequence[Branch]]


def excess(epsilon: float, loss: Any) -> float:
    """Return what a loss adds to the delta at an epsilon."""
    return max(0.0, -math.expm1(epsilon - float(loss)))


def game(menu, admits, stop, rounds, zero):
    """Return the value of the game, a finite sum of maxima.

    Args:
        menu: Steps to pick from.
        admits: Whether a tally may be reserved.
        stop: The value of stopping at a tally and a loss; at 1 the game ends.
        rounds: The most steps.
        zero: The tally at the start.
    """

    @cache
    def best(rest: int, spent: Tally, loss: Any) -> float:
        highest = stop(spent, loss)
        for worst, outcomes in menu if rest and highest < 1 else ():
            if admits(spent + worst):
                later = sum(
                    p * best(rest - 1, spent + paid, loss + more)
                    for p, more, paid in outcomes
                )
                highest = max(highest, later)
        return highest

    return best(rounds, zero, Fraction(0))
