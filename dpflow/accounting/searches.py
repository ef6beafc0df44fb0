"""The two pure searches: the most steps that fit, and the least noise with which."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from dpflow.accounting.rules.tally import Tally
from dpflow.rounding import number_from_text, short_up

#: A count above this is said to have no end.
NO_END = 10**12
#: Significant digits of a scale of noise that is tried.
_DIGITS = 16

#: From a used amount to the used amount after a step; None if the step is refused.
Once = Callable[[Tally], Tally | None]


def most_steps(admits: Callable[[int], bool], start: int = 1) -> int | None:
    """Return the largest admitted number of steps, or None if it is unlimited.

    Args:
        admits: Predicate over a number of steps, from 1. Must be monotone: false for
            every number above the first false one.
        start: The first number that is tried.
    """
    low, high = 0, max(start, 1)
    while admits(high):
        low, high = high, 2 * high
        if low > NO_END:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admits(middle) else (low, middle)
    return low


def repeat(once: Once, total: Tally, most: int = NO_END) -> tuple[Tally, int]:
    """Repeat a step whose price grows with the used amount.

    Equal consecutive prices are taken together: prices never fall, so prices between
    two equal ones are equal.

    Args:
        once: One step.
        total: Used amount before the first step.
        most: The most repetitions.

    Returns:
        What is used then, and the number of admitted repetitions.
    """
    count = 0
    while count < most and (after := once(total)) is not None:
        price, limit = after - total, most - count

        def equal(
            number: int, total: Tally = total, price: Tally = price, limit: int = limit
        ) -> bool:
            before = total + price.times(number - 1)
            return number <= limit and once(before) == before + price

        times = most_steps(equal) or limit
        total, count = total + price.times(times), count + times
    return total, count


def least_noise(
    fits: Callable[[Fraction], bool],
    *,
    low: Fraction | int,
    high: Fraction | int,
    most: Fraction | int,
    close: Fraction,
) -> Fraction | None:
    """Return a scale of noise that fits, close to the least one; None if none fits.

    Args:
        fits: Predicate over a scale. Must be monotone: true for every scale above the
            first true one.
        low: A scale that does not fit, or the limit below which none is tried.
        high: The first scale that is tried.
        most: The largest one.
        close: The largest ratio of the result to a scale that does not fit.
    """
    low, high = Fraction(low), Fraction(high)
    while not fits(high):
        if high >= most:
            return None
        low, high = high, min(4 * high, Fraction(most))
    while high / low > close:
        middle = number_from_text(short_up((low + high) / 2, _DIGITS))
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
