"""Odometers from time-uniform concentration: mixture and stitched.

Both bound the loss L by a drift plus a boundary w(V) that a martingale of
variance process V crosses at any time with probability at most delta_loss. They differ
in the boundary alone (docs/derivations/time-uniform.md).

A step with a delta adds it to the drift: without the term the published odometers fail
with probability one for a step that is certain to lose epsilon and whose delta is
1 - exp(-epsilon) (docs/derivations/time-uniform.md#deltas-of-steps).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.notions import ProbabilisticDP
from dpflow.accounting.curves.prices import (
    approx_zcdp,
    loss_unbounded,
    probabilistic_dp,
)
from dpflow.accounting.rules.delta_loss import loss_share, no_share
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.zcdp import one_of
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import (
    RHO_HIGH,
    RHO_LOW,
    UNITS,
    Number,
    bound_above,
    exact_delta,
    exact_epsilon,
    exact_rho,
    float_of_units,
    float_up,
    to_real,
    units_down,
    units_up,
)

FORMS = ("zcdp", "pure")


SIDES = ("one", "two")


#: Above the relative error of some twenty float operations without cancellation (each
#: at most 2**-51 in any libm in use), by a factor of a hundred.
_GUARD = 1e-12


def widen(value: float) -> float:
    """Move a float evaluation up by more than its error, a relative 1e-12."""
    return value * (1 + _GUARD)


class TimeUniformOdometer(Odometer):
    """What both share: prices, drift, and the deltas of steps.

    In the form "zcdp" the tally holds R, the sum of the rhos: the drift is R
    and V is 2 R. That covers zCDP steps (Gaussians) and is tighter for pure
    ones. In the form "pure" it holds V, the sum of epsilon**2, and the drift is V/2.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        delta_loss: The part of delta for the loss; the rest is for steps with a delta.
        form: "zcdp" or "pure".
    """

    def __init__(self, delta: Number, delta_loss: Number | None, form: str) -> None:
        self.delta: Fraction = exact_delta(delta, zero=False)
        self.delta_loss = loss_share(self.delta, delta_loss)
        self.form = one_of("form", form, FORMS)
        self._zcdp = self.form == "zcdp"
        first = "rho" if self._zcdp else "epsilon_squared"
        self.components = (first, "delta", "uncovered")
        self._room = units_down(self.delta - self.delta_loss)

    def step_price(self, cost: Cost) -> Tally:
        """Return (rho, delta, 0) of the step, or (epsilon**2, delta, 0)."""
        amount, delta = self._amount(cost)
        if delta and not self._room:
            raise no_share(cost, self.theorem)
        return Tally((units_up(amount), units_up(delta), 0))

    def _amount(self, cost: Cost) -> tuple[Fraction, Fraction]:
        if not self._zcdp:
            epsilon, delta = probabilistic_dp(cost)
            return epsilon**2, delta
        rho, delta = approx_zcdp(cost)
        if delta and not isinstance(cost, ProbabilisticDP):
            raise loss_unbounded(cost, self.theorem)
        return rho, delta

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss so far."""
        amount, spent, uncovered = tally.amounts
        if uncovered or spent > self._room:
            return float("inf")
        if self._zcdp:
            drift, variance = amount, 2 * amount
        else:
            drift, variance = (amount + 1) // 2, amount
        return float_of_units(drift + spent + self._width(variance))

    @abstractmethod
    def _width(self, variance: int) -> int:
        """Return the boundary at a variance, both in units, rounded up."""


class MixtureOdometer(TimeUniformOdometer):
    """Read drift + sqrt(2 (V + rho) log(1 + sqrt((V + rho) / rho) / (2 delta_loss))).

    Source: Whitehouse, Ramdas, Rogers, Wu 2023 (arXiv 2203.05481v3) Thm 3 (ii), with
    the drift that the poster lost: docs/derivations/time-uniform.md#mixture-odometer.
    The boundary is the normal mixture of Howard, Ramdas, McAuliffe, Sekhon 2021 (arXiv
    1810.08240), one-sided. Two-sided, on |L|: log(sqrt((V + rho) / rho) / delta_loss)
    in the form "pure", where the loss is centred at its mean. A zCDP step has
    no such centre, so there each side gets half of delta_loss, which is 1 + inside the
    logarithm: docs/derivations/time-uniform.md#two-sided-mixture.

    Assumes: each step is (epsilon_i, 0)-DP, (epsilon_i, delta_i)-probabilistic DP, or
    in the form "zcdp" rho_i-zCDP, given the outputs before it; the constants
    are fixed in advance. Two-sided, no step has a delta.

    Rounding: prices up; the boundary in floats, widened by a relative 1e-12.

    Checked by: tests/accounting/published/test_formulas.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        rho: Constant of the mixture. Default: close to the best for a reading of
            `halt_at_epsilon`.
        sides: "one" (default): L is bounded; "two": |L| is.
        delta_loss: The part of delta for the loss; the rest is for steps with a delta.
            Default: all of it.
        form: "zcdp" (default) or "pure".
        halt_at_epsilon: Reading to tune for.
    """

    theorem = "mixture"
    made_from = ("delta", "delta_loss", "form", "rho", "sides")

    def __init__(
        self,
        *,
        delta: Number,
        rho: Number | None = None,
        sides: str = "one",
        delta_loss: Number | None = None,
        form: str = "zcdp",
        halt_at_epsilon: Number | None = None,
    ) -> None:
        super().__init__(delta, delta_loss, form)
        self.sides = one_of("sides", sides, SIDES)
        tail = self.delta_loss if sides == "two" else 2 * self.delta_loss
        if rho is None:
            epsilon = target_epsilon(self.theorem, "rho", halt_at_epsilon)
            rho = _tune_rho(epsilon, float(tail))
        self.rho: Fraction = exact_rho(rho)
        self._rho = float(self.rho)
        self._centred = sides == "two" and not self._zcdp
        log = bound_above(lambda mp: -mp.log(to_real(mp, self.delta_loss)))
        self._log = float_up(log)
        self._scale = float_up(1 / tail)

    def step_price(self, cost: Cost) -> Tally:
        """Return (rho, delta, 0) of the step, or (epsilon**2, delta, 0)."""
        tally = super().step_price(cost)
        if self.sides == "two" and tally.amounts[1]:
            msg = f"{cost!r} has a delta; the mixture of two sides has no room for it."
            raise UnsupportedCost(msg, theorem=self.theorem, mechanism=cost.mechanism)
        return tally

    def _width(self, variance: int) -> int:
        spread = variance / UNITS
        ratio = spread / self._rho
        if self._centred:
            log = math.log1p(ratio) / 2 + self._log
        else:
            log = math.log1p(self._scale * math.sqrt(1 + ratio))
        width = widen(math.sqrt(2 * (spread + self._rho) * log))
        return units_up(Fraction(width))


def target_epsilon(
    theorem: str, option: str, halt_at_epsilon: Number | None
) -> Fraction:
    """Return the reading that a constant is tuned for.

    Raises:
        InvalidCost: If the policy has no reading; then it must name the constant.
    """
    if halt_at_epsilon is None:
        msg = f"the {theorem} odometer needs {option}=, or halt_at_epsilon= to tune it"
        raise InvalidCost(msg, name=option, value=None)
    return exact_epsilon(halt_at_epsilon, name="halt_at_epsilon")


def readable(value: Fraction | float) -> Fraction:
    """Round a tuned constant to six digits: any is sound, this one can be read."""
    return min(max(Fraction(f"{float(value):.6g}"), RHO_LOW), RHO_HIGH)


def tune_variance(epsilon: Fraction, width: float) -> Fraction:
    """Return V such that V/2 + width * sqrt(V) is about epsilon."""
    target = float(epsilon)
    return readable((2 * target / (width + math.sqrt(width**2 + 2 * target))) ** 2)


def _tune_rho(epsilon: Fraction, tail: float) -> Fraction:
    """Return a rho near the best at the V where the reading is epsilon.

    Source: docs/derivations/time-uniform.md#mixture-odometer: rho = V / (2 l +
    log(1 + 2 l)), l = log(1 / tail), where tail is 2 delta_loss, or delta_loss for two
    sides.
    """
    log = max(-math.log(tail), 0.5)
    share = 1 / (2 * log + math.log1p(2 * log))
    inner = math.log1p(math.sqrt((1 + share) / share) / tail)
    variance = tune_variance(epsilon, math.sqrt(2 * (1 + share) * inner))
    return readable(variance * share)
