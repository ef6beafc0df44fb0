"""When a deployed flow runs, as the project's prefect.yaml says; Prefect is not asked.

Only schedules of whole days are read, one for each flow: an interval, or a cron that
runs once on each of its days, which lie one distance apart. What is not understood
tells nothing, for a date that is wrong is worse than none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from dpflow.forecast.cadence import Every, Schedule

_MOST_BYTES = 2**18
#: Two years of days show at which distance they lie.
_DAYS_AHEAD = 800
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = (
    *("", "jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)


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
    yield from (each for each in listed or () if isinstance(each, dict))


def _flow_name(root: Path, entrypoint: object) -> str | None:
    """Return the name of the flow at `path/to/file.py:function`, by its code."""
    file, _, function = str(entrypoint).rpartition(":")
    try:
        tree = ast.parse((root / file).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == function
        ):
            return next(_said(node), function.replace("_", "-"))
    return None


def _said(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the name that a decorator gives a flow."""
    for decorator in node.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                yield str(keyword.value.value)


def _active(deployment: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if deployment.get("paused") is True:
        return
    listed = [deployment.get("schedule"), *(deployment.get("schedules") or ())]
    for each in listed:
        if isinstance(each, dict) and each.get("active", True) is True:
            yield each


def schedule_from(schedule: Mapping[str, Any], since: date) -> Schedule | None:
    """Read one schedule; None if it is not understood.

    Args:
        schedule: An `interval` in seconds, or a `cron`.
        since: The next run is on this day or later.
    """
    interval, cron = schedule.get("interval"), schedule.get("cron")
    if isinstance(interval, int | float) and interval >= 1:
        return Schedule(Every(seconds=round(interval)), since, "schedule")
    days = _days(str(cron), since) if cron is not None else []
    gaps = {(b - a).days for a, b in pairwise(days)}
    months = {12 * (b.year - a.year) + b.month - a.month for a, b in pairwise(days)}
    if len(gaps) == 1:
        return Schedule(Every(seconds=86_400 * gaps.pop()), days[0], "schedule")
    if len(months) == 1 and len({day.day for day in days}) == 1:
        return Schedule(Every(months=months.pop()), days[0], "schedule")
    return None


def _days(cron: str, since: date) -> list[date]:
    """Return the days of a cron that runs once on each of them; none if not known."""
    fields = cron.lower().split()
    try:
        minute, hour, day, month, weekday = fields
        once = minute.isdigit() and hour.isdigit()
        days, months = _set(day, 1, 31), _set(month, 1, 12, _MONTHS)
        weekdays = {number % 7 for number in _set(weekday, 0, 7, _WEEKDAYS)}
    except ValueError:
        return []
    # If both are given, cron takes either.
    if not once or "*" not in (day, weekday):
        return []
    ahead = (since + timedelta(days=number) for number in range(_DAYS_AHEAD))
    return [
        each
        for each in ahead
        if each.day in days
        and each.month in months
        and each.isoweekday() % 7 in weekdays
    ]


def _set(field: str, low: int, high: int, names: tuple[str, ...] = ()) -> set[int]:
    """Return the numbers that a field of a cron stands for.

    Raises:
        ValueError: If it is none.
    """

    def number(text: str) -> int:
        found = names.index(text) if text in names else int(text)
        if not low <= found <= high:
            raise ValueError(text)
        return found

    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin = low if span == "*" else number(first)
        end = high if span == "*" or (step and not last) else number(last or first)
        found.update(range(begin, end + 1, int(step or 1)))
    return found
