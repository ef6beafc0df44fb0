"""How often a flow runs: by the dates in its keys, or by its deployment."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from dpflow.exceptions import ConfigurationError
from dpflow.forecast.cadence import Every, schedule_of
from dpflow.forecast.deployment import read_schedule
from tests.snapshots import answers, differences
from tests.tables import read_tables

pytestmark = pytest.mark.quick

TABLES = read_tables(__file__)
START = datetime(2026, 3, 2, 6, tzinfo=UTC)


def runs(*keys: str) -> list[tuple[datetime, list[str]]]:
    """Return runs with these keys, an hour apart."""
    return [
        (START + timedelta(hours=hour), [key] if key else [])
        for hour, key in enumerate(keys)
    ]


def test_intervals_are_read_and_added():
    """Months are months of the calendar; a 31st becomes the last day."""
    for text, words, times, later in TABLES["intervals"]:
        every = Every.parse(text)
        assert every.text == words
        assert str(every.after(date(2026, 1, 31), times)) == later
    for text in TABLES["no_intervals"]:
        with pytest.raises(ConfigurationError, match="week, month"):
            Every.parse(text)


def test_five_ordered_dates_in_keys_are_a_schedule():
    """A backfill of years takes an afternoon, and is weekly all the same.

    Fewer dates are none, nor are the times of runs, or dates without a usual distance.
    """
    for row in TABLES["schedules"]:
        schedule = schedule_of(runs(*row["keys"]))
        assert schedule.source == "release keys"
        assert [schedule.every.text, str(schedule.first)] == row["schedule"]
    for keys in TABLES["no_schedules"]:
        assert schedule_of(runs(*keys)) is None


#: A Thursday.
TODAY = date(2026, 1, 1)


def deployed(folder, *schedules, flow="weekly", function="weekly"):
    """Return the schedule of a flow with a deployment."""
    listed = "".join(f"\n      - {each}" for each in schedules)
    (folder / "prefect.yaml").write_text(
        f"deployments:\n  - name: a\n    entrypoint: flows.py:{function}\n"
        f"    schedules:{listed}\n",
        "utf-8",
    )
    return read_schedule(folder, flow, since=TODAY)


def test_a_schedule_of_equal_distances_is_read(tmp_path):
    """Cron, rrule or interval; the first day is the next one that it names.

    What is not understood is no schedule: a wrong date is worse than no date.
    """

    def schedule(case):
        read = deployed(tmp_path, *case.split(" & "))
        return f"every {read.every.text} from {read.first}" if read else "no schedule"

    assert differences({"schedules": answers("schedules", schedule)}) == []
    assert deployed(tmp_path, '{cron: "0 6 * * 1"}').source == "schedule"
    assert deployed(tmp_path) is None


def test_a_file_of_another_shape_has_no_schedule(tmp_path):
    """As Prefect refuses it; nor has a folder without the file."""
    for text in TABLES["files"]:
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
