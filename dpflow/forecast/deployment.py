"""When a deployed flow runs, as the project's prefect.yaml says; Prefect is not asked.

Only schedules of whole days are read, one for each flow: an interval from its anchor,
or a cron or rrule that runs once on each of its days, which lie one distance apart.
What is not understood tells nothing, for a date that is wrong is worse than none.
"""

from __future__ import annotations

import ast
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
_BY_TIME = ("HOURLY", "MINUTELY", "SECONDLY")
_UNREADABLE = (CronSimError, ArithmeticError, KeyError, TypeError, ValueError)


def deployed_schedule(root: Path, flow: str, *, since: date) -> Schedule | None:
    """Return when a flow's deployment runs next; None if prefect.yaml does not tell.

    Args:
        root: The project's folder.
        flow: The flow's name.
        since: The next run is on this day or later.
    """
    found = [
        schedule
        for deployment in _deployments(root / "prefect.yaml")
        if _flow_name(root, deployment.get("entrypoint")) == flow
        for schedule in _active(deployment)
    ]
    return schedule_from(found[0], since) if len(found) == 1 else None


def _deployments(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with path.open("rb") as stream:
            data = yaml.safe_load(stream.read(_MOST_BYTES))
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return
    listed = data.get("deployments") if isinstance(data, dict) else None
    yield from _mappings(listed)


def _mappings(listed: object) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings of a list; nothing of what is no list."""
    if isinstance(listed, list):
        yield from (each for each in listed if isinstance(each, dict))


def _flow_name(root: Path, entrypoint: object) -> str | None:
    """Return the name of the flow at an entrypoint, by its code.

    Entrypoints are `path/to/file.py:function`, `package.module:function`, and
    `:Class.method` for a method.
    """
    module, _, function = str(entrypoint).rpartition(":")
    file = module if module.endswith(".py") else f"{module.replace('.', '/')}.py"
    try:
        nodes = ast.parse((root / file).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for name in function.split("."):
        named = [n for n in nodes if isinstance(n, kinds) and n.name == name]
        if not named:
            return None
        node, nodes = named[-1], named[-1].body
    if isinstance(node, ast.ClassDef):
        return None
    return next(_said(node), node.name.replace("_", "-"))


def _said(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the name that a decorator gives a flow."""
    for decorator in node.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                yield str(keyword.value.value)


def _active(deployment: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if deployment.get("paused") is True:
        return
    listed = deployment.get("schedules")
    for each in _mappings([deployment.get("schedule")]), _mappings(listed):
        yield from (one for one in each if one.get("active", True) is True)


def schedule_from(schedule: Mapping[str, Any], since: date) -> Schedule | None:
    """Read one schedule; None if it is not understood.

    Args:
        schedule: An `interval` in seconds with its `anchor_date`, a `cron` or an
            `rrule`; perhaps a `timezone`.
        since: The next run is on this day or later.
    """
    try:
        if schedule.get("interval") is not None:
            return _from_anchor(schedule, since)
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


def _from_anchor(schedule: Mapping[str, Any], since: date) -> Schedule | None:
    """Return an interval of whole days; without its anchor its days are unknown."""
    days, rest = divmod(schedule["interval"], 86_400)
    anchor = datetime.fromisoformat(str(schedule.get("anchor_date")))
    if schedule.get("timezone"):
        zone = ZoneInfo(schedule["timezone"])
        anchor = anchor.replace(tzinfo=anchor.tzinfo or UTC).astimezone(zone)
    if rest or days < 1:
        return None
    wait = timedelta(days=(anchor.date() - since).days % days)
    return Schedule(Every(seconds=int(86_400 * days)), since + wait, "schedule")


def _days(schedule: Mapping[str, Any], since: date) -> list[date]:
    """Return the next days of what runs once on each of its days; else none."""
    start, cron = datetime.combine(since, time()), schedule.get("cron")
    runs: Iterator[datetime]
    if cron is None:
        text = str(schedule.get("rrule")).upper()
        # A rule that ends has no next run beyond its end.
        if any(word in text for word in ("UNTIL", "COUNT", *_BY_TIME)):
            return []
        rule = rrulestr(text, dtstart=_RRULE_START, ignoretz=True)
        runs = rule.xafter(start, inc=True)
    else:
        _, _, day, _, weekday = str(cron).split()
        # If both are given, cron takes either.
        if "*" not in (day, weekday):
            return []
        runs = CronSim(cron, start - timedelta(seconds=1))
    found: list[date] = []
    for run in runs:
        if run > start + _DAYS_AHEAD:
            break
        if run.date() in found[-1:]:
            return []
        found.append(run.date())
    return found
