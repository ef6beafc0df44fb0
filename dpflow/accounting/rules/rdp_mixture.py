"""Renyi differential privacy with several orders simultaneously.

One order must be fixed in advance because the best one depends on the path. What can
be fixed instead are weights: for each order a, exp((a - 1)(L - R(a))) is a
supermartingale of mean at most 1, where L is the loss and R(a) the sum of the steps'
divergences. So is their weighted mean N, and one inequality about N covers all orders.

Filter, conversion "tight": if (1 - exp(epsilon - L))_+ <= delta N for every L, its
mean, which is the delta at epsilon, is at most delta
(docs/derivations/rdp.md#mixture-rule).

Filter, conversion "classic": if N >= 1/delta wherever L >= epsilon, which it is as
soon as it is at L = epsilon, Markov's inequality bounds the probability of L > epsilon
by delta. That is stronger than (epsilon, delta)-DP and admits less. With a single
order the two are the tight and the classic conversion of that order.

Odometer: Ville's inequality bounds by delta the probability that N ever reaches 1/delta
(docs/derivations/rdp.md#ville-odometer).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.notions import exact_order
from dpflow.accounting.rules.exponential_sums import ExponentialSum, log_of_inverse
from dpflow.accounting.rules.rdp import (
    RdpFilter,
    RdpOdometer,
    SettlesCells,
    idle_reading,
)
from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.zcdp import CONVERSIONS, one_of
from dpflow.accounting.searches import least_noise
from dpflow.exceptions import InvalidCost
from dpflow.interrupts import without_interrupts
from dpflow.rounding import (
    UNITS,
    Number,
    exact,
    exact_delta,
    exact_epsilon,
    float_up,
    from_units,
    number_from_text,
    number_text,
    units_down,
    units_up,
)

MOST_ORDERS = 256


class RdpMixtureFilter(SettlesCells, Filter):
    """Admit while a weighted mean over several orders certifies (epsilon, delta).

    Source: docs/derivations/rdp.md#mixture-rule. It replaces the invalid "some order
    still has room" of Lecuyer 2021 (arXiv 2103.01379v2) Cor. 1.

    Assumes: each step has finite Renyi divergences of all the orders given the
    outputs before it; orders and weights are fixed in advance.

    Rounding: prices up; the decision is in floats that are guarded outward by more
    than their error (`exponentials`). Exact to a relative 1e-11 of delta.

    Checked by: tests/accounting/rules/test_rdp.py, tests/adversaries.

    Args:
        epsilon: Budget, positive.
        delta: Budget, in (0, 1).
        orders: The orders, each above 1, no two equal.
        weights: A positive weight for each order, summing to at most 1. Default:
            equal ones.
        conversion: "tight" (default) or "classic".

    Raises:
        InvalidCost: If a number is out of range, or the orders allow nothing.
    """

    theorem = "rdp"
    made_from = ("epsilon", "delta", "orders", "weights", "conversion")

    def __init__(
        self,
        *,
        epsilon: Number,
        delta: Number,
        orders: list[Number],
        weights: list[Number] | None = None,
        conversion: str = "tight",
    ) -> None:
        self.epsilon: Fraction = exact_epsilon(epsilon)
        self.delta: Fraction = exact_delta(delta, zero=False)
        self.conversion = one_of("conversion", conversion, CONVERSIONS)
        self.orders, self.weights = exact_orders(orders, weights)
        self.components = order_names(self.orders)
        self._sum = ExponentialSum(self.orders, self.weights)
        self._limit = log_of_inverse(self.delta)
        self._epsilon_units = units_down(self.epsilon)
        if not self.admits(self.zero()):
            msg = (
                f"orders {order_list(self.orders)} allow nothing at epsilon "
                f"{number_text(self.epsilon)} and delta {number_text(self.delta)}: "
                "add a larger order."
            )
            raise InvalidCost(msg, name="orders", value=order_list(self.orders))

    def tally_at(self, divergence: Callable[[Fraction], Fraction]) -> Tally:
        """Return the divergence at each order."""
        return Tally(tuple(units_up(divergence(order)) for order in self.orders))

    def admits(self, tally: Tally) -> bool:
        """Return whether the orders together certify the tally."""
        terms = self._sum.at([self._epsilon_units - a for a in tally.amounts])
        if terms.log_below() >= self._limit:
            return True
        return self.conversion == "tight" and terms.dominates(self._limit)

    def used_fraction(self, tally: Tally) -> float:
        """Return the smallest f such that the tally divided by f is admitted."""
        return find_used_share(self, tally)


class RdpMixtureOdometer(SettlesCells, Odometer):
    """Read the U at which the weighted mean over the orders reaches 1 / delta.

    Source: docs/derivations/rdp.md#ville-odometer: Ville's inequality for the
    weighted mean. U solves sum over a of w(a) exp((a - 1)(U - R(a))) = 1 / delta, which
    is never above the reading of any single order at its share of delta.

    Assumes: each step has finite Renyi divergences of all the orders given the
    outputs before it; orders and weights are fixed in advance. One-sided.

    Rounding: prices and readings up; the root is approached from above in floats that
    are guarded outward by more than their error (`exponentials`).

    Checked by: tests/accounting/rules/test_rdp.py, tests/adversaries.

    Args:
        delta: Probability with which the bound may fail, in (0, 1).
        orders: The orders, each above 1, no two equal.
        weights: A positive weight for each order, summing to at most 1. Default:
            equal ones.
        halt_at_epsilon: Accepted as by all odometers; orders that are given need no
            tuning.
    """

    theorem = "rdp"
    made_from = ("delta", "orders", "weights")

    def __init__(
        self,
        *,
        delta: Number,
        orders: list[Number],
        weights: list[Number] | None = None,
        halt_at_epsilon: Number | None = None,
    ) -> None:
        del halt_at_epsilon
        self.delta: Fraction = exact_delta(delta, zero=False)
        self.orders, self.weights = exact_orders(orders, weights)
        self.components = (*order_names(self.orders), "uncovered")
        self._idle = tuple(
            units_up(idle_reading(weight * self.delta, order))
            for order, weight in zip(self.orders, self.weights, strict=True)
        )
        self._sum = ExponentialSum(self.orders, self.weights)
        self._limit = log_of_inverse(self.delta)

    def tally_at(self, divergence: Callable[[Fraction], Fraction]) -> Tally:
        """Return the divergence at each order."""
        return Tally((*(units_up(divergence(order)) for order in self.orders), 0))

    def read(self, tally: Tally) -> float:
        """Return the bound on the loss so far."""
        *amounts, uncovered = tally.amounts
        if uncovered:
            return float("inf")
        above = min(a + b for a, b in zip(amounts, self._idle, strict=True))
        terms = self._sum.at([above - amount for amount in amounts])
        return float_up(from_units(above) - Fraction(terms.room_below(self._limit)))


def exact_orders(
    orders: object, weights: object = None
) -> tuple[tuple[Fraction, ...], tuple[Fraction, ...]]:
    """Read orders and weights, sorted by order.

    Raises:
        InvalidCost: If they are no lists of numbers, not as many, or out of range.
    """
    exact_values = [exact_order(order) for order in _to_list("orders", orders)]
    if len(set(exact_values)) != len(exact_values):
        msg = f"orders must differ, got {order_list(tuple(exact_values))}"
        raise InvalidCost(msg, name="orders", value=order_list(tuple(exact_values)))
    if weights is None:
        shares = [Fraction(1, len(exact_values))] * len(exact_values)
    else:
        shares = [_weight(weight) for weight in _to_list("weights", weights)]
    if len(shares) != len(exact_values) or sum(shares) > 1:
        msg = (
            f"weights must be one for each of the {len(exact_values)} orders and sum "
            f"to at most 1; got {len(shares)} that sum to {float(sum(shares)):g}"
        )
        raise InvalidCost(msg, name="weights", value=None, high=1)
    pairs = sorted(zip(exact_values, shares, strict=True))
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _to_list(name: str, values: object) -> list[object]:
    if not isinstance(values, list | tuple) or not 0 < len(values) <= MOST_ORDERS:
        msg = f"{name} must be a list of 1 to {MOST_ORDERS} numbers, got {values!r}"
        raise InvalidCost(msg, name=name, value=repr(values))
    return list(values)


def _weight(value: object) -> Fraction:
    """Read a weight: a number, or the text p/q that `number_text` writes."""
    if isinstance(value, str) and "/" in value:
        try:
            value = number_from_text(value)
        except without_interrupts(ValueError, ZeroDivisionError) as error:
            msg = f"a weight must be a number, got {value!r}"
            raise InvalidCost(msg, name="weights", value=value) from error
    return exact(value, name="weight", low=Fraction(1, UNITS), high=Fraction(1))


def order_names(orders: tuple[Fraction, ...]) -> tuple[str, ...]:
    """Return the names of a tally's components, one per order."""
    return tuple(f"rdp({number_text(order)})" for order in orders)


def order_list(orders: tuple[Fraction, ...]) -> str:
    """Write orders for a message."""
    return ", ".join(number_text(order) for order in orders)


def find_used_share(rule: Filter, tally: Tally) -> float:
    """Return, up, the smallest f such that the rule admits the tally divided by f.

    For a rule with thresholds that is the largest used share of a threshold. The search
    returns six digits, and at least 2^-64.
    """
    if not any(tally.amounts):
        return 0.0
    share = least_noise(
        lambda share: rule.admits(_divide(tally, share)),
        low=Fraction(1, 2**64),
        high=1,
        most=2**1000,
        close=1 + Fraction(1, 10**6),
    )
    return math.inf if share is None else float_up(share)


def _divide(tally: Tally, share: Fraction) -> Tally:
    top, bottom = share.numerator, share.denominator
    return Tally(tuple(-((-amount * bottom) // top) for amount in tally.amounts))


# The names `rdp` in policies: one order, or several if `orders` is given.
# The signatures are spelled out, for policies check their options against them.


def make_rdp_filter(
    *,
    epsilon: Number,
    delta: Number,
    order: Number | None = None,
    orders: list[Number] | None = None,
    weights: list[Number] | None = None,
    conversion: str = "tight",
    delta_loss: Number | None = None,
) -> RdpFilter | RdpMixtureFilter:
    """Make the filter of one order, or of several if `orders` is given."""
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    if orders is None:
        _only_with_orders(weights=weights)
        return RdpFilter(
            **budget, order=order, conversion=conversion, delta_loss=delta_loss
        )
    _not_with_orders(order=order, delta_loss=delta_loss)
    return RdpMixtureFilter(
        **budget, orders=orders, weights=weights, conversion=conversion
    )


def make_rdp_odometer(
    *,
    delta: Number,
    order: Number | None = None,
    orders: list[Number] | None = None,
    weights: list[Number] | None = None,
    halt_at_epsilon: Number | None = None,
) -> RdpOdometer | RdpMixtureOdometer:
    """Make the odometer of one order, or of several if `orders` is given."""
    common: dict[str, Any] = {"delta": delta, "halt_at_epsilon": halt_at_epsilon}
    if orders is None:
        _only_with_orders(weights=weights)
        return RdpOdometer(**common, order=order)
    _not_with_orders(order=order)
    return RdpMixtureOdometer(**common, orders=orders, weights=weights)


def _only_with_orders(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            msg = f"{name} goes with several orders; give orders= as well"
            raise InvalidCost(msg, name=name)


def _not_with_orders(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            msg = (
                "give order= for one order or orders= for several, not both; "
                f"{name}= goes with one"
            )
            raise InvalidCost(msg, name=name)
