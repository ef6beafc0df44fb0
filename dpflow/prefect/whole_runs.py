"""Whole runs: the first charge of a flow run asks whether the rest would fit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from dpflow.exceptions import DpflowError
from dpflow.forecast.whole_runs import find_lack
from dpflow.guard.project import Project
from dpflow.guard.request import Notice
from dpflow.guard.step import list_fixed_costs
from dpflow.interrupts import contextmanager
from dpflow.ledger.requests import Granted, Request

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
    run = _runs.get(str(request.flow_run))
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
        raise ledger.refuse_run(request, lack.gate, lack.amount)
    run.was_begun = True


def count_replay(notice: Notice) -> None:
    """Count a replay, whose step the rest of the run need not charge."""
    run = _runs.get(str(notice.request.flow_run))
    if notice.kind == "replayed" and run is not None:
        run.replayed[notice.request.step] += 1


def note_completion(project: Project, run: str) -> None:
    """Note that a flow's function returned; a later run takes it for an example."""
    try:
        project.ledger.complete_run(run)
    except DpflowError as error:
        logger.warning("the end of run %s was not noted: %s", run, error.message)
