"""Flows that end as `BudgetExhausted` instead of failing."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Flow, flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.views import refusal_of_run
from dpflow.prefect.artifacts import publish_budget
from dpflow.prefect.futures import wait_for_steps
from dpflow.prefect.states import refused_state
from dpflow.project import current_project

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("dpflow")


#: Called with the refusal when a flow run has met one.
OnExhausted = Callable[[BudgetRefused], object]


def dp_flow(
    *, on_exhausted: OnExhausted | None = None, **flow_options: Any
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a Prefect flow that ends as `BudgetExhausted` when a DP step is refused.

    The flow asks the ledger, not a flag in memory, so a refusal in another process
    counts too. It waits for its submitted DP steps, and publishes a budget artifact.

    A policy may say `on_exhausted: {flow: skip}`: then a submitted step that is refused
    takes only its own downstream along, and the flow ends with its value.

    Args:
        on_exhausted: Called with the refusal when a run has met one, after the ledger
            has committed it; whatever it raises is logged.
        **flow_options: Every option of `prefect.flow`.

    Returns:
        A decorator that makes the flow with the function's parameters and types.

    Example:
        >>> @dp_flow(name="weekly-report")
        ... def weekly_report(week: str) -> None:
        ...     publish(week, customers(week))
    """

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        @functools.wraps(function)
        def halting(*args: P.args, **kwargs: P.kwargs) -> Any:
            value, refusal = None, None
            try:
                value = function(*args, **kwargs)
            except BudgetRefused as error:
                refusal = error
            run = _flow_run()
            wait_for_steps(run)
            return _ended(run, value, refusal, on_exhausted)

        @functools.wraps(function)
        async def halting_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            value, refusal = None, None
            try:
                value = await cast("Any", function(*args, **kwargs))
            except BudgetRefused as error:
                refusal = error
            run = _flow_run()
            await asyncio.to_thread(wait_for_steps, run)
            return await asyncio.to_thread(_ended, run, value, refusal, on_exhausted)

        chosen = halting_async if inspect.iscoroutinefunction(function) else halting
        made: Flow[P, R] = flow(**flow_options)(cast("Callable[P, R]", chosen))
        return made

    return decorate


def _flow_run() -> str:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return ""
    return str(context.flow_run.id)


def _ended(
    run: str,
    value: Any,
    refusal: BudgetRefused | None,
    on_exhausted: OnExhausted | None,
) -> Any:
    """Return the flow's value, or the state that says it was halted."""
    project = current_project()
    # The ledger knows refusals that never reached this process.
    found = refusal_of_run(project.ledger, run) or refusal
    publish_budget(project, found)
    if found is None:
        return value
    _call_back(on_exhausted, found)
    policy = project.policies.get(found.dataset)
    if isinstance(found, BudgetExhausted) and policy is not None:
        if policy.on_exhausted.schedule == "pause":
            _pause_schedule()
        if policy.on_exhausted.flow == "skip" and refusal is None:
            # The refused step is told in its own state, in events and the artifact.
            return value
    return refused_state(found)


def _call_back(on_exhausted: OnExhausted | None, refusal: BudgetRefused) -> None:
    if on_exhausted is None:
        return
    try:
        on_exhausted(refusal)
    except Exception:
        logger.exception("on_exhausted failed; the ledger still refuses")


def _pause_schedule() -> None:
    """Pause the deployment of this run; the ledger is what really holds."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    deployment = context.flow_run.deployment_id
    if deployment is None:
        return
    try:
        # Prefect forgets a pause on redeploy (PrefectHQ/prefect#19302): pause again
        # at every refusal.
        with get_client(sync_client=True) as client:
            client.pause_deployment(deployment)
    except Exception:
        logger.exception("the schedule could not be paused; the ledger still refuses")
