"""Noise that is taken away until an answer is good enough, paid by the last one.

The noises of all answers are correlated: each answer is the next, finer one with more
noise on top, so all that was seen follows from the finest answer that was released.
The extra noise that turns discrete Laplace noise of one scale into that of a larger
scale is zero with some probability and discrete Laplace noise of the larger scale
otherwise; the coin for it is exact, so every answer has its law to the last bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from dpflow.accounting.costs.outcomes import OutputDP
from dpflow.exceptions import ReleaseError
from dpflow.mechanisms.drawn import Drawn
from dpflow.noise.draws import integer_laplace
from dpflow.noise.sources import random_bytes
from dpflow.rounding import float_up

#: Noisy whole numbers, as many as true ones.
Answer = tuple[int, ...]


def is_refinable(cost: OutputDP) -> bool:
    """Tell whether a cost has the cells 1, 2, ... of rising epsilons, and no delta."""
    cells = dict(cost.cells)
    names = [str(number) for number in range(1, len(cells) + 1)]
    if cost.delta or set(names) != set(cells):
        return False
    epsilons = [Fraction(0), *(cells[name] for name in names)]
    return all(low < high for low, high in itertools.pairwise(epsilons))


def refined(
    cost: OutputDP,
    values: Sequence[int],
    *,
    sensitivity: int,
    good_enough: Callable[[Sequence[Answer]], bool],
) -> Drawn[tuple[Answer, ...]]:
    """Release answers with less and less noise, until one is good enough.

    Source: Ligett, Neel, Roth, Waggoner, Wu 2017 (arXiv 1705.10829) Alg. 1, with
    discrete Laplace noise; cells: docs/derivations/output.md#noise-reduction.

    Assumes: a privacy unit moves the whole numbers by at most the sensitivity in L1
    norm; how many there are is public; `good_enough` sees the answers and reads
    nothing private.

    Rounding: scales up, before rates are made of them; from there on none.

    Checked by: tests/mechanisms/test_noise_reduction.py.

    Args:
        cost: Cells "1", "2", ... of rising epsilons, without delta.
        values: The true numbers.
        sensitivity: In L1 norm, a whole number.
        good_enough: Says of the answers so far whether the last one will do.

    Returns:
        The answers that were made, and as their cell how many.

    Raises:
        ReleaseError: If values are no whole numbers, or the cost has other cells.
    """
    if not is_refinable(cost) or type(sensitivity) is not int or sensitivity < 1:
        msg = (
            "refined() needs cost=refinable(...) and a sensitivity that is a positive "
            f"whole number; got {cost!r} and {sensitivity!r}"
        )
        raise ReleaseError(msg)
    if not values or not all(type(value) is int for value in values):
        msg = "refined() needs one or more ints; convert them with int(), and count"
        raise ReleaseError(msg)
    cells = dict(cost.cells)
    rates = [rate(cells[str(n)], sensitivity) for n in range(1, len(cells) + 1)]
    answers = _all_answers(values, rates)
    for number in range(1, len(answers)):
        if good_enough(answers[:number]):
            return Drawn(tuple(answers[:number]), number)
    return Drawn(tuple(answers), len(answers))


def rate(epsilon: Fraction, sensitivity: int) -> Fraction:
    """Return one over the scale of an answer's noise, which is rounded up."""
    return 1 / Fraction(float_up(sensitivity / epsilon))


def _all_answers(values: Sequence[int], rates: Sequence[Fraction]) -> list[Answer]:
    """Return an answer for each rate; made from the finest, which has the last one."""
    noise = integer_laplace(1 / rates[-1], len(values))
    answers = [tuple(v + n for v, n in zip(values, noise, strict=True))]
    for coarse, fine in zip(rates[-2::-1], rates[:0:-1], strict=True):
        more = [added(coarse, fine) for _ in values]
        answers.append(tuple(v + n for v, n in zip(answers[-1], more, strict=True)))
    return answers[::-1]


def added(coarse: Fraction, fine: Fraction) -> int:
    """Draw what turns noise of rate `fine` into noise of the smaller rate `coarse`.

    It is 0 with probability e^(a - b) ((1 - e^-a) / (1 - e^-b))^2, a < b the rates.
    """
    if falls(fine - coarse) and _below(coarse, fine) and _below(coarse, fine):
        return 0
    (noise,) = integer_laplace(1 / coarse, 1)
    return noise


def falls(exponent: Fraction) -> bool:
    """Toss a coin of probability e^-exponent, exactly.

    Source: Canonne, Kamath, Steinke 2020 (arXiv 2004.00010) Alg. 1.
    """
    whole = math.floor(exponent)
    if not all(_small(Fraction(1)) for _ in range(whole)):
        return False
    return _small(exponent - whole)


def _small(exponent: Fraction) -> bool:
    """Toss a coin of probability e^-exponent for an exponent of at most 1."""
    tosses = 1
    while uniform(exponent.denominator * tosses) < exponent.numerator:
        tosses += 1
    return tosses % 2 == 1


def _below(coarse: Fraction, fine: Fraction) -> bool:
    """Toss a coin of probability (1 - e^-coarse) / (1 - e^-fine), exactly.

    That of a geometric number below n to be below m, where m and n are in the ratio of
    the rates.
    """
    ratio = coarse / fine
    part = fine / ratio.denominator
    while True:
        number = uniform(ratio.denominator)
        if falls(part * number):
            return number < ratio.numerator


def uniform(count: int) -> int:
    """Draw a number below `count`, all of them alike."""
    bits = (count - 1).bit_length()
    size = -(-bits // 8)
    while True:
        number = int.from_bytes(random_bytes(size)) >> (8 * size - bits)
        if number < count:
            return number
