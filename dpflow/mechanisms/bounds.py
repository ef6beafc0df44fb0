"""Quantiles of private numbers, by the exponential mechanism over public candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.accounting.costs.noise import ExponentialMechanism
from dpflow.bounding.tables import real_or_nan
from dpflow.exceptions import PublicError, public_name
from dpflow.mechanisms.drawn import claimed, is_replace_one
from dpflow.mechanisms.rows import Floats
from dpflow.noise.exact import choose
from dpflow.noise.sources import EXACT
from dpflow.rounding import Number, exact, float_down

MOST_CANDIDATES = 10_000
#: Starts of the names of types whose entries may be text, in lower case.
_NO_NUMBERS = ("object", "str", "large_string", "categor", "enum")


def private_bounds(
    values: Iterable[Any],
    candidates: Sequence[Number],
    quantiles: Sequence[Number] = ("0.95",),
    *,
    max_rows: int = 1,
) -> tuple[Number, ...]:
    """Choose for each quantile of private numbers a public candidate near it.

    The running step must have declared `ExponentialMechanism`, for several quantiles
    `Repeated(ExponentialMechanism(...), HOW_MANY)`. Entries that are no numbers count
    as 0, as they do when they are clipped.

    Args:
        values: A list or column of numbers, at most `max_rows` of each person.
        candidates: Public numbers; what is returned is one of them.
        quantiles: Public, between 0 and 1: the share of the numbers up to the answer.
        max_rows: How many of the numbers one person has at most.

    Returns:
        As many candidates as quantiles, in their order.

    Raises:
        ReleaseError: Outside a step with such a cost, if the step has drawn noise
            already, or if values, candidates or quantiles cannot be used.

    Examples:
        >>> @guarded(dataset="cdnow", cost=ExponentialMechanism(epsilon="0.1"))
        ... def largest():
        ...     dearest = orders().groupby("customer")["dollars"].max()
        ...     return private_bounds(dearest, range(5, 505, 5))
    """
    execution, cost = claimed(
        "private_bounds()", ExponentialMechanism, times=len(quantiles), by=EXACT
    )
    relation = "replace-one" if is_replace_one(execution) else "add-or-remove"
    if len(candidates) not in range(2, MOST_CANDIDATES + 1):
        msg = f"give 2 to {MOST_CANDIDATES} candidates"
        raise PublicError(msg)
    if type(max_rows) is not int or max_rows < 1:
        msg = "max_rows must be a whole number from 1"
        raise PublicError(msg)
    ordered = sorted(candidates, key=lambda number: exact(number, name="candidates"))
    cuts = [float_down(exact(number, name="candidates")) for number in ordered]
    shares = [exact(quantile, name="quantile") for quantile in quantiles]
    if not all(0 < share < 1 for share in shares):
        msg = "a quantile lies between 0 and 1; no person's own number is one of them"
        raise PublicError(msg)
    numbers, price = numbers_of(values), (cost.epsilon, max_rows, relation)
    with execution.drawing():
        shunned = (rates(numbers, cuts, share, *price) for share in shares)
        return tuple(ordered[choose(penalty)] for penalty in shunned)


def rates(  # noqa: PLR0917
    numbers: Floats,
    cuts: Sequence[float],
    share: Fraction,
    epsilon: Fraction,
    max_rows: int,
    relation: str,
) -> list[Fraction]:
    """Return for each cut the rate at which the mechanism shuns it.

    With L numbers up to a cut and R above, its score for the quantile a / b is
    |(b - a) L - a R|, which is 0 at the quantile.

    Source: McSherry, Talwar 2007; the score of Smith 2011 without the number of people,
    which is private under add-or-remove;
    docs/derivations/notions.md#quantiles.

    Assumes: candidates, quantile and `max_rows` are public; one privacy unit has at
    most `max_rows` of the numbers.

    Rounding: none; numbers are compared as they are.

    Checked by: tests/mechanisms/test_private_bounds.py.
    """
    below = np.searchsorted(np.sort(numbers), np.asarray(cuts), side="right").tolist()
    part, bottom = share.numerator, share.denominator
    # By how much one number of a person moves the score of a cut.
    moved = bottom if relation == "replace-one" else max(part, bottom - part)
    scale = epsilon / (2 * max_rows * moved)
    return [
        scale * abs((bottom - part) * left - part * (len(numbers) - left))
        for left in below
    ]


def numbers_of(values: Iterable[Any]) -> Floats:
    """Return numbers as floats; other entries count as 0, as when clipped.

    Raises:
        ReleaseError: If it holds no numbers, by its type and never by an entry.
    """
    column: Any = values
    kind = str(getattr(column, "dtype", getattr(column, "type", "list"))).lower()
    if kind.startswith(_NO_NUMBERS):
        msg = (
            "private_bounds() got a column of type object or text: text in it would "
            "count as zero. Make it a number first, or give a list of Decimals"
        )
        raise PublicError(msg)
    if hasattr(column, "to_numpy"):
        column = column.to_numpy()
    kind = column.dtype.kind if isinstance(column, np.ndarray) else ""
    result: Floats
    if kind and kind in "iufb":
        result = column.astype(np.float64).reshape(-1)
    elif isinstance(column, (list, tuple)) or kind == "O":
        result = np.fromiter((real_or_nan(value) for value in column), np.float64)
    else:
        name = public_name(type(values))
        msg = f"give a list or a column of numbers, not {name} of another type"
        raise PublicError(msg)
    return np.nan_to_num(result, nan=0.0, posinf=np.inf, neginf=-np.inf)
