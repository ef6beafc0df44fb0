"""Whole runs: the first charge of a flow run asks whether the rest would fit.

Each process asks for itself: the flow's own, and those of a task runner, to which
Prefect sends the flow with the context of a task.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from dpflow.exceptions import DpflowError
from dpflow.forecast.whole_runs import find_lack
from dpflow.guard.project import Project
from dpflow.guard.request import Notice
from dpflow.guard.step import list_fixed_costs
from dpflow.interrupts import contextmanager
from dpflow.ledger.requests import Granted, Request
from dpflow.prefect.api import current_flow, current_run

logger = logging.getLogger("dpflow")


@dataclass(slots=True)
class WholeRun:
    """A flow run of this process that has to end whole.

    Attributes:
        was_begun: True after the question before its first charge.
        replayed: Number of replays, by name of the step.
    """

    was_begun: bool = False
    replayed: Counter[str] = field(default_factory=Counter)


#: The attribute of a flow's function that says whether its runs have to end whole.
WHOLE = "dpflow_whole_runs"
#: Flow runs whose function runs in this process, by id.
_runs: dict[str, WholeRun] = {}


@contextmanager
def keep_whole(run: str, *, partial: bool) -> Iterator[None]:
    """Ask for whole runs in a block, unless a part of the run is wanted, too."""
    if not partial:
        _runs[run] = WholeRun()
    try:
        yield
    finally:
        _runs.pop(run, None)


def ask_whole_run(project: Project, request: Request) -> None:
    """Refuse the first charge of a flow run of which no whole run fits.

    Raises:
        BudgetExhausted: If no example of a whole run fits.
    """
    run = _run_of(request)
    if run is None or run.was_begun:
        return
    if any(policy.on_exhausted.flow == "skip" for policy in request.policies):
        return
    ledger = project.ledger
    if not isinstance(ledger.would_answer(request), Granted):
        # A replay costs nothing, and a refusal has words of its own.
        return
    lack = find_lack(ledger, request, list_fixed_costs(), run.replayed)
    if lack is not None:
        ledger.refuse_run(request, lack.gate, lack.amount)
    run.was_begun = True


def count_replay(notice: Notice) -> None:
    """Count a replay, whose step the rest of the run need not charge."""
    run = _run_of(notice.request)
    if notice.kind == "replayed" and run is not None:
        run.replayed[notice.request.step] += 1


def _run_of(request: Request) -> WholeRun | None:
    """Return the flow run of a request, if it has to end whole."""
    run, name, flow = current_run(), str(request.flow_run), current_flow()
    if name in _runs:
        return _runs[name]
    if run is None or str(run.id) != name or flow is None:
        return None
    return _run_of_worker(name) if getattr(flow.fn, WHOLE, False) else None


@lru_cache(maxsize=1024)
def _run_of_worker(run: str) -> WholeRun:  # noqa: ARG001 (by its id)
    """Return what this process of a task runner knows of a flow run."""
    return WholeRun()


def note_completion(project: Project, run: str) -> None:
    """Note that a flow's function returned; a later run takes it for an example."""
    try:
        project.ledger.complete_run(run)
    except DpflowError as error:
        logger.warning("the end of run %s was not noted: %s", run, error.message)
