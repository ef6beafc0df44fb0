"""Workloads from files, journals and command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from dpflow.accounting.costs.base import Cost, Outcome, Settling
from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import ConfigurationError, InvalidCost
from dpflow.forecast.counts import Workload, WorkloadStep
from dpflow.forecast.workload import merged
from dpflow.ledger.entry import canonical
from dpflow.ledger.views.runs import FlowRun, RunStep
from dpflow.rounding import exact_delta, exact_epsilon

_MOST_BYTES, _MOST_STEPS, _MOST_TIMES = 2**20, 10_000, 10**9
_SHAPE = (
    "Write a list of costs, each as text or as {cost: ..., times: ..., outcome: ...}, "
    "or a mapping with `steps:` and perhaps `budget: {epsilon: ..., delta: ...}`."
)


@dataclass(frozen=True, slots=True)
class WorkloadFile:
    """What a workload file says.

    Attributes:
        steps: The steps, in order.
        epsilon: Of its budget, if it has one.
        delta: Of its budget.
    """

    steps: Workload
    epsilon: Fraction | None = None
    delta: Fraction = Fraction(0)


def read_workload(path: Path) -> WorkloadFile:
    """Read a workload file: a YAML list of costs with counts.

    Raises:
        ConfigurationError: If it cannot be read or has another shape.
        InvalidCost: If a cost in it is none.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise ConfigurationError(msg) from error
    if len(text) > _MOST_BYTES:
        msg = f"{path}: a workload may have at most {_MOST_BYTES // 1024} KiB"
        raise ConfigurationError(msg)
    try:
        # Everything stays text, so that numbers are read exactly.
        data = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 (it makes no objects)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        msg = f"{path} is no YAML: {error}. {_SHAPE}"
        raise ConfigurationError(msg) from error
    return _from_data(data, str(path))


def _from_data(data: Any, file: str) -> WorkloadFile:
    budget: Any = {}
    if isinstance(data, dict) and data.keys() <= {"steps", "budget"}:
        budget, data = data.get("budget", {}), data.get("steps")
    if not isinstance(data, list) or not data or len(data) > _MOST_STEPS:
        msg = f"{file} is no list of 1 to {_MOST_STEPS} costs. {_SHAPE}"
        raise ConfigurationError(msg)
    steps = merged(_step(item, f"{file}, item {n}") for n, item in enumerate(data, 1))
    if not isinstance(budget, dict) or not budget.keys() <= {"epsilon", "delta"}:
        msg = f"{file}: the budget is {str(budget)[:60]!r}. {_SHAPE}"
        raise ConfigurationError(msg)
    if "epsilon" not in budget:
        return WorkloadFile(steps)
    delta = exact_delta(budget.get("delta", "0"))
    return WorkloadFile(steps, exact_epsilon(budget["epsilon"]), delta)


def _step(item: Any, place: str) -> WorkloadStep:
    if isinstance(item, str):
        return step_from_text(item)
    known = {"cost", "times", "outcome"}
    if not isinstance(item, dict) or "cost" not in item or not item.keys() <= known:
        msg = f"{place} is {str(item)[:60]!r}. {_SHAPE}"
        raise ConfigurationError(msg)
    times = str(item.get("times", "1"))
    if not times.isascii() or not times.isdigit() or not 0 < int(times) <= _MOST_TIMES:
        msg = f"{place}: times must be a whole number from 1 on, got {times[:40]!r}"
        raise ConfigurationError(msg)
    return step_from_text(str(item["cost"]), int(times), item.get("outcome"))


def step_from_text(
    text: str, times: int = 1, outcome: str | None = None
) -> WorkloadStep:
    """Read a step and how it comes out.

    Raises:
        InvalidCost: If the cost is none, or knows no such outcome.
    """
    cost = cost_from_text(text)
    if outcome is None:
        return WorkloadStep(cost, times)
    if not isinstance(cost, Settling):
        msg = f"{cost!r} always costs the same; leave its outcome out"
        raise InvalidCost(msg, name="outcome", value=outcome)
    told = int(outcome) if re.fullmatch("[0-9]{1,9}", outcome) else outcome
    cost.realised(told)
    return WorkloadStep(cost, times, told)


def workload_of_run(run: FlowRun) -> Workload:
    """Return what a run charged, as it came out."""
    return workload_of(run.steps)


def workload_of(steps: Iterable[RunStep]) -> Workload:
    """Return journaled steps as a workload.

    Raises:
        InvalidCost: If one has a mechanism that this process does not know.
    """
    known: dict[tuple[str, Outcome | None], WorkloadStep] = {}
    return merged(_journaled(step, known) for step in steps)


def _journaled(
    step: RunStep, known: dict[tuple[str, Outcome | None], WorkloadStep]
) -> WorkloadStep:
    """Return a step as it came out; a cost that recurs is made once."""
    name = canonical(step.description), step.reported
    if name not in known:
        cost = step.cost
        known[name] = WorkloadStep(cost, 1, _settled(step, cost))
    return known[name]


def _settled(step: RunStep, cost: Cost) -> Outcome | None:
    """Return the outcome by which a step settled; None if it settled in full."""
    if step.reported is None or not isinstance(cost, Settling):
        return None
    try:
        cost.realised(step.reported)
    except InvalidCost:
        return None
    return step.reported


def workload_of_runs(runs: Sequence[FlowRun]) -> Workload:
    """Return all that some runs charged, in order."""
    return workload_of(step for run in runs for step in run.steps)
