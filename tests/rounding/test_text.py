"""Numbers as text: exact, canonical, and short on the safe side."""

from __future__ import annotations

from decimal import Context, localcontext
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from dpflow.rounding import exact, number_from_text, number_text, short_down, short_up
from tests.rounding.fractions_of_all_sizes import fractions_of_all_sizes


@given(
    st.one_of(
        fractions_of_all_sizes,
        st.integers(-(10**60), 10**60).map(Fraction),
        st.builds(
            lambda n, places: Fraction(n, 10**places),
            st.integers(-(10**40), 10**40),
            st.integers(0, 60),
        ),
    )
)
@example(Fraction(0))
@example(Fraction(10**23))
@example(Fraction(10**24))
@example(Fraction(-(10**30)))
@example(Fraction(1, 10**24))
@example(Fraction(-1, 3))
@example(Fraction(1, 2**80))
def test_number_text_survives_a_round_trip(value):
    """Text names the number exactly and holds no space, whatever the number."""
    text = number_text(value)
    assert value == number_from_text(text) == Fraction(text)
    assert " " not in text


def test_number_text_is_canonical():
    """Journals and pins compare texts, so each number has one, in any context."""
    texts = {
        "0": Fraction(0),
        "0.1": Fraction(1, 10),
        "-1.25": Fraction(-5, 4),
        "2000": Fraction(2000),
        "0.000001": Fraction(1, 10**6),
        "1/3": Fraction(1, 3),
        "1e-35": Fraction(1, 10**35),
        "1e30": Fraction(10**30),
        "-1.25e-38": Fraction(-125, 10**40),
        "0.123456789": Fraction(123456789, 10**9),
    }
    with localcontext(Context(prec=2)):
        for text, value in texts.items():
            assert number_text(value) == text
            assert number_from_text(text) == exact(text, name="x") == value
        assert exact(0.123456789, name="x") == texts["0.123456789"]


@given(fractions_of_all_sizes, st.integers(1, 15))
@example(Fraction(99999, 10**9), 4)
@example(Fraction(-99999), 4)
@example(Fraction(10**12), 4)
@example(Fraction(10**13) + 1, 4)
@example(Fraction(999_999_999_999_9), 4)
def test_short_texts_are_never_on_the_wrong_side(value, digits):
    """The short text up is not below, down is not above, and both are close."""
    texts = short_down(value, digits), short_up(value, digits)
    low, high = map(Fraction, texts)
    assert low <= value <= high
    assert high - low <= abs(value) / Fraction(10) ** (digits - 1)
    for text in texts:
        mantissa = text.partition("e")[0].strip("-").replace(".", "")
        assert len(mantissa.strip("0")) <= digits


def test_short_texts_read_well():
    """People see plain decimals in the usual range and no trailing zeros."""
    for value, texts in (
        (Fraction(0), ("0", "0")),
        (Fraction(1, 3), ("0.3333", "0.3334")),
        (Fraction(1, 2), ("0.5", "0.5")),
        (Fraction(1, 10**6), ("1e-6", "1e-6")),
        (Fraction(123456), ("123400", "123500")),
        (Fraction(-1, 3), ("-0.3334", "-0.3333")),
    ):
        assert texts == (short_down(value), short_up(value))
