"""How often a flow runs, and the dates on which it will."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import pairwise
from typing import Literal

from dateutil.relativedelta import relativedelta

from dpflow.exceptions import ConfigurationError
from dpflow.periods import DAY, MONTH, WEEK

Source = Literal["release keys", "schedule", "given"]

#: Fewer dates do not show a schedule.
FEWEST_KEYS = 5

_DAY = 86_400
_UNITS = {
    "hour": (0, 3600),
    "day": (0, _DAY),
    "week": (0, 7 * _DAY),
    "month": (1, 0),
    "quarter": (3, 0),
    "year": (12, 0),
}


@dataclass(frozen=True, slots=True)
class Every:
    """How much time lies between two runs: whole months, or seconds.

    Args:
        months: Calendar months.
        seconds: Used if there are no months.
    """

    months: int = 0
    seconds: int = 0

    @classmethod
    def parse(cls, text: str) -> Every:
        """Read `week`, `2 weeks`, `12 hours`, `month` and the like.

        Raises:
            ConfigurationError: If it is no such thing.
        """
        match = re.fullmatch(r"(?:(\d{1,6})\s*)?([a-z]+?)s?", text.strip().lower())
        count = int(match[1] or 1) if match else 0
        if match is None or match[2] not in _UNITS or not count:
            msg = (
                f"{text[:40]!r} is no interval. Write one of {', '.join(_UNITS)}, "
                "or a number of them such as `2 weeks`."
            )
            raise ConfigurationError(msg)
        months, seconds = _UNITS[match[2]]
        return cls(months=count * months, seconds=count * seconds)

    @property
    def text(self) -> str:
        """The interval in words, such as "7 days"."""
        if self.months:
            return _count(self.months, "month")
        for unit, seconds in (("day", _DAY), ("hour", 3600), ("minute", 60)):
            if self.seconds >= seconds:
                return _count(round(self.seconds / seconds, 1), unit)
        return _count(self.seconds, "second")

    def after(self, start: date, times: int) -> date | None:
        """Return the day on which a run falls; None beyond the calendar's end.

        Args:
            start: The day of the first run.
            times: How many intervals later.
        """
        try:
            # The 31st becomes the last day of shorter months.
            months = relativedelta(months=self.months * times)
            return start + months + timedelta(seconds=self.seconds) * times
        except (OverflowError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a flow runs.

    Attributes:
        every: The interval.
        first: The day of the next run.
        source: Where that was read.
    """

    every: Every
    first: date
    source: Source

    def day_after(self, runs: int | None) -> date | None:
        """Return the day of the first run beyond a count; None without a count."""
        return None if runs is None else self.every.after(self.first, runs)


def schedule_of(runs: Sequence[tuple[datetime, Sequence[str]]]) -> Schedule | None:
    """Derive the schedule from the runs so far; None if they do not tell.

    The dates in release keys say which period a run reports on, however late it ran.
    They tell if the last five at least were run in their order, most of them at one
    distance. The times at which runs began tell nothing: a backfill, a day of trials
    and a late rerun look like any schedule.

    Args:
        runs: When each run began, and its release keys; oldest first.
    """
    days = _rising([day for _, keys in runs for day in _dates(keys)[:1]])
    if len(days) < FEWEST_KEYS:
        return None
    monthly = _all_months(runs)
    gaps = [_gap(*pair, monthly=monthly) for pair in pairwise(days)]
    usual = statistics.median_low(gaps)
    if 2 * gaps.count(usual) <= len(gaps):
        return None
    every = Every(months=usual) if monthly else Every(seconds=_DAY * usual)
    following = every.after(days[-1], 1)
    return Schedule(every, following, "release keys") if following else None


def _rising(days: Sequence[date]) -> list[date]:
    """Return the newest days that were run in their order; an equal one is the same."""
    result: list[date] = []
    for day in reversed(days):
        if result and day > result[-1]:
            break
        if not result or day < result[-1]:
            result.append(day)
    return result[::-1]


def _gap(first: date, other: date, *, monthly: bool) -> int:
    if monthly:
        return 12 * (other.year - first.year) + other.month - first.month
    return (other - first).days


def _all_months(runs: Sequence[tuple[datetime, Sequence[str]]]) -> bool:
    keys = [key for _, keys in runs for key in keys if _dates([key])]
    return not any(kind.is_written_in(key) for kind in (WEEK, DAY) for key in keys)


def _dates(keys: Iterable[str]) -> list[date]:
    """Return the days that keys name, the latest first."""
    days = []
    for key in keys:
        starts = filter(None, (kind.start_in(key) for kind in (WEEK, DAY, MONTH)))
        days += [start.date() for start in [*starts][:1]]
    return sorted(days, reverse=True)


def _count(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
