"""Periods of the calendar: hours, days, weeks and months, each with one form of names.

Periods of one kind are numbered in the order of the calendar, so that names have
neighbours. Weeks are those of ISO 8601: they begin on Monday.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache

from dpflow.interrupts import without_interrupts

_MONTHS = 12
_START, _END = datetime.fromisoformat("0001-01-01"), 10_000
_EXAMPLE = datetime.fromisoformat("2026-01-31T09")


class Period:
    """A kind of period of equal lengths.

    Args:
        name: Name of the kind, as policies have it.
        form: Form of the names of its periods, for `strftime`.
        length: Length of a period.
        pattern: Pattern of a name within another text.
    """

    def __init__(self, name: str, form: str, length: timedelta, pattern: str) -> None:
        self.name = name
        self._form, self._length, self._pattern = form, length, re.compile(pattern)

    @property
    def example(self) -> str:
        """The name of one period, for messages."""
        return self.name_around(_EXAMPLE)

    def start_of(self, name: str) -> datetime | None:
        """Return the start of a named period; None if no period has this name.

        Parsers of dates read more names than one: week 53 as week 1, hour 24 as 0.
        """
        try:
            start = datetime.fromisoformat(self._first_day(name))
        except without_interrupts(ValueError):
            return None
        return start if self.name_around(start) == name else None

    def name_around(self, moment: datetime) -> str:
        """Return the name of the period around a moment."""
        # Some platforms write years before 1000 with fewer digits.
        year, dash, suffix = moment.strftime(self._form).partition("-")
        return f"{year:0>4}{dash}{suffix}"

    def position_of(self, start: datetime) -> int:
        """Return the number of the period that starts at a moment."""
        return (start - _START) // self._length

    def name_at(self, position: int) -> str | None:
        """Return the name of a numbered period; None outside the years 1 to 9999."""
        try:
            return self.name_around(_START + position * self._length)
        except without_interrupts(OverflowError, ValueError):
            return None

    def is_written_in(self, text: str) -> bool:
        """Return True if a text contains what looks like a name."""
        return self._pattern.search(text) is not None

    def start_in(self, text: str) -> datetime | None:
        """Return the start of the first period that a text names; None without one."""
        match = self._pattern.search(text)
        return None if match is None else self.start_of(match[0])

    def _first_day(self, name: str) -> str:
        """Return a name as a text that `fromisoformat` reads."""
        return name


class Month(Period):
    """Months of the calendar, whose lengths differ."""

    def position_of(self, start: datetime) -> int:
        """Return the number of the month that starts at a moment."""
        return start.year * _MONTHS + start.month - 1

    def name_at(self, position: int) -> str | None:
        """Return the name of a numbered month; None outside the years 1 to 9999."""
        year, month = divmod(position, _MONTHS)
        return f"{year:04}-{month + 1:02}" if 0 < year < _END else None

    def _first_day(self, name: str) -> str:
        """Return the first day of a month."""
        return f"{name}-01"


HOUR = Period(
    "hour", "%Y-%m-%dT%H", timedelta(hours=1), r"(?<!\d)\d{4}-\d\d-\d\dT\d\d(?!\d)"
)
DAY = Period("day", "%Y-%m-%d", timedelta(days=1), r"(?<!\d)\d{4}-\d\d-\d\d(?!\d)")
WEEK = Period("week", "%G-W%V", timedelta(weeks=1), r"(?<!\d)\d{4}-W\d\d(?!\d)")
MONTH = Month("month", "%Y-%m", timedelta(0), r"(?<!\d)\d{4}-\d\d(?![\d-])")
#: The kinds of periods by name.
PERIODS: Mapping[str, Period] = {p.name: p for p in (HOUR, DAY, WEEK, MONTH)}


@lru_cache(maxsize=4096)
def period_of(name: str) -> Period | None:
    """Return the kind of a named period; None if no period has this name."""
    return next((kind for kind in PERIODS.values() if kind.start_of(name)), None)


@lru_cache(maxsize=4096)
def position_of(name: str) -> int:
    """Return the number of a named period among all of its kind.

    Raises:
        ValueError: If no period has this name.
    """
    period = period_of(name)
    start = None if period is None else period.start_of(name)
    if period is None or start is None:
        msg = f"no period has the name {name!r}"
        raise ValueError(msg)
    return period.position_of(start)


def name_at(name: str, position: int) -> str | None:
    """Return the name of a numbered period of the same kind as a named one.

    Returns:
        None outside the years 1 to 9999, or if no period has the first name.
    """
    period = period_of(name)
    return None if period is None else period.name_at(position)
