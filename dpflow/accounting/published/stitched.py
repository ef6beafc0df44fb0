"""The stitched odometer: a boundary that grows with the iterated logarithm."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from dpflow.accounting.rules.time_uniform import (
    TimeUniformOdometer,
    readable,
    target_epsilon,
    tune_variance,
    widen,
)
from dpflow.rounding import (
    UNITS,
    Number,
    bound_above,
    exact_rho,
    float_up,
    to_real,
    units_up,
)


class StitchedOdometer(TimeUniformOdometer):
    """Read drift + 1.7 sqrt(W (log log(2 W / v0) + 0.72 log(5.2 / delta_loss))).

    Source: Whitehouse, Ramdas, Rogers, Wu 2023 (arXiv 2203.05481v3) Thm 3 (iii), with
    the drift that the poster lost: docs/derivations/time-uniform.md#stitched-odometer.
    The boundary is that of Howard, Ramdas, McAuliffe, Sekhon 2021 (arXiv 1810.08240)
    eq. (11). W is max(V, v0): the boundary of its first epoch is a line that holds from
    zero on, so the reading is defined below v0 too.

    Assumes: as `mixture`, one-sided. v0 is a constant, not the first step's
    epsilon squared.

    Rounding: prices up; the boundary in floats, widened by a relative 1e-12.

    Checked by: tests/accounting/published/test_formulas.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        v0: V (or 2 R) from which on the reading is tight. Default: the one at which it
            reads `halt_at_epsilon`; below it the reading hardly moves.
        delta_loss: The part of delta for the loss; the rest is for steps with a delta.
            Default: all of it.
        form: "zcdp" (default) or "pure".
        halt_at_epsilon: Reading to tune for.
    """

    theorem = "stitched"
    made_from = ("delta", "delta_loss", "form", "v0")

    def __init__(
        self,
        *,
        delta: Number,
        v0: Number | None = None,
        delta_loss: Number | None = None,
        form: str = "zcdp",
        halt_at_epsilon: Number | None = None,
    ) -> None:
        super().__init__(delta, delta_loss, form)
        tail = bound_above(self._tail)
        if v0 is None:
            epsilon = target_epsilon(self.theorem, "v0", halt_at_epsilon)
            width = 1.7 * math.sqrt(float(tail) + math.log(math.log(2)))
            # Rounded down: a v0 just too large would read more than epsilon from the
            # start.
            v0 = readable(float(tune_variance(epsilon, width)) * (1 - 1e-5))
        self.v0: Fraction = exact_rho(v0, name="v0")
        self._v0, self._log = float(self.v0), float_up(tail)

    def _tail(self, mp: Any) -> Any:
        log = mp.log(to_real(mp, Fraction(52, 10)) / to_real(mp, self.delta_loss))
        return to_real(mp, Fraction(72, 100)) * log

    def _width(self, variance: int) -> int:
        spread = max(variance / UNITS, self._v0)
        # The sum is at least 0.8, so the logarithms' errors are comparatively small.
        log = math.log(math.log(2 * spread / self._v0)) + self._log
        return units_up(Fraction(widen(1.7 * math.sqrt(spread * log))))
