"""Exact numbers in, outward-rounded numbers out.

Nothing in dpflow may round to the unsafe side. Costs are rounded up, budgets down.
Numbers enter exactly (`exact`: the text "0.1" and the float 0.1 both mean one tenth),
live in tallies as integers (`units_up`, `units_down`), and leave as floats that lie on
the stated side (`float_up`, `float_down`). Transcendental values are evaluated at two
precisions that must agree, then moved outward by a guard far above the evaluation
error (`bound_above`, `bound_below`).
"""

from __future__ import annotations

import math
import numbers
import re
import threading
from collections.abc import Callable, Iterator
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, cast

from mpmath.ctx_mp import MPContext

from dpflow.exceptions import InvalidCost
from dpflow.interrupts import contextmanager, without_interrupts


class UnsettledBound(InvalidCost, ArithmeticError):
    """A bound whose digits cancel, or that is not a finite number."""


#: What a user may write where a number is expected.
Number = int | float | str | Decimal | Fraction

#: What is no whole number of units is rounded outward to this many decimals: small
#: enough for the square of an epsilon of 1e-15, and short as a decimal.
_DECIMALS = 10**36
#: Units of a tally in one: decimals of 36 places and parts of 1 to 100 are exact.
UNITS = math.lcm(_DECIMALS, *range(1, 101))
_STEP = UNITS // _DECIMALS

#: Limits of the numbers of costs and budgets; beyond them is a typing error.
EPSILON_LOW, EPSILON_HIGH = Fraction(1, 10**12), Fraction(10**4)
DELTA_LOW = Fraction(1, 10**35)
RHO_LOW, RHO_HIGH = Fraction(1, 10**24), Fraction(10**12)
SCALE_LOW, SCALE_HIGH = Fraction(1, 10**15), Fraction(10**15)
RATIO_LOW, RATIO_HIGH = Fraction(1, 10**6), Fraction(10**9)

_EXPONENT_LIMIT = 400
#: Longer numbers are no measurements, and Python would not print them.
_BITS = 4096
_LONGEST_TEXT = 60
#: Text of `number_text` for a number without a finite decimal; 4096 bits are 1234
#: digits at most, so `exact` reads each of its own numbers again.
_QUOTIENT = re.compile(r"-?[0-9]{1,1234}/[0-9]{1,1234}")
_PLAIN_LOW, _PLAIN_HIGH = -4, 12
_TEXT_LOW, _TEXT_HIGH = -6, 20
_DIGITS = (50, 80, 160, 320)
_AGREE: int = 10**40
_GUARD = Fraction(1, 10**30)
#: Decimals of as many digits as a number has.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def exact(
    value: object,
    *,
    name: str,
    low: Fraction | None = None,
    high: Fraction | None = None,
) -> Fraction:
    """Read a number exactly.

    A float stands for the shortest decimal that names it, so that 0.1 is one tenth.

    Args:
        value: A number, or text that is a decimal number.
        name: What the number is, for the error message.
        low: Smallest value allowed.
        high: Largest value allowed.

    Returns:
        The exact value.

    Raises:
        InvalidCost: If the value is no finite number or lies outside the limits.
    """
    text = _text_of(value)
    try:
        number = _read(value)
    except without_interrupts(InvalidOperation, OverflowError, ZeroDivisionError):
        number = None
    if number is None or max(map(int.bit_length, number.as_integer_ratio())) > _BITS:
        msg = (
            f"{name} must be a finite number, got {text} ({type(value).__name__}). "
            "Write it as a number such as 0.5 or '1e-6'."
        )
        raise InvalidCost(msg, name=name, value=text)
    if (low is not None and number < low) or (high is not None and number > high):
        lowest = "-inf" if low is None else f"{float(low):g}"
        highest = "inf" if high is None else f"{float(high):g}"
        hint = "Check the unit and the number of zeros."
        if number < 0 and low is not None and low >= 0:
            hint = "It cannot be negative: give its size, without the sign."
        msg = f"{name} must lie in [{lowest}, {highest}], got {text}. {hint}"
        raise InvalidCost(msg, name=name, value=text, low=low, high=high)
    return number


def _text_of(value: object) -> str:
    try:
        text = number_text(value) if isinstance(value, Fraction) else repr(value)
    except without_interrupts(ValueError):
        # Python does not print integers of more than 4,300 digits.
        text = "a number of thousands of digits"
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def _read(value: object) -> Fraction | None:
    """Read a number exactly, or return None for anything else."""
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        # numpy's scalars; a longdouble stays one, and is refused.
        value = cast("Any", value).item()
    if isinstance(value, bool):
        return None
    if isinstance(value, int | Fraction):
        return Fraction(value)
    if isinstance(value, str) and _QUOTIENT.fullmatch(value.strip()):
        return Fraction(value.strip())
    if isinstance(value, float):
        value = float.__repr__(value)
    if isinstance(value, str):
        value = Decimal(value.strip())
    # A huge exponent would make an integer of millions of digits.
    if not isinstance(value, Decimal) or not value.is_finite():
        return None
    return Fraction(value) if abs(value.adjusted()) <= _EXPONENT_LIMIT else None


def exact_epsilon(value: object, *, name: str = "epsilon") -> Fraction:
    """Read an epsilon: positive, at least 1e-12, at most 10,000."""
    return exact(value, name=name, low=EPSILON_LOW, high=EPSILON_HIGH)


def exact_rho(value: object, *, name: str = "rho") -> Fraction:
    """Read a number of zCDP, or of a constant in its units."""
    return exact(value, name=name, low=RHO_LOW, high=RHO_HIGH)


def exact_scale(value: object, *, name: str) -> Fraction:
    """Read a sensitivity, or the scale of a noise."""
    return exact(value, name=name, low=SCALE_LOW, high=SCALE_HIGH)


def exact_delta(value: object, *, name: str = "delta", zero: bool = True) -> Fraction:
    """Read a delta: zero where allowed, else at least 1e-35 and below 1."""
    number = exact(value, name=name, low=Fraction(0), high=Fraction(1))
    if number == 1 or (number == 0 and not zero) or 0 < number < DELTA_LOW:
        allowed = "0 or in [1e-35, 1)" if zero else "in [1e-35, 1)"
        msg = (
            f"{name} must be {allowed}, got {_text_of(value)}. "
            "Choose one well below 1 / (number of people)."
        )
        raise InvalidCost(msg, name=name, value=_text_of(value), low=DELTA_LOW, high=1)
    return number


def units_up(value: Fraction) -> int:
    """Write a non-negative number in units; if that is not exact, round it up."""
    units, remainder = divmod(value.numerator * UNITS, value.denominator)
    return (units // _STEP + 1) * _STEP if remainder else units


def units_down(value: Fraction) -> int:
    """Write a non-negative number in units; if that is not exact, round it down."""
    units, remainder = divmod(value.numerator * UNITS, value.denominator)
    return units // _STEP * _STEP if remainder else units


def from_units(units: int) -> Fraction:
    """Return the exact value of a number of tally units."""
    return Fraction(units, UNITS)


def float_up(value: Fraction) -> float:
    """Return the smallest float that is not below the value."""
    try:
        near = float(value)
    except without_interrupts(OverflowError):
        return math.inf if value > 0 else -math.nextafter(math.inf, 0)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def float_of_units(units: int) -> float:
    """Return a reading in units as the smallest float above it."""
    return float_up(from_units(units))


def float_down(value: Fraction) -> float:
    """Return the largest float that is not above the value."""
    return -float_up(-value)


_evaluating = threading.RLock()


#: Contexts that are not in use; making one takes two milliseconds.
_spare: list[Any] = []


@contextmanager
def arithmetic(digits: int) -> Iterator[Any]:
    """Lend an arithmetic context, which changes its own precision while it works."""
    try:
        context = _spare.pop()
    except without_interrupts(IndexError):
        context = MPContext()
    context.dps = digits
    yield context
    # One that an error has left is not lent again.
    _spare.append(context)


def to_real(mp: Any, value: Fraction | int) -> Any:
    """Return a fraction as a number of the arithmetic context `mp`."""
    fraction = Fraction(value)
    return mp.mpf(fraction.numerator) / fraction.denominator


def to_fraction(value: Any) -> Fraction:
    """Return the exact value of a finite mpmath number."""
    sign, mantissa, exponent, _ = value._mpf_
    magnitude = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude


def evaluate(expression: Callable[[Any], Any]) -> Fraction:
    """Evaluate an expression until two precisions agree to 40 digits.

    Args:
        expression: Takes an arithmetic context (mpmath's interface) and returns a
            finite real of it. Exact inputs enter through `to_real`.

    Returns:
        The value, within a relative error of 1e-40.

    Raises:
        UnsettledBound: If the value is not finite, or cancels so badly that even 320
            digits do not settle it.
    """
    # mpmath keeps constants such as log(2) for the whole process without a lock, and
    # two threads must not share a context.
    with _evaluating:
        previous: Fraction | None = None
        for digits in _DIGITS:
            with arithmetic(digits) as context:
                value = expression(context)
                if not context.isfinite(value) or context.im(value) != 0:
                    break
                current = to_fraction(context.mpf(value))
            # Two precisions may both have rounded a tiny value to zero.
            if previous is not None and current != 0:
                difference = abs(previous - current)
                if difference * _AGREE <= abs(current):
                    return current
            previous = current
        else:
            if previous == 0:
                return previous
    msg = (
        "a bound did not evaluate to a finite real number, or lost all its digits to "
        "cancellation, as where two numbers are nearly equal. Change a number of the "
        "cost or of the budget a little, and check the options of the filter."
    )
    raise UnsettledBound(msg, name="bound")


def bound_above(expression: Callable[[Any], Any]) -> Fraction:
    """Evaluate an expression and round up by a relative 1e-30."""
    value = evaluate(expression)
    return value + abs(value) * _GUARD


def bound_below(expression: Callable[[Any], Any]) -> Fraction:
    """Evaluate an expression and round down by a relative 1e-30."""
    value = evaluate(expression)
    return value - abs(value) * _GUARD


def number_text(value: Fraction) -> str:
    """Write a number exactly: as a decimal if it terminates, else as p/q."""
    return _decimal_text(value, _TEXT_LOW, _TEXT_HIGH)


def _decimal_text(value: Fraction, low: int, high: int) -> str:
    """Write a number exactly, with an exponent if its own is not in [low, high]."""
    denominator, places = value.denominator, 0
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0:
            denominator //= prime
            count += 1
        places = max(places, count)
    if denominator != 1:
        return f"{value.numerator}/{value.denominator}"
    digits = Decimal(value.numerator * 10**places // value.denominator)
    number = digits.scaleb(-places, _EXACT).normalize(_EXACT)
    is_plain = not value or low <= number.adjusted() <= high
    return f"{number:f}" if is_plain else f"{number:e}".replace("+", "")


def number_from_text(text: str) -> Fraction:
    """Read the text of `number_text`; `exact` refuses any other."""
    return exact(text, name="number")


def short_up(value: Fraction, digits: int = 4) -> str:
    """Write a number for people, rounded up to some significant digits."""
    return _short(value, digits, up=True)


def short_down(value: Fraction, digits: int = 4) -> str:
    """Write a number for people, rounded down to some significant digits."""
    return _short(value, digits, up=False)


def reading_up(reading: float) -> str:
    """Write an odometer's reading for people, rounded up."""
    return "inf" if math.isinf(reading) else short_up(Fraction(reading))


def _short(value: Fraction, digits: int, *, up: bool) -> str:
    if value == 0:
        return "0"
    above, below = map(Decimal, value.as_integer_ratio())
    exponent = above.adjusted() - below.adjusted()
    if abs(value) < Fraction(10) ** exponent:
        exponent -= 1
    step = Fraction(10) ** (exponent - digits + 1)
    steps = math.ceil(value / step) if up else math.floor(value / step)
    return _decimal_text(steps * step, _PLAIN_LOW, _PLAIN_HIGH)
