"""Periods of the calendar: hours, days, weeks and months, each with one form of names.

The order of periods is that of the calendar, so that a name gives a place.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache

from dpflow.interrupts import without_interrupts

#: The form of the names of each period.
_FORMS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
PERIODS = tuple(_FORMS)
_LENGTHS = {
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_MONTHS = 12
_START, _END = datetime.fromisoformat("0001-01-01"), 10_000
_EXAMPLE = datetime.fromisoformat("2026-01-31T09")


def example_of(period: str) -> str:
    """Return the name of a period, for messages."""
    return _written(_EXAMPLE, period)


def period_of(name: str) -> str:
    """Return "hour", "day", "week" or "month", whichever has this name; else ""."""
    return next((period for period in PERIODS if _start(name, period)), "")


def place_of(name: str) -> int:
    """Return the place of a named period among all of its kind.

    Raises:
        ValueError: If no period has this name.
    """
    period = period_of(name)
    start = _start(name, period) if period else None
    if start is None:
        msg = f"no period has the name {name!r}"
        raise ValueError(msg)
    if period == "month":
        return start.year * _MONTHS + start.month - 1
    return (start - _START) // _LENGTHS[period]


def part_at(name: str, place: int) -> str | None:
    """Return the period at a place, of the kind of a named one.

    Returns:
        Its name; None outside the years 1 to 9999.
    """
    period = period_of(name)
    if period == "month":
        year, month = divmod(place, _MONTHS)
        return f"{year:04}-{month + 1:02}" if 0 < year < _END else None
    try:
        return _written(_START + place * _LENGTHS[period], period)
    except without_interrupts(OverflowError, ValueError):
        return None


@lru_cache(maxsize=4096)
def _start(name: str, period: str) -> datetime | None:
    """Return the start of a named period; None if its form writes another name.

    Parsers of dates read more names than one: week 53 as week 1, hour 24 as hour 0.
    """
    try:
        start = datetime.fromisoformat(f"{name}-01" if period == "month" else name)
    except without_interrupts(ValueError):
        return None
    return start if _written(start, period) == name else None


def _written(moment: datetime, period: str) -> str:
    """Write the name of the period around a moment."""
    # Some platforms write years before 1000 with fewer digits.
    years, dash, rest = moment.strftime(_FORMS[period]).partition("-")
    return f"{years:0>4}{dash}{rest}"
