"""Fractions for hypothesis, small and large."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import strategies as st

fractions_of_all_sizes = st.builds(
    lambda numerator, denominator, power: (
        Fraction(numerator, denominator) * Fraction(10) ** power
    ),
    st.integers(-(10**20), 10**20),
    st.integers(1, 10**20),
    st.integers(-330, 330),
)
