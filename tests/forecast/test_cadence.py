"""How often a flow runs: what its keys or its times tell."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from dpflow.exceptions import ConfigurationError
from dpflow.forecast.cadence import Every, schedule_of

START = datetime(2026, 3, 2, 6, tzinfo=UTC)
TODAY = date(2026, 3, 30)


def told(*runs: tuple[int, str]) -> list[tuple[datetime, list[str]]]:
    """Return runs so many hours after the start, each with a key."""
    return [(START + timedelta(hours=h), [key] if key else []) for h, key in runs]


@pytest.mark.parametrize(
    ("text", "words", "later"),
    [
        ("week", "7 days", "2026-03-07"),
        ("2 weeks", "14 days", "2026-03-28"),
        ("day", "1 day", "2026-02-03"),
        ("12 hours", "12 hours", "2026-02-01"),
        ("month", "1 month", "2026-04-30"),
        ("quarter", "3 months", "2026-10-31"),
        ("Year", "12 months", "2029-01-31"),
    ],
)
def test_intervals_are_read_and_added(text, words, later):
    """Months are months of the calendar; a 31st becomes the last day."""
    every = Every.parse(text)
    assert every.text == words
    start = date(2026, 1, 31)
    times = {"week": 5, "2 weeks": 4, "day": 3, "12 hours": 3}.get(text, 3)
    assert str(every.after(start, times)) == later


@pytest.mark.parametrize("text", ["", "fortnight", "0 days", "-1 day", "1.5 days"])
def test_what_is_no_interval_is_refused(text):
    """With the ones that there are."""
    with pytest.raises(ConfigurationError, match="week, month"):
        Every.parse(text)


def test_beyond_the_calendar_there_is_no_day():
    """A budget for ten thousand years ends on no date."""
    assert Every.parse("year").after(date(2026, 1, 1), 9000) is None
    assert Every.parse("day").after(date(2026, 1, 1), 10**9) is None


@pytest.mark.parametrize(
    ("keys", "every", "first"),
    [
        (["a/1997-W14", "a/1997-W15", "a/1997-W16"], "7 days", "1997-04-21"),
        (["a/2026-01-05", "a/2026-01-06", "a/2026-01-09"], "1 day", "2026-01-10"),
        (["2025-11", "2025-12", "2026-01"], "1 month", "2026-02-01"),
    ],
)
def test_dates_in_keys_come_first(keys, every, first):
    """A backfill of years takes an afternoon, and is weekly all the same."""
    schedule = schedule_of(told(*((n, key) for n, key in enumerate(keys))), TODAY)
    assert schedule.source == "release keys"
    assert (schedule.every.text, str(schedule.first)) == (every, first)


def test_without_dates_the_times_of_runs_tell():
    """The median, so that one late run changes nothing."""
    runs = told((0, ""), (24, ""), (49, ""), (72, ""), (340, ""), (364, ""))
    schedule = schedule_of(runs, TODAY)
    assert (schedule.source, schedule.every.text) == ("run times", "1 day")
    # It was due long ago; the next run is not before today.
    assert schedule.first == TODAY


def test_one_run_tells_nothing():
    """Nor do several on one date of their keys, at one time."""
    assert schedule_of(told((0, "a/2026-01-05")), TODAY) is None
    assert schedule_of([], TODAY) is None


def test_a_number_that_is_no_date_is_no_date():
    """Week 99 is none."""
    runs = told((0, "a/2026-W98"), (24, "a/2026-W99"))
    assert schedule_of(runs, TODAY).source == "run times"
