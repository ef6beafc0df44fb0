"""How many more runs each flow has, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from dpflow.accounting.theorem import Filter, Odometer
from dpflow.forecast.cadence import Every, Schedule, schedule_of
from dpflow.forecast.gates import refused_flow
from dpflow.forecast.loads import Load, empty_account, runs_left
from dpflow.ledger import Ledger, views
from dpflow.ledger.account import Account
from dpflow.ledger.runs import DatasetRuns, FlowRun, RunCharge, dataset_runs
from dpflow.policy_copy import TIMES
from dpflow.rounding import number_text
from dpflow.summary import amounts_text, kind_title, percent_text

#: A line of a picture needs no more points.
_MOST_POINTS = 200
#: Of more amounts, as a portfolio has, only the share of the budget is told.
_FEW_AMOUNTS = 2
_BUDGETS = ("dataset", "population", "partition", "flow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """How far the budget of a dataset goes for one flow.

    Attributes:
        dataset: Its name.
        flow: The flow; None for steps outside of any flow that was named.
        runs_left: Further runs like this one that all gates admit; None: without end.
        per_run: What one run costs, in words.
        limited_by: The gate that refuses first, in words; None if none ever does.
        every: How often the flow runs; None if that is not known.
        source: Where that is known from: "release keys", "run times" or "given".
        exhausted_on: The day of the first run that is refused; None if not known.
        points: Days and the share of the budget used after each of them: a line for a
            picture of the budget. Empty without `every`.
        run: Id of the flow run that was taken as the example, if one was.
        complete: Whether that one ran to its end.
    """

    dataset: str
    flow: str | None
    runs_left: int | None
    per_run: str
    limited_by: str | None
    every: Every | None = None
    source: str = ""
    exhausted_on: date | None = None
    points: tuple[tuple[date, float], ...] = ()
    run: str | None = None
    complete: bool = True


def outlooks(
    ledger: Ledger, dataset: str | None = None, *, today: date | None = None
) -> list[Outlook]:
    """Return the outlook of every flow that has charged something in a newest term.

    Each flow's last completed run is what its next ones are taken to cost.

    Args:
        ledger: The ledger to read.
        dataset: Only this one.
        today: Default: the day of the clock, in UTC.
    """
    day = today or datetime.now(UTC).date()
    known = {view.dataset for view in views.accounts(ledger, dataset)}
    found: list[Outlook] = []
    for name in sorted(known):
        runs = dataset_runs(ledger, name)
        if runs is not None:
            found += _of_dataset(runs, day)
    return found


def _of_dataset(runs: DatasetRuns, today: date) -> Iterator[Outlook]:
    flows = dict.fromkeys(run.flow for run in runs.runs)
    for flow in sorted(flows, key=lambda name: (name is None, name)):
        own = runs.of_flow(flow)
        like = example_run(own)
        yield outlook_of(
            loads_of_run(runs, like),
            dataset=runs.dataset,
            flow=flow,
            steps=len(like.steps),
            schedule=history_schedule(own, today),
            closed=refused_flow(runs.term.pinned, flow),
            run=like.run,
            complete=like.complete,
        )


def outlook_of(
    loads: Sequence[Load],
    *,
    dataset: str,
    flow: str | None,
    steps: int,
    schedule: Schedule | None = None,
    closed: bool = False,
    run: str | None = None,
    complete: bool = True,
) -> Outlook:
    """Return the outlook for runs that ask so much.

    Args:
        loads: What each run asks of every gate.
        dataset: Its name.
        flow: The flow.
        steps: How many steps a run has.
        schedule: When the flow runs; None if nobody knows.
        closed: Whether the policy does not let the flow in.
        run: Id of the flow run that was taken as the example, if one was.
        complete: Whether that one ran to its end.
    """
    left, limiting = (0, None) if closed else runs_left(loads)
    budget = budget_load(loads)
    ends = None
    points: tuple[tuple[date, float], ...] = ()
    if schedule is not None:
        if left is not None:
            ends = schedule.every.after(schedule.first, left)
        points = tuple(_points(budget, schedule, left))
    return Outlook(
        dataset=dataset,
        flow=flow,
        runs_left=left,
        per_run=_per_run(budget, steps),
        limited_by="policy, which lets in other flows only"
        if closed
        else _gate(limiting),
        every=None if schedule is None else schedule.every,
        source="" if schedule is None else schedule.source,
        exhausted_on=ends,
        points=points,
        run=run,
        complete=complete,
    )


def example_run(runs: Sequence[FlowRun]) -> FlowRun:
    """Return the last completed run, or the last one if none was completed."""
    return next((run for run in reversed(runs) if run.complete), runs[-1])


def history_schedule(runs: Sequence[FlowRun], today: date) -> Schedule | None:
    """Return when a flow runs, as its runs so far tell."""
    told = [
        (datetime.fromisoformat(run.at), [step.key for step in run.steps if step.key])
        for run in runs
    ]
    return schedule_of(told, today)


def loads_of_run(runs: DatasetRuns, run: FlowRun) -> list[Load]:
    """Return what another such run asks of each account, as its journal tells."""
    parts = runs.term.pinned.get("partition")
    renews = parts is not None and parts["by"] in TIMES
    return [
        _load(account, charge, renewed=renews and bool(account.partition))
        for name, charge in run.charges.items()
        if (account := runs.accounts[name])
    ]


def _load(account: Account, charge: RunCharge, *, renewed: bool) -> Load:
    if renewed:
        names = account.dataset, account.kind, account.name
        account = empty_account(*names, account.rule, account.halt)
    return Load(
        account=account, spent=charge.spent, peaks=charge.peaks, renewed=renewed
    )


def budget_load(loads: Iterable[Load]) -> Load | None:
    """Return the load on the budget that people look at: the dataset's, if any."""
    filters = [load for load in loads if isinstance(load.account.rule, Filter)]
    filters.sort(
        key=lambda load: (not any(load.spent.amounts), _place(load), load.renewed)
    )
    return filters[0] if filters else None


def _place(load: Load) -> int:
    kind = load.account.kind
    return _BUDGETS.index(kind) if kind in _BUDGETS else len(_BUDGETS)


def _per_run(load: Load | None, steps: int) -> str:
    counted = f"{steps} step{'' if steps == 1 else 's'}"
    if load is None:
        return counted
    rule = load.account.rule
    amounts = {k: text for k, text in rule.named(load.spent).items() if text != "0"}
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


def _points(
    load: Load | None, schedule: Schedule, left: int | None
) -> Iterator[tuple[date, float]]:
    """Yield the days of runs, and the share used after each; thinned out if many."""
    last = _MOST_POINTS if left is None else left
    if load is None or load.renewed:
        return
    step = max(1, -(-last // _MOST_POINTS))
    for runs in [*range(1, last + 1, step), *([last] if (last - 1) % step else [])]:
        day = schedule.every.after(schedule.first, runs - 1)
        used = load.used_after(runs)
        if day is None or used is None or used == float("inf"):
            return
        yield day, used
