"""Renyi differential privacy: the divergences of one order add up.

`renyi_mixture` has several orders, and chooses by the options of a policy.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

from dpflow.accounting.costs.base import Cost, Outcome, Settling
from dpflow.accounting.costs.notions import ORDER_HIGH, ORDER_LOW, exact_order
from dpflow.accounting.costs.outcomes import OutcomeCost
from dpflow.accounting.curves.cells import cell_renyi
from dpflow.accounting.curves.conversions import (
    _divergence,
    maximiser,
    rdp_epsilon_allowed,
)
from dpflow.accounting.curves.prices import renyi
from dpflow.accounting.rules.delta_loss import SplitsDelta
from dpflow.accounting.rules.rule import Odometer, Rule
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.zcdp import CONVERSIONS, one_of
from dpflow.exceptions import InvalidCost
from dpflow.rounding import (
    UNITS,
    Number,
    bound_above,
    evaluate,
    exact_delta,
    exact_epsilon,
    float_up,
    number_text,
    to_real,
    units_up,
)

_ORDER_DIGITS = 3
_WHOLE_FROM = 4


class SettlesCells(Rule):
    """Settlement by cells, common to the rules with Renyi divergences.

    Source: docs/derivations/rdp.md#cells, at each order separately.

    Attributes:
        settlements: All of them.
    """

    settlements: ClassVar[frozenset[str]] = frozenset({"full", "steps", "outcome"})

    @abstractmethod
    def tally_at(self, divergence: Callable[[Fraction], Fraction]) -> Tally:
        """Return the tally of a step with a divergence at each order."""

    def step_price(self, cost: Cost) -> Tally:
        """Return the step's divergence at each order."""
        return self.tally_at(lambda order: renyi(cost, order))

    def outcome_price(
        self, cost: Settling, outcome: Outcome, used: Tally | None
    ) -> Tally:
        """Return the divergence of the cell, or of the sub-steps that ran."""
        if isinstance(cost, OutcomeCost):
            return self.tally_at(lambda order: cell_renyi(cost, outcome, order))
        return super().outcome_price(cost, outcome, used)


class RdpFilter(SettlesCells, SplitsDelta):
    """Admit while the divergences of one order fit the bound of (epsilon, delta).

    Source: Feldman, Zrnic 2021 (arXiv 2008.11193v4) Thm 3.1 and Lecuyer 2021 (arXiv
    2103.01379v2) Thm 1: no loss against a sequence fixed in advance. Conversions:
    `conversions.rdp_epsilon_allowed`; they apply to the whole transcript. The rule
    "some order still has room" over several orders is no filter
    (docs/derivations/rdp.md#some-order); give `orders` for the valid way to use
    several.

    A mechanism with cells, and without a delta, reserves its worst one and settles the
    one that its output fell into (docs/derivations/rdp.md#cells).

    Assumes: each step has a finite Renyi divergence of the order given the outputs
    before it; the order is fixed in advance. A step with a delta needs a part of the
    budget's (docs/derivations/composition.md#steps-with-a-delta), and is charged as its
    worst cell.

    Rounding: the threshold down to 36 decimals, prices up.

    Checked by: tests/accounting/rules/test_rdp.py, tests/adversaries.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        order: The order, above 1. Default: the one that admits most zCDP
            steps, as a whole number from 4 on, where sampled Gaussians are priced
            exactly.
        conversion: "tight" (default) or "classic".
        delta_loss: The part of delta for the divergences; the rest is for the deltas of
            steps. Default: all of it.

    Raises:
        InvalidCost: If a number is out of range, or the order allows nothing.
    """

    theorem = "rdp"
    adds_up = True
    term_options = frozenset({"order"})
    made_from = ("epsilon", "delta", "order", "conversion", "delta_loss")
    loss = "rdp"

    def __init__(
        self,
        *,
        epsilon: Number,
        delta: Number,
        order: Number | None = None,
        conversion: str = "tight",
        delta_loss: Number | None = None,
    ) -> None:
        super().__init__(epsilon, delta, delta_loss)
        self.conversion = one_of("conversion", conversion, CONVERSIONS)
        if order is None:
            order = best_order(
                self.epsilon, self.delta_loss, conversion=self.conversion
            )
        self.order: Fraction = exact_order(order)
        tight = self.conversion == "tight"
        allowed = rdp_epsilon_allowed(
            self.epsilon, self.delta_loss, self.order, tight=tight
        )
        if allowed <= 0:
            msg = (
                f"order {number_text(self.order)} allows nothing at epsilon "
                f"{number_text(self.epsilon)} and delta "
                f"{number_text(self.delta_loss)}: choose a larger order, or leave it "
                "out."
            )
            raise InvalidCost(msg, name="order", value=number_text(self.order))
        self._limit_to(allowed)

    def tally_at(self, divergence: Callable[[Fraction], Fraction]) -> Tally:
        """Return the divergence at the order, and no delta."""
        return Tally((units_up(divergence(self.order)), *(0,) * self.keeps_delta))

    def step_price(self, cost: Cost) -> Tally:
        """Return the step's divergence, and its delta if the filter keeps one."""
        without_delta, delta = self._apart(cost)
        return Tally((units_up(renyi(without_delta, self.order)), *delta))

    def outcome_price(
        self, cost: Settling, outcome: Outcome, used: Tally | None
    ) -> Tally:
        """Return the divergence of the cell; all of a mechanism with a delta."""
        if isinstance(cost, OutcomeCost) and cost.highest()[1]:
            return self.price(cost, used)
        return super().outcome_price(cost, outcome, used)


class RdpOdometer(SettlesCells, Odometer):
    """Read R(order) + log(1 / delta) / (order - 1), valid at every stopping time.

    Source: docs/derivations/rdp.md#ville-odometer: exp((order - 1)(L - R)) is a
    supermartingale; Ville's inequality bounds it at all times simultaneously.

    Assumes: each step has a finite Renyi divergence of the order, given the outputs
    before it (no delta of its own); the order is fixed in advance. One-sided.

    Rounding: prices and readings up.

    Checked by: tests/accounting/rules/test_rdp.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        order: The order, above 1. Default: the one whose reading leaves most room
            below `halt_at_epsilon`, for zCDP steps.
        halt_at_epsilon: Reading to tune for; only used to derive the order.
    """

    theorem = "rdp"
    made_from: ClassVar[tuple[str, ...]] = ("delta", "order")
    components: tuple[str, ...] = ("rdp", "uncovered")

    def __init__(
        self,
        *,
        delta: Number,
        order: Number | None = None,
        halt_at_epsilon: Number | None = None,
    ) -> None:
        self.delta: Fraction = exact_delta(delta, zero=False)
        if order is None:
            order = tune_order(self.delta, halt_at_epsilon)
        self.order: Fraction = exact_order(order)
        self._idle = idle_reading(self.delta, self.order)

    def tally_at(self, divergence: Callable[[Fraction], Fraction]) -> Tally:
        """Return the divergence at the order."""
        return Tally((units_up(divergence(self.order)), 0))

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss so far."""
        divergence, uncovered = tally.amounts
        if uncovered:
            return float("inf")
        idle = self._idle
        # The sum of both, in whole numbers: each step needs it.
        over = divergence * idle.denominator + idle.numerator * UNITS
        return float_up(Fraction(over, UNITS * idle.denominator))


def idle_reading(delta: Fraction, order: Fraction) -> Fraction:
    """Return log(1 / delta) / (order - 1), rounded up."""
    return bound_above(lambda mp: -mp.log(to_real(mp, delta)) / to_real(mp, order - 1))


def readable_order(excess: Fraction) -> Fraction:
    """Return a readable order near 1 + excess: whole from 4 on.

    Any order is sound, so this rounds to nearest. Below 4 the excess has three digits,
    because a whole number would admit noticeably less.
    """
    order = 1 + excess
    if order >= _WHOLE_FROM:
        near = Fraction(round(order))
        long = Fraction(f"{float(order):.{_ORDER_DIGITS}g}")
        readable = near if order < 10**_ORDER_DIGITS else long
    else:
        readable = 1 + Fraction(f"{float(excess):.{_ORDER_DIGITS}g}")
    return min(max(readable, ORDER_LOW), ORDER_HIGH)


@lru_cache(maxsize=256)
def best_order(
    epsilon: Fraction, delta: Fraction, *, conversion: str = "tight"
) -> Fraction:
    """Return a readable order that admits most zCDP steps.

    See docs/derivations/notions.md#budget-of-a-target.
    """

    def per_rho(mp: Any, log_excess: Any) -> Any:
        alpha = 1 + mp.exp(log_excess)
        tight = conversion == "tight"
        return _divergence(mp, epsilon, delta, alpha, tight=tight) / alpha

    return readable_order(maximiser(per_rho))


def tune_order(delta: Fraction, epsilon: Number | None) -> Fraction:
    """Return the order that admits most rho-zCDP below a reading of epsilon.

    With t = order - 1 and l = log(1/delta), rho = (epsilon - l/t) / (1 + t) is largest
    at t = (l + sqrt(l**2 + epsilon l)) / epsilon. Any order is sound; this one is
    rounded to a number that people can read.

    Raises:
        InvalidCost: If there is no epsilon to tune for.
    """
    if epsilon is None:
        msg = "the rdp odometer needs order=, or halt_at_epsilon= to derive one"
        raise InvalidCost(msg, name="order", value=None)
    target = exact_epsilon(epsilon, name="halt_at_epsilon")

    def excess(mp: Any) -> Any:
        log, eps = -mp.log(to_real(mp, delta)), to_real(mp, target)
        return (log + mp.sqrt(log * (log + eps))) / eps

    readable = Fraction(f"{float(1 + evaluate(excess)):.{_ORDER_DIGITS}g}")
    return min(max(readable, ORDER_LOW), ORDER_HIGH)
