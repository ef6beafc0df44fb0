"""The engine of `dpflow compare`: workload, budget and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.table import Table

from dpflow.accounting import ODOMETERS
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.text import cost_from_text
from dpflow.cli.output import short_path
from dpflow.cli.source import (
    policies_and_problem,
    project_ledger,
    unknown_dataset,
)
from dpflow.cli.tables import cell, new_table
from dpflow.cli.theorem_tables import no_price
from dpflow.config import settings
from dpflow.exceptions import ConfigurationError, InvalidCost, LedgerMissing
from dpflow.forecast.counts import Step, Workload
from dpflow.forecast.stopping import Leftover, leftovers, small_step
from dpflow.forecast.workload import Fit, Reading, fits, merged, reading_of
from dpflow.forecast.workload_file import (
    read_workload,
    step_from_text,
    workload_of_runs,
)
from dpflow.ledger import views
from dpflow.ledger.views.runs import DatasetRuns, dataset_runs
from dpflow.ledger.views.words import percent_text
from dpflow.policy.pinned import budget_text
from dpflow.policy.population import PREFIX
from dpflow.rounding import (
    exact_delta,
    exact_epsilon,
    number_from_text,
    number_text,
    reading_up,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What was asked on the command line."""

    dataset: str | None
    file: Path | None
    costs: tuple[str, ...]
    times: int
    stop: int | None
    rest: str | None
    epsilon: str | None
    delta: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """A step that may end early, and what each way of accounting leaves."""

    cost: EarlyStopping
    stop: int
    rest: Cost
    ways: tuple[Leftover, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
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
    readings: tuple[Reading, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A workload and the budget that it came with."""

    dataset: str | None
    where: str
    workload: Workload
    own: Mapping[str, Any] = field(default_factory=dict)
    budget: tuple[Fraction, Fraction] | None = None


def compared(question: Question) -> Comparison:
    """Compare the theorems.

    Raises:
        ConfigurationError: If there is no workload, or no budget.
        InvalidCost: If a cost or a number is none.
    """
    source = _source(question)
    epsilon, delta = _budget(question, source)
    workload = _stopped(source.workload, question.stop)
    rest = small_step(epsilon) if not question.rest else cost_from_text(question.rest)
    found = fits(workload, epsilon=epsilon, delta=delta, own=source.own)
    return Comparison(
        dataset=source.dataset,
        where=source.where,
        theorem=source.own.get("theorem", ""),
        epsilon=epsilon,
        delta=delta,
        workload=workload,
        fits=tuple(found),
        readings=tuple(_readings(workload, epsilon, delta)),
        stopping=tuple(
            Stopping(
                cost=step.cost,
                stop=int(step.outcome or step.cost.stops[-1]),
                rest=rest,
                ways=tuple(
                    leftovers(
                        step.cost,
                        int(step.outcome or step.cost.stops[-1]),
                        rest,
                        epsilon=epsilon,
                        delta=delta,
                    )
                ),
            )
            for step in dict.fromkeys(Step(s.cost, 1, s.outcome) for s in workload)
            if isinstance(step.cost, EarlyStopping)
        ),
    )


def _readings(workload: Workload, epsilon: Fraction, delta: Fraction) -> list[Reading]:
    if not delta:
        # An odometer's bound fails with a probability above zero.
        problem = "it needs a delta above 0"
        return [Reading(theorem=name, problem=problem) for name in ODOMETERS]
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
            found.append(Step(step.cost, step.times, stop))
        else:
            found.append(step)
    return merged(found)


# Where the workload and the budget are from


def _source(question: Question) -> _Source:
    if question.file is not None:
        read = read_workload(question.file)
        budget = None if read.epsilon is None else (read.epsilon, read.delta)
        where = f"in {short_path(question.file)}"
        given = _Source(
            dataset=question.dataset, where=where, workload=read.steps, budget=budget
        )
    elif question.costs:
        steps = merged(step_from_text(text, question.times) for text in question.costs)
        given = _Source(dataset=question.dataset, where="as given", workload=steps)
    else:
        return _journal(question)
    if given.dataset is None and (given.budget or question.epsilon):
        return given
    policies, problem = policies_and_problem(settings().policies)
    if problem is not None:
        raise ConfigurationError(problem)
    name = _only(given.dataset, list(policies), "or give --epsilon and --delta")
    policy = policies.policy_for(name)
    rule = policy.dataset_filter()
    return _Source(
        dataset=name,
        where=given.where,
        workload=given.workload,
        own=policy.declared()["filter"],
        budget=given.budget or (rule.epsilon, rule.delta),
    )


def _journal(question: Question) -> _Source:
    """Take all that a dataset's newest term charged."""
    try:
        with project_ledger() as (found, ledger):
            policies, _ = policies_and_problem(found.policies)
            known = {view.dataset for view in views.accounts(ledger)} | set(policies)
            hint = "or give a workload with --cost or --workload"
            name = _only(question.dataset, sorted(known), hint)
            if name not in known:
                raise unknown_dataset(name, known)
            runs = dataset_runs(ledger, name, most=None)
    except LedgerMissing as error:
        msg = f"{error.message} Or give a workload with --cost or --workload."
        raise LedgerMissing(msg) from error
    steps = () if runs is None else workload_of_runs(runs.runs)
    if runs is None or not steps:
        msg = (
            f"no step of dataset {name!r} was charged in its newest term, so its "
            "journal is no workload. Give one with --cost or --workload."
        )
        raise ConfigurationError(msg)
    return _of_runs(runs, steps)


def _of_runs(runs: DatasetRuns, steps: Workload) -> _Source:
    budget = runs.term.facts["pinned"]["budget"]
    return _Source(
        dataset=runs.dataset,
        where=f"of term {runs.term.number}",
        workload=steps,
        # As it was declared: what a default derives, it derives for each epsilon.
        own=runs.term.facts["declared"].get("filter", {}),
        budget=(
            number_from_text(budget["epsilon"]),
            number_from_text(budget["delta"]),
        ),
    )


def _only(dataset: str | None, known: Sequence[str], otherwise: str) -> str:
    if dataset is not None:
        return dataset
    datasets = [name for name in known if not name.startswith(PREFIX)]
    if len(datasets) == 1:
        return datasets[0]
    names = ", ".join(datasets) or "none yet"
    msg = f"say which DATASET is meant, {otherwise}; there are: {names}"
    raise ConfigurationError(msg)


def _budget(question: Question, source: _Source) -> tuple[Fraction, Fraction]:
    if question.epsilon is not None:
        return exact_epsilon(question.epsilon), exact_delta(question.delta or "0")
    if source.budget is None or question.delta is not None:
        msg = "a budget needs --epsilon, and --delta if it has one"
        raise InvalidCost(msg, name="epsilon", value=None)
    return source.budget


# Tables


def odometers_table(readings: Sequence[Reading]) -> Table:
    """Show what each odometer reads after a workload."""
    table = new_table("odometer", "reads", "remark", numbers=("reads",))
    for each in readings:
        shown = "-" if each.problem else reading_up(each.epsilon)
        problems = (other.problem for other in readings)
        why = no_price(each.problem, problems) if each.problem else ""
        table.add_row(cell(each.theorem), cell(shown), why)
    return table


def leftovers_table(ways: Sequence[Leftover]) -> Table:
    """Show what each way of accounting for an early stop leaves."""
    numbers = ("held", "cost", "left for")
    table = new_table("way", *numbers, "remark", numbers=numbers)
    for each in ways:
        rest = "no end" if each.rest is None else f"{each.rest}"
        if each.problem:
            problems = (other.problem for other in ways)
            why = no_price(each.problem, problems)
            row = [cell("-")] * 3 + [why]
        else:
            delta = f"and {percent_text(each.delta)} of delta" if each.delta else ""
            shares = percent_text(each.reserved), percent_text(each.posted)
            row = [cell(text) for text in (*shares, rest, delta)]
        table.add_row(cell(_way(each)), *row)
    return table


def verdict(found: Stopping) -> str:
    """Say which way leaves more for the rest."""
    known = [each for each in found.ways if not each.problem]
    how = f"After {found.stop} of at most {found.cost.stops[-1]} sub-steps"
    if not known:
        return f"{how}: no theorem has a price for {found.cost!r} within this budget."
    best = known[0]
    text = f"{how}, {_way(best)} leaves most: {_count(best)} further {found.rest!r}"
    other = next((e for e in known if e.output_dp is not best.output_dp), None)
    if other is None:
        kind = "filter" if best.output_dp else "way of output DP"
        return f"{text}. No {kind} has a price for it within this budget."
    kind = "output DP" if other.output_dp else "a filter"
    return f"{text}. The best of {kind}, {_way(other)}, leaves {_count(other)}."


def _way(each: Leftover) -> str:
    if each.theorem != "output":
        return f"filter {each.theorem}"
    return f"output DP by {each.accountant}"


def _count(each: Leftover) -> str:
    return "no end of" if each.rest is None else f"{each.rest}"
