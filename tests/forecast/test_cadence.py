"""How often a flow runs: by the dates in its keys, or by its deployment."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from dpflow.exceptions import ConfigurationError
from dpflow.forecast.cadence import Every, schedule_of
from dpflow.forecast.deployment import read_schedule

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


#: A Thursday.
TODAY = date(2026, 1, 1)
MONDAY = "anchor_date: 2026-01-05"
#: Intervals that are not whole days.
NO_DAYS = ("3600", "129600", "0", "-86400", "true", "often", ".inf", ".nan", "1.0e+300")


def deployed(folder, *schedules, flow="weekly", function="weekly"):
    """Return the schedule of a flow with a deployment."""
    listed = "".join(f"\n      - {each}" for each in schedules)
    (folder / "prefect.yaml").write_text(
        f"deployments:\n  - name: a\n    entrypoint: flows.py:{function}\n"
        f"    schedules:{listed}\n",
        "utf-8",
    )
    return read_schedule(folder, flow, since=TODAY)


#: A schedule, the distance of its days, and the first.
READ = [
    ('cron: "0 6 * * 1", timezone: UTC', "7 days", "2026-01-05"),
    ('cron: "0 6 * * MON"', "7 days", "2026-01-05"),
    ('cron: "0 6 * * 7"', "7 days", "2026-01-04"),
    ('cron: "30 0 * * *"', "1 day", "2026-01-01"),
    ('cron: "0 6 15 * *"', "1 month", "2026-01-15"),
    ('cron: "0 6 2 jan,jul *"', "6 months", "2026-01-02"),
    ('interval: 172800, anchor_date: "2026-01-02T06:00Z"', "2 days", "2026-01-02"),
    ("interval: 604800, anchor_date: 2027-01-04T06:00", "7 days", "2026-01-05"),
    (
        "interval: 604800.0, anchor_date: 2026-01-05T20:00Z, timezone: Japan",
        "7 days",
        "2026-01-06",
    ),
    ('rrule: "FREQ=WEEKLY;BYDAY=MO"', "7 days", "2026-01-05"),
    ('rrule: "FREQ=DAILY;INTERVAL=2"', "2 days", "2026-01-01"),
    ('rrule: "DTSTART:20251220T230000Z\\nFREQ=MONTHLY"', "1 month", "2026-01-20"),
]
NO_CRON = "0 6 * * 1-5|0 */2 * * *|0 6 1 * 1|0 6 31 * *|0 6 * * 9|@daily|0 0 6 * * 1"
NO_RRULE = "DAILY;COUNT=9|DAILY;UNTIL=20260301T000000|DAILY;BYHOUR=6,18|SECONDLY|NEVER"
UNREAD = [
    [],
    *([f'{{cron: "{text}"}}'] for text in NO_CRON.split("|")),
    *([f'{{rrule: "FREQ={text}"}}'] for text in NO_RRULE.split("|")),
    *([f"{{interval: {text}, {MONDAY}}}"] for text in NO_DAYS),
    ['{cron: "0 6 * * 1", active: false}'],
    [f"{{interval: 86400, {MONDAY}}}", f"{{interval: 604800, {MONDAY}}}"],
    ["{interval: 86400}"],
    ["{interval: 86400, anchor_date: soon}"],
    [f"{{interval: 86400, {MONDAY}, timezone: Nowhere}}"],
    ["nothing"],
]


def test_a_schedule_of_equal_distances_is_read(tmp_path):
    """Cron, rrule or interval; the first day is the next one that it names."""
    for schedule, every, first in READ:
        made = deployed(tmp_path, f"{{{schedule}}}")
        assert (made.every.text, str(made.first)) == (every, first)
        assert made.source == "schedule"


def test_what_is_not_understood_is_no_schedule(tmp_path):
    """A wrong date is worse than no date; Prefect refuses files of another shape."""
    for schedules in UNREAD:
        assert deployed(tmp_path, *schedules) is None
    texts = ["{", "deployments: true", "deployments: {a: 1}"]
    for each in ("true", "86400", "{cron: 0 6 * * *}"):
        made = f"{{entrypoint: flows.py:weekly, schedules: {each}}}"
        texts.append(f"deployments: [{made}]")
    for text in texts:
        (tmp_path / "prefect.yaml").write_text(text, "utf-8")
        assert read_schedule(tmp_path, "weekly", since=TODAY) is None
    (tmp_path / "prefect.yaml").unlink()
    assert read_schedule(tmp_path, "weekly", since=TODAY) is None


def test_a_flow_is_found_by_its_function(tmp_path):
    """Of a file or a module, and a method of a class."""
    daily = '{cron: "0 6 * * *"}'
    for function in ("by_its_name", "Reports.by_its_name"):
        assert deployed(tmp_path, daily, flow="by-its-name", function=function)
        assert deployed(tmp_path, daily, flow="weekly", function=function) is None
