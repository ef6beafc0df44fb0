"""Noise that is taken away until an answer is good enough, paid by the last one.

The noises of all answers are correlated: each answer is the next, finer one with more
noise on top, so all that was seen follows from the finest answer that was released.
How noise of one scale becomes that of a larger one: `dpflow.noise.refining`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

from dpflow.accounting.costs.outcomes import OutputDP
from dpflow.exceptions import PublicError
from dpflow.mechanisms.drawn import Drawn
from dpflow.noise.draws import integer_laplace, whole_laplace
from dpflow.noise.refining import coarsened
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

    Rounding: scales up; from there on none.

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
            f"whole number; the cost is {cost!r}"
        )
        raise PublicError(msg)
    if not values or not all(type(value) is int for value in values):
        msg = "refined() needs one or more ints; convert them with int(), and count"
        raise PublicError(msg)
    cells = dict(cost.cells)
    scales = [
        Fraction(float_up(sensitivity / cells[str(n)]))
        for n in range(len(cells), 0, -1)
    ]
    answers = _all_answers(values, scales)
    for number in range(1, len(answers)):
        if good_enough(answers[:number]):
            return Drawn(tuple(answers[:number]), number)
    return Drawn(tuple(answers), len(answers))


def _all_answers(values: Sequence[int], scales: list[Fraction]) -> list[Answer]:
    """Return an answer for each scale, the coarsest first; made from the finest."""
    noises = integer_laplace(scales[0], len(values))
    finest = (value + noise for value, noise in zip(values, noises, strict=True))
    drawn = [coarsened(number, scales, whole_laplace) for number in finest]
    return list(zip(*drawn, strict=True))[::-1]
