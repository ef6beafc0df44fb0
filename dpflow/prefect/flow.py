"""Flows that end as `BudgetExhausted` instead of failing."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar, cast, overload

from prefect import Flow

from dpflow.config import flow_settings, keep_settings
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    require,
)
from dpflow.guard.project import current_project
from dpflow.interrupts import without_interrupts
from dpflow.ledger.views import count_refusals
from dpflow.policy.population import PREFIX
from dpflow.prefect.api import current_run, is_run_as_flow, run_coro_as_sync
from dpflow.prefect.artifacts import publish_budget
from dpflow.prefect.client_calls import ask_briefly, pause_deployment
from dpflow.prefect.delivery import flush
from dpflow.prefect.deployments import DPFlow
from dpflow.prefect.flow_attempts import WHOLE, FlowAttempt, note_completion, running
from dpflow.prefect.keyless_steps import announce_retries
from dpflow.prefect.privacy import check_function
from dpflow.prefect.states import state_of_refusal

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("dpflow")


#: Called, and awaited, with the refusal when a flow run has met one.
OnExhausted = Callable[[BudgetRefused], object]


@overload
def dp_flow(function: Callable[P, R], /) -> Flow[P, R]: ...


@overload
def dp_flow(
    *,
    on_exhausted: OnExhausted | None = None,
    partial: bool = False,
    **flow_options: Any,
) -> Callable[[Callable[P, R]], Flow[P, R]]: ...


def dp_flow(
    function: Callable[P, R] | None = None,
    /,
    *,
    on_exhausted: OnExhausted | None = None,
    partial: bool = False,
    **flow_options: Any,
) -> Flow[P, R] | Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a Prefect flow that ends as `BudgetExhausted` when a DP step is refused.

    The flow asks the ledger, not a flag in memory, so a refusal in another process
    counts too. It waits for its submitted DP steps, and publishes a budget artifact.

    A run begins only if a whole run fits, as one of the last five completed runs shows:
    else its first charge is refused as `BudgetExhausted`, and nothing is charged for a
    report that would not be finished.

    A policy may say `on_exhausted: {flow: skip}`: then a submitted step that is refused
    takes only its own downstream along, and the flow ends with its value.

    Args:
        function: What it decorates, where it is written without parentheses.
        on_exhausted: Called with the refusal when a run has met one, after the ledger
            has committed it; whatever it raises is logged. It may be async.
        partial: Begin a run although a whole run may not fit, and run what fits.
        **flow_options: Every option of `prefect.flow`.

    Returns:
        The flow with the function's parameters and types, or a decorator that makes it.

    Raises:
        ConfigurationError: If it is no function, or a generator, or `on_exhausted` is
            no such action.

    Examples:
        >>> @dp_flow(name="weekly-report")
        ... def weekly_report(week: str) -> None:
        ...     publish(week, customers(week))
    """
    require(
        on_exhausted is None or callable(on_exhausted),
        "on_exhausted= takes a function of the refusal; what a flow does then is said "
        f"in the policy, as on_exhausted: {{flow: skip}}. Got {on_exhausted!r}",
    )

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        check_function(function, "dp_flow")

        @functools.wraps(function)
        def halting(*args: P.args, **kwargs: P.kwargs) -> Any:
            if not is_run_as_flow(halting):
                return function(*args, **kwargs)
            value = None
            with _project_kept():
                run = _begin(partial=partial)
                try:
                    with running(run):
                        try:
                            value = _refuse_unfinished(function(*args, **kwargs))
                        # A suspension is no Exception, and passes.
                        except without_interrupts(Exception) as error:
                            if not _is_halted(run, error):
                                raise
                        return _end(run, value, on_exhausted)
                finally:
                    flush()

        @functools.wraps(function)
        async def halting_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            if not is_run_as_flow(halting_async):
                return await cast("Any", function(*args, **kwargs))
            value = None
            with _project_kept():
                run = await asyncio.to_thread(_begin, partial=partial)
                try:
                    with running(run):
                        try:
                            called = cast("Any", function(*args, **kwargs))
                            value = _refuse_unfinished(await called)
                        except without_interrupts(Exception) as error:
                            if not await asyncio.to_thread(_is_halted, run, error):
                                raise
                        return await asyncio.to_thread(_end, run, value, on_exhausted)
                finally:
                    await asyncio.to_thread(flush)

        chosen = halting_async if inspect.iscoroutinefunction(function) else halting
        setattr(chosen, WHOLE, not partial)
        return DPFlow(fn=cast("Callable[P, R]", chosen), **flow_options)

    return decorate if function is None else decorate(function)


def _refuse_unfinished(value: R) -> R:
    """Refuse an output whose steps are yet to run: behind the end of their flow."""
    kind = "a generator"
    if inspect.iscoroutine(value):
        value.close()
        kind = "a coroutine"
    elif not inspect.isgenerator(value) and not inspect.isasyncgen(value):
        return value
    msg = (
        f"the flow returned {kind}, which has not run yet: its steps would run behind "
        "the flow's end. Return the whole output, of an async flow where steps are "
        "awaited."
    )
    raise ConfigurationError(msg)


def _project_kept() -> AbstractContextManager[None]:
    """Keep the project of this flow run, whatever directory its function works in."""
    if (run := current_run()) is None:
        return nullcontext()
    return flow_settings(str(run.id), subflow=run.parent_task_run_id is not None)


def _begin(*, partial: bool) -> FlowAttempt:
    if (run := current_run()) is None:
        return FlowAttempt("", ends_whole=not partial)
    project = current_project()
    keep_settings(project.settings)
    announce_retries()
    earlier = count_refusals(project.ledger, str(run.id))
    return FlowAttempt(str(run.id), earlier, ends_whole=not partial)


def _is_halted(run: FlowAttempt, error: Exception) -> bool:
    """Return True if a flow that raised was halted by a refusal."""
    if isinstance(error, BudgetRefused):
        run.raised = error
    elif run.refusal() is None:
        return False
    else:
        # Asking for a result behind a refused step gets Prefect's UnfinishedRun.
        name = type(error).__name__
        logger.warning("the flow raised %s after one of its steps was refused", name)
    run.stopped = True
    return True


def _end(run: FlowAttempt, value: Any, on_exhausted: OnExhausted | None) -> Any:
    """Return the flow's value, or the state that says it was halted."""
    run.wait_for_steps()
    result = run.refusal()
    project = current_project()
    publish_budget(project, result, run.surprises)
    run.surprises.clear()
    if result is None:
        note_completion(project, run.id)
        return value
    _call_back(on_exhausted, result)
    # A population's file has no `on_exhausted`; those of its datasets hold.
    policies = [p for n, p in project.policies.items() if not n.startswith(PREFIX)]
    named = [(p, f"{PREFIX}{p.population}") for p in policies]
    choices = [p.on_exhausted for p, n in named if result.dataset in (p.dataset, n)]
    if isinstance(result, BudgetExhausted) and choices:
        if any(choice.schedule == "pause" for choice in choices):
            _pause_schedule()
        if all(choice.flow == "skip" for choice in choices) and not run.stopped:
            # The refused step appears in its own state, in events and the artifact.
            return value
    return state_of_refusal(result)


def _call_back(on_exhausted: OnExhausted | None, refusal: BudgetRefused) -> None:
    if on_exhausted is None:
        return
    try:
        awaitable = on_exhausted(refusal)
        if inspect.iscoroutine(awaitable):
            run_coro_as_sync(awaitable)
    except without_interrupts(Exception):
        logger.exception("on_exhausted failed; the ledger still refuses")


def _pause_schedule() -> None:
    """Pause the deployment of this run; the ledger is what really holds."""
    run = current_run()
    if run is None or run.deployment_id is None:
        return
    try:
        # Prefect forgets a pause on redeploy (PrefectHQ/prefect#19302, #14973,
        # #11107, #23095): pause again at every refusal.
        ask_briefly(pause_deployment, deployment=run.deployment_id)
    except without_interrupts(Exception):
        logger.exception("the schedule could not be paused; the ledger still refuses")
