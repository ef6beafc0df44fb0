"""Stopping a fixed sequence early: Lemma 11 and Theorem 15 of Hartmann et al.

The steps M_1, M_2, ... and the stops k_1 < ... < k_t at which the sequence may end are
fixed in advance; whether it ends there may depend on everything released so far. The
output's length is then a cell of an ODP partition, and each cell has an epsilon of its
own. Because the parameters are fixed, every composition theorem is legal here, optimal
ones included.

`compose_epsilon` is the composition theorem (an "accountant"), `lemma_11` splits delta
over the stops, `theorem_15` is the exact delta of given epsilons, and `best_epsilons`
spends exactly delta on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import ExponentialMechanism, Gaussian
from dpflow.accounting.costs.notions import ApproxDP, GaussianDP, RenyiCurve, RenyiDP
from dpflow.accounting.curves.prices import approx_dp, renyi
from dpflow.accounting.fixed.optimal import (
    FixedSequence,
    Parts,
    largest_loss,
    optimal_epsilon,
    without_substeps,
)
from dpflow.exceptions import InvalidCost, UnsupportedCost
from dpflow.rounding import bound_above, float_up, short_up, to_real

Array = NDArray[np.float64]

#: How the sub-steps up to a stop are composed.
ACCOUNTANTS = ("basic", "kov", "pld", "rdp", "gdp")

_UNIT = 2.0**-53
_ORDERS = tuple(1 + Fraction(2) ** k for k in range(-6, 12)) + tuple(
    1 + 3 * Fraction(2) ** k for k in range(-6, 11)
)
_BISECTIONS, _FINEST = 30, Fraction(1, 10**4)


def compose_epsilon(parts: Parts, delta: Fraction, accountant: str) -> Fraction:
    """Return an epsilon of a fixed sequence at delta, by one composition theorem.

    Source: basic: Dwork, Lei 2009. kov: `optimal.optimal_epsilon`, every step taken as
    (epsilon, delta)-DP. gdp: the same function for Gaussians, which is exact. pld:
    exact where `optimal` is, else `loss_distribution.grid_epsilon`, and no more than
    basic. rdp: the best of some orders with the conversion of Canonne, Kamath,
    Steinke 2020 Prop. 12, legal for a fixed sequence because every order's bound holds;
    orders at which a step has no bound are omitted.

    Assumes: the costs are fixed in advance; mechanisms and order may adapt.

    Rounding: up.

    Checked by: tests/accounting/fixed/test_stops.py.

    Args:
        parts: The costs and how often each runs.
        delta: The delta.
        accountant: One of `ACCOUNTANTS`.

    Raises:
        UnsupportedCost: If the accountant has no price for a step.
        InvalidCost: If delta does not cover the steps.
    """
    if not parts:
        return Fraction(0)
    # Without a delta nothing improves on the sum.
    compose = _ACCOUNTANTS[accountant] if delta else _basic
    return compose(without_substeps(parts), delta)


def _basic(parts: Parts, delta: Fraction) -> Fraction:
    pairs = [(approx_dp(cost), count) for cost, count in parts]
    lost = sum(((pair[1] * count) for pair, count in pairs), Fraction(0))
    if lost > delta:
        msg = (
            f"the deltas of the steps sum to {short_up(lost)}, above "
            f"{short_up(delta)}; give more delta or use fewer steps."
        )
        raise InvalidCost(msg, name="delta", value=delta, low=lost)
    return sum(((pair[0] * count) for pair, count in pairs), Fraction(0))


def _kov(parts: Parts, delta: Fraction) -> Fraction:
    for cost, _ in parts:
        approx_dp(cost)  # refuses a Gaussian, which has no epsilon of its own
    return optimal_epsilon(parts, delta)


def _gaussian(parts: Parts, delta: Fraction) -> Fraction:
    for cost, _ in parts:
        if not isinstance(cost, Gaussian | GaussianDP):
            msg = f"{cost!r} is no Gaussian; use the accountant kov, pld or rdp."
            raise UnsupportedCost(
                msg, theorem="accountant gdp", mechanism=cost.mechanism
            )
    return optimal_epsilon(parts, delta)


def _pld(parts: Parts, delta: Fraction) -> Fraction:
    # Needs scipy, which takes long to import.
    from dpflow.accounting.fixed.loss_distribution import grid_epsilon, has_curve  # noqa: PLC0415

    for cost, _ in parts:
        if isinstance(cost, ExponentialMechanism):
            msg = (
                f"the accountant pld does not compose {cost!r}: later steps may choose "
                "which of its loss distributions is the worst. Use the accountant "
                "rdp, or kov, which takes it as (epsilon, 0)-DP; or the filter "
                "auto, which needs no list of steps."
            )
            raise UnsupportedCost(
                msg, theorem="accountant pld", mechanism=cost.mechanism
            )
    plain = tuple((cost, n) for cost, n in parts if not has_curve(cost))
    if len(plain) == len(parts) and FixedSequence.of(parts).is_small:
        return optimal_epsilon(parts, delta)
    # What a grid adds must not refuse a few steps whose sum is the budget.
    largest = largest_loss(parts, delta)
    try:
        epsilon = grid_epsilon(parts, delta)
    except InvalidCost:
        if largest is None:
            raise
        return largest
    return epsilon if largest is None else min(epsilon, largest)


@lru_cache(maxsize=1024)
def _renyi(parts: Parts, delta: Fraction) -> Fraction:
    def epsilon(order: Fraction) -> Fraction:
        loss = sum((renyi(cost, order) * count for cost, count in parts), Fraction(0))

        def value(mp: Any) -> Any:
            alpha = to_real(mp, order)
            log_product = mp.log(to_real(mp, delta)) + mp.log(alpha)
            return to_real(mp, loss) + mp.log1p(-1 / alpha) - log_product / (alpha - 1)

        return bound_above(value)

    return max(min(map(epsilon, _finite_orders(parts))), Fraction(0))


def _finite_orders(parts: Parts) -> list[Fraction]:
    """Return the orders at which all steps have a divergence, their own included.

    Raises:
        UnsupportedCost: If there is no such order.
    """
    own = {cost.order for cost, _ in parts if isinstance(cost, RenyiDP)}
    curves = [cost.curve for cost, _ in parts if isinstance(cost, RenyiCurve)]
    own.update(order for curve in curves for order, _ in curve)
    orders: list[Fraction] = []
    refused: UnsupportedCost | None = None
    for order in (*_ORDERS, *own):
        try:
            for cost, _ in parts:
                renyi(cost, order)
        except UnsupportedCost as error:
            refused = error
        else:
            orders.append(order)
    if refused is not None and not orders:
        raise refused
    return orders


_ACCOUNTANTS: dict[str, Callable[[Parts, Fraction], Fraction]] = {
    "basic": _basic,
    "kov": _kov,
    "pld": _pld,
    "rdp": _renyi,
    "gdp": _gaussian,
}


def lemma_11(
    prefixes: Sequence[Parts], deltas: Sequence[Fraction], accountant: str
) -> tuple[Fraction, ...]:
    """Return the epsilon of each stop; the delta of the whole is the sum of `deltas`.

    Source: Hartmann, Bindschaedler, Bentkamp, West 2022, Lemma 11: outputs that end at
    stop i are (E_i, delta_i)-subset DP because the steps up to there are, and subset
    guarantees over a partition add up (Lemma 6). Proof:
    docs/derivations/output-dp.md#early-stopping.

    Assumes: steps and stops are fixed in advance; whether to stop is a function of
    released outputs. An end between two stops counts as the later one.

    Rounding: up.

    Checked by: tests/accounting/fixed/test_stops.py, tests/adversaries.

    Args:
        prefixes: The steps up to each stop.
        deltas: The part of delta for each stop, fixed in advance.
        accountant: One of `ACCOUNTANTS`.

    Raises:
        UnsupportedCost: If the accountant has no price for a step.
        InvalidCost: If a stop's delta does not cover its steps.
    """
    return tuple(
        compose_epsilon(parts, delta, accountant)
        for parts, delta in zip(prefixes, deltas, strict=True)
    )


def theorem_15(
    step: tuple[Fraction, Fraction], stops: Sequence[int], epsilons: Sequence[Fraction]
) -> Fraction:
    """Return the smallest delta for given epsilons of the stops, rounded up.

    Source: Hartmann et al., Theorem 15, by the recursion of
    docs/derivations/output-dp.md#optimal-delta-of-stops: in the tree of randomized
    responses, a node of probability P under one dataset and Q
    under the other contributes max(P - e^E Q if it is a stop, the sum its children
    contribute). Divided by P, a node depends on its depth and its loss log(P / Q) only;
    k equal steps have O(k^2) nodes.

    Assumes: each step has this (epsilon, delta), for any mechanism, chosen adaptively;
    stops, which rise, and epsilons are fixed in advance. Attained by randomized
    response.

    Rounding: up, by at most 1e-11 relative for 10,000 steps: rooms below a loss are
    exact, and everything after them is products and sums of non-negative terms.

    Checked by: tests/accounting/fixed/test_stops.py, tests/adversaries.
    """
    at = dict(zip(stops, epsilons, strict=True))
    (epsilon, delta), last = step, stops[-1]
    top, bottom = _odds(epsilon)
    revealed, hidden = float_up(delta), float_up(1 - delta)
    # Of the nodes of a depth, by their number of tops.
    value: Array = np.zeros(0)
    for depth in range(last, -1, -1):
        if depth < last:
            # Children with one top more, and with one bottom more.
            value = revealed + hidden * (top * value[1:] + bottom * value[:-1])
        if depth in at:
            tops = range(-depth, depth + 1, 2)
            stopped = _payoffs(n * epsilon - at[depth] for n in tops)
            value = np.maximum(value, stopped) if value.size else stopped
    raised = Fraction(float(value[0])) * (1 + Fraction(8 * last + 64, 2**53))
    return min(raised + Fraction(1, 10**300), Fraction(1))


def _odds(epsilon: Fraction) -> tuple[float, float]:
    """Return the probabilities of top and bottom, rounded up."""
    top = bound_above(lambda mp: 1 / (1 + mp.exp(-to_real(mp, epsilon))))
    bottom = bound_above(lambda mp: 1 / (1 + mp.exp(to_real(mp, epsilon))))
    return float_up(top), float_up(bottom)


def _payoffs(rooms: Iterable[Fraction]) -> Array:
    """Return 1 - e^-room where positive, rounded up."""
    sizes = np.array([float_up(room) if room > 0 else 0.0 for room in rooms])
    return np.asarray(np.minimum(-np.expm1(-sizes) * (1 + 16 * _UNIT), 1.0))


@lru_cache(maxsize=1024)
def best_epsilons(
    step: tuple[Fraction, Fraction],
    stops: tuple[int, ...],
    deltas: tuple[Fraction, ...],
) -> tuple[Fraction, ...]:
    """Return epsilons of the stops whose Theorem 15 delta is at most the sum of deltas.

    Lemma 11 with KOV spends less than the sum of its deltas, for it counts sequences
    twice that cannot both occur. So all deltas are multiplied by the largest factor for
    which Theorem 15 still certifies the sum.

    Source: Hartmann et al., Theorem 15, solved for E along the family E_i = KOV(k_i,
    factor * delta_i).

    Assumes: as `theorem_15`.

    Rounding: up; the certificate is `theorem_15`, rounded up. Never above Lemma 11.

    Checked by: tests/accounting/fixed/test_stops.py.
    """
    budget, cost = (sum(deltas, Fraction(0)), ApproxDP(epsilon=step[0], delta=step[1]))

    def at(factor: Fraction) -> tuple[Fraction, ...]:
        return tuple(
            optimal_epsilon(((cost, stop),), delta * factor)
            for stop, delta in zip(stops, deltas, strict=True)
        )

    low, high = Fraction(1), min(budget, Fraction(999, 1000)) / max(deltas)
    best = at(low)
    if len(stops) == 1 or high <= low:
        return best
    for _ in range(_BISECTIONS):
        # No finer: the factor moves epsilon by its logarithm only.
        if high - low <= low * _FINEST:
            break
        middle = Fraction(float((low + high) / 2))
        epsilons = at(middle)
        if theorem_15(step, stops, epsilons) <= budget:
            low, best = middle, epsilons
        else:
            high = middle
    return best


@lru_cache(maxsize=1024)
def stop_epsilons(cost: EarlyStopping) -> tuple[Fraction, ...]:
    """Return the epsilon of each stop by the accountant of a cost, rounded up."""
    if cost.accountant == "optimal":
        return best_epsilons(approx_dp(cost.step), cost.stops, cost.deltas)
    if cost.accountant == "basic":
        return tuple(stop * approx_dp(cost.step)[0] for stop in cost.stops)
    prefixes = [((cost.step, stop),) for stop in cost.stops]
    return lemma_11(prefixes, cost.deltas, cost.accountant)


def stop_delta(cost: EarlyStopping) -> Fraction:
    """Return the delta that is spent at every stop."""
    if cost.accountant == "basic":
        return cost.stops[-1] * approx_dp(cost.step)[1]
    return cost.delta
