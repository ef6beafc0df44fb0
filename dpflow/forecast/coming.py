"""Days of the next runs of a dataset's flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from dpflow.forecast.deployment import deployed_schedule
from dpflow.forecast.outlook import Outlook


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingRuns:
    """The next runs of a dataset's flows.

    Attributes:
        runs: Day, flow and number (from 1) of each run that fits the budget.
        refused: Each flow whose budget ends within the list, with the first refusal.
        undated: Flows without a known day.
    """

    runs: tuple[tuple[date, str, int], ...]
    refused: tuple[str, ...]
    undated: tuple[str, ...]


def coming_runs(
    ahead: Sequence[Outlook],
    flows: Iterable[str],
    count: int,
    *,
    root: Path,
    today: date | None = None,
) -> ComingRuns:
    """Return the next runs of a dataset's flows.

    The days are those of the flow's deployment in prefect.yaml. Without one they follow
    the dates in the flow's release keys.

    Args:
        ahead: Outlooks of the flows that have run.
        flows: Flows that the policy names.
        count: Number of runs, at most.
        root: Folder of the project.
        today: Default: the day of the clock, in UTC.
    """
    day = today or datetime.now(UTC).date()
    outlooks = {each.flow: each for each in ahead if each.flow is not None}
    runs, refused, undated = [], [], []
    for flow in sorted({*flows, *outlooks}):
        outlook = outlooks.get(flow)
        schedule = None if outlook is None else outlook.schedule
        if schedule is None or schedule.source != "schedule":
            schedule = deployed_schedule(root, flow, since=day) or schedule
        left = None if outlook is None else outlook.runs_left
        fit = count if left is None else min(left, count)
        days: list[date | None] = []
        if schedule is not None:
            every, first = schedule.every, schedule.first
            days = [every.after(first, number) for number in range(fit + 1)]
        elif fit:
            undated.append(flow)
        runs += [(each, flow, n) for n, each in enumerate(days[:fit], 1) if each]
        if outlook is not None and fit < count:
            start = f"from {days[fit]} on" if fit and days else f"after {fit} runs"
            refused.append(f"{flow} {start if fit else 'now'} ({outlook.limited_by})")
    return ComingRuns(
        runs=tuple(sorted(runs)[:count]),
        refused=tuple(refused),
        undated=tuple(undated),
    )
