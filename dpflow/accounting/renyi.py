"""Renyi differential privacy: the divergences of one order add up."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from dpflow.accounting.costs import Cost
from dpflow.accounting.curves import renyi
from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Odometer
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    Number,
    bound_above,
    evaluate,
    exact,
    exact_delta,
    exact_epsilon,
    float_up,
    from_units,
    number_text,
    to_real,
    units_up,
)

ORDER_LOW, ORDER_HIGH = Fraction(10001, 10000), Fraction(10**6)
_ORDER_DIGITS = 3


class RenyiOdometer(Odometer):
    """Read R(order) + log(1 / delta) / (order - 1), valid at every stopping time.

    Source: THEOREMS.md 4.3: exp((order - 1)(L - R)) is a supermartingale; Ville's
    inequality bounds it over all times at once.

    Assumes: each step has a finite Renyi divergence of the order, given the outputs
    before it (no delta of its own); the order is fixed in advance. One-sided.

    Rounding: prices and readings up.

    Checked by: tests/accounting/test_renyi.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        order: The order, above 1. Default: the one whose reading leaves most room
            below `halt_at_epsilon`, for concentrated steps.
        halt_at_epsilon: Reading to tune for; only used to derive the order.
    """

    theorem = "renyi"
    components = ("renyi", "uncovered")

    def __init__(
        self,
        *,
        delta: Number,
        order: Number | None = None,
        halt_at_epsilon: Number | None = None,
    ) -> None:
        self.delta: Fraction = exact_delta(delta, zero=False)
        if halt_at_epsilon is not None:
            halt_at_epsilon = exact_epsilon(halt_at_epsilon, name="halt_at_epsilon")
        if order is None:
            order = tuned_order(self.delta, halt_at_epsilon)
        self.order: Fraction = exact(
            order, name="order", low=ORDER_LOW, high=ORDER_HIGH
        )
        self._idle = bound_above(
            lambda mp: -mp.log(to_real(mp, self.delta)) / to_real(mp, self.order - 1)
        )

    def price(self, cost: Cost) -> Tally:
        """Return the step's divergence at the order."""
        return Tally((units_up(renyi(cost, self.order)), 0))

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss so far."""
        divergence, uncovered = tally.amounts
        if uncovered:
            return float("inf")
        return float_up(from_units(divergence) + self._idle)

    def parameters(self) -> dict[str, Any]:
        """Return delta and the order, derived or given."""
        return {
            "theorem": self.theorem,
            "delta": number_text(self.delta),
            "order": number_text(self.order),
        }


def tuned_order(delta: Fraction, epsilon: Number | None) -> Fraction:
    """Return the order that admits most rho-zCDP below a reading of epsilon.

    With t = order - 1 and l = log(1/delta), rho = (epsilon - l/t) / (1 + t) is largest
    at t = (l + sqrt(l**2 + epsilon l)) / epsilon. Any order is sound; this one is
    rounded to a number that people can read.

    Raises:
        InvalidCost: If there is no epsilon to tune for.
    """
    if epsilon is None:
        msg = "the renyi odometer needs order=, or halt_at_epsilon= to derive one"
        raise InvalidCost(msg, name="order", value=None)
    target = exact_epsilon(epsilon, name="halt_at_epsilon")

    def excess(mp: Any) -> Any:
        log, eps = -mp.log(to_real(mp, delta)), to_real(mp, target)
        return (log + mp.sqrt(log * (log + eps))) / eps

    readable = Fraction(f"{float(1 + evaluate(excess)):.{_ORDER_DIGITS}g}")
    return min(max(readable, ORDER_LOW), ORDER_HIGH)
