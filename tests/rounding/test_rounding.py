"""Numbers enter exactly and leave on the safe side; python-flint is the referee."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import flint
import mpmath
import numpy as np
import pytest
from flint import arb
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dpflow import rounding
from dpflow.exceptions import InvalidCost
from dpflow.rounding import exact, from_units, number_text, to_real
from tests.accounting.oracle import ends, to_arb
from tests.tables import read_tables

fractions_of_all_sizes = st.builds(
    lambda numerator, denominator, power: (
        Fraction(numerator, denominator) * Fraction(10) ** power
    ),
    st.integers(-(10**20), 10**20),
    st.integers(1, 10**20),
    st.integers(-330, 330),
)


BITS = 300
LARGEST = Fraction(math.nextafter(math.inf, 0))
TABLES = read_tables(__file__)
#: What is no finite number of a sane size; spaces stand in two texts of the table.
NO_NUMBERS = [
    *(text.strip() for text in TABLES["no_numbers"].split(",")),
    *("1,5", " ", "\N{MINUS SIGN}1", None, True, float("nan"), float("-inf"), b"1"),
    *(np.bool_(False), np.float64("nan"), np.float32("inf"), np.complex128(1), 1 + 0j),
    *map(Decimal, ("NaN", "sNaN", "-sNaN12", "Infinity", "1e999999", "1e-999999")),
    *([], [1], (1,), {1}, {"epsilon": 1}, object(), np.array(0.5), np.array([0.5])),
    *(np.str_("x"), float, bytearray(b"1"), mpmath.mpf("nan"), mpmath.mpf("inf")),
]
GOOD_NUMBERS = [
    *((text, Fraction(number)) for text, number in TABLES["numbers"].items()),
    (0.1, Fraction(1, 10)),
    (Decimal("0.10"), Fraction(1, 10)),
    (np.float64(0.1), Fraction(1, 10)),
    (np.float32(0.1), Fraction(float(np.float32(0.1)).__repr__())),
    (np.int64(7), Fraction(7)),
    (10**30 + 1, Fraction(10**30 + 1)),
    (-0.0, Fraction(0)),
    (5e-324, Fraction(5, 10**324)),
    (1.7976931348623157e308, Fraction("1.7976931348623157e308")),
    ("0." + "1" * 100, Fraction(int("1" * 100), 10**100)),
]


positive_fractions = fractions_of_all_sizes.filter(lambda value: value > 0)
shares_of_all_sizes = st.builds(
    lambda numerator, power: Fraction(numerator, 10 ** (15 + power)),
    st.integers(1, 10**15),
    st.integers(0, 30),
)
near_floats = st.builds(
    lambda near, sign, power: Fraction(near) + Fraction(sign, 10**power),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-1, 0, 1]),
    st.integers(0, 400),
)


def on_flint(expression: Callable[..., arb], *values: Fraction) -> tuple:
    """Evaluate rigorously with 300 bits more than the arguments need."""
    extra = 2 * sum(
        abs(v.numerator.bit_length() - v.denominator.bit_length()) for v in values
    )
    with flint.ctx.workprec(BITS + extra):
        return ends(expression(*(to_arb(value) for value in values)))


def examples(*numbers: Fraction | int | str, **others: int) -> Callable[..., Any]:
    """Return a decorator that adds examples with these numbers as `value`."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        for number in numbers:
            test = example(value=Fraction(number), **others)(test)
        return test

    return decorate


# -- exact -------------------------------------------------------------------------


def test_numbers_are_read_exactly_or_refused():
    """A float means its shortest decimal; the error has the name and the value."""
    for value, expected in GOOD_NUMBERS:
        assert expected == exact(value, name="thing")
    for value in NO_NUMBERS:
        with pytest.raises(InvalidCost, match="thing must be a finite number") as it:
            exact(value, name="thing")
        assert (it.value.name, it.value.value) == ("thing", repr(value))
        assert it.value.value in str(it.value)
        assert it.value.__cause__ is None


def test_limits_of_epsilon_and_delta():
    """Their ends are allowed; a delta of zero only where it is said."""
    assert rounding.exact_epsilon("1e-12") == rounding.EPSILON_LOW
    assert rounding.exact_epsilon(10_000) == rounding.EPSILON_HIGH
    assert rounding.exact_delta("1e-35") == rounding.DELTA_LOW
    assert rounding.exact_delta(0) == 0
    assert rounding.exact_delta("0.999999") < 1
    with pytest.raises(InvalidCost, match=r"must be in \[1e-35, 1\)"):
        rounding.exact_delta(0, zero=False)
    for value in TABLES["no_epsilons"]:
        with pytest.raises(InvalidCost, match=r"must lie in \[1e-12, 10000\]") as it:
            rounding.exact_epsilon(value)
        assert it.value.low == rounding.EPSILON_LOW
        assert it.value.high == rounding.EPSILON_HIGH
    for value in TABLES["no_deltas"]:
        with pytest.raises(InvalidCost, match="delta must") as it:
            rounding.exact_delta(value)
        assert it.value.name == "delta"


def test_a_number_of_thousands_of_digits_is_refused_or_read():
    """A number that Python cannot print, or wider than a float, is never rounded."""
    long = Fraction(10**5000 + 1, 10**5000)
    wide = (
        np.longdouble(1) + np.longdouble(1e-19),
        mpmath.mpf((0, 2**100 + 1, -100, 101)),
    )
    for value in (10**5000, Fraction(1, 10**5000), -(10**5000), long, *wide):
        try:
            assert exact(value, name="thing") != 1
        except InvalidCost as refused:
            assert refused.name == "thing"  # noqa: PT017


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_means_its_shortest_decimal(value):
    """Reading a float equals reading what Python prints for it."""
    assert exact(repr(value), name="x") == exact(value, name="x")
    assert float(exact(value, name="x")) == value


@given(st.text(max_size=12))
def test_any_text_is_read_as_python_reads_it_or_refused(text):
    """No text raises anything but InvalidCost, and none means an unexpected number."""
    with contextlib.suppress(InvalidCost):
        number, written = exact(text, name="x"), text.strip()
        assert number == Fraction(written if "/" in written else Decimal(written))


# -- floats and units --------------------------------------------------------------


@given(st.one_of(fractions_of_all_sizes, near_floats))
@examples(*TABLES["floats"], LARGEST, LARGEST + 1, -LARGEST - 1, 2**1024, -(2**1024))
def test_floats_enclose_the_value_as_closely_as_they_can(value):
    """The float up is not below, its predecessor is; the float down is its mirror."""
    up = rounding.float_up(value)
    assert up == math.inf or Fraction(up) >= value
    below = math.nextafter(up, -math.inf)
    assert below == -math.inf or Fraction(below) < value
    assert rounding.float_down(value) == -rounding.float_up(-value)


@given(positive_fractions)
def test_units_enclose_the_value_within_one_unit(value):
    """Rounding to units up and down encloses a number, and whole units are exact."""
    low = from_units(rounding.units_down(value))
    high = from_units(rounding.units_up(value))
    assert low <= value <= high
    assert (high - low) * 10**36 in (0, 1)
    assert (low == high) == ((value * rounding.UNITS).denominator == 1)


# -- bounds ------------------------------------------------------------------------

#: One expression in the two languages, and the largest argument.
EXPRESSIONS: dict[str, tuple[Callable[..., Any], Callable[..., arb], int]] = {
    "exp": (lambda mp, x: mp.exp(x), lambda x: x.exp(), 1000),
    "exp(-x)": (lambda mp, x: mp.exp(-x), lambda x: (-x).exp(), 1000),
    "expm1": (lambda mp, x: mp.expm1(x), lambda x: x.expm1(), 1000),
    "log": (lambda mp, x: mp.log(x), lambda x: x.log(), 10**30),
    "log1p": (lambda mp, x: mp.log1p(x), lambda x: x.log1p(), 10**30),
    "sqrt": (lambda mp, x: mp.sqrt(x), lambda x: x.sqrt(), 10**30),
    "tanh": (lambda mp, x: mp.tanh(x), lambda x: x.tanh(), 50),
    "erfc": (lambda mp, x: mp.erfc(x), lambda x: x.erfc(), 200),
    "log erfc": (lambda mp, x: mp.log(mp.erfc(x)), lambda x: x.erfc().log(), 200),
    "cancelling": (lambda mp, x: mp.log1p(x) - x, lambda x: x.log1p() - x, 100),
    "negative": (lambda mp, x: -mp.sqrt(x) - 1, lambda x: -x.sqrt() - 1, 10**30),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@given(share=shares_of_all_sizes)
def test_bounds_enclose_the_rigorous_value(name, share):
    """Both bounds lie outside an interval evaluation, by no more than 3e-30."""
    on_mpmath, rigorous, largest = EXPRESSIONS[name]
    value = share * largest
    assume(value != 1)  # where the logarithm is zero
    low, high = on_flint(rigorous, value)
    assert high - low <= abs(high) / 10**50

    def expression(mp):
        return on_mpmath(mp, to_real(mp, value))

    below, above = rounding.bound_below(expression), rounding.bound_above(expression)
    assert below < low <= high < above
    assert above - below <= abs(high) * Fraction(3, 10**30)


def test_cancellation_is_overcome_or_refused():
    """A hundred lost digits are found again; mere rounding noise gets no bound."""
    tiny = Fraction(1, 10**60)
    value = rounding.evaluate(
        lambda mp: mp.expm1(to_real(mp, tiny)) - to_real(mp, tiny)
    )
    low, high = on_flint(lambda x: x.expm1() - x, tiny)
    assert abs(value - low) <= abs(high) / 10**40
    with pytest.raises(ArithmeticError, match="cancellation") as refused:
        rounding.bound_above(lambda mp: mp.exp(mp.log(3) / 7) ** 7 - 3)
    assert isinstance(refused.value, InvalidCost)  # what public functions may raise
    # log(1 + 1e-200) is positive: no upper bound of it may be zero.
    tiny = Fraction(1, 10**200)
    with contextlib.suppress(ArithmeticError):
        bound = rounding.bound_above(lambda mp: mp.log(1 + to_real(mp, tiny)))
        assert bound > tiny - tiny**2


def test_an_expression_without_a_finite_real_gets_no_bound():
    """Infinite, undefined and complex values raise and never become a bound."""
    for expression in (
        lambda mp: mp.inf,
        lambda mp: mp.nan,
        lambda mp: mp.log(0),
        lambda mp: mp.sqrt(-1),
        lambda mp: mp.mpc(1, 1),
    ):
        for bound in (rounding.bound_above, rounding.bound_below):
            with pytest.raises(ArithmeticError):
                bound(expression)


@given(st.integers(-(2**200), 2**200), st.integers(-400, 400))
def test_an_mpmath_number_turns_into_its_exact_fraction(mantissa, exponent):
    """Nothing is rounded on the way from binary floating point to a fraction."""
    value = Fraction(mantissa) * Fraction(2) ** exponent
    with mpmath.workprec(300):
        number = mpmath.ldexp(mpmath.mpf(mantissa), exponent)
    assert value == rounding.to_fraction(number)


def test_bounds_are_the_same_under_sixteen_threads():
    """Concurrent threads, at every precision, get the bounds of one thread."""
    # The last needs more digits than the others: precisions change all the time.
    works = [
        lambda mp, x: mp.exp(-x) / mp.sqrt(2 * mp.pi),
        lambda mp, x: mp.log(x) * mp.erfc(mp.sqrt(x)),
        lambda mp, x: mp.log1p(x / mp.mpf(10) ** 20) - x / mp.mpf(10) ** 20,
    ]
    values = [Fraction(n * n + 1, 7 * n + 3) for n in range(1, 30)]
    jobs = [*itertools.product(works, values)]

    def run(work: Callable[..., Any], value: Fraction) -> Fraction:
        return rounding.bound_above(lambda mp: work(mp, to_real(mp, value)))

    with ThreadPoolExecutor(16) as pool:
        results = [*pool.map(run, *zip(*jobs * 4, strict=True))]
    assert results == [*itertools.starmap(run, jobs)] * 4


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
@examples(*TABLES["texts"], Fraction(1, 2**80))
def test_number_text_survives_a_round_trip(value):
    """Text names the number exactly and holds no space, whatever the number."""
    text = number_text(value)
    assert value == rounding.number_from_text(text) == Fraction(text)
    assert " " not in text


def test_number_text_is_canonical():
    """Journals and pins compare texts, so each number has one, in any context."""
    texts = {text: Fraction(n) for text, n in TABLES["canonical"].items()}
    with localcontext(Context(prec=2)):
        for text, value in texts.items():
            assert number_text(value) == text
            assert rounding.number_from_text(text) == value == exact(text, name="x")
        assert exact(0.123456789, name="x") == texts["0.123456789"]


@given(fractions_of_all_sizes, st.integers(1, 15))
@examples(*TABLES["shorts"], digits=4)
def test_short_texts_are_never_on_the_wrong_side(value, digits):
    """The short text up is not below, down is not above, and both are close."""
    texts = rounding.short_down(value, digits), rounding.short_up(value, digits)
    low, high = map(Fraction, texts)
    assert low <= value <= high
    assert high - low <= abs(value) / Fraction(10) ** (digits - 1)
    for text in texts:
        mantissa = text.partition("e")[0].strip("-").replace(".", "")
        assert len(mantissa.strip("0")) <= digits


def test_short_texts_read_well():
    """People see plain decimals in the usual range and no trailing zeros."""
    for number, *texts in TABLES["short"]:
        value = Fraction(number)
        assert texts == [rounding.short_down(value), rounding.short_up(value)]


def test_a_long_value_is_shortened_in_its_error():
    """The beginning says enough."""
    with pytest.raises(InvalidCost) as refused:
        exact("x" * 100, name="epsilon")
    assert refused.value.details["value"] == f"'{'x' * 56}..."
