"""Windows: the budget covers any few consecutive parts by time.

The order of parts is that of the calendar, so that a name of a part gives its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pydantic import Field

from dpflow.interrupts import without_interrupts
from dpflow.policy.fields import Record

#: Most parts of a window: a leap year of days.
MOST_LENGTH = 366
_MONTHS = 12
_START, _END = datetime.fromisoformat("0001-01-01"), 10_000
#: For the length of a part's name: the period, and the form of its names.
_FORMS = {
    13: (timedelta(hours=1), "%Y-%m-%dT%H"),
    10: (timedelta(days=1), "%Y-%m-%d"),
    8: (timedelta(weeks=1), "%G-W%V"),
}


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


def place_of(part: str) -> int:
    """Return the place of a part by time among all parts of its kind.

    Raises:
        ValueError: If it names no such part.
    """
    if len(part) not in _FORMS:
        year, _, month = part.partition("-")
        return int(year) * _MONTHS + int(month) - 1
    return (datetime.fromisoformat(part) - _START) // _FORMS[len(part)][0]


def part_at(part: str, place: int) -> str | None:
    """Return the part at a place, named like another part; None outside all years."""
    if len(part) not in _FORMS:
        year, month = divmod(place, _MONTHS)
        return f"{year:04}-{month + 1:02}" if 0 < year < _END else None
    period, form = _FORMS[len(part)]
    try:
        name = (_START + place * period).strftime(form)
    except without_interrupts(OverflowError, ValueError):
        return None
    # Some platforms write years before 1000 with fewer digits.
    return name.rjust(len(part), "0")
