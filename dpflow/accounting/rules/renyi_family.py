"""The names `renyi` in policies: one order, or several if `orders` is given."""

from __future__ import annotations

from typing import Any

from dpflow.accounting.rules.concentrated import one_of
from dpflow.accounting.rules.renyi import RenyiFilter, RenyiOdometer
from dpflow.accounting.rules.renyi_mixture import (
    RULES,
    RenyiGridOdometer,
    RenyiMixtureFilter,
    RenyiMixtureOdometer,
)
from dpflow.exceptions import InvalidCost
from dpflow.rounding import Number

# The signatures are spelled out: policies check their options against them.


def make_renyi_filter(
    *,
    epsilon: Number,
    delta: Number,
    order: Number | None = None,
    orders: list[Number] | None = None,
    weights: list[Number] | None = None,
    conversion: str = "tight",
    delta_loss: Number | None = None,
) -> RenyiFilter | RenyiMixtureFilter:
    """Make the filter of one order, or of several if `orders` is given."""
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    if orders is None:
        _only_with_orders(weights=weights)
        return RenyiFilter(
            **budget, order=order, conversion=conversion, delta_loss=delta_loss
        )
    _not_with_orders(order=order, delta_loss=delta_loss)
    return RenyiMixtureFilter(
        **budget, orders=orders, weights=weights, conversion=conversion
    )


def make_renyi_odometer(
    *,
    delta: Number,
    order: Number | None = None,
    orders: list[Number] | None = None,
    rule: str = "mixture",
    weights: list[Number] | None = None,
    halt_at_epsilon: Number | None = None,
) -> RenyiOdometer | RenyiGridOdometer | RenyiMixtureOdometer:
    """Make the odometer of one order, or of several if `orders` is given."""
    one_of("rule", rule, RULES)
    common: dict[str, Any] = {"delta": delta, "halt_at_epsilon": halt_at_epsilon}
    if orders is None:
        _only_with_orders(weights=weights)
        return RenyiOdometer(**common, order=order)
    _not_with_orders(order=order)
    kind = RenyiGridOdometer if rule == "grid" else RenyiMixtureOdometer
    return kind(**common, orders=orders, weights=weights)


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
