"""Whole runs: hold the worst case of every step first, so that a report ends or waits.

Engine of `dp_flow(reserve_run=...)` and `reserve_run`, without Prefect.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.exceptions import BudgetRefused, DpflowError, require
from dpflow.guard.bodies import check_outside
from dpflow.guard.project import current_project, project_of_step
from dpflow.guard.request import (
    Place,
    charged_flow,
    checked_flow,
    current_place,
    current_runs,
    request_of,
    runs_around,
)
from dpflow.guard.reserving import reserve
from dpflow.guard.step import checked_text
from dpflow.interrupts import contextmanager
from dpflow.ledger.records import Granted
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
        lists = [*self.costs.values()] if isinstance(self.costs, Mapping) else []
        require(
            lists and all(map(_are_costs, lists)),
            "reserve_run maps each dataset to the costs of the steps that read it, "
            f'such as {{"cdnow": [Gaussian(sensitivity=1, sigma=20)]}}, got '
            f"{self.costs!r:.80}",
        )
        names = {name for key in self.costs for name in _datasets(key)}
        unknown = sorted(set(self.partitions) - names)
        message = f"reserve_run names partitions of {unknown}, but no cost on them"
        require(not unknown, message)


def _are_costs(costs: object) -> bool:
    listed = costs if isinstance(costs, list | tuple) else ()
    return len(listed) > 0 and all(isinstance(cost, Cost) for cost in listed)


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
    that are stored are replayed, and the first step that would draw is refused.

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
    token = current_runs.set((run, *current_runs.get()))
    outcome = "failed"
    try:
        begin(declared, current_place(checked_flow(flow)), run)
        yield
        outcome = "completed"
    finally:
        current_runs.reset(token)
        seal_run(run, outcome)


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


def seal_run(run: str, outcome: str) -> None:
    """Seal a run's reservation, if any; a failure is logged and returns nothing."""
    try:
        current_project().ledger.seal(run, outcome=outcome)
    except DpflowError as error:
        logger.warning("the reservation of run %s stays held: %s", run, error.message)


def _hold(steps: list[_Step], place: Place, run: str) -> None:
    project = project_of_step("preflight", None)
    unique: dict[str, Any] = dict.fromkeys(("reservation", "owner", "step"), "planned")
    planned = tuple(
        request_of(
            project,
            place,
            tuple(map(project.policies.policy_for, datasets)),
            cost,
            partitions=partitions,
            **unique,
        )
        for datasets, partitions, cost in steps
    )
    policies = {p.dataset: p for each in planned for p in each.policies}
    flow = charged_flow(tuple(policies.values()), place)
    request = request_of(
        project,
        place,
        tuple(policies.values()),
        _composed([cost for _, _, cost in steps]),
        step="run reservation" if flow is None else f"run reservation of {flow.name}",
        # A subflow's run reservation is drawn from the one of the flow around it.
        preflights=tuple(other for other in runs_around(place) if other != run),
        partitions=tuple(
            dict.fromkeys(name for _, names, _ in steps for name in names)
        ),
        covers=run,
        planned=planned,
        body=place.facts,
    )
    try:
        answer = reserve(project, request, Place(), noise=OWN)
    except BudgetRefused as refusal:
        # Only the steps of the run know which of them are replayed, at no cost.
        logger.warning("run %s holds nothing; no step draws: %s", run, refusal.message)
        return
    if isinstance(answer, Granted):
        place.tell_granted(request, answer)


def _composed(costs: Sequence[Cost]) -> Cost:
    """Return all costs as one, for people; each is priced alone."""
    parts = [
        cost if number == 1 else Repeated(cost, number)
        for cost, number in Counter(costs).items()
    ]
    return parts[0] if len(parts) == 1 else Composed(*parts)


def _datasets(key: Any) -> tuple[str, ...]:
    """Return the datasets that a key of the costs names."""
    names = key if isinstance(key, tuple) else (key,)
    return tuple(checked_text(name, "preflight") for name in names)
