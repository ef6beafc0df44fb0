"""The runs to come: their days, what is kept for them, and when the rest ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from dpflow.config import Settings
from dpflow.forecast.cadence import Schedule
from dpflow.forecast.deployment import deployed_schedule
from dpflow.forecast.outlook import Outlook, flow_schedule, outlooks
from dpflow.ledger import Ledger
from dpflow.ledger.records import KeptView
from dpflow.ledger.views.runs import DatasetRuns, dataset_runs
from dpflow.ledger.views.standing import Standing, standings
from dpflow.policy import PolicySet

Paid = Literal["kept", "from the rest", "refused"]

#: Days of one flow that are looked at.
_MOST_DAYS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingRun:
    """One run of a flow that its schedule tells of.

    Attributes:
        day: When it is due.
        flow: The flow.
        number: Which of the flow's runs to come it is, from 1.
        kept: Whether its worst case is held, so that nobody else can use it.
        fits: Whether the budget admits it if nothing else is charged.
    """

    day: date
    flow: str
    number: int
    kept: bool
    fits: bool

    @property
    def paid(self) -> Paid:
        """Out of what it is paid, in words."""
        return "kept" if self.kept else "from the rest" if self.fits else "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCalendar:
    """What is known of the runs of one flow.

    Attributes:
        flow: Its name.
        schedule: When it runs; None if nobody knows.
        kept: What is kept for it; None if nothing is.
        outlook: What its runs so far tell; None if it has not run.
    """

    flow: str
    schedule: Schedule | None
    kept: KeptView | None
    outlook: Outlook | None

    @property
    def kept_until(self) -> date | None:
        """The day of the last run that is kept; None if none is, or nobody knows."""
        if self.schedule is None or self.kept is None or not self.kept.runs_left:
            return None
        return self.schedule.every.after(self.schedule.first, self.kept.runs_left - 1)

    def runs(self) -> Iterator[ComingRun]:
        """Yield its runs to come, as far as the calendar goes."""
        kept = 0 if self.kept is None else self.kept.runs_left
        left = None if self.outlook is None else self.outlook.runs_left
        when = self.schedule
        for number in range(1, _MOST_DAYS) if when else ():
            day = when.every.after(when.first, number - 1) if when else None
            if day is None:
                return
            yield ComingRun(
                day=day,
                flow=self.flow,
                number=number,
                kept=number <= kept,
                fits=number <= kept or left is None or number <= left,
            )

    def as_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        kept, when, ahead = self.kept, self.schedule, self.outlook
        return {
            "flow": self.flow,
            "every": None if when is None else when.every.text,
            "every_from": None if when is None else when.source,
            "next": None if when is None else when.first.isoformat(),
            "keep": None if kept is None else kept.runs,
            "kept_runs_left": None if kept is None else kept.runs_left,
            "kept": None if kept is None else dict(kept.left),
            "kept_until": _text(self.kept_until),
            "runs_left": None if ahead is None else ahead.runs_left,
            "exhausted_on": _text(None if ahead is None else ahead.exhausted_on),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetCalendar:
    """The runs to come on one dataset.

    Attributes:
        dataset: Its name.
        flows: What is known of each flow that ran, or for which runs are kept.
    """

    dataset: str
    flows: tuple[FlowCalendar, ...]

    def coming(self, count: int) -> list[ComingRun]:
        """Return the next runs of all flows, so many at most."""
        found = [run for each in self.flows for run in islice(each.runs(), count)]
        return sorted(found, key=lambda run: (run.day, run.flow))[:count]

    @property
    def rest_ends(self) -> FlowCalendar | None:
        """The flow without kept runs that is refused first; None if none is."""
        ends = [
            (each.outlook.exhausted_on, each)
            for each in self.flows
            if each.kept is None and each.outlook and each.outlook.exhausted_on
        ]
        return min(ends, key=lambda pair: pair[0])[1] if ends else None

    def as_json(self, count: int) -> dict[str, Any]:
        """Return the same for programs, with so many runs."""
        rest = self.rest_ends
        return {
            "dataset": self.dataset,
            "flows": [each.as_json() for each in self.flows],
            "rest_ends": None
            if rest is None or rest.outlook is None
            else _text(rest.outlook.exhausted_on),
            "runs": [
                {
                    "date": run.day.isoformat(),
                    "flow": run.flow,
                    "number": run.number,
                    "kept": run.kept,
                    "fits": run.fits,
                }
                for run in self.coming(count)
            ],
        }


def _text(day: date | None) -> str | None:
    return None if day is None else day.isoformat()


def calendars(
    found: Settings,
    ledger: Ledger,
    policies: PolicySet,
    dataset: str | None = None,
    *,
    today: date | None = None,
    served: Mapping[str, Schedule] | None = None,
) -> list[DatasetCalendar]:
    """Return the runs to come on each dataset, or on one of them.

    A flow runs when Prefect serves it, or when its deployment in prefect.yaml says, or
    else as the dates in its release keys have told so far.

    Args:
        found: Where the project is.
        ledger: The ledger to read.
        policies: What the files say.
        dataset: Only this one.
        today: Default: the day of the clock, in UTC.
        served: The schedules that Prefect's server knows, by flow.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows the dataset.
    """
    day = today or datetime.now(UTC).date()
    return [
        dataset_calendar(
            found.root,
            ledger,
            standing,
            outlooks(ledger, standing.dataset, today=day),
            today=day,
            served=served,
        )
        for standing in standings(ledger, policies, dataset)
        # What ended has no runs to come.
        if standing.pinned is not None
    ]


def dataset_calendar(
    root: Path,
    ledger: Ledger,
    standing: Standing,
    ahead: Sequence[Outlook],
    *,
    today: date | None = None,
    served: Mapping[str, Schedule] | None = None,
) -> DatasetCalendar:
    """Return the runs to come on one dataset.

    Args:
        root: The project's folder.
        ledger: The ledger to read.
        standing: The dataset, in its newest term.
        ahead: The outlooks of its flows.
        today: Default: the day of the clock, in UTC.
        served: The schedules that Prefect's server knows, by flow.
    """
    day = today or datetime.now(UTC).date()
    runs = dataset_runs(ledger, standing.dataset)
    told = {each.flow: each for each in ahead if each.flow is not None}
    kept = {
        each.flow: each
        for view in standing.accounts
        if view.kind == "dataset"
        for each in view.kept
    }
    flows = tuple(
        FlowCalendar(
            flow=flow,
            schedule=(served or {}).get(flow) or _schedule(root, runs, flow, day),
            kept=kept.get(flow),
            outlook=told.get(flow),
        )
        for flow in sorted({*kept, *told})
    )
    return DatasetCalendar(dataset=standing.dataset, flows=flows)


def _schedule(
    root: Path, runs: DatasetRuns | None, flow: str, today: date
) -> Schedule | None:
    own: Sequence[Any] = () if runs is None else runs.of_flow(flow)
    told = flow_schedule(own, today) if own else None
    return told or deployed_schedule(root, flow, since=today)
