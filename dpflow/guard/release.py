"""`release`: the noise that the running step declared, for its body."""

from __future__ import annotations

from typing import Any

from dpflow.guard.charge import current_execution
from dpflow.rounding import Number


def release(
    value: Any, *, within: Number | None = None, confidence: Number = "95%"
) -> Any:
    """Draw the noise that the running step declared; see `Execution.release`.

    Args:
        value: A number, list, numpy array or pandas series of numbers.
        within: For one number under `Refined`: how far it may be from the true one, as
            "10%" of itself or in its own units; noise is refined until it shows that.
        confidence: For `within`: in how many of all releases it is.

    Returns:
        The noisy value, of the same shape and kind; with `within` an `Estimate`, a
        float that carries its `interval`.

    Raises:
        ReleaseError: Outside the body of a DP step, and as `Execution.release` says.

    Examples:
        >>> @guarded(dataset="cdnow", cost=Gaussian(sensitivity=1, sigma=20))
        ... def customers(week):
        ...     return release(count(week))
    """
    execution = current_execution("release()")
    return execution.release(value, within=within, confidence=confidence)
