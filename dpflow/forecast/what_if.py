"""What if a flow ran that often, with that noise? Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import ConfigurationError, InvalidCost, UnsupportedCost
from dpflow.forecast.cadence import Every, Schedule
from dpflow.forecast.counting import (
    Load,
    Pinned,
    Workload,
    WorkloadStep,
    loads_of,
    merge,
    plan_workload,
    runs_left,
    workload_of,
)
from dpflow.forecast.noise import FACTORS, EnoughNoise, enough_noise, scale_workload
from dpflow.forecast.outlook import Outlook, example_run, flow_schedule, outlook_of
from dpflow.forecast.source import Governed, ProjectSource, project_source
from dpflow.forecast.theorems import Fit, fits
from dpflow.guard.inspection import Tell, as_warning
from dpflow.ledger.decisions.gates import covers_flow
from dpflow.ledger.views.runs import dataset_runs
from dpflow.noise.accuracy import half_width
from dpflow.notebook import Sheet, TableRecord
from dpflow.policy.planned_noise import plan_noise
from dpflow.policy.reserved import run_lines
from dpflow.policy.types import did_you_mean
from dpflow.rounding import float_up, number_from_text, short_up


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """What more noise would change.

    Attributes:
        widths: Half of the 95 % interval of each step of the workload, rounded up.
        problem: Why there is no forecast, or "".
    """

    factor: Fraction
    runs_left: int | None = None
    ends: date | None = None
    widths: tuple[float | None, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast(TableRecord):
    """How many runs of a flow fit, until when, and what other noise would change.

    Attributes:
        starts_from: Which tallies it starts from, in words.
        theorem: The policy's filter.
        divided: Whether each partition has the budget to itself.
        workload: The steps of one run.
        rows: What other noise would change.
        fits: How many such runs each theorem admits with the whole budget; empty
            unless it was requested.
        enough: The noise with which the wanted runs fit, if a number was given.
        plans: What noise the policy plans, in words.
        planned: The same for programs, by flow: runs, mechanism, noise by step.
    """

    dataset: str
    starts_from: str
    theorem: str
    divided: bool
    workload: Workload
    outlook: Outlook
    rows: tuple[NoiseRow, ...]
    fits: tuple[Fit, ...] = ()
    enough: EnoughNoise | None = None
    plans: tuple[str, ...] = ()
    planned: Mapping[str, Any] = field(default_factory=dict)

    def sheet(self) -> Sheet:
        """Return its table of other noise."""
        heads, steps = (
            ("noise", "runs", "refused from"),
            range(1, len(self.workload) + 1),
        )
        widths = [f"95 % within +-: step {number}" for number in steps]
        if len(widths) == 1:
            widths = ["95 % of releases within +-"]
        rows = [_cells(row, len(widths)) for row in self.rows]
        return Sheet((*heads, *widths), rows, heads)


def _cells(row: NoiseRow, steps: int) -> tuple[str, ...]:
    widths = [
        "-" if width is None else short_up(Fraction(width), 3) for width in row.widths
    ]
    left = "no end" if row.runs_left is None else str(row.runs_left)
    if row.problem:
        left, widths = "-", [row.problem, *[""] * (steps - 1)]
    return f"x {float(row.factor):g}", left, str(row.ends or "-"), *widths


def forecast(
    dataset: str | None = None,
    *,
    costs: Sequence[str] = (),
    like: str | None = None,
    flow: str | None = None,
    every: str | None = None,
    start: date | None = None,
    runs: int | None = None,
    from_full_budget: bool = False,
    theorems: bool = False,
    tell: Tell = as_warning,
) -> Forecast:
    """Say how many runs fit, until when, and what other noise would change.

    Nothing is charged or written.

    Args:
        dataset: The dataset; None if there is only one.
        costs: The steps of a run, such as "Gaussian(sensitivity=1, sigma=40)".
            Default: those of the flow's plan, at sensitivity 1; else those of its
            dearest run of the last 5.
        like: In place of them a flow, of whose last 5 runs the dearest is taken.
        flow: The flow whose share and halt count. Default: that one.
        every: How often it runs, such as "week". Default: as the flow did so far.
        start: The first run. Default: today, or the flow's next one.
        runs: How many runs have to fit: with which noise do they?
        from_full_budget: Start from a full budget.
        theorems: Count the runs under every other theorem, too, each with the whole
            budget. It takes seconds.
        tell: Called if the ledger forgot charges.

    Raises:
        ConfigurationError: If it names no step or flow of the ledger.
        LedgerError: If there is a ledger and it cannot be used.
        InvalidCost: If a cost cannot be read.
        UnsupportedCost: If a gate has no price for a step.
    """
    if costs and like is not None:
        msg = "give either the costs of a run, or a flow that its runs are like"
        raise ConfigurationError(msg)
    with project_source(tell) as source:
        ran = None if like is None else _that_ran(source, like, dataset)
        name = source.chosen(dataset, among=ran)
        result = source.read_governed(name, fresh=from_full_budget and like is None)
        text = _starts_from(source, result, fresh=from_full_budget)
        flow, example = _check_flow(flow or like, like, result.pinned), None
        workload = () if like else plan_workload(result.pinned, flow)
        if costs:
            workload = merge(WorkloadStep(cost_from_text(cost)) for cost in costs)
        elif not workload and result.runs is not None and result.runs.of_flow(flow):
            example = example_run(source.require_ledger(), result.runs, flow)
            workload = workload_of(example.steps)
    if not workload:
        msg = (
            f"the policy of {name!r} plans no run"
            f"{'' if flow is None else f' of the flow {flow!r}'}, and the newest term "
            "has charged none. Describe a run with --cost."
        )
        raise ConfigurationError(msg)
    run = _PlannedRun(result, flow, workload, from_full_budget)
    pinned, schedule = result.pinned, _schedule(result, flow, every, start)
    outlook = outlook_of(
        run.loads(),
        dataset=name,
        flow=flow,
        steps=sum(step.times for step in workload),
        schedule=schedule,
        closed=run.closed,
        like=example,
    )
    return Forecast(
        dataset=name,
        starts_from=text,
        theorem=pinned["filter"]["theorem"],
        divided=bool(pinned.get("partition")),
        workload=workload,
        outlook=outlook,
        rows=tuple(_rows(run, schedule)),
        fits=tuple(run.fits()) if theorems else (),
        enough=None if runs is None else run.enough(runs),
        plans=tuple(run_lines(pinned)),
        planned=plan_noise(pinned),
    )


def forecast_flows(
    dataset: str | None = None, *, flow: str | None = None, **options: Any
) -> list[Forecast]:
    """Return a forecast for each flow that has a plan or has run.

    Args:
        dataset: The dataset; None if there is only one.
        flow: Only this flow.
        **options: Options of `forecast`. With costs there is one forecast.

    Raises:
        ConfigurationError: If no flow has a plan or a run, among others of `forecast`.
    """
    if options.get("costs") or options.get("like") or flow:
        return [forecast(dataset, flow=flow, **options)]
    with project_source(options.get("tell", as_warning)) as source:
        dataset = source.chosen(dataset)
        fresh = options.get("from_full_budget", False)
        result = source.read_governed(dataset, fresh=fresh)
    ran = [] if result.runs is None else [run.flow for run in result.runs.runs]
    flows = sorted({*plan_noise(result.pinned), *filter(None, ran)})
    outside: list[str | None] = [None] * (None in ran or not flows)
    return [forecast(dataset, flow=name, **options) for name in [*flows, *outside]]


@dataclass(frozen=True, slots=True)
class _PlannedRun:
    """A run of a flow, on a dataset as it stands or with a full budget."""

    on: Governed
    flow: str | None
    workload: Workload
    fresh: bool

    @property
    def closed(self) -> bool:
        """Whether the policy does not let the flow in."""
        return not covers_flow(self.on.pinned, self.flow)

    def loads(self) -> list[Load]:
        """Return what it asks of each gate."""
        return loads_of(
            self.on.pinned,
            self.flow,
            self.workload,
            accounts={} if self.fresh else self.on.accounts,
            population=self.on.population,
        )

    def enough(self, runs: int) -> EnoughNoise:
        """Return the noise with which this number of runs fits."""
        return enough_noise(
            self.workload,
            runs,
            lambda other: runs_left(replace(self, workload=other).loads())[0],
        )

    def fits(self) -> list[Fit]:
        """Return how many such runs each theorem admits with the whole budget."""
        pinned = self.on.pinned
        budget = {n: number_from_text(text) for n, text in pinned["budget"].items()}
        return fits(self.workload, **budget, own=pinned["filter"], sequence=True)


# Where it starts from


def _starts_from(source: ProjectSource, governed: Governed, *, fresh: bool) -> str:
    if source.ledger is None:
        return "There is no ledger yet: a full budget."
    if fresh:
        return "A full budget."
    if governed.runs is None:
        return "Nothing was charged."
    return f"From what the ledger has charged in term {governed.runs.term.number}."


def _that_ran(source: ProjectSource, flow: str, dataset: str | None) -> list[str]:
    """Return the datasets that a flow has charged, of all or of one."""
    ledger = source.require_ledger()
    flows: dict[str, set[str]] = {}
    for name in source.datasets if dataset is None else [dataset]:
        runs = getattr(dataset_runs(ledger, name), "runs", ())
        flows[name] = {run.flow for run in runs if run.flow}
    result = [name for name, own in flows.items() if flow in own]
    names = set().union(*flows.values())
    if not result:
        hint = f"{did_you_mean(flow, names)} Or" if names else "Run it once, or"
        msg = (
            f"no run of the flow {flow!r} was charged in a newest term, so it "
            f"has no forecast. {hint} describe it with --cost."
        )
        raise ConfigurationError(msg)
    return result


def _check_flow(flow: str | None, like: str | None, pinned: Pinned) -> str | None:
    """Refuse a flow that the policy keeps out, unless it ran before that.

    Where only named flows are let in, and it is the only one, the forecast is for it.
    """
    if flow is not None:
        if flow == like or covers_flow(pinned, flow):
            return flow
        msg = (
            f"the policy of {pinned['dataset']!r} does not let the flow {flow!r} in. "
            f"{did_you_mean(flow, pinned['flows'])}"
        )
        raise ConfigurationError(msg)
    if covers_flow(pinned, None):
        return None
    flows = sorted(pinned["flows"])
    if len(flows) == 1:
        return str(flows[0])
    msg = f"name the --flow; the policy lets in: {', '.join(flows)}"
    raise ConfigurationError(msg)


# What follows


def _schedule(
    governed: Governed, flow: str | None, every: str | None, start: date | None
) -> Schedule | None:
    today = datetime.now(UTC).date()
    runs = [] if governed.runs is None else governed.runs.of_flow(flow)
    cadence = flow_schedule(runs, today)
    if every is not None:
        first = start or (cadence.first if cadence else today)
        return Schedule(Every.parse(every), first, "given")
    if start is None:
        return cadence
    if cadence is None:
        msg = (
            f"flow {flow} has no schedule, so --from needs --every "
            "INTERVAL, such as `week`"
        )
        raise ConfigurationError(msg)
    return replace(cadence, first=start)


def _rows(run: _PlannedRun, schedule: Schedule | None) -> Iterator[NoiseRow]:
    for factor in FACTORS:
        try:
            other = scale_workload(run.workload, factor)
            left, _ = runs_left(replace(run, workload=other).loads())
        except (InvalidCost, UnsupportedCost) as error:
            yield NoiseRow(factor=factor, problem=error.message)
            continue
        left = 0 if run.closed else left
        ends = None if schedule is None else schedule.day_after(left)
        exact = (half_width(step.cost) for step in other)
        widths = tuple(None if width is None else float_up(width) for width in exact)
        yield NoiseRow(factor=factor, runs_left=left, ends=ends, widths=widths)
