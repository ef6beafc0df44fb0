"""`release`: the noise that the running step declared, for its body."""

from __future__ import annotations

from typing import Any

from dpflow.guard.charge import current_execution
from dpflow.noise.refining import Until
from dpflow.rounding import Number


def release(
    value: Any,
    *,
    within: Number | None = None,
    until: Until | None = None,
    confidence: Number = "95%",
) -> Any:
    """Draw the noise that the running step declared.

    Args:
        value: A number, list, numpy array or pandas series of numbers.
        within: For one number under `Refined`: how far it may be from the true one, as
            "10%" of itself or in its own units; noise is refined until it shows that.
        until: For a list of whole numbers under `Refined`: says of the answers so far,
            the finest last, whether the last one is good enough. It may use these and
            public numbers, and nothing private.
        confidence: For `within`: in how many of all releases it is.

    Returns:
        The noisy value, of the same shape and kind; with `within` an `Estimate`, a
        float that carries its `interval`; with `until` the tuple of all answers.

    Raises:
        ReleaseError: Outside the body of a DP step, and as `Execution.release` says.

    Examples:
        >>> @guarded(dataset="cdnow", cost=Gaussian(sensitivity=1, sigma=20))
        ... def customers(week):
        ...     return release(count(week))
    """
    execution = current_execution("release()")
    return execution.release(value, within=within, until=until, confidence=confidence)
