"""When a deployed flow runs: what prefect.yaml says, and where it says nothing."""

from __future__ import annotations

from datetime import date

import pytest

from dpflow.forecast.deployment import deployed_schedule
from tests.projects import ROOT

#: A Thursday.
TODAY = date(2026, 1, 1)
CODE = """\
from dpflow import dp_flow

@dp_flow(name="weekly")
def report(): ...

@dp_flow
async def by_its_name(): ...
"""


def told(folder, *schedules, flow="weekly", function="report"):
    """Return what a deployment with these schedules tells."""
    (folder / "flows.py").write_text(CODE, "utf-8")
    listed = "".join(f"\n      - {each}" for each in schedules)
    (folder / "prefect.yaml").write_text(
        f"deployments:\n  - name: a\n    entrypoint: flows.py:{function}\n"
        f"    schedules:{listed}\n",
        "utf-8",
    )
    return deployed_schedule(folder, flow, since=TODAY)


@pytest.mark.parametrize(
    ("schedule", "every", "first"),
    [
        ('{cron: "0 6 * * 1", timezone: UTC}', "7 days", "2026-01-05"),
        ('{cron: "0 6 * * MON"}', "7 days", "2026-01-05"),
        ('{cron: "0 6 * * 7"}', "7 days", "2026-01-04"),
        ('{cron: "30 0 * * *"}', "1 day", "2026-01-01"),
        ('{cron: "0 6 15 * *"}', "1 month", "2026-01-15"),
        ('{cron: "0 6 1 */3 *"}', "3 months", "2026-01-01"),
        ('{cron: "0 6 2 jan,jul *"}', "6 months", "2026-01-02"),
        ("{interval: 172800}", "2 days", "2026-01-01"),
    ],
)
def test_a_schedule_of_equal_distances_is_read(tmp_path, schedule, every, first):
    """Cron or interval; the first day is the next one that it names."""
    found = told(tmp_path, schedule)
    assert (found.every.text, str(found.first)) == (every, first)
    assert found.source == "schedule"


@pytest.mark.parametrize(
    "schedules",
    [
        [],
        ['{cron: "0 6 * * 1-5"}'],
        ['{cron: "0 */2 * * *"}'],
        ['{cron: "0 6 1 * 1"}'],
        ['{cron: "0 6 31 * *"}'],
        ['{cron: "0 6 * * 9"}'],
        ['{cron: "@daily"}'],
        ['{rrule: "FREQ=DAILY"}'],
        ['{cron: "0 6 * * 1", active: false}'],
        ["{interval: 60}", "{interval: 120}"],
        ["{interval: often}"],
        ["nothing"],
    ],
)
def test_what_is_not_understood_tells_nothing(tmp_path, schedules):
    """A wrong date is worse than none."""
    assert told(tmp_path, *schedules) is None


def test_a_flow_is_known_by_its_code(tmp_path):
    """By the name that its decorator gives, else by the function's."""
    daily = '{cron: "0 6 * * *"}'
    assert told(tmp_path, daily, flow="report") is None
    by_name = {"flow": "by-its-name", "function": "by_its_name"}
    assert told(tmp_path, daily, **by_name) is not None
    (tmp_path / "flows.py").write_text("def (", "utf-8")
    assert deployed_schedule(tmp_path, "weekly", since=TODAY) is None
    (tmp_path / "prefect.yaml").write_text("{", "utf-8")
    assert deployed_schedule(tmp_path, "weekly", since=TODAY) is None
    (tmp_path / "prefect.yaml").unlink()
    assert deployed_schedule(tmp_path, "weekly", since=TODAY) is None


def test_the_example_is_read():
    """The deployment that is off counts for nothing."""
    found = deployed_schedule(ROOT, "weekly-report", since=TODAY)
    assert (found.every.text, str(found.first)) == ("7 days", "2026-01-05")
