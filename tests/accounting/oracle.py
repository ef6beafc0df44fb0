"""Numbers that tests draw, and rigorous arithmetic to compare prices and readings."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
from flint import arb, fmpq
from hypothesis import strategies as st

#: Real numbers of 120 digits.
MP: Any = mpmath.mp.clone()
MP.dps = 120

#: Pairs (P, Q) of the probabilities of each output of a mechanism.
Law = list[tuple[Any, Any]]


def real(value: Fraction | float | str) -> Any:
    """Return the exact number in 120 digits."""
    exact = Fraction(value)
    return MP.mpf(exact.numerator) / exact.denominator


def powers(low: int, high: int) -> st.SearchStrategy[Fraction]:
    """Draw a decimal with four digits between two powers of ten."""
    return st.builds(
        lambda digits, exponent: Fraction(digits, 1000) * Fraction(10) ** exponent,
        st.integers(1000, 9999),
        st.integers(low, high - 1),
    )


EPSILONS = powers(-9, 3)
DELTAS = st.one_of(
    powers(-30, -1), st.integers(100, 500).map(lambda n: Fraction(n, 1000))
)
#: Renyi orders next to 1 and up to a million.
ORDERS = st.one_of(powers(0, 6).filter(lambda a: a > 1), st.just(Fraction("1.0001")))


def assert_just_above(
    price: Fraction | float,
    truth: Any,
    gap: str = "1e-9",
    *,
    unit: Fraction = Fraction(0),
    cap: Fraction | None = None,
) -> None:
    """Assert that a number is not below the truth, and hardly above it.

    Args:
        price: The rounded number.
        truth: The number in 120 digits.
        gap: How far it may be above the truth, relatively.
        unit: How far it may be above besides, for numbers next to zero.
        cap: A bound that the truth approaches from below; a price may be equal to it.
    """
    bound = real(price)
    assert truth * (1 - MP.mpf("1e-60")) <= bound
    if cap is None or price < cap:
        assert bound <= truth * (1 + MP.mpf(gap)) + real(unit)


def renyi_divergence(law: Law, order: Any) -> Any:
    """Return the Renyi divergence of P from Q, by its definition."""
    total = MP.fsum(p * (p / q) ** (order - 1) for p, q in law)
    return MP.log(total) / (order - 1)


def response(epsilon: Any, categories: int = 2) -> Law:
    """Return the law of a randomized response, all ties in one output."""
    other = 1 / (MP.exp(epsilon) + categories - 1)
    truth, ties = MP.exp(epsilon) * other, (categories - 2) * other
    tied = [(ties, ties)] if ties else []
    return [(truth, other), *tied, (other, truth)]


def range_law(eta: Any, top: Any) -> Law:
    """Return the law of two outputs whose losses are `top` and `top - eta`."""
    p = (MP.exp(eta) - MP.exp(top)) / MP.expm1(eta)
    q = p * MP.exp(-top)
    return [(p, q), (1 - p, 1 - q)]


def normal_quantile(probability: Any, rest: Any) -> Any:
    """Return where the normal law reaches a probability; the rest is 1 less it."""
    small = min(probability, rest)
    # erfinv of 1 less something small needs its digits.
    x = MP.findroot(
        lambda y: MP.log(MP.erfc(y / MP.sqrt(2)) / 2) - MP.log(small),
        MP.sqrt(-2 * MP.log(2 * small)) if small < 0.4 else MP.mpf(1) / 10,
    )
    return -x if probability <= rest else x


def gaussian_delta(epsilon: Any, mu_squared: Any) -> Any:
    """Return the hockey-stick divergence of Gaussians of this mu**2 at any epsilon."""
    if mu_squared == 0:
        return max(-MP.expm1(epsilon), 0)
    mu = MP.sqrt(mu_squared)

    def above(x: Any) -> Any:
        return MP.erfc(x / MP.sqrt(2)) / 2

    return above(epsilon / mu - mu / 2) - MP.exp(epsilon) * above(epsilon / mu + mu / 2)


def zcdp_log_delta(epsilon: Fraction, rho: Fraction) -> Any:
    """Return the log of the least delta that an order of CKS Prop. 12 proves for rho.

    The derivative in the order a is (2a-1) rho - epsilon + log(1-1/a). It grows with a,
    so bisection finds its only zero.
    """
    eps, r = real(epsilon), real(rho)
    low, high = MP.mpf(-250), MP.mpf(250)  # log2 of the order minus one
    # Next to its minimum the log changes by the square of the order's error.
    for _ in range(190):
        middle = (low + high) / 2
        a = 1 + MP.mpf(2) ** middle
        if (2 * a - 1) * r - eps + MP.log1p(-1 / a) > 0:
            high = middle
        else:
            low = middle
    return (a - 1) * (a * r - eps) - MP.log(a - 1) + a * MP.log1p(-1 / a)


def sampled_divergence(order: int, rate: Fraction, ratio: Any) -> Any:
    """Return the divergence of a sampled Gaussian by its binomial sum.

    Args:
        order: A whole order.
        rate: Probability that the row is drawn.
        ratio: Squared length of the row over the variance of the noise.
    """
    q = real(rate)
    terms = (
        MP.binomial(order, k)
        * (1 - q) ** (order - k)
        * q**k
        * MP.exp(MP.mpf(k * k - k) / 2 * ratio)
        for k in range(order + 1)
    )
    return MP.log(MP.fsum(terms)) / (order - 1)


def maximum(value: Callable[[Any], Any], low: Any, high: Any, steps: int = 90) -> Any:
    """Return the largest value of a function with one peak, by golden section."""
    golden = (MP.sqrt(5) - 1) / 2
    for _ in range(steps):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (left, high) if value(left) < value(right) else (low, right)
    return value((low + high) / 2)


def to_arb(value: Fraction | float | str) -> arb:
    """Return a ball that contains the number."""
    exact = Fraction(value)
    return arb(fmpq(exact.numerator, exact.denominator))


def ends(ball: arb) -> tuple[Fraction, Fraction]:
    """Return the exact ends of a finite ball."""
    assert ball.is_finite()
    pairs = [end.man_exp() for end in (ball.lower(), ball.upper())]
    low, high = (Fraction(int(m)) * Fraction(2) ** int(e) for m, e in pairs)
    return low, high
