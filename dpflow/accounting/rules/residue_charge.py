"""The least squared mu that a step takes from a Gaussian budget, in closed form.

Write G(m) for N(0, 1) against N(sqrt(m), 1). A step whose pair is P may be charged c at
a budget m if P x G(m - c) is dominated by G(m), at every epsilon and in both orders.
For the pairs here that is one inequality, at epsilon 0: docs/derivations/residue.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.curves.conversions import falling_root
from dpflow.accounting.curves.prices import pure_mu_squared
from dpflow.accounting.solving import before_solving
from dpflow.interrupts import without_interrupts
from dpflow.rounding import (
    UNITS,
    arithmetic,
    bound_above,
    bound_below,
    to_fraction,
    to_real,
)
from dpflow.rounding import units_up as up

#: Kinds of pairs that have a charge.
GAUSSIAN, RESPONSE, LAPLACE, RANGE = "gaussian", "response", "laplace", "range"

#: From a context, an epsilon and a mu**2 to the advantage of a step with a Gaussian.
Advantage = Callable[[Any, Fraction, Any], Any]

#: Leading binary digits of a rest that a charge looks at: breakpoints lie 1.6 % to
#: 3.2 % apart. They are the same for every budget and are never changed.
BREAKPOINT_BITS = 6

_DIGITS, _AGREES = 90, 1e-14
_FIRST_STEP, _TRIES = Fraction(1, 10**13), 20
_MOST_UNIFORM = 4
_RANGE_STEPS, _RANGE_MOST, _RANGE_MORE = 100, 64, 1 + Fraction(1, 10**12)


@lru_cache(maxsize=65536)
def residue_charge(kind: str, size: Fraction, budget: int) -> int:
    """Return a charge in units for a step at a Gaussian budget.

    Source: docs/derivations/residue.md#one-test for randomized response and Laplace,
    docs/derivations/residue.md#bounded-range for exponential mechanisms. Where that
    gives nothing, the mu**2 of the randomized response that dominates the pair, which
    is a charge at every budget; the step's own may be smaller.

    Assumes: the step is dominated by the pair of its kind and size.

    Rounding: up; whether a charge is one is decided outward.

    Checked by: tests/accounting/rules/test_residue.py and
    tests/adversaries/test_residue.py.

    Args:
        kind: GAUSSIAN (size: mu**2), RESPONSE or LAPLACE (size: epsilon), or RANGE
            (size: the range of the loss).
        size: Exact, not negative.
        budget: The budget, in units of mu**2.
    """
    if kind == GAUSSIAN or size == 0:
        return up(size)
    before_solving(lambda: _with_next(kind, size, budget))
    alone = up(pure_mu_squared(size / 2 if kind == RANGE else size))
    if alone >= budget:
        return alone
    if kind == RANGE:
        return _range_charge(size, budget, alone)
    if kind == LAPLACE:
        charge = _least(laplace_advantage, size, budget, alone)
        if charge < alone and _is_concave(size, budget - charge):
            return charge
    return _least(response_advantage, size, budget, alone)


def breakpoint_below(budget: int) -> int:
    """Return the largest breakpoint that is not above a budget, in units."""
    cut = max(budget.bit_length() - BREAKPOINT_BITS, 0)
    return budget >> cut << cut


def _with_next(kind: str, size: Fraction, budget: int) -> None:
    """Solve a charge at a breakpoint and at the next lower one.

    Others may draw until the step asks again.
    """
    for point in (budget, breakpoint_below(max(budget - 1, 0))):
        residue_charge(kind, size, point)


def certifies(advantage: Advantage, size: Fraction, budget: int, charge: int) -> bool:
    """Return whether the budget's pair dominates step and remainder together.

    Decided outward; False where even many digits do not decide.
    """
    if charge > budget:
        return False
    before, after = Fraction(budget, UNITS), Fraction(budget - charge, UNITS)

    def spare(mp: Any) -> Any:
        return _total(mp, to_real(mp, before)) - advantage(mp, size, to_real(mp, after))

    try:
        return bound_below(spare) >= 0
    except without_interrupts(ArithmeticError):
        return False


def _total(mp: Any, mu_squared: Any) -> Any:
    """Return the total variation distance of a Gaussian pair."""
    return mp.erf(mp.sqrt(mu_squared / 8))


def _divergence(mp: Any, loss: Any, mu_squared: Any) -> Any:
    """Return the hockey-stick divergence of a Gaussian pair at a loss."""
    if mu_squared <= 0:
        return max(-mp.expm1(loss), mp.mpf(0))
    mu, root = mp.sqrt(mu_squared), mp.sqrt(2)
    upper = mp.erfc((loss / mu - mu / 2) / root)
    return (upper - mp.exp(loss) * mp.erfc((loss / mu + mu / 2) / root)) / 2


def response_advantage(mp: Any, epsilon: Fraction, mu_squared: Any) -> Any:
    """Return the total variation of a randomized response together with a Gaussian."""
    loss = to_real(mp, epsilon)
    low = 1 / (1 + mp.exp(loss))
    return mp.tanh(loss / 2) + 2 * low * _divergence(mp, loss, mu_squared)


def laplace_advantage(mp: Any, epsilon: Fraction, mu_squared: Any) -> Any:
    """Return the total variation of a Laplace mechanism together with a Gaussian.

    The mixture over s of randomized responses: docs/derivations/residue.md#laplace.
    """
    loss, half = to_real(mp, epsilon), to_real(mp, epsilon / 2)
    inner = 2 * (mp.cosh(half) - 1)
    if mu_squared > 0:
        mu, root = mp.sqrt(mu_squared), mp.sqrt(2)
        inner += 2 - 2 * mp.exp(-mu_squared / 8) * mp.erf(loss / mu / root)
        inner -= mp.exp(-half) * mp.erfc((loss / mu - mu / 2) / root)
        inner -= mp.exp(half) * mp.erfc((loss / mu + mu / 2) / root)
    ends = (1 + mp.exp(-loss)) / 2 * response_advantage(mp, epsilon, mu_squared)
    return ends + mp.exp(-half) / 2 * inner


def _least(advantage: Advantage, size: Fraction, budget: int, alone: int) -> int:
    """Return about the least valid charge; the step's cost alone is a valid one.

    Where to look is a guess; only `certifies` decides.
    """
    with arithmetic(_DIGITS) as mp:
        mu_squared = to_real(mp, Fraction(budget, UNITS))
        goal = _total(mp, mu_squared)

        def excess(charge: Any) -> Any:
            return advantage(mp, size, max(mu_squared - charge, mp.mpf(0))) - goal

        high = to_real(mp, Fraction(alone, UNITS))
        if excess(mp.mpf(0)) <= excess(high):
            # The budget is so large that all digits are alike.
            return alone
        guess = to_fraction(falling_root(excess, mp.mpf(0), high, _AGREES))
    step = Fraction(0)
    for _ in range(_TRIES):
        charge = up(guess * (1 + step))
        if charge >= alone:
            break
        if certifies(advantage, size, budget, charge):
            return charge
        step = 4 * step or _FIRST_STEP
    return alone


def _is_concave(epsilon: Fraction, after: int) -> bool:
    """Return whether e exp(e**2 / 2h) <= 4: docs/derivations/residue.md#laplace."""
    if after <= 0:
        return False
    power = epsilon**2 / (2 * Fraction(after, UNITS))
    if power > _MOST_UNIFORM * 16:
        return False
    weight = bound_above(lambda mp: to_real(mp, epsilon) * mp.exp(to_real(mp, power)))
    return weight <= _MOST_UNIFORM


def _range_charge(eta: Fraction, budget: int, alone: int) -> int:
    """Return about the least charge of docs/derivations/residue.md#bounded-range.

    Where to look is a guess; only `range_certifies` decides.
    """
    variance, mu_squared = float(eta) ** 2 / 4, budget / UNITS
    guess = variance
    for _ in range(_RANGE_STEPS):
        if guess >= min(mu_squared, _RANGE_MOST):
            return alone
        spread = math.sqrt((mu_squared - guess / 2) / (mu_squared - guess))
        guess = variance * math.exp(guess / 16) * spread
    charge = up(Fraction(guess) * _RANGE_MORE)
    return charge if charge < alone and range_certifies(eta, budget, charge) else alone


def range_certifies(eta: Fraction, budget: int, charge: int) -> bool:
    """Return whether a charge holds for every step whose loss has a range.

    Decided outward: docs/derivations/residue.md#bounded-range.
    """
    if charge >= budget:
        return False
    mu_squared, taken = Fraction(budget, UNITS), Fraction(charge, UNITS)
    after, variance = mu_squared - taken, eta**2 / 4
    middle = taken / 2 - (4 + after) * taken**3 / (96 * after * variance)
    if 5 * after * middle < 2 * variance * mu_squared:
        return False

    def spare(mp: Any) -> Any:
        c, h = to_real(mp, taken), to_real(mp, after)
        mass = c * mp.exp(-c / 16) * mp.sqrt(h / (h + c / 2))
        return mass - to_real(mp, variance)

    try:
        return bound_below(spare) >= 0
    except without_interrupts(ArithmeticError):
        return False
