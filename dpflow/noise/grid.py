"""Numbers on a grid, so that noise in whole steps hides all of them."""

from __future__ import annotations

import math
from fractions import Fraction

#: Steps of the grid per sensitivity.
GRID = 2**20

#: Steps that are added to it: one for rounding down, and one for sums of floats, of
#: which two that are a sensitivity and part of a step apart may be two steps more.
ADDED = 2


def in_steps(number: float | Fraction, sensitivity: Fraction, grid: int = GRID) -> int:
    """Return a finite number in whole steps of the grid, rounded down."""
    return math.floor(Fraction(number) * grid / sensitivity)
