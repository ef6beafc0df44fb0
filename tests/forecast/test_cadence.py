"""How often a flow runs: what its keys tell, and when they tell nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from dpflow.exceptions import ConfigurationError
from dpflow.forecast.cadence import Every, schedule_of

pytestmark = pytest.mark.quick

START = datetime(2026, 3, 2, 6, tzinfo=UTC)


def runs(*keys: str) -> list[tuple[datetime, list[str]]]:
    """Return runs with these keys, an hour apart."""
    return [
        (START + timedelta(hours=hour), [key] if key else [])
        for hour, key in enumerate(keys)
    ]


def test_intervals_are_read_and_added():
    """Months are months of the calendar; a 31st becomes the last day."""
    for text, words, times, later in (
        ("week", "7 days", 5, "2026-03-07"),
        ("2 weeks", "14 days", 4, "2026-03-28"),
        ("12 hours", "12 hours", 3, "2026-02-01"),
        ("month", "1 month", 3, "2026-04-30"),
        ("quarter", "3 months", 3, "2026-10-31"),
        ("Year", "12 months", 3, "2029-01-31"),
        ("year", "12 months", 9000, "None"),
    ):
        every = Every.parse(text)
        assert every.text == words
        assert str(every.after(date(2026, 1, 31), times)) == later
    for text in ("", "fortnight", "0 days", "-1 day", "1.5 days"):
        with pytest.raises(ConfigurationError, match="week, month"):
            Every.parse(text)


DAYS = [f"a/2026-01-0{day}" for day in range(5, 10)]
WEEKS = [f"a/1997-W{week}" for week in range(14, 20)]
MONTHS = ["2025-11", "2025-12", "2026-01", "2026-02", "2026-03"]


SCHEDULES = [
    (WEEKS, "7 days", "1997-05-12"),
    (DAYS, "1 day", "2026-01-10"),
    ([*DAYS[:4], "a/2026-01-12"], "1 day", "2026-01-13"),
    (MONTHS, "1 month", "2026-04-01"),
    ([WEEKS[5], *WEEKS[:5]], "7 days", "1997-05-05"),
    ([*WEEKS[:5], WEEKS[4]], "7 days", "1997-05-05"),
]
NO_SCHEDULE = [
    [],
    DAYS[:4],
    [*DAYS[:4], DAYS[3]],
    [WEEKS[5], WEEKS[0]],
    [*WEEKS[:4], WEEKS[5], WEEKS[4]],
    WEEKS[::-1],
    ["", "", "", "", "", ""],
    [f"a/2026-W{week}" for week in range(90, 99)],
    ["2026-01-01", "2026-01-02", "2026-02-11", "2026-02-20", "2026-07-01"],
]


def test_five_ordered_dates_in_keys_are_a_schedule():
    """A backfill of years takes an afternoon, and is weekly all the same.

    Fewer dates are none, nor are the times of runs, or dates without a usual distance.
    """
    for keys, every, first in SCHEDULES:
        schedule = schedule_of(runs(*keys))
        assert schedule.source == "release keys"
        assert (schedule.every.text, str(schedule.first)) == (every, first)
    for keys in NO_SCHEDULE:
        assert schedule_of(runs(*keys)) is None
