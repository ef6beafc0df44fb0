"""The engine of `dpflow forecast`: from a question to an answer, without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from fractions import Fraction

from rich.table import Table

from dpflow.cli.output import short_path
from dpflow.cli.source import (
    policies_and_problem,
    project_ledger,
    unknown_dataset,
)
from dpflow.cli.tables import cell, new_table
from dpflow.config import settings
from dpflow.exceptions import (
    ConfigurationError,
    InvalidCost,
    LedgerMissing,
    UnsupportedCost,
)
from dpflow.forecast import (
    Every,
    Load,
    Outlook,
    Schedule,
    loads_of,
    outlook_of,
    runs_left,
)
from dpflow.forecast.counts import Workload
from dpflow.forecast.gates import Pinned, population_of, refused_flow
from dpflow.forecast.noise import FACTORS, half_width, scaled_workload
from dpflow.forecast.outlook import example_run, flow_schedule
from dpflow.forecast.workload import Fit, fits, length, merged
from dpflow.forecast.workload_file import step_from_text, workload_of_run
from dpflow.ledger import Ledger, views
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.views.runs import DatasetRuns, FlowRun, dataset_runs
from dpflow.policy import PolicySet
from dpflow.policy.types import did_you_mean
from dpflow.rounding import number_from_text, short_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked on the command line."""

    dataset: str | None
    costs: tuple[str, ...]
    like: str | None
    flow: str | None
    every: str | None
    start: date | None
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRow:
    """What so much more noise would change.

    Attributes:
        widths: Half of the 95 % interval of each step of the workload.
        problem: Why nothing is known, or "".
    """

    factor: Fraction
    runs_left: int | None = None
    ends: date | None = None
    widths: tuple[Fraction | None, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a forecast says.

    Attributes:
        starts_from: Which tallies it starts from, in words.
        theorem: The policy's filter.
        divided: Whether each partition has the budget to itself.
    """

    dataset: str
    starts_from: str
    theorem: str
    divided: bool
    workload: Workload
    outlook: Outlook
    rows: tuple[NoiseRow, ...]
    fits: tuple[Fit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Where a dataset stands, or would with a full budget.

    Attributes:
        example: The run that the next ones are to be like, if one was asked for.
    """

    dataset: str
    text: str
    pinned: Pinned
    accounts: Mapping[str, Gate]
    population: Pinned | None
    runs: DatasetRuns | None
    example: FlowRun | None = None


def answer(question: Question) -> Answer:
    """Answer a question.

    Raises:
        ConfigurationError: If it names nothing that is known.
        UnsupportedCost: If a gate has no price for a step.
    """
    start = _start(question)
    _check_flow(question, start.pinned)
    question = replace(question, flow=question.flow or _only_flow(start.pinned))
    example = start.example
    if example is None:
        workload = merged(step_from_text(text) for text in question.costs)
    else:
        workload = workload_of_run(example)
    schedule = _schedule(question, start)
    loads = _loads(start, question.flow, workload)
    outlook = outlook_of(
        loads,
        dataset=start.dataset,
        flow=question.flow,
        steps=length(workload),
        schedule=schedule,
        closed=refused_flow(start.pinned, question.flow),
        like=example,
    )
    budget = start.pinned["budget"]
    return Answer(
        dataset=start.dataset,
        starts_from=start.text,
        theorem=start.pinned["filter"]["theorem"],
        divided=bool(start.pinned.get("partition")),
        workload=workload,
        outlook=outlook,
        rows=tuple(_rows(start, question.flow, workload, schedule)),
        fits=tuple(
            fits(
                workload,
                epsilon=number_from_text(budget["epsilon"]),
                delta=number_from_text(budget["delta"]),
                own=start.pinned["filter"],
                needs=False,
            )
        ),
    )


# Where it starts from


def _start(question: Question) -> _Start:
    try:
        with project_ledger() as (found, ledger):
            policies, _ = policies_and_problem(found.policies)
            return _in_ledger(ledger, policies, question)
    except LedgerMissing:
        if question.like is not None:
            raise
        policies, problem = policies_and_problem(settings().policies)
        if problem is not None:
            raise ConfigurationError(problem) from None
        if not policies:
            folder = short_path(settings().policies)
            msg = f"there is neither a ledger nor a policy in {folder}/. "
            raise ConfigurationError(msg + "`dpflow init` makes both.") from None
        name = _named(question.dataset, sorted(_datasets(policies)))
        return _from_policy(policies, name, "There is no ledger yet: a full budget.")


def _in_ledger(ledger: Ledger, policies: PolicySet, question: Question) -> _Start:
    known = {view.dataset for view in views.accounts(ledger)} | set(policies)
    wanted = sorted(_datasets(known))
    if question.dataset is None and question.like is not None:
        wanted = [name for name in wanted if _has_run(ledger, name, question.like)]
        if not wanted:
            raise _unknown_flow(question.like, _flows(ledger, sorted(_datasets(known))))
    name = _named(question.dataset, wanted)
    if name not in known:
        raise unknown_dataset(name, known)
    runs = dataset_runs(ledger, name)
    if runs is None and question.like is not None:
        raise _unknown_flow(question.like, set())
    if runs is None or (question.fresh and question.like is None and name in policies):
        text = "A full budget, as asked." if question.fresh else "Nothing was charged."
        return _from_policy(policies, name, text)
    above = population_of(runs.term.facts["pinned"])
    whole = None if above is None else dataset_runs(ledger, above)
    start = _Start(
        dataset=name,
        text=f"From what the ledger has charged in term {runs.term.number}.",
        pinned=runs.term.facts["pinned"],
        accounts=runs.accounts,
        population=None if whole is None else whole.term.facts["pinned"],
        runs=runs,
        example=None
        if question.like is None
        else _example(ledger, runs, question.like),
    )
    if question.fresh:
        return replace(start, accounts={}, text="A full budget, as asked.")
    return start


def _from_policy(policies: PolicySet, name: str, text: str) -> _Start:
    policy = policies.policy_for(name)
    pinned = policy.pinned()
    above = population_of(pinned)
    population = None if above is None else policies.policy_for(above).pinned()
    return _Start(
        dataset=name,
        text=text,
        pinned=pinned,
        accounts={},
        population=population,
        runs=None,
    )


def _datasets(names: Sequence[str] | set[str] | PolicySet) -> set[str]:
    return {name for name in names if not name.startswith("population/")}


def _named(dataset: str | None, known: Sequence[str]) -> str:
    if dataset is not None:
        return dataset
    if len(known) == 1:
        return known[0]
    names = ", ".join(known) or "none yet"
    msg = f"say which DATASET is meant; there are: {names}"
    raise ConfigurationError(msg)


def _has_run(ledger: Ledger, dataset: str, flow: str) -> bool:
    return flow in _flows(ledger, [dataset])


def _flows(ledger: Ledger, datasets: Sequence[str]) -> set[str]:
    found = [dataset_runs(ledger, name) for name in datasets]
    return {run.flow for runs in found if runs for run in runs.runs if run.flow}


def _unknown_flow(flow: str, known: set[str]) -> ConfigurationError:
    msg = (
        f"no run of the flow {flow!r} was charged in a newest term, so nothing is "
        "known of it. "
    )
    if known:
        msg += f"{did_you_mean(flow, known)} Or describe it with --cost."
    else:
        msg += "Run it once, or describe it with --cost."
    return ConfigurationError(msg)


def _example(ledger: Ledger, runs: DatasetRuns, flow: str) -> FlowRun:
    known = {run.flow for run in runs.runs if run.flow}
    if flow not in known:
        raise _unknown_flow(flow, known)
    return example_run(ledger, runs, flow)


def _check_flow(question: Question, pinned: Pinned) -> None:
    """Refuse a flow that the policy keeps out, unless it ran before that."""
    flow = question.flow
    if flow in (None, question.like) or not refused_flow(pinned, flow):
        return
    msg = (
        f"the policy of {pinned['dataset']!r} does not let the flow {flow!r} in. "
        f"{did_you_mean(str(flow), pinned['flows'])}"
    )
    raise ConfigurationError(msg)


def _only_flow(pinned: Pinned) -> str | None:
    """Return the flow that must be meant, where only named flows are let in."""
    flows = sorted(pinned["flows"])
    if not refused_flow(pinned, None):
        return None
    if len(flows) == 1:
        return str(flows[0])
    msg = f"say which --flow is meant; the policy lets in: {', '.join(flows)}"
    raise ConfigurationError(msg)


# What follows


def _loads(start: _Start, flow: str | None, workload: Workload) -> list[Load]:
    return loads_of(
        start.pinned,
        flow,
        workload,
        accounts=start.accounts,
        population=start.population,
    )


def _schedule(question: Question, start: _Start) -> Schedule | None:
    today = datetime.now(UTC).date()
    runs = [] if start.runs is None else start.runs.of_flow(question.flow)
    told = flow_schedule(runs, today)
    if question.every is not None:
        every = Every.parse(question.every)
        first = question.start or (told.first if told else today)
        return Schedule(every, first, "given")
    if question.start is None:
        return told
    if told is None:
        msg = (
            f"how often {question.flow} runs is not known, so --from needs --every "
            "INTERVAL, such as `week`"
        )
        raise ConfigurationError(msg)
    return replace(told, first=question.start)


def _rows(
    start: _Start, flow: str | None, workload: Workload, schedule: Schedule | None
) -> Iterator[NoiseRow]:
    for factor in FACTORS:
        try:
            other = scaled_workload(workload, factor)
            left, _ = runs_left(_loads(start, flow, other))
        except (InvalidCost, UnsupportedCost) as error:
            yield NoiseRow(factor=factor, problem=error.message)
            continue
        if refused_flow(start.pinned, flow):
            left = 0
        ends = None
        if schedule is not None and left is not None:
            ends = schedule.every.after(schedule.first, left)
        widths = tuple(half_width(step.cost) for step in other)
        yield NoiseRow(factor=factor, runs_left=left, ends=ends, widths=widths)


def noise_table(found: Answer) -> Table:
    """Show what other noise would change."""
    numbers = ("noise", "runs", "refused from")
    columns = ("noise", "runs", "refused from", "95 % of releases within +-")
    table = new_table(*columns, numbers=numbers)
    for row in found.rows:
        style = "bold" if row.factor == 1 else ""
        widths = ", ".join("-" if w is None else short_up(w, 3) for w in row.widths)
        left = "no end" if row.runs_left is None else str(row.runs_left)
        table.add_row(
            cell(f"x {float(row.factor):g}", style),
            cell("-" if row.problem else left, style),
            cell(row.ends or "-", style),
            cell(row.problem or widths, "dim" if row.problem else style),
        )
    return table
