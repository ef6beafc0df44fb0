"""Where a step runs, as Prefect's contexts tell it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun

from dpflow.guard.request import EnclosingFlow, Notice, StepContext, context_finders
from dpflow.prefect.api import current_flow, current_run, current_task_run
from dpflow.prefect.artifacts import publish_progress
from dpflow.prefect.delivery import send
from dpflow.prefect.events import describe_assets
from dpflow.prefect.flow_attempts import ask_whole_run, count_replay
from dpflow.prefect.keyless_steps import (
    announce_retries,
    warn_if_surprising,
    warn_if_unnamed,
)
from dpflow.prefect.telemetry import describe_span, show_gauges

logger = logging.getLogger("dpflow")


def _listen(notice: Notice) -> None:
    # Only events are sent later. Progress is of its moment, and the warning is for the
    # log of the run.
    if notice.kind == "progress":
        publish_progress(notice)
    else:
        count_replay(notice)
        send(notice)
        warn_if_unnamed(notice)
        warn_if_surprising(notice)
        announce_retries()
        show_gauges()


def listen_for_task(notice: Notice) -> None:
    """Send a notice of a step that is a task: it describes its assets as well."""
    # Prefect reads the assets when the task ends.
    if notice.kind != "progress":
        describe_assets(notice)
        describe_span(notice)
    _listen(notice)


def current_context(
    listener: Callable[[Notice], None] = _listen, *, named: str | None = None
) -> StepContext:
    """Return the enclosing flows, nearest first, and the ids of this task run.

    Args:
        listener: Hears the outcome of the step.
        named: The flow that the step names itself, if it does.
    """
    fields = {}
    if (task_run := current_task_run()) is not None:
        # For people. They do not tell executions apart: Dask runs a task again under
        # the same id and count (PrefectHQ/prefect#15442, #12970).
        fields["task_run"] = str(task_run.id)
        fields["attempt"] = str(task_run.run_count)
    context = StepContext(named=named, metadata=fields, listener=listener)
    if (run := current_run()) is None:
        return context
    flow = current_flow()
    name = _flow_name(run.flow_id) if flow is None else flow.name
    nearest = _enclosing(name, run)
    flows = (nearest, *_parents(run.parent_task_run_id))
    deployments = [flow.deployment for flow in flows if flow.deployment is not None]
    if deployments:
        # A subflow's run is of no deployment: the flow around it is.
        fields["deployment"] = deployments[0]
    if run.auto_scheduled and run.expected_start_time is not None:
        fields["scheduled"] = run.expected_start_time.isoformat(timespec="seconds")
    return replace(context, flows=flows, before_charge=ask_whole_run)


def _enclosing(name: str, run: FlowRun) -> EnclosingFlow:
    deployment = None if run.deployment_id is None else str(run.deployment_id)
    return EnclosingFlow(name=name, run=str(run.id), deployment=deployment)


@lru_cache(maxsize=1024)
def _parents(task_run: UUID | None) -> tuple[EnclosingFlow, ...]:
    """Ask Prefect which flows are around a subflow; contexts know the nearest only."""
    if task_run is None:
        return ()
    with get_client(sync_client=True) as client:
        parent = client.read_task_run(task_run).flow_run_id
        if parent is None:
            return ()
        run = client.read_flow_run(parent)
        name = client.read_flow(run.flow_id).name
    return (_enclosing(name, run), *_parents(run.parent_task_run_id))


@lru_cache(maxsize=1024)
def _flow_name(flow: UUID) -> str:
    with get_client(sync_client=True) as client:
        return client.read_flow(flow).name


context_finders.append(current_context)
