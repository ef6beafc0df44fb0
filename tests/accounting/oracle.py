"""Numbers that tests draw, and rigorous arithmetic to compare prices and readings."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
from flint import arb, fmpq
from hypothesis import strategies as st


def arithmetic(digits: int) -> tuple[Any, Callable[[Fraction | int | str], Any]]:
    """Return arithmetic of so many digits, and what makes an exact number one of it."""
    mp: Any = mpmath.mp.clone()
    mp.dps = digits

    def real(value: Fraction | int | str) -> Any:
        exact = Fraction(value)
        return mp.mpf(exact.numerator) / exact.denominator

    return mp, real


MP, real = arithmetic(60)


def powers(low: int, high: int) -> st.SearchStrategy[Fraction]:
    """Draw a decimal with four digits between two powers of ten."""
    return st.builds(
        lambda digits, exponent: Fraction(digits, 1000) * Fraction(10) ** exponent,
        st.integers(1000, 9999),
        st.integers(low, high - 1),
    )


def to_arb(value: Fraction | int | str) -> arb:
    """Return a ball that contains the number."""
    exact = Fraction(value)
    return arb(fmpq(exact.numerator, exact.denominator))


def ends(ball: arb) -> tuple[Fraction, Fraction]:
    """Return the exact ends of a finite ball."""
    assert ball.is_finite()
    pairs = [end.man_exp() for end in (ball.lower(), ball.upper())]
    low, high = (Fraction(int(m)) * Fraction(2) ** int(e) for m, e in pairs)
    return low, high
