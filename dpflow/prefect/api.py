"""What dpflow uses of Prefect beyond its documentation: run contexts and internals.

No other module names these classes, so that one that Prefect renames is mended here.
`dpflow.guard.request` looks whether Prefect runs a flow, and may not import Prefect: it
names two contexts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.context import (
    AssetContext,
    FlowRunContext,
    SettingsContext,
    TaskRunContext,
    get_settings_context,
)
from prefect.events.worker import EventsWorker, should_emit_events
from prefect.transactions import get_transaction
from prefect.utilities.asyncutils import run_coro_as_sync as run_coro_as_sync  # noqa: PLC0414 (for `dpflow.prefect.flow`)
from pydantic import BaseModel

from dpflow.interrupts import contextmanager

# The runs around a call


def current_run() -> FlowRun | None:
    """Return the flow run around this call."""
    return getattr(FlowRunContext.get(), "flow_run", None)


def current_flow() -> Flow[..., Any] | None:
    """Return the flow whose run is around this call; None in a remote task."""
    return getattr(FlowRunContext.get(), "flow", None)


def flow_parameters() -> Mapping[str, Any]:
    """Return the arguments of the flow around this call."""
    return getattr(FlowRunContext.get(), "parameters", None) or {}


def current_task_run() -> TaskRun | None:
    """Return the task run around this call."""
    return getattr(TaskRunContext.get(), "task_run", None)


def is_run_as_flow(function: Callable[..., Any]) -> bool:
    """Return True if Prefect runs this very function as a flow now.

    A plain call of `flow.fn`, as `flow.visualize()` makes it too, has no run to end.
    """
    flow = current_flow()
    return flow is not None and flow.fn is function


def is_run_as_task(function: Callable[..., Any]) -> bool:
    """Return True if Prefect's engine runs this very function as a task now.

    A plain call of `task.fn` inside another task would otherwise look like that task.
    """
    context = TaskRunContext.get()
    return context is not None and context.task.fn is function


# Results and assets of a run


@contextmanager
def without_storing() -> Iterator[None]:
    """Keep what the runs around a block inherit from storing or printing in it."""
    task, flow = TaskRunContext.get(), FlowRunContext.get()
    with ExitStack() as stack:
        if task is not None and task.persist_result:
            stack.enter_context(task.model_copy(update={"persist_result": False}))
        if flow is not None and (flow.persist_result or flow.log_prints):
            update = {"persist_result": False, "log_prints": False}
            stack.enter_context(flow.model_copy(update=update))
        yield


@contextmanager
def use_settings(values: Mapping[Any, object]) -> Iterator[None]:
    """Run a block with other values of Prefect's settings.

    Prefect's `temporary_settings` reads all settings anew, which takes 25 ms at each
    call; a copy of the models takes a hundredth of it.
    """
    context = get_settings_context()
    settings = context.settings
    for setting, value in values.items():
        settings = _copy_with(settings, setting.accessor.split("."), value)
    with SettingsContext(profile=context.profile, settings=settings):
        yield


def _copy_with(model: BaseModel, path: Sequence[str], value: object) -> Any:
    """Return a copy of a model with another value at a path of fields."""
    field, *others = path
    if others:
        value = _copy_with(getattr(model, field), others, value)
    return model.model_copy(update={field: value})


def keep_out_of_cache() -> None:
    """Keep the result of the running task out of Prefect's cache."""
    transaction = get_transaction()
    if transaction is not None:
        transaction.write_on_commit = False


def current_assets() -> AssetContext | None:
    """Return the assets of the running task; None if it has none."""
    context = AssetContext.get()
    return None if context is None or not context.downstream_assets else context


# Events


def events_worker() -> EventsWorker | None:
    """Return the worker that sends this process's events; None if none are sent."""
    return EventsWorker.instance() if should_emit_events() else None


def has_test_client() -> bool:
    """Return True if a test of Prefect replaced the client of the events."""
    return getattr(EventsWorker, "_client_override", None) is not None
