"""Windows: the budget covers any few consecutive parts by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dpflow.policy.fields import Record

#: Most parts of a window: a leap year of days.
MOST_LENGTH = 366


class Window(Record):
    """Consecutive parts by time that share the budget."""

    length: int = Field(
        ge=1,
        le=MOST_LENGTH,
        strict=True,
        description="Number of consecutive parts that the budget covers together.",
        examples=[52],
    )


def window_length(pinned: Mapping[str, Any]) -> int:
    """Return the number of parts in a window of a copy; 0 without windows."""
    return int(pinned.get("window", {}).get("length", 0))
