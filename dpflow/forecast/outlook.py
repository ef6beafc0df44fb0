"""How many more runs each flow has, and until when.

A re-run that replays some releases charges less than a run does, and so does one that
stops early. So the runs to come are taken to be like the dearest of a flow's last
completed ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from dpflow.accounting.rules.rule import Filter, Odometer
from dpflow.accounting.searches import Once
from dpflow.config import settings
from dpflow.exceptions import ConfigurationError, InvalidCost, UnsupportedCost
from dpflow.forecast.cadence import Every, Schedule, schedule_of
from dpflow.forecast.counting import (
    Load,
    empty_gate,
    load_of,
    loads_of,
    plan_workload,
    runs_left,
    window_loads,
    workload_of,
)
from dpflow.forecast.deployment import read_schedule
from dpflow.interrupts import suppress
from dpflow.ledger.decisions.gates import Gate, covers_flow
from dpflow.ledger.decisions.refusals import amounts_text
from dpflow.ledger.views.accounts import standing_gates
from dpflow.ledger.views.entries import kind_title, percent_text
from dpflow.ledger.views.reading import Source, open_reading
from dpflow.ledger.views.runs import (
    DatasetRuns,
    FlowRun,
    RunCharge,
    dataset_runs,
    run_charges,
)
from dpflow.periods import PERIODS
from dpflow.rounding import number_text

#: A line of a picture needs no more points.
_MOST_POINTS = 200
#: Of more amounts, as `auto` has, only the share of the budget is printed.
_FEW_AMOUNTS = 2
#: A settled step is two entries: its reserve and its settle.
_ENTRIES = 2
_BUDGETS = ("dataset", "others", "population", "partition", "flow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How far the budget of a dataset goes for one flow.

    Attributes:
        dataset: Its name.
        flow: The flow; None for steps outside of any flow that was named.
        runs_left: Further runs like this one that all gates admit; None: without end.
        per_run: What one run costs, in words.
        limited_by: The gate that refuses first, in words; None if none ever does.
        schedule: When the flow runs; None without a schedule.
        exhausted_on: The day of the first run that is refused; None without such a day.
        account: Id of the account that `used` and `ahead` are of, or "".
        used: The share of its budget that is used now.
        ahead: Days of runs, the share of the budget used after each of them, and how
            many runs that is: a line for a picture. Empty without `every`.
        steps: How many steps a run has.
        run: Id of the flow run that was taken as the example, if one was.
        complete: Whether that one ran to its end.
        single: Whether steps are counted instead of runs: the example was charged
            outside of any flow run.
        older: Whether the journal has older runs, which were not looked at.
        window: Number of parts of the windows in which runs fit; 0 without windows.
    """

    dataset: str
    flow: str | None
    runs_left: int | None
    per_run: str
    limited_by: str | None
    schedule: Schedule | None = None
    exhausted_on: date | None = None
    account: str = ""
    used: float = 0.0
    ahead: tuple[tuple[date, float, int], ...] = field(default=(), repr=False)
    steps: int = 1
    run: str | None = None
    complete: bool = True
    single: bool = False
    older: bool = False
    window: int = 0

    @property
    def every(self) -> Every | None:
        """The interval between two runs, if there is a schedule."""
        return None if self.schedule is None else self.schedule.every

    @property
    def source(self) -> str:
        """The source of the schedule: "release keys", "schedule", "given" or ""."""
        return "" if self.schedule is None else self.schedule.source

    @property
    def texts(self) -> tuple[str, str, str]:
        """The gate that refuses first, the cost of a run, and the interval of runs."""
        every = "-"
        if self.every is not None:
            every = f"{self.every.text}, by its {self.source}"
        return self.limited_by or "-", self.per_run, every

    def remaining(self, planned: int | None = None) -> str:
        """Say how many of the planned runs remain, and until when."""
        left, what = self.runs_left, "step" if self.single else "run"
        if left is None:
            return f"{what}s fit permanently" if self.window else f"no end of {what}s"
        of = "" if planned is None or planned < left else f" of {planned}"
        plural = "" if (planned if of else left) == 1 else "s"
        text = f"{left}{of} {what}{plural} remain{'s' if left == 1 else ''}"
        if not self.complete:
            text += ", like the last one, which was not completed"
        until = self.exhausted_on
        return text if until is None or not left else f"{text}, until {until}"

    @property
    def sentence(self) -> str:
        """What the flow may still do, in words."""
        text = f"{self.flow or 'steps outside of any flow'}: {self.remaining()}"
        by = f", limited by the {self.limited_by}" if self.limited_by else ""
        return text + by


def outlooks(
    ledger: Source, dataset: str | None = None, *, today: date | None = None
) -> list[Outlook]:
    """Return the outlook of every flow that has charged something in a newest term.

    A flow's next runs are taken to cost what the dearest of its last completed ones
    did: of the last five, the one of which the fewest more fit.

    Args:
        ledger: The ledger to read.
        dataset: Only this one.
        today: Default: the day of the clock, in UTC.
    """
    day = today or datetime.now(UTC).date()
    with open_reading(ledger) as reading:
        names = reading.datasets if dataset is None else [dataset]
        return [line for name in names for line in _of_dataset(reading, name, day)]


def flow_outlooks(result: Iterable[Outlook]) -> list[Outlook]:
    """Return what limits each flow that several datasets have an outlook for.

    Args:
        result: The outlooks of all datasets.

    Returns:
        For each such flow its outlook on the dataset that refuses it first.
    """
    flows: dict[str, list[Outlook]] = {}
    for outlook in result:
        if outlook.flow is not None:
            flows.setdefault(outlook.flow, []).append(outlook)
    return [min(own, key=_urgency) for _, own in sorted(flows.items()) if len(own) > 1]


def _urgency(outlook: Outlook) -> tuple[float, date]:
    left = float("inf") if outlook.runs_left is None else outlook.runs_left
    return left, outlook.exhausted_on or date.max


def _of_dataset(ledger: Source, dataset: str, today: date) -> Iterator[Outlook]:
    if (runs := dataset_runs(ledger, dataset)) is None:
        return
    flows = dict.fromkeys(run.flow for run in runs.runs)
    for flow in sorted(flows, key=lambda name: (name is None, name)):
        like = example_run(ledger, runs, flow)
        yield outlook_of(
            loads_of_run(runs, like, run_charges(ledger, runs.dataset, like)),
            dataset=runs.dataset,
            flow=flow,
            steps=len(like.steps),
            schedule=flow_schedule(runs.of_flow(flow), today),
            closed=not covers_flow(runs.term.fields["pinned"], flow),
            like=like,
            older=runs.older,
        )
    pinned, gates = runs.term.fields["pinned"], None
    for flow in pinned["flows"].keys() - flows.keys():
        if workload := plan_workload(pinned, flow):
            gates = gates or standing_gates(ledger, runs.dataset)
            loads = loads_of(pinned, flow, workload, accounts=gates)
            steps = sum(step.times for step in workload)
            yield outlook_of(loads, dataset=runs.dataset, flow=flow, steps=steps)


def outlook_of(
    loads: Sequence[Load],
    *,
    dataset: str,
    flow: str | None,
    steps: int,
    schedule: Schedule | None = None,
    closed: bool = False,
    like: FlowRun | None = None,
    older: bool = False,
) -> Outlook:
    """Return the outlook for runs with these loads.

    Args:
        loads: What each run asks of every gate.
        dataset: Its name.
        flow: The flow.
        steps: How many steps a run has.
        schedule: When the flow runs; None without a schedule.
        closed: Whether the policy does not let the flow in.
        like: The run that was taken as the example, if one was.
        older: Whether the journal has older runs, which were not looked at.
    """
    left, limiting = (0, None) if closed else runs_left(loads)
    budget, windows = budget_load(loads), [load.account.window for load in loads]
    closed_by = "policy, which lets in other flows only"
    return Outlook(
        dataset=dataset,
        flow=flow,
        runs_left=left,
        per_run=_per_run(budget, steps),
        limited_by=closed_by if closed else _gate(limiting),
        schedule=schedule,
        exhausted_on=None if schedule is None else schedule.day_after(left),
        account="" if budget is None else budget.account.id,
        used=(budget and budget.share_used_after(0)) or 0.0,
        ahead=tuple(_ahead(budget, schedule, left)),
        steps=steps,
        run=None if like is None else like.run,
        complete=like is None or like.complete,
        single=like is not None and like.run is None,
        older=older,
        window=max((w.length for w in windows if w is not None), default=0),
    )


def example_run(ledger: Source, runs: DatasetRuns, flow: str | None) -> FlowRun:
    """Return the dearest of the last completed runs, or the last one if none was.

    The dearest is the one of which the fewest more fit; of equal ones, the newest.

    Args:
        ledger: The ledger to read.
        runs: Those of a dataset; one at least is the flow's.
        flow: The flow.
    """

    def room(run: FlowRun) -> list[float]:
        """Return how many more such runs fit: now, and with budgets that are whole."""
        now = loads_of_run(runs, run, run_charges(ledger, runs.dataset, run))
        empty = [replace(load, account=empty_gate(load.account)) for load in now]
        counts = (runs_left(loads)[0] for loads in (now, empty))
        return [float("inf") if count is None else count for count in counts]

    # The first of equal ones is taken.
    return min(runs.examples(flow), key=room)


def flow_schedule(runs: Sequence[FlowRun], today: date) -> Schedule | None:
    """Return when a flow runs next, as its deployment says, or its runs so far tell.

    Args:
        runs: Its runs, oldest first.
        today: No run of a deployment is before it.
    """
    newest = runs[-1] if runs else None
    if newest is not None and newest.flow and newest.deployment:
        after = datetime.fromisoformat(newest.at).date() + timedelta(days=1)
        with suppress(ConfigurationError):
            root, since = settings().root, max(today, after)
            result = read_schedule(root, newest.flow, since=since)
            if result is not None:
                return result
    times = [(datetime.fromisoformat(run.at), run.keys) for run in runs]
    return schedule_of(times)


def loads_of_run(
    runs: DatasetRuns, run: FlowRun, charges: Mapping[str, RunCharge]
) -> list[Load]:
    """Return what another such run asks of each account."""
    by = runs.term.fields["pinned"].get("partition", {}).get("by")
    return window_loads(charges.values()) + [
        Load(
            account=empty_gate(charge.gate) if renewed else charge.gate,
            spent=charge.spent,
            peaks=charge.peaks,
            renewed=renewed,
            again=None if by else _again(charge.gate, run),
        )
        for charge in charges.values()
        for renewed in (by in PERIODS and bool(charge.gate.partition),)
        if charge.gate.window is None
    ]


def _again(gate: Gate, run: FlowRun) -> Once | None:
    """Return what such a run makes of what is used, where prices depend on that."""
    if gate.rule.steady:
        return None
    with suppress(InvalidCost, UnsupportedCost):
        return load_of(gate, workload_of(run.steps)).again
    return None


def budget_load(loads: Iterable[Load]) -> Load | None:
    """Return the load on the budget that people look at: the dataset's, if any."""
    filters = [load for load in loads if isinstance(load.account.rule, Filter)]

    def order(load: Load) -> tuple[bool, int, bool]:
        rank = _BUDGETS.index(load.account.kind)
        return not any(load.spent.amounts), rank, load.renewed

    return min(filters, key=order, default=None)


def _per_run(load: Load | None, steps: int) -> str:
    counted = f"{steps} step{'' if steps == 1 else 's'}"
    if load is None:
        return counted
    rule = load.account.rule
    amounts = {k: text for k, text in rule.label(load.spent).items() if text != "0"}
    if isinstance(rule, Filter) and len(amounts) > _FEW_AMOUNTS:
        return f"{counted}, {percent_text(rule.used_fraction(load.spent))} of budget"
    return f"{counted}, {amounts_text(amounts)}"


def _gate(load: Load | None) -> str | None:
    if load is None:
        return None
    account = load.account
    title = kind_title(account.kind, account.dataset, account.name, account.partition)
    if account.state != "open":
        return f"{title}, which is {account.state}"
    if isinstance(account.rule, Odometer) and account.halt is not None:
        return f"{title}, which halts at {number_text(account.halt)}"
    return title


def _ahead(
    load: Load | None, schedule: Schedule | None, left: int | None
) -> Iterator[tuple[date, float, int]]:
    """Yield the days of runs, and what is used after each; thinned out if many."""
    last = _MOST_POINTS if left is None else left
    if load is None or load.renewed or schedule is None:
        return
    step = max(1, -(-last // _MOST_POINTS))
    for runs in [*range(1, last + 1, step), *([last] if (last - 1) % step else [])]:
        day = schedule.day_after(runs - 1)
        used = load.share_used_after(runs)
        if day is None or used is None or used == float("inf"):
            return
        yield day, used, runs


# The line of a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLine:
    """What is foreseen for one account.

    Attributes:
        account: Its id.
        points: A day, the share of the budget used after it, and how many entries the
            journal will have grown by; in this order.
        clock: Whether the days are those of the clock. Days of release keys are those
            of the periods that are reported on, such as 1997 in a backfill.
    """

    account: str
    points: tuple[tuple[date, float, int], ...]
    clock: bool


def budget_line(outlooks: Iterable[Outlook]) -> BudgetLine | None:
    """Add up the outlooks of one dataset's flows on its budget.

    Shares add up for theorems of one sum; for others the line is above what will be
    used. It ends where the budget does.

    Args:
        outlooks: Those of one dataset.

    Returns:
        None if no flow has points, or if they are on different accounts or calendars.
    """
    shown = [outlook for outlook in outlooks if outlook.ahead]
    kinds = {(outlook.account, outlook.source == "release keys") for outlook in shown}
    if len(kinds) != 1:
        return None
    start = shown[0].used
    points: list[tuple[date, float, int]] = []
    used, grown = start, 0
    moves = (move for outlook in shown for move in _moves(outlook))
    for day, share, steps in sorted(moves):
        used, grown = used + share, grown + _ENTRIES * steps
        points.append((day, min(used, 1.0), grown))
        if used >= 1:
            break
    clock = shown[0].source != "release keys"
    return BudgetLine(account=shown[0].account, points=tuple(points), clock=clock)


def _moves(outlook: Outlook) -> Iterator[tuple[date, float, int]]:
    """Yield the days, what is used from one to the next, and the steps between."""
    before, count = outlook.used, 0
    for day, used, runs in outlook.ahead:
        yield day, used - before, outlook.steps * (runs - count)
        before, count = used, runs


# The next runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingRuns:
    """The next runs of a dataset's flows.

    Attributes:
        runs: Day, flow and number (from 1) of each run that fits the budget.
        refused: Each flow whose budget ends within the list, with the first refusal.
        undated: Flows without a day.
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
    outlooks = {outlook.flow: outlook for outlook in ahead if outlook.flow is not None}
    runs, refused, undated = [], [], []
    for flow in sorted({*flows, *outlooks}):
        outlook = outlooks.get(flow)
        schedule = None if outlook is None else outlook.schedule
        if schedule is None or schedule.source != "schedule":
            schedule = read_schedule(root, flow, since=day) or schedule
        left = None if outlook is None else outlook.runs_left
        fit = count if left is None else min(left, count)
        days: list[date | None] = []
        if schedule is not None:
            days = [schedule.day_after(number) for number in range(fit + 1)]
        elif fit:
            undated.append(flow)
        runs += [(day, flow, n) for n, day in enumerate(days[:fit], 1) if day]
        if outlook is not None and fit < count:
            start = f"from {days[fit]} on" if fit and days else f"after {fit} runs"
            refused.append(f"{flow} {start if fit else 'now'} ({outlook.limited_by})")
    return ComingRuns(
        runs=tuple(sorted(runs)[:count]), refused=tuple(refused), undated=tuple(undated)
    )
