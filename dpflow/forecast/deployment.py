"""When a deployed flow runs, as the project's prefect.yaml says, without Prefect.

Only schedules of whole days are read, one for each flow: an interval from its anchor,
or a cron or rrule that runs once on each of its days, which lie one distance apart.
What is not understood tells nothing, for a date that is wrong is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import yaml
from cronsim import CronSim, CronSimError
from dateutil.rrule import rrulestr

from dpflow.forecast.cadence import Every, Schedule

_MOST_BYTES = 2**18
#: Two years of days show at which distance they lie.
_DAYS_AHEAD = timedelta(days=800)
#: The start of an rrule without a DTSTART (`prefect.client.schemas.schedules`).
_RRULE_START = datetime(2020, 1, 1)  # noqa: DTZ001 (the schedule's own zone)
#: A rule that ends has no next run beyond its end; others run more than once a day.
_NOT_DAILY = ("UNTIL", "COUNT", "HOURLY", "MINUTELY", "SECONDLY")
_UNREADABLE = (
    CronSimError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


def read_schedule(root: Path, flow: str, *, since: date) -> Schedule | None:
    """Return when a flow's deployment runs next; None if prefect.yaml does not tell.

    Args:
        root: The project's folder.
        flow: The flow's name: that of its function, as an entrypoint has it.
        since: The next run is on this day or later.
    """
    try:
        with (root / "prefect.yaml").open("rb") as stream:
            deployments = yaml.safe_load(stream.read(_MOST_BYTES))["deployments"]
        result = [
            schedule
            for deployment in deployments
            if _flow_name(deployment.get("entrypoint")) == flow
            if deployment.get("paused") is not True
            for schedule in (
                deployment.get("schedule"),
                *(deployment.get("schedules") or ()),
            )
            if schedule is not None and schedule.get("active", True) is True
        ]
    except (OSError, yaml.YAMLError, RecursionError, *_UNREADABLE):
        return None
    return schedule_from(result[0], since) if len(result) == 1 else None


def _flow_name(entrypoint: object) -> str:
    """Return the name that Prefect gives the flow of `path.py:function` by default."""
    return re.split(r"[:.]", str(entrypoint))[-1].replace("_", "-")


def schedule_from(schedule: Mapping[str, Any], since: date) -> Schedule | None:
    """Read one schedule; None if it is not understood.

    Args:
        schedule: An `interval` in seconds with its `anchor_date`, a `cron` or an
            `rrule`; perhaps a `timezone`.
        since: The next run is on this day or later.
    """
    try:
        days = _days(schedule, since)
    except _UNREADABLE:
        return None
    gaps = {(b - a).days for a, b in pairwise(days)}
    months = {12 * (b.year - a.year) + b.month - a.month for a, b in pairwise(days)}
    if len(gaps) == 1:
        return Schedule(Every(seconds=86_400 * gaps.pop()), days[0], "schedule")
    if len(months) == 1 and len({day.day for day in days}) == 1:
        return Schedule(Every(months=months.pop()), days[0], "schedule")
    return None


def _days(schedule: Mapping[str, Any], since: date) -> list[date]:
    """Return the next days of what runs once on each of its days; else none."""
    if schedule.get("interval") is not None:
        return _from_anchor(schedule, since)
    start, cron = datetime.combine(since, time()), schedule.get("cron")
    runs: Iterator[datetime]
    if cron is None:
        text = str(schedule.get("rrule")).upper()
        if any(word in text for word in _NOT_DAILY):
            return []
        rule = rrulestr(text, dtstart=_RRULE_START, ignoretz=True)
        runs = rule.xafter(start, inc=True)
    else:
        _, _, day, _, weekday = str(cron).split()
        # If both are given, cron takes either.
        if "*" not in (day, weekday):
            return []
        runs = CronSim(cron, start - timedelta(seconds=1))
    result: list[date] = []
    for run in runs:
        if run > start + _DAYS_AHEAD:
            break
        if run.date() in result[-1:]:
            return []
        result.append(run.date())
    return result


def _from_anchor(schedule: Mapping[str, Any], since: date) -> list[date]:
    """Return days of an interval of whole days; without its anchor there are none."""
    days, seconds = divmod(schedule["interval"], 86_400)
    anchor = datetime.fromisoformat(str(schedule.get("anchor_date")))
    if schedule.get("timezone"):
        zone = ZoneInfo(schedule["timezone"])
        anchor = anchor.replace(tzinfo=anchor.tzinfo or UTC).astimezone(zone)
    if seconds or days < 1:
        return []
    wait = (anchor.date() - since).days % days
    return [since + timedelta(days=wait + number * days) for number in range(2)]
