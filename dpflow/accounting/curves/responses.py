"""Least mu and rho of mechanisms with finitely many losses, up to rounding.

Randomized response of any number of categories, and the discrete Laplace mechanism.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.accounting.curves.prices import pure_mu_squared, pure_rho, tail_quantile
from dpflow.rounding import bound_above, to_real


@lru_cache(maxsize=4096)
def response_mu_squared(epsilon: Fraction, categories: int) -> Fraction:
    """Return mu**2 of randomized response: mu = Phi^-1(truth) - Phi^-1(other).

    Source: docs/derivations/notions.md#response-to-gdp.

    Assumes: epsilon > 0 and at least two categories.

    Rounding: up by a relative 1e-30.

    Checked by: tests/accounting/curves/test_prices.py.
    """

    def value(mp: Any) -> Any:
        eps, others = to_real(mp, epsilon), mp.mpf(categories - 1)
        other = -mp.log(mp.exp(eps) + others)
        # Quantiles of the smaller half: of the truth, or of any other answer at all.
        if eps < mp.log(others):
            truth = -tail_quantile(mp, eps + other)
        else:
            truth = tail_quantile(mp, mp.log(others) + other)
        return (truth + tail_quantile(mp, other)) ** 2

    return min(bound_above(value), pure_mu_squared(epsilon))


@lru_cache(maxsize=4096)
def response_rho(epsilon: Fraction, categories: int) -> Fraction:
    """Return the rho of randomized response: the largest divergence over its order.

    Source: docs/derivations/notions.md#response-to-zcdp. With few categories
    that is the mean loss, at order 1; with many it lies inside, where the secant from
    there touches.

    Assumes: epsilon > 0 and at least two categories.

    Rounding: up by a relative 1e-30. A point that misses the maximum by a relative d
    loses of the order of d**2 only; it is bisected to more than half of all digits.

    Checked by: tests/accounting/curves/test_prices.py.
    """

    def value(mp: Any) -> Any:
        eps = to_real(mp, epsilon)
        if _mean_is_worst(mp, eps, categories):
            return eps * mp.expm1(eps) / (mp.exp(eps) + (categories - 1))
        return _Secants(mp, eps, categories).steepest()

    return min(bound_above(value), pure_rho(epsilon))


def _mean_is_worst(mp: Any, eps: Any, categories: int) -> bool:
    half = eps / 2
    ties = (categories - 2) * mp.exp(-half) / 2
    bend = mp.sinh(half) * mp.cosh(half) - half
    return bool(ties * (half * mp.cosh(half) - mp.sinh(half)) <= bend)


class _Secants:
    """Slopes of log E e^((a - 1) L) over a (a - 1), at the orders a.

    With x = (a - 1/2) epsilon and r = (k - 2) e^(-epsilon/2) / 2 the moment is (r +
    cosh x) / (r + cosh(epsilon/2)); y = x - epsilon/2 is used, so that nothing cancels.
    """

    def __init__(self, mp: Any, eps: Any, categories: int) -> None:
        self.mp, self.eps = mp, eps
        self.ties = (categories - 2) * mp.exp(-eps / 2) / 2

    def _log_moment(self, y: Any) -> Any:
        mp, half = self.mp, self.eps / 2
        rise = 2 * mp.sinh(half + y / 2) * mp.sinh(y / 2)
        return mp.log1p(rise / (self.ties + mp.cosh(half)))

    def _rises(self, y: Any) -> bool:
        """Return whether the slope grows at y; after its maximum it only falls."""
        mp, x = self.mp, self.eps / 2 + y
        rate = mp.sinh(x) / (self.ties + mp.cosh(x))
        return bool(rate * y * (y + self.eps) > 2 * x * self._log_moment(y))

    def steepest(self) -> Any:
        """Return the largest slope."""
        mp = self.mp
        low, high = mp.mpf(0), mp.mpf(1)
        while self._rises(high):
            low, high = high, 2 * high
        for _ in range(mp.prec * 2 // 3):
            middle = (low + high) / 2
            low, high = (middle, high) if self._rises(middle) else (low, middle)
        return self.eps**2 * self._log_moment(high) / (high * (high + self.eps))


@lru_cache(maxsize=4096)
def discrete_laplace_mu_squared(sensitivity: Fraction, scale: Fraction) -> Fraction:
    """Return mu**2 of discrete Laplace noise for a shift by a whole number.

    Source: docs/derivations/notions.md#discrete-laplace-to-gdp. With u =
    exp(-1 / scale), mu = -Phi^-1(u^j / (1 + u)) - Phi^-1(u^k / (1 + u)), where j and k
    are the two halves of the shift plus one.

    Assumes: a whole sensitivity of at least 1, of one number or a vector in L1 norm.

    Rounding: up by a relative 1e-30.

    Checked by: tests/accounting/curves/test_prices.py.
    """
    shift = int(sensitivity)

    def value(mp: Any) -> Any:
        rate = to_real(mp, 1 / scale)
        log_total = mp.log1p(mp.exp(-rate))
        halves = ((shift + 1) // 2, shift // 2 + 1)
        return sum(tail_quantile(mp, -half * rate - log_total) for half in halves) ** 2

    return min(bound_above(value), pure_mu_squared(sensitivity / scale))


@lru_cache(maxsize=4096)
def discrete_laplace_rho(sensitivity: Fraction, scale: Fraction) -> Fraction:
    """Return the rho of discrete Laplace noise: its mean loss.

    Source: docs/derivations/notions.md#discrete-laplace-to-zcdp. epsilon - (1 -
    e^-epsilon) / (scale sinh(1 / scale)), where epsilon = sensitivity / scale.

    Assumes: a whole sensitivity of at least 1, of one number or a vector in L1 norm.

    Rounding: up by a relative 1e-30.

    Checked by: tests/accounting/curves/test_prices.py.
    """

    def value(mp: Any) -> Any:
        eps, rate = to_real(mp, sensitivity / scale), to_real(mp, 1 / scale)
        return eps + mp.expm1(-eps) * rate / mp.sinh(rate)

    return min(bound_above(value), pure_rho(sensitivity / scale))
