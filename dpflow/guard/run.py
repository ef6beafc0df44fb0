"""Whole runs: hold the worst case of every step first, so that a report ends or waits.

Engine of `dp_flow(reserve_run=...)` and `reserve_run`, without Prefect.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.exceptions import BudgetRefused, DpflowError, require
from dpflow.guard.bodies import check_outside
from dpflow.guard.project import Project, current_project, project_of_step
from dpflow.guard.request import (
    Place,
    charged_flow,
    checked_flow,
    current_place,
    current_runs,
    owner_of,
    runs_around,
)
from dpflow.guard.reserving import reserve
from dpflow.guard.step import checked_text
from dpflow.ledger.records import Granted, Request
from dpflow.ledger.views.runs import last_costs
from dpflow.noise.sources import OWN

logger = logging.getLogger("dpflow")

#: The worst cases of a run's steps, by the dataset that they read, or by several.
Costs = Mapping[str | tuple[str, ...], Sequence[Cost]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """The worst case of a whole run.

    Attributes:
        costs: One cost for each step, by dataset; for a step that reads several, by a
            tuple of their names.
        partitions: Which parts of a divided dataset each of its steps reads.

    Raises:
        ConfigurationError: If something of it cannot be used.

    Example:
        >>> RunCosts(costs={"cdnow": [Gaussian(sensitivity=1, sigma=20)] * 3})
    """

    costs: Costs
    partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            isinstance(self.costs, Mapping) and self.costs,
            "reserve_run maps each dataset to the costs of the steps that read it, "
            f'such as {{"cdnow": [Gaussian(sensitivity=1, sigma=20)]}}, got '
            f"{self.costs!r:.80}",
        )
        for name, costs in self.costs.items():
            listed = costs if isinstance(costs, list | tuple) else ()
            require(
                listed and all(isinstance(cost, Cost) for cost in listed),
                f"reserve_run of dataset {name!r} must be a list of costs such as "
                f"Gaussian(sensitivity=1, sigma=20), got {costs!r:.80}",
            )
        names = {each for key in self.costs for each in _datasets(key)}
        unknown = sorted(set(self.partitions) - names)
        require(
            not unknown,
            f"reserve_run names partitions of {unknown}, but no cost on them",
        )


#: One step of a run: its datasets and their parts, and its worst case.
_Step = tuple[tuple[str, ...], tuple[str, ...], Cost]


@contextmanager
def reserve_run(
    *,
    costs: Costs,
    flow: str | None = None,
    partitions: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[None]:
    """Hold the worst case of every step in this block before the first one runs.

    If all of it does not fit, nothing is held, and no step in the block draws: releases
    that are kept are replayed, and the first step that would draw is refused.

    The steps under `guarded` and `spend` in the block draw from it. Its end, by an
    error or not, seals it: what no step drew is returned, and a step that comes later,
    such as one in a thread that took this context along, is refused. If the process
    dies, the rest stays held.

    Args:
        costs: One worst case for each step, by dataset.
        flow: Name of the flow whose share and odometer are charged, outside of
            Prefect. Within a Prefect flow it is that one.
        partitions: Which parts of a divided dataset its steps read.

    Raises:
        ConfigurationError: If something declared cannot work.

    Example:
        >>> cost = Laplace(sensitivity=1, epsilon="0.1")
        >>> with reserve_run(costs={"orders": [cost, cost]}):
        ...     publish(orders(), returns())
    """
    check_outside("reserve_run()")
    declared = RunCosts(costs=costs, partitions=partitions or {})
    run = f"block/{uuid.uuid4().hex}"
    with sealed_at_end(run):
        begin(declared, current_place(checked_flow(flow)), run)
        yield


def begin(declared: RunCosts, place: Place, run: str) -> None:
    """Hold a run's worst case, or find what an earlier execution of it holds.

    If it does not fit, the ledger refuses every draw of the run, and nothing else.

    Raises:
        DpflowError: If it cannot be decided; no step may run.
    """
    steps: list[_Step] = []
    for key, costs in declared.costs.items():
        datasets = _datasets(key)
        parts = [p for name in datasets for p in declared.partitions.get(name, ())]
        steps += [(datasets, tuple(parts), cost) for cost in costs]
    _hold(steps, place, run)


def begin_like_last(place: Place, run: str) -> None:
    """Hold what the last completed run of the flow cost; as `begin`.

    Raises:
        DpflowError: If it cannot be decided; no step may run.
    """
    project = current_project()
    names = [flow.name for flow in place.flows]
    for name in names:
        if last := last_costs(project.ledger, name, but=run):
            steps = [(step.datasets, step.partitions, step.cost) for step in last]
            return _hold(steps, place, run)
    logger.warning(
        "no completed run of flow %r tells what a run costs: this one holds nothing "
        "in advance",
        next(iter(names), None),
    )
    return None


@contextmanager
def sealed_at_end(run: str) -> Iterator[None]:
    """Let the steps of this block draw from a run's reservation, and seal it behind."""
    token = current_runs.set((run, *current_runs.get()))
    outcome = "failed"
    try:
        yield
        outcome = "completed"
    finally:
        current_runs.reset(token)
        seal_run(run, outcome)


def seal_run(run: str, outcome: str) -> None:
    """Seal a run's reservation, if any; a failure is logged and returns nothing."""
    try:
        current_project().ledger.seal(run, outcome=outcome)
    except DpflowError as error:
        logger.warning(
            "the reservation of run %s stays held, undrawn rest and all: %s",
            run,
            error.message,
        )


def _hold(steps: list[_Step], place: Place, run: str) -> None:
    project = project_of_step("preflight", None, ())
    planned = tuple(_planned(project, *step, place) for step in steps)
    policies = {p.dataset: p for each in planned for p in each.policies}
    populations = {p.dataset: p for each in planned for p in each.populations}
    chosen = tuple(policies.values())
    flow = charged_flow(chosen, place)
    request = Request(
        reservation=uuid.uuid4().hex,
        owner=owner_of(project),
        policies=chosen,
        populations=tuple(populations.values()),
        cost=_composed([cost for _, _, cost in steps]),
        step="run reservation" if flow is None else f"run reservation of {flow.name}",
        flow=None if flow is None else flow.name,
        flow_run=None if flow is None else flow.run,
        enclosing_runs=tuple(f.run for f in place.flows if f.run is not None),
        # A subflow's run reservation is drawn from the one of the flow around it.
        preflights=tuple(other for other in runs_around(place) if other != run),
        partitions=tuple({name: None for _, names, _ in steps for name in names}),
        covers=run,
        planned=planned,
        body=place.facts,
    )
    try:
        answer = reserve(project, request, Place(), noise=OWN)
    except BudgetRefused as refusal:
        # What the run replays costs nothing, and which steps do, only they tell.
        logger.warning(
            "nothing is held for run %s: what is kept is replayed, no step draws. %s",
            run,
            refusal.message,
        )
        return
    if isinstance(answer, Granted):
        place.tell_granted(request, answer)


def _planned(
    project: Project,
    datasets: tuple[str, ...],
    partitions: tuple[str, ...],
    cost: Cost,
    place: Place,
) -> Request:
    policies = tuple(project.policies.policy_for(name) for name in datasets)
    flow = charged_flow(policies, place)
    return Request(
        reservation="planned",
        owner="planned",
        policies=policies,
        populations=project.policies.populations_of(policies),
        cost=cost,
        step="planned",
        flow=None if flow is None else flow.name,
        flow_run=None if flow is None else flow.run,
        partitions=partitions,
    )


def _composed(costs: Sequence[Cost]) -> Cost:
    """Return all costs as one, for people; each is priced by itself."""
    parts = [
        cost if number == 1 else Repeated(cost, number)
        for cost, number in Counter(costs).items()
    ]
    return parts[0] if len(parts) == 1 else Composed(*parts)


def _datasets(key: Any) -> tuple[str, ...]:
    """Return the datasets that a key of the costs names."""
    names = key if isinstance(key, tuple) else (key,)
    return tuple(checked_text(name, "preflight") for name in names)
