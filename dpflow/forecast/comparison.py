"""All theorems on one workload: what fits of it, and what each needs for all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpflow.accounting import ODOMETERS
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.text import cost_from_text
from dpflow.config import short_path
from dpflow.exceptions import ConfigurationError, InvalidCost
from dpflow.forecast.counts import Workload, WorkloadStep
from dpflow.forecast.source import project_source
from dpflow.forecast.stopping import Leftover, leftovers, small_step
from dpflow.forecast.workload import Fit, OdometerReading, fits, merged, reading_of
from dpflow.forecast.workload_file import (
    read_workload,
    step_from_text,
    workload_of_runs,
)
from dpflow.guard.inspection import Tell, as_warning
from dpflow.policy.pinned import budget_text
from dpflow.rounding import exact_delta, exact_epsilon, number_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A step that may end early, and what each way of accounting leaves."""

    cost: EarlyStopping
    stop: int
    rest: Cost
    ways: tuple[Leftover, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoremComparison:
    """All theorems on one workload.

    Attributes:
        where: Where the workload is from, in words.
        theorem: The policy's filter; "" without a policy.
    """

    dataset: str | None
    where: str
    theorem: str
    epsilon: Fraction
    delta: Fraction
    workload: Workload
    fits: tuple[Fit, ...]
    readings: tuple[OdometerReading, ...]
    stopping: tuple[Stopping, ...]

    @property
    def budget_json(self) -> dict[str, str]:
        """The budget as exact text."""
        return {
            "epsilon": number_text(self.epsilon),
            "delta": number_text(self.delta),
        }

    @property
    def budget_text(self) -> str:
        """The budget in words."""
        return budget_text(self.budget_json)


Budget = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A workload, the budget that it came with, and the filter of its policy."""

    where: str
    workload: Workload
    dataset: str | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | None = None


def compare_theorems(
    dataset: str | None = None,
    *,
    costs: Sequence[str] = (),
    times: int = 1,
    file: Path | None = None,
    stop: int | None = None,
    rest: str | None = None,
    epsilon: str | None = None,
    delta: str | None = None,
    tell: Tell = as_warning,
) -> TheoremComparison:
    """Compare the theorems, each with the whole budget to itself.

    Args:
        dataset: The dataset; None if there is only one, or none is needed.
        costs: Steps, such as "PureDP(epsilon=0.1)". Default: all that the dataset was
            charged in its newest term.
        times: How often each of them runs.
        file: A workload file in their place.
        stop: Sub-steps after which a step that may end early does.
        rest: What the rest is for then. Default: pure steps of 1/100 of epsilon.
        epsilon: A budget in place of the file's or the policy's.
        delta: Of that budget.
        tell: Called if the ledger forgot charges.

    Raises:
        ConfigurationError: If there is no workload, or no budget.
        LedgerError: If there is a ledger and it cannot be used.
        InvalidCost: If a cost or a number is none.
    """
    given = _given(costs, times, file)
    if given is None:
        task = _journal(dataset, tell)
    elif dataset is None and (given.budget or epsilon):
        task = given
    else:
        task = _under_policy(given, dataset, tell)
    budget = _budget(epsilon, delta, task)
    workload = _stopped(task.workload, stop)
    filler = small_step(budget[0]) if not rest else cost_from_text(rest)
    found = fits(workload, epsilon=budget[0], delta=budget[1], own=task.own)
    return TheoremComparison(
        dataset=task.dataset,
        where=task.where,
        theorem=task.own.get("theorem", ""),
        epsilon=budget[0],
        delta=budget[1],
        workload=workload,
        fits=tuple(found),
        readings=tuple(_readings(workload, *budget)),
        stopping=tuple(_stopping(workload, filler, budget)),
    )


def _stopping(workload: Workload, rest: Cost, budget: Budget) -> Iterator[Stopping]:
    epsilon, delta = budget
    for cost, outcome in dict.fromkeys((step.cost, step.outcome) for step in workload):
        if isinstance(cost, EarlyStopping):
            stop = int(outcome or cost.stops[-1])
            ways = leftovers(cost, stop, rest, epsilon=epsilon, delta=delta)
            yield Stopping(cost=cost, stop=stop, rest=rest, ways=tuple(ways))


def _readings(
    workload: Workload, epsilon: Fraction, delta: Fraction
) -> list[OdometerReading]:
    if not delta:
        # An odometer's bound fails with a probability above zero.
        problem = "it needs a delta above 0"
        return [OdometerReading(theorem=name, problem=problem) for name in ODOMETERS]
    found = [
        reading_of(name, workload, tuned_for=epsilon, delta=delta) for name in ODOMETERS
    ]
    return sorted(found, key=lambda each: (bool(each.problem), each.epsilon))


def _stopped(workload: Workload, stop: int | None) -> Workload:
    """Let every step that may end early end there."""
    if stop is None:
        return workload
    if not any(isinstance(step.cost, EarlyStopping) for step in workload):
        msg = "--stop needs a workload with an EarlyStopping cost"
        raise ConfigurationError(msg)
    found = []
    for step in workload:
        if isinstance(step.cost, EarlyStopping):
            step.cost.realised(stop)
            found.append(WorkloadStep(step.cost, step.times, stop))
        else:
            found.append(step)
    return merged(found)


# Where the workload and the budget are from


def _given(costs: Sequence[str], times: int, file: Path | None) -> _Task | None:
    if file is not None:
        read = read_workload(file)
        budget = None if read.epsilon is None else (read.epsilon, read.delta)
        where = f"in {short_path(file)}"
        return _Task(where=where, workload=read.steps, budget=budget)
    if not costs:
        return None
    steps = merged(step_from_text(text, times) for text in costs)
    return _Task(where="as given", workload=steps)


def _under_policy(given: _Task, dataset: str | None, tell: Tell) -> _Task:
    """Take the filter, and the budget if there is none, that govern a dataset."""
    with project_source(tell) as source:
        hint = "give --epsilon and --delta"
        found = source.governed(source.chosen(dataset, otherwise=hint))
    return replace(
        given,
        dataset=found.dataset,
        own=found.declared.get("filter", {}),
        budget=given.budget or found.budget,
    )


def _journal(dataset: str | None, tell: Tell) -> _Task:
    """Take all that a dataset's newest term charged."""
    hint = "give a workload with --cost or --workload"
    with project_source(tell) as source:
        source.needed(f"Or {hint}.")
        name = source.chosen(dataset, otherwise=hint)
        found = source.governed(name, most=None)
    runs = found.runs
    steps = () if runs is None else workload_of_runs(runs.runs)
    if runs is None or not steps:
        msg = (
            f"no step of dataset {name!r} was charged in its newest term, so its "
            "journal is no workload. Give one with --cost or --workload."
        )
        raise ConfigurationError(msg)
    return _Task(
        dataset=name,
        where=f"of term {runs.term.number}",
        workload=steps,
        # As it was declared: what a default derives, it derives for each epsilon.
        own=found.declared.get("filter", {}),
        budget=found.budget,
    )


def _budget(epsilon: str | None, delta: str | None, task: _Task) -> Budget:
    if epsilon is not None:
        return exact_epsilon(epsilon), exact_delta(delta or "0")
    if task.budget is None or delta is not None:
        msg = "a budget needs --epsilon, and --delta if it has one"
        raise InvalidCost(msg, name="epsilon", value=None)
    return task.budget
