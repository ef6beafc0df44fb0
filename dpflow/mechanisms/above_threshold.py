"""The sparse vector technique: which of many numbers reach a threshold.

Everything after the queries are evaluated is arithmetic of integers. A query is rounded
down to a grid of `GRID` steps per sensitivity, which moves neighbours apart by at most
one step more, and sums of floats by another; the noise is OpenDP's discrete Laplace in
whole steps; the comparison is exact. So no rounding of floats, in noise or comparison,
tells datasets apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Sized
from fractions import Fraction
from functools import cache
from typing import SupportsFloat

from dpflow.accounting.costs.sparse_vector import SparseVector
from dpflow.exceptions import PublicError, public_name
from dpflow.mechanisms.drawn import Drawn, draws_for
from dpflow.noise.draws import integer_laplace
from dpflow.noise.grid import ADDED, GRID, in_steps
from dpflow.noise.numbers import plain_number

#: A private number, or a function that computes it if its turn comes.
Query = SupportsFloat | Callable[[], SupportsFloat]

#: Draws one number of noise of a scale, in steps.
Noise = Callable[[Fraction], int]


@draws_for(SparseVector)
def sparse_vector(
    cost: SparseVector,
    queries: Sequence[Query],
    thresholds: float | Sequence[float] = 0,
) -> Drawn[tuple[bool, ...]]:
    """Say of one query after the other whether it reaches its threshold, with noise.

    The running step must have declared `SparseVector`. It ends after that cost's number
    of positive answers: the queries behind them are neither answered nor evaluated. The
    number of positive answers is the cell that is charged.

    Source: Lyu, Su, Li 2017, Alg. 1 (with discrete instead of continuous Laplace noise,
    whose tails have the same ratios); cells: Hartmann et al. 2022, Lemma 8. Proof:
    docs/derivations/output-dp.md#sparse-vector.

    Assumes: a privacy unit changes each query, as it is computed, by at most the
    sensitivity of the cost (sums of floats may be off by 1e-6 of that), and all in the
    same direction if the cost is monotone. Thresholds are public, and so is how many
    queries there are. OpenDP's noise ends at the ends of int64, which it reaches with a
    probability below exp(-2**14); that is taken as never.

    Rounding: noise scales up.

    Checked by: tests/mechanisms/test_sparse_vector.py, by the exact law of this code.

    Args:
        cost: The cost of the running step.
        queries: Private numbers, or functions without arguments that compute them. A
            privacy unit changes each by at most the declared sensitivity.
        thresholds: One public number for all queries, or one for each.

    Returns:
        The answers, fewer than the queries if it ended early.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, if there are no queries, if thresholds do not fit them, or if a
            query is not a number.

    Examples:
        >>> @guarded(dataset="cdnow", cost=SparseVector(positives=5, epsilon="0.5"))
        ... def busy_weeks(weeks):
        ...     return sparse_vector([lambda w=w: count(w) for w in weeks], 600)
    """
    # All noise of a scale in one call: calls of OpenDP are slow.
    drawn = cache(lambda scale: iter(integer_laplace(scale, 1 + len(queries))))
    return answers(
        cost, queries, thresholds, noise=lambda scale: next(drawn(scale)), grid=GRID
    )


def answers(
    cost: SparseVector,
    queries: Sequence[Query],
    thresholds: float | Sequence[float],
    *,
    noise: Noise,
    grid: int,
) -> Drawn[tuple[bool, ...]]:
    """Answer with this noise on this grid; as `sparse_vector`, which says which."""
    levels = [_steps(cost, level, grid) for level in _levels(queries, thresholds)]
    widened = Fraction(grid + ADDED, 1) / cost.sensitivity
    shift = noise(cost.threshold_scale * widened)
    above: list[bool] = []
    positives = 0
    for query, level in zip(queries, levels, strict=True):
        value = _steps(cost, query() if callable(query) else query, grid)
        answer = bool(value + noise(cost.answer_scale * widened) >= level + shift)
        above.append(answer)
        positives += answer
        if positives == cost.positives:
            break
    return Drawn(tuple(above), positives)


def _levels(
    queries: Sequence[Query], thresholds: float | Sequence[float]
) -> list[float]:
    if not isinstance(thresholds, Sized):
        thresholds = [thresholds] * len(queries)
    levels = list(thresholds)
    if not levels or len(levels) != len(queries):
        msg = "sparse_vector() needs queries, and one threshold for all or for each"
        raise PublicError(msg)
    return levels


def _steps(cost: SparseVector, value: object, grid: int) -> int:
    """Return a number in whole steps of the grid, rounded down."""
    number = plain_number(value)
    # An int may be too large for isfinite().
    if number is None or (isinstance(number, float) and not math.isfinite(number)):
        msg = (
            "sparse_vector() got a query or threshold of type "
            f"{public_name(type(value))} that is no finite number. "
            "Clip such values first."
        )
        raise PublicError(msg)
    return in_steps(number, cost.sensitivity, grid)
