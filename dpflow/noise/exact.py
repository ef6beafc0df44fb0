"""Exact draws from rational numbers: coins, and choices with exponential weights.

Only whole numbers are drawn and compared, so nothing rounds. The bytes are the
system's own, or those of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from dpflow.noise.sources import current_stream, random_bytes

#: Tosses a coin that is True with a probability.
Toss = Callable[[Fraction], bool]
#: Picks a number from 0 to below a count, uniformly.
Pick = Callable[[int], int]


def pick(count: int) -> int:
    """Return a uniform number from 0 to count - 1."""
    bits = (count - 1).bit_length()
    size = -(-bits // 8)
    while True:
        number = int.from_bytes(random_bytes(size)) >> (8 * size - bits)
        if number < count:
            return number


def toss(chance: Fraction) -> bool:
    """Return True with a probability; without noise, the likelier value."""
    if _is_silent():
        return 2 * chance >= 1
    return pick(chance.denominator) < chance.numerator


def choose(rates: Sequence[Fraction], *, toss: Toss = toss, pick: Pick = pick) -> int:
    """Return an index i with a probability proportional to exp(-rates[i]).

    A uniform index is accepted with the probability exp(least - rate); else another is
    drawn. Without noise the first index of the least rate is returned.

    Source: rejection; the coin is Canonne, Kamath, Steinke 2020 (arXiv 2004.00010v2)
    Alg. 1; docs/derivations/notions.md#exact-choices.

    Assumes: at least one rate. The running time depends on the rates: on average at
    most as many tries as indices.

    Rounding: none.

    Checked by: tests/noise/test_exact.py.
    """
    least = min(rates)
    if _is_silent():
        return list(rates).index(least)
    while True:
        index = pick(len(rates))
        if exponential_coin(rates[index] - least, toss):
            return index


def exponential_coin(rate: Fraction, toss: Toss = toss) -> bool:
    """Return True with probability exp(-rate), for a rate of at least 0."""
    units, fraction = divmod(rate, 1)
    sure = all(_small_coin(Fraction(1), toss) for _ in range(int(units)))
    return sure and _small_coin(fraction, toss)


def _small_coin(rate: Fraction, toss: Toss) -> bool:
    """Return True with probability exp(-rate), for a rate of at most 1.

    The chance to get past k tosses is rate**k / k!; the series alternates.
    """
    tosses = 1
    while toss(rate / tosses):
        tosses += 1
    return tosses % 2 == 1


def _is_silent() -> bool:
    stream = current_stream()
    return stream is not None and stream.silent
