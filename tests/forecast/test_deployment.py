"""When a deployed flow runs: what prefect.yaml says, and where it says nothing."""

from __future__ import annotations

from datetime import date

import pytest

from dpflow.forecast.deployment import deployed_schedule

pytestmark = pytest.mark.quick

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
    return deployed_schedule(folder, flow, since=TODAY)


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
        assert deployed_schedule(tmp_path, "weekly", since=TODAY) is None
    (tmp_path / "prefect.yaml").unlink()
    assert deployed_schedule(tmp_path, "weekly", since=TODAY) is None


def test_a_flow_is_found_by_its_function(tmp_path):
    """Of a file or a module, and a method of a class."""
    daily = '{cron: "0 6 * * *"}'
    for function in ("by_its_name", "Reports.by_its_name"):
        assert deployed(tmp_path, daily, flow="by-its-name", function=function)
        assert deployed(tmp_path, daily, flow="weekly", function=function) is None
