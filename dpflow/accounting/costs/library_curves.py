"""Renyi curves of events, computed by dp-accounting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from typing import Any

from dpflow.accounting.costs.notions import RenyiCurve
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.interrupts import suppress, without_interrupts
from dpflow.rounding import (
    RHO_LOW,
    bound_above,
    float_up,
    number_text,
    short_up,
    to_real,
)

#: The library computes in floats.
_GUARD = 1 + Fraction(1, 10**6)
_DIGITS = 12
#: Divergences of parts below this, and those of batches above this order, may have
#: lost their digits in floats.
_SMALL, _BATCH_ORDER = 1e-7, 20
#: Batches have no bound above this order, whose sum has as many terms.
_MOST_TERMS = 256
_BATCH = "SampledWithoutReplacementDpEvent"
_RELATIONS = {"add-or-remove": "ADD_OR_REMOVE_ONE", "replace-one": "REPLACE_ONE"}
_ZERO_OUT = {"add-or-remove": "REPLACE_SPECIAL"}


def library_curve(
    event: Any,
    *,
    orders: Sequence[Fraction],
    zero_out: bool = False,
    least: Callable[[Fraction], Fraction] | None = None,
) -> RenyiCurve:
    """Return the Renyi curve of an event, as dp-accounting's RDP accountant has it.

    Source: dp-accounting; docs/derivations/rdp.md#curves-of-a-library.

    Assumes: the library's theorems and code; the numbers of the event are valid.

    Rounding: the library's floats up by a relative 1e-6, then to 12 digits.

    Checked by: tests/accounting/costs/test_library_curves.py.

    Args:
        event: A `dp_accounting.DpEvent`.
        orders: Orders of the curve.
        zero_out: Take the library's zero-out neighbours for add-or-remove ones.
        least: The same bounds in exact arithmetic, by order, where dpflow has them:
            the library's never count below them.

    Raises:
        UnsupportedCost: If the accountant does not know the event.
        InvalidCost: If it cannot use a number, or has no finite bound at an order.
    """
    version = import_module("importlib.metadata").version("dp-accounting")
    relations = _ZERO_OUT if zero_out else _RELATIONS
    curves: dict[str, list[float]] = {}
    for relation, library_name in relations.items():
        with suppress(import_module("dp_accounting").UnsupportedEventError):
            curves[relation] = _divergences(event, orders, library_name)
    if not curves:
        msg = (
            f"dp-accounting {version} has no Renyi curve of {event!r} for "
            f"{' or '.join(relations.values())}. If a removed record counts as zero, "
            "and all others keep their places, zero_out=True takes REPLACE_SPECIAL."
        )
        raise UnsupportedCost(msg, theorem="rdp", mechanism=type(event).__name__)
    bounds = {
        # Each one is checked: a maximum would pass over what is no number.
        order: max(*(_outward(b, event) for b in row), least(order) if least else 0)
        for order, *row in zip(orders, *curves.values(), strict=True)
    }
    return RenyiCurve(
        bounds,
        relation=next(iter(curves)) if len(curves) == 1 else None,
        source=f"dp-accounting {version}{', zero-out' * zero_out}: {event!r}",
    )


def _divergences(event: Any, orders: Sequence[Fraction], relation: str) -> list[float]:
    """Return the library's divergences at some orders, as it computes them.

    A selection takes the best of many orders, so the library's own are added.
    """
    library = import_module("dp_accounting.rdp.rdp_privacy_accountant")
    grid = [*map(float_up, orders)]

    def divergences(part: Any) -> dict[float, float]:
        accountant = library.RdpAccountant(grid, getattr(library.NeighborRel, relation))
        try:
            accountant.compose(part)
        except without_interrupts(
            ArithmeticError, AssertionError, TypeError, ValueError
        ) as error:
            raise _unusable(part, str(error) or type(error).__name__) from error
        return dict(zip(grid, map(float, accountant.rdp), strict=True))

    if type(event).__name__ != _BATCH and hasattr(event, "event"):
        most = _BATCH_ORDER if _BATCH in repr(event) else math.inf
        grid = [o for o in {*grid, *library.DEFAULT_RDP_ORDERS} if o <= most]
        grid = [o for o, bound in divergences(event.event).items() if bound > _SMALL]
    bounds = divergences(event) if grid else {}
    return [bounds.get(float_up(order), math.inf) for order in orders]


def _outward(bound: float, event: Any) -> Fraction:
    if not 0 <= bound < math.inf:
        why = f"above order {_BATCH_ORDER} for batches, or below {_SMALL:g}"
        raise _unusable(event, f"it is {bound}, or a repeated part's is {why}")
    return max(Fraction(short_up(Fraction(bound) * _GUARD, _DIGITS)), RHO_LOW)


def _unusable(event: Any, why: str) -> InvalidCost:
    msg = (
        f"dp-accounting has no usable bound of {event!r}: {why.rstrip('.')}. Correct "
        "the numbers of the event, or leave this order out of orders=."
    )
    return InvalidCost(msg, name="event", value=repr(event))


def batch_divergence(order: Fraction, *, rate: Fraction, noise: Fraction) -> Fraction:
    """Return a bound on the Renyi divergence of a Gaussian on a batch of fixed size.

    Source: Wang, Balle, Kasiviswanathan 2019 (arXiv 1808.00087v3) Thm 27.

    Assumes: a batch is drawn uniformly, without replacement, and is not released; a
    record may be replaced by any other. Noise is a multiple of the sensitivity then.

    Rounding: up by a relative 1e-30.

    Checked by: tests/accounting/costs/test_library_curves.py.

    Args:
        order: The order, a whole number of at most 256.
        rate: Size of the batch over the number of records, in (0, 1].
        noise: Noise multiplier.

    Raises:
        InvalidCost: If the order is another one.
    """
    count = int(order)
    if count != order or count > _MOST_TERMS:
        msg = f"batches have bounds at whole orders up to {_MOST_TERMS}, not at {order}"
        raise InvalidCost(msg, name="orders", value=number_text(order))

    def moment(mp: Any) -> Any:
        part, inverse = to_real(mp, rate), to_real(mp, 1 / noise**2)
        powers = [mp.exp(inverse * i * (i - 1) / 2) for i in range(count + 2)]
        row, differences = powers, []
        while row:
            differences.append(row[0])
            row = [after - before for before, after in pairwise(row)]
        total = min(4 * mp.expm1(inverse), 2 * powers[2])
        total *= part**2 * mp.binomial(count, 2)
        for j in range(3, count + 1):
            # Lost digits may make a difference negative; other digits are tried then.
            product = differences[j // 2 * 2] * differences[(j + 1) // 2 * 2]
            term = min(4 * mp.sqrt(max(product, 0)), 2 * powers[j])
            total += part**j * mp.binomial(count, j) * term
        return mp.log1p(total)

    return bound_above(moment) / (order - 1)
