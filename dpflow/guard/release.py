"""The function that a body calls to draw its step's noise."""

from __future__ import annotations

from typing import Any

from dpflow.guard.charge import current_execution
from dpflow.noise.refining import Until
from dpflow.noise.release_types import type_as_release
from dpflow.rounding import Number


@type_as_release
def release(
    value: Any,
    *,
    as_int: bool = False,
    within: Number | None = None,
    until: Until | None = None,
    confidence: Number = "95%",
    length: Any = None,
    groups: Any = None,
    columns: Any = None,
) -> Any:
    """Draw the noise that the running step declared.

    Args:
        value: A number; or several numbers of the shape that the step declares by
            `length=`, or by `groups=` and `columns=`: a list, dict, array, Series or
            frame.
        as_int: Round after the draw, and return ints.
        within: For one number under `Refined`: how far it may be from the true one, as
            "10%" of itself or in its own units; noise is refined until it shows that.
        until: For ints under `Refined`: says of the answers so far, the finest last,
            whether the last one is good enough. It may use these and public numbers,
            and nothing private.
        confidence: In how many of all releases the interval holds the true number.
        length: In a `spend` block: how many numbers there are.
        groups: In a `spend` block: the labels of the rows.
        columns: In a `spend` block: the names of the columns of numbers.

    Returns:
        For one number an `Estimate`, a float with its `interval`, or with `as_int`, or
        under integer noise, an `IntEstimate`. For several a new container of floats or
        ints with the declared labels. With `until` the tuple of all answers.

    Raises:
        ReleaseError: Outside the body of a DP step, and as `Execution.release` says.

    Examples:
        >>> @guarded(dataset="cdnow", cost=Gaussian(sensitivity=1, sigma=20))
        ... def customers(week):
        ...     return release(count(week))
    """
    options = dict(locals())
    execution: Any = current_execution("release()")
    return execution.release(**options)
