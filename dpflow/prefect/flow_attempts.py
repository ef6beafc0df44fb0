"""Executions of flow runs: their submitted steps, refusals and replays.

A flow that submits and returns nothing is Completed for Prefect before its steps have
run (PrefectHQ/prefect#14470, #16373); `dp_flow` waits for the DP steps
and then asks the ledger.

The first charge of a flow run asks whether the rest would fit. Each process asks for
itself: the flow's own, and those of a task runner, to which Prefect sends the flow with
the context of a task.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from dpflow.exceptions import BudgetRefused, DpflowError
from dpflow.forecast.whole_runs import find_lack
from dpflow.guard.project import Project, current_project
from dpflow.guard.request import Notice
from dpflow.guard.step import list_fixed_costs
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.ledger.requests import Granted, Request
from dpflow.ledger.views import refusal_of_run
from dpflow.prefect.api import current_flow, current_run

F = TypeVar("F")

logger = logging.getLogger("dpflow")

#: The attribute of a flow's function that says whether its runs have to end whole.
WHOLE = "dpflow_whole_runs"


@dataclass(slots=True)
class FlowAttempt:
    """One execution of a flow run; a retry or a resumption is another.

    Prefect's run count does not tell: suspending leaves it as it is, pausing does not
    (PrefectHQ/prefect#20388, #16915, #17822). Of two simultaneous executions, which
    happen (PrefectHQ/prefect#12509, #8880, #17703), each is ended by the other's
    refusals. Nothing here believes that a silent run is dead: an automation that says
    so can be wrong (PrefectHQ/prefect#21932, #18653, #20887, #18404).

    Attributes:
        id: Of the flow run.
        earlier: How many refusals its earlier executions met.
        ends_whole: Whether it begins only if a whole run fits.
        raised: The refusal that ended it, if one did.
        stopped: Whether the flow's function ended by an error because of a refusal.
        was_begun: True after the question before its first charge.
        replayed: Number of replays, by name of the step.
        surprises: Sentences about replays of other scheduled runs' releases.
        futures: Submitted steps, for whose ends the flow waits.
    """

    id: str
    earlier: int = 0
    ends_whole: bool = True
    raised: BudgetRefused | None = None
    stopped: bool = False
    was_begun: bool = False
    replayed: Counter[str] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)
    futures: list[Any] = field(default_factory=list)

    def refusal(self) -> BudgetRefused | None:
        """Return the refusal that this execution met, if it met one."""
        # The ledger knows refusals that never reached this process. Prefect's states
        # may be lost or late (PrefectHQ/prefect#19261, #18310, #22247), and anyone can
        # edit them (PrefectHQ/prefect#18303).
        result = refusal_of_run(current_project().ledger, self.id, after=self.earlier)
        return result or self.raised

    def wait_for_steps(self) -> None:
        """Wait until every submitted DP step has ended."""
        while self.futures:
            try:
                self.futures.pop().wait()
            except without_interrupts(Exception):
                # Process pools raise here if the step waited for one that was refused.
                logger.debug("a submitted step ended without a state", exc_info=True)


#: Executions whose function runs in this process, by id of the flow run.
_attempts: dict[str, FlowAttempt] = {}
#: Surprises of executions that failed before they were shown; a retry shows them.
_unshown: dict[str, list[str]] = {}


@contextmanager
def running(attempt: FlowAttempt) -> Iterator[None]:
    """Note the steps of an execution within this block."""
    attempt.surprises += _unshown.pop(attempt.id, [])
    _attempts[attempt.id] = attempt
    try:
        yield
    finally:
        _attempts.pop(attempt.id, None)
        if attempt.surprises:
            _unshown[attempt.id] = attempt.surprises


def note_future(future: F) -> F:
    """Remember a submitted step, if the current flow run waits for its steps."""
    attempt = _attempts.get(str(getattr(current_run(), "id", None)))
    if attempt is not None:
        attempt.futures.append(future)
    return future


def attempt_of(request: Request) -> FlowAttempt | None:
    """Return the execution around a step, if its flow is a `dp_flow`."""
    run, name, flow = current_run(), str(request.flow_run), current_flow()
    if name in _attempts:
        return _attempts[name]
    if run is None or str(run.id) != name or flow is None:
        return None
    return _attempt_of_worker(name) if getattr(flow.fn, WHOLE, False) else None


@lru_cache(maxsize=1024)
def _attempt_of_worker(run: str) -> FlowAttempt:
    """Return what this process of a task runner knows of a flow run."""
    return FlowAttempt(run)


def ask_whole_run(project: Project, request: Request) -> None:
    """Refuse the first charge of a flow run of which no whole run fits.

    Raises:
        BudgetExhausted: If no example of a whole run fits.
    """
    attempt = attempt_of(request)
    if attempt is None or attempt.was_begun or not attempt.ends_whole:
        return
    if any(policy.on_exhausted.flow == "skip" for policy in request.policies):
        return
    ledger = project.ledger
    if not isinstance(ledger.would_answer(request), Granted):
        # A replay costs nothing, and a refusal has words of its own.
        return
    lack = find_lack(ledger, request, list_fixed_costs(), attempt.replayed)
    if lack is not None:
        ledger.refuse_run(request, lack.gate, lack.amount)
    attempt.was_begun = True


def count_replay(notice: Notice) -> None:
    """Count a replay, whose step the rest of the run need not charge."""
    attempt = attempt_of(notice.request)
    if notice.kind == "replayed" and attempt is not None:
        attempt.replayed[notice.request.step] += 1


def note_completion(project: Project, run: str) -> None:
    """Note that a flow's function returned; a later run takes it for an example."""
    try:
        project.ledger.complete_run(run)
    except DpflowError as error:
        logger.warning("the end of run %s was not noted: %s", run, error.message)
