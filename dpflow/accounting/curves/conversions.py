"""Conversions between notions of differential privacy, one function per theorem."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.rounding import arithmetic, bound_above, bound_below, to_fraction, to_real

#: Range and points of the search over orders minus one; any resulting order is sound.
_SEARCH_LOW, _SEARCH_HIGH, _SEARCH_POINTS, _SEARCH_EACH = -7, 17, 240, 8
_FIRST_STEP = Fraction(1, 10**14)
_ROOT_STEPS, _ROOT_AGREES = 200, 10.0**-13
#: The grid of log2(mu) of budgets, and how near to it a root is found.
_LOW, _HIGH, _GRID, _GRID_AGREES = -60, 14, 2**110, 10.0**-34

#: This number of standard deviations away, the tail of a Gaussian is below this delta,
#: which no policy uses; exact digits of e.g. 1e-217147240951 would be millions.
_FAR, NEGLIGIBLE_DELTA = 100, Fraction(1, 10**2171)


def gaussian_delta(epsilon: Fraction, mu: Fraction) -> Fraction:
    """Return the delta of mu-GDP at epsilon, rounded up.

    Source: Dong, Roth, Su 2022 (arXiv 1905.02383v3) Cor. 2.13.

    Assumes: epsilon >= 0 and mu > 0.

    Rounding: up by a relative 1e-30, and never below `NEGLIGIBLE_DELTA`.

    Checked by: tests/accounting/curves/test_prices.py.
    """
    if is_far(epsilon, mu**2):
        return NEGLIGIBLE_DELTA
    value = bound_above(lambda mp: _gaussian_delta(mp, epsilon, to_real(mp, mu)))
    return max(value, NEGLIGIBLE_DELTA)


def is_far(epsilon: Fraction, mu_squared: Fraction) -> bool:
    """Return whether the delta of mu-GDP at epsilon is below `NEGLIGIBLE_DELTA`.

    It is at most Phi(-x) < exp(-x**2 / 2) / 2, where x = epsilon / mu - mu / 2.
    """
    room = epsilon - mu_squared / 2
    return room > 0 and room**2 > _FAR**2 * mu_squared


def _gaussian_delta(mp: Any, epsilon: Fraction, mu: Any) -> Any:
    eps, root_two = to_real(mp, epsilon), mp.sqrt(2)
    low = mp.erfc((eps / mu - mu / 2) / root_two) / 2
    high = mp.erfc((eps / mu + mu / 2) / root_two) / 2
    return low - mp.exp(eps) * high


@lru_cache(maxsize=256)
def gdp_budget(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest mu**2 that is (epsilon, delta)-DP, rounded down.

    Source: docs/derivations/notions.md#budget-of-a-target; the root of
    `gaussian_delta`, increasing in mu.

    Assumes: epsilon > 0 and 0 < delta < 1.

    Rounding: down; the returned mu is verified with `gaussian_delta` rounded up.
    Within a relative 1e-12 of the root.

    Checked by: tests/accounting/curves/test_prices.py.
    """
    with arithmetic(80) as mp:
        target = to_real(mp, delta)

        def excess(inverse: Any) -> Any:
            # Far out all digits cancel.
            ratio = _gaussian_delta(mp, epsilon, 1 / inverse) / target
            return mp.log(max(ratio, mp.mpf(2) ** -10_000))

        def mu_at(index: int) -> Any:
            return mp.mpf(2) ** (_LOW + (_HIGH - _LOW) * mp.mpf(index) / _GRID)

        def fits(index: int) -> bool:
            return bool(_gaussian_delta(mp, epsilon, mu_at(index)) <= target)

        root = falling_root(excess, mp.mpf(2) ** -_HIGH, mp.mpf(1), _GRID_AGREES)
        index = int(-(mp.log(root, 2) + _LOW) / (_HIGH - _LOW) * _GRID)
        low, high = index - 1, index + 2
        if low < 0 or high > _GRID or not fits(low) or fits(high):
            # Next to delta = 1 the digits do not tell where it is.
            low, high = 0, _GRID
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        mu = to_fraction(mu_at(low))
    step = _FIRST_STEP
    while gaussian_delta(epsilon, mu) > delta:
        # Next to delta = 1 the bound's own guard asks for larger steps.
        mu *= 1 - step
        step = min(2 * step, Fraction(1, 2))
    return mu**2


def rdp_epsilon_allowed(
    epsilon: Fraction, delta: Fraction, order: Fraction, *, tight: bool = True
) -> Fraction:
    """Return how much Renyi divergence of one order (epsilon, delta)-DP allows.

    Source: tight: Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v2) Prop. 12, solved
    for the divergence; classic: Mironov 2017 Prop. 3.
    docs/derivations/notions.md#rdp-to-dp.

    Assumes: order > 1, delta > 0; the divergence bounds the whole transcript.

    Rounding: down by a relative 1e-30; negative if the order allows nothing.

    Checked by: tests/accounting/curves/test_prices.py.
    """
    return bound_below(lambda mp: _divergence(mp, epsilon, delta, order, tight=tight))


def _divergence(
    mp: Any, epsilon: Fraction, delta: Fraction, order: Any, *, tight: bool
) -> Any:
    eps, log_delta = to_real(mp, epsilon), mp.log(to_real(mp, delta))
    alpha = to_real(mp, order) if isinstance(order, Fraction) else order
    if not tight:
        return eps + log_delta / (alpha - 1)
    slope = (log_delta + mp.log(alpha)) / (alpha - 1)
    return eps - mp.log1p(-1 / alpha) + slope


@lru_cache(maxsize=256)
def zcdp_budget(epsilon: Fraction, delta: Fraction, *, tight: bool = True) -> Fraction:
    """Return a rho such that rho-zCDP implies (epsilon, delta)-DP, rounded down.

    Source: tight: the best order of Canonne, Kamath, Steinke 2020 (arXiv
    2004.00010v2) Prop. 12; classic: Bun, Steinke 2016 (arXiv 1605.02065v1) Prop. 1.3.
    All orders hold simultaneously, so the best may be taken:
    docs/derivations/notions.md#budget-of-a-target.

    Assumes: epsilon > 0 and 0 < delta < 1.

    Rounding: down; within a relative 1e-12 of the best order's value. Zero if no
    order allows anything.

    Checked by: tests/accounting/curves/test_prices.py.
    """
    if not tight:

        def root(mp: Any) -> Any:
            log = -mp.log(to_real(mp, delta))
            eps = to_real(mp, epsilon)
            # sqrt(eps + log) - sqrt(log), written without cancellation.
            return (eps / (mp.sqrt(eps + log) + mp.sqrt(log))) ** 2

        return bound_below(root)

    def per_rho(mp: Any, log_excess: Any) -> Any:
        alpha = 1 + mp.exp(log_excess)
        return _divergence(mp, epsilon, delta, alpha, tight=True) / alpha

    order = 1 + maximiser(per_rho)
    return max(rdp_epsilon_allowed(epsilon, delta, order) / order, Fraction(0))


def maximiser(objective: Callable[[Any, Any], Any]) -> Fraction:
    """Find the order, minus one, that maximises a smooth objective.

    A point that misses the maximum is still a legal order, so this search decides how
    much a budget holds, never whether it is sound.

    Args:
        objective: Takes an arithmetic context and the logarithm of (order - 1).

    Returns:
        Order minus one, the exact result of the search.
    """
    with arithmetic(50) as mp:
        log_ten = mp.log(10)
        step = mp.mpf(_SEARCH_HIGH - _SEARCH_LOW) / _SEARCH_POINTS

        def highest(numbers: range) -> int:
            return max(numbers, key=lambda i: objective(mp, point(i)))

        def point(number: int) -> Any:
            return (_SEARCH_LOW + number * step) * log_ten

        rough = highest(range(0, _SEARCH_POINTS + 1, _SEARCH_EACH))
        first, last = max(rough - _SEARCH_EACH, 0), rough + _SEARCH_EACH
        best = point(highest(range(first, min(last, _SEARCH_POINTS) + 1)))
        low, high = best - step * log_ten, best + step * log_ten
        golden = (mp.sqrt(5) - 1) / 2
        left, right = high - golden * (high - low), low + golden * (high - low)
        value_left, value_right = objective(mp, left), objective(mp, right)
        for _ in range(90):
            if value_left > value_right:
                high, right, value_right = right, left, value_left
                left = high - golden * (high - low)
                value_left = objective(mp, left)
            else:
                low, left, value_left = left, right, value_right
                right = low + golden * (high - low)
                value_right = objective(mp, right)
        return to_fraction(mp.exp((low + high) / 2))


def falling_root(
    excess: Callable[[Any], Any], low: Any, high: Any, agrees: float = _ROOT_AGREES
) -> Any:
    """Find the root of a falling function by the Illinois rule.

    Args:
        excess: The function; positive at `low`.
        low: Lower end of the bracket.
        high: First guess of the right end; doubled until the function is negative.
        agrees: Relative width at which the bracket is narrow enough.

    Returns:
        A point to the right of the root, very near to it.
    """
    left, right = excess(low), excess(high)
    while right > 0:
        low, left = high, right
        high = high * 2
        right = excess(high)
    side = 0
    for _ in range(_ROOT_STEPS):
        if high - low <= agrees * high or right == 0:
            break
        middle = (low * right - high * left) / (right - left)
        if not low < middle < high:
            middle = (low + high) / 2
        value = excess(middle)
        if value > 0:
            low, left = middle, value
            right = right / 2 if side == 1 else right
            side = 1
        else:
            high, right = middle, value
            left = left / 2 if side == -1 else left
            side = -1
    return high
