"""DP steps as Prefect tasks.

The guard is the task's `.fn`: Prefect calls it exactly when the body really executes,
in whatever process, and never on a cache hit. Hooks cannot do this: they may fail
silently, fire twice or never (PrefectHQ/prefect#13692, #14721, #17864), and those of a
crashed or cancelled run fire in another process (PrefectHQ/prefect#11026).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, cast, overload

from prefect.assets import Asset
from prefect.cache_policies import NO_CACHE
from prefect.tasks import MaterializingTask, TaskOptions
from typing_extensions import Unpack

from dpflow.config import settings
from dpflow.exceptions import LoadFailed, require
from dpflow.guard.bodies import check_outside
from dpflow.guard.charge import arun, run
from dpflow.guard.functions import charging
from dpflow.guard.plain import Later, NoLoad, P, Q, R, S, T_co
from dpflow.guard.project import bind_step
from dpflow.guard.reserving import Call
from dpflow.guard.shapes import ColumnsLike, GroupsLike, LengthLike
from dpflow.guard.step import (
    CellLike,
    CostLike,
    NoiseLike,
    OnChange,
    PartitionsLike,
    Step,
    check_flag,
    check_text,
    define_step,
)
from dpflow.prefect import privacy
from dpflow.prefect.api import is_run_as_task
from dpflow.prefect.flow_attempts import note_future
from dpflow.prefect.run_context import current_context, listen_for_task
from dpflow.prefect.states import StepEvents, value_of


class DPTask(MaterializingTask[P, R]):
    """A Prefect task whose body is guarded by the ledger, as `dp_task` returns it.

    Attributes:
        step: What the author declared.
        sent: The process that submits it, and the root of its project.
    """

    step: Step
    sent: tuple[int, Path]

    # Under TYPE_CHECKING the overrides would hide Prefect's overloads, and calls
    # would lose their types.
    if TYPE_CHECKING:

        def with_options(  # type: ignore[override]
            self,
            assets: Sequence[str | Asset] | None = None,
            *,
            fresh: bool = False,
            data_version: str | None = None,
            **options: Unpack[TaskOptions],
        ) -> DPTask[P, R]:
            """Return the task with other options; guard and declaration stay."""
            ...

    else:

        def __setstate__(self, state: dict[str, Any]) -> None:
            """Bind the step to the project that it was sent from."""
            vars(self).update(state)
            process, root = state.get("sent", (os.getpid(), None))
            if process != os.getpid():
                bind_step(self.step.body, root)

        def __call__(
            self, *args: Any, return_state: bool = False, **kwargs: Any
        ) -> Any:
            """Return the value or raise the refusal, unless `return_state` is set."""
            check_outside()
            _refuse_cover(self)
            privacy.check_call(self, args, kwargs)
            result = super().__call__(*args, return_state=return_state, **kwargs)
            return result if return_state else value_of(result)

        def _send(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.sent = os.getpid(), settings().root
            # Other processes would see copies of the arguments.
            arguments = privacy.check_call(self, args, kwargs)
            privacy.check_flow_parameters(self.step, arguments)

        def submit(self, *args: Any, **kwargs: Any) -> Any:
            """Submit the task to the flow's task runner."""
            check_outside()
            self._send(args, kwargs)
            return note_future(super().submit(*args, **kwargs))

        def map(self, *args: Any, **kwargs: Any) -> Any:
            """Submit one task for each item."""
            check_outside()
            self._send(args, kwargs)
            futures = privacy.check_map(super().map, args, kwargs)
            for future in futures:
                note_future(future)
            return futures

        def with_options(self, assets: Any = None, **options: Any) -> DPTask[P, R]:
            """Return the task with other options; guard and declaration stay.

            `fresh=True` asks for a new draw, at a charge of its own;
            `data_version` says that the data is another.
            """
            # Prefect builds a plain Task here; only its class and the step are lost.
            fresh = check_flag(options.pop("fresh", self.step.fresh), "fresh")
            version, ours = options.pop("data_version", None), self.step.data_version
            privacy.check_known(self.step, options)
            if self.step.load is not None and options.get("retry_condition_fn"):
                condition = options["retry_condition_fn"]
                options["retry_condition_fn"] = partial(_may_retry, condition)
            if options or assets is not None:
                check_outside("with_options()")
            version = ours if version is None else check_text(version, "data_version")
            task = super().with_options(assets, **options)
            task.__class__ = type(self)
            task.step, task.task_key = self.step, self.task_key
            if (fresh, version) != (self.step.fresh, self.step.data_version):
                task.step = replace(self.step, fresh=fresh, data_version=version)
                task.fn = _guard(task.step, self.fn.__wrapped__)
                # Prefect keeps the instance of a bound method on the function.
                vars(task.fn).update(vars(self.fn))
            privacy.check_options(task.step, task)
            return task

        def apply_async(
            self, args: tuple[Any, ...] = (), kwargs: Any = None, **options: Any
        ) -> Any:
            """Ask a task worker to run the task, unless an argument is private."""
            check_outside(".delay()")
            privacy.refuse_background(self.step)
            privacy.check_call(self, args or (), kwargs or {})
            return super().apply_async(args, kwargs, **options)


def _refuse_cover(task: DPTask[..., Any]) -> None:
    """Refuse to run as the body of another task: Prefect would keep the arguments.

    Prefect has no hook for a task that copies this one; its run is where it shows.

    Raises:
        ConfigurationError: If a copy of this task runs it.
    """
    require(
        not is_run_as_task(task),
        f"@task stands over the DP step {task.step.name!r}: take it away, for @dp_task "
        "makes a task and takes the options of @task. The step did not run.",
    )


class TaskDecorator(Generic[Q, T_co]):
    """Decorator of a function, whose first parameter takes the value of a load."""

    if TYPE_CHECKING:

        @overload
        def __call__(
            self: TaskDecorator[..., NoLoad], body: Callable[P, R], /
        ) -> DPTask[P, R]: ...
        @overload
        def __call__(
            self: TaskDecorator[Q, Later[S]], body: Callable[[S], R], /
        ) -> DPTask[Q, R]: ...
        @overload
        def __call__(
            self: TaskDecorator[Q, Later[S]], body: Callable[Concatenate[S, P], R], /
        ) -> DPTask[P, R]: ...
        @overload
        def __call__(self, body: Callable[[T_co], R], /) -> DPTask[Q, R]: ...
        @overload
        def __call__(  # type: ignore[overload-cannot-match]
            self, body: Callable[Concatenate[T_co, P], R], /
        ) -> DPTask[P, R]: ...
        def __call__(self, body: Callable[..., R], /) -> DPTask[..., R]:
            """Make a task of the function."""
            ...


def dp_task(
    *,
    dataset: str | tuple[str, ...],
    cost: CostLike,
    load: Callable[Q, T_co] | None = None,
    private: tuple[str, ...] = (),
    length: LengthLike | None = None,
    groups: GroupsLike | None = None,
    columns: ColumnsLike | None = None,
    release_key: str | None = None,
    ignore: tuple[str, ...] = (),
    moved_from: str | tuple[str, ...] = (),
    on_change: OnChange = "replay",
    partitions: PartitionsLike | None = None,
    fresh: bool = False,
    data_version: str | None = None,
    cell: CellLike | None = None,
    noise: NoiseLike = "release",
    measures: str | None = None,
    assets: Sequence[str | Asset] = (),
    **task_options: Unpack[TaskOptions],
) -> TaskDecorator[Q, T_co]:
    """Make a Prefect task of a function that reads private data.

    The step's worst case is reserved in the ledger before the body runs and settled
    after it. A refused step ends `Cancelled` as `BudgetRefused` or `BudgetExhausted`;
    calling it raises that error.

    Args:
        dataset: Name of the dataset it reads, or several.
        cost: Its worst case, or a function of its public arguments.
        load: Function that reads the data: the function's first parameter takes what it
            returns. It runs before the reservation, and only where the step would be
            charged, so that its failure (`LoadFailed`) costs nothing. A function with
            that parameter alone is called with the load's parameters; else the load
            takes those of the function that it names.
        private: Names of parameters that hold private data.
        length: How many numbers without labels `release` gets, a tuple for an array of
            several dimensions; or a function of the public arguments, as `cost`.
        groups: Labels of the rows that are released, in their order, as a list, a tuple
            or a range, or of several label columns by their names; or a function.
            Other labels are dropped, and absent ones count 0 before the noise.
        columns: Names of the columns of numbers, in their order; or a function.
        release_key: Template over public parameters, such as "revenue/{week}", the
            instance ("{self.region}") and captured variables. The output is stored
            under it and replayed at no cost, however often it is run.
            Default: replay within one flow run, for functions that close over no
            variables (what those hold cannot be distinguished); others, methods and
            lambdas among them, are charged each time.
        ignore: Names of parameters and captured variables that the key does not read,
            for the output does not depend on them. A call with another value of any
            other one is refused in place of a replay.
        moved_from: Former file and name of the function, such as "flows/old.py:count",
            or several: a release belongs to its function. This covers the step's name.
        on_change: "refuse" if a release of another cost is an error.
            Default: it is replayed, with a warning that names both costs.
        partitions: Names of the partitions that it reads, as templates such as
            "{week}", or a function of its public arguments that returns names.
        fresh: Draw anew, at a charge of its own, even where a release could be
            replayed; the new one takes its place.
        data_version: Version of the data; default: the policy's.
        cell: For costs with cells, such as `OutputDP`: a function of what the body
            returns that names the cell. The body must return its mechanism's own
            output, before any post-processing. Without an answer from it (it raises,
            or names no cell of the cost) the step is charged in full.
        noise: "own" if the body draws the declared noise with its own code;
            `release` must not be called then. Default: a body that declares a
            mechanism which `release` draws, and ends without it, fails.
        measures: Name of the released number, which must add up over parts such as
            weeks: `dpflow.answer` then derives sums from its releases.
        assets: Keys of the Prefect assets that each release materialises, such as
            "dpflow://cdnow/weekly-revenue", with its cost and guarantee as metadata.
        **task_options: Every option of `prefect.task`. Retries default to 0: every
            attempt is a charge of its own. With `load` they are for failed loads alone,
            by default 2, after 10 and 60 seconds. `log_prints` defaults to False,
            whatever the flow says: a body prints what was not released. With `private`
            it cannot be True.

    Returns:
        A decorator that makes a `DPTask` with the function's parameters and types.

    Raises:
        ConfigurationError: If something declared cannot work.

    Examples:
        >>> @dp_task(dataset="cdnow", cost=Gaussian(sensitivity=1, sigma=20))
        ... def customers(week: str) -> int:
        ...     return release(count(week))
    """
    declared = dict(locals())
    del declared["assets"], declared["task_options"]
    if load is not None:
        task_options.setdefault("retries", 2)
        task_options.setdefault("retry_delay_seconds", [10, 60])
        condition = task_options.get("retry_condition_fn")
        task_options["retry_condition_fn"] = partial(_may_retry, condition)
    task_options.setdefault("retries", 0)
    # The ledger replays releases; Prefect's cache key would hash private arguments.
    task_options.setdefault("cache_policy", NO_CACHE)
    # A flow's `log_prints` would send what the body prints to Prefect's database.
    task_options.setdefault("log_prints", False)

    def decorate(function: Callable[P, R]) -> DPTask[P, R]:
        check_outside("@dp_task")
        step = define_step(function, name=task_options.get("name"), **declared)
        task: DPTask[P, R] = DPTask(
            fn=_guard(step, function),
            assets=assets,
            materialized_by="dpflow",
            **task_options,
        )
        task.step = step
        privacy.check_options(step, task)
        return task

    return cast("TaskDecorator[Q, T_co]", decorate)


def _may_retry(condition: Any, task: Any, run: Any, state: Any) -> Any:
    """Return whether Prefect may retry a state: a failed load, if a user agrees."""
    error = getattr(state.data, "result", state.data)
    has_loaded = not isinstance(error, LoadFailed)
    return not has_loaded and (condition is None or condition(task, run, state))


def _guard(step: Step, function: Callable[P, R]) -> Callable[P, R]:
    """Return the guarded function, which becomes the task's `.fn`."""

    def begin(
        guard: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[StepEvents, Call]:
        arguments = step.signature.bind(*args, **kwargs).arguments
        privacy.check_flow_parameters(step, arguments)
        events = StepEvents(listen_for_task, in_engine=is_run_as_task(guard))
        context = current_context(events.hear)
        return events, Call(step, args, kwargs, context, privacy.nothing_stored)

    @functools.wraps(function)
    def guard(*args: P.args, **kwargs: P.kwargs) -> Any:
        events, call = begin(guard, args, kwargs)
        with events:
            events.value = run(call)
        return events.value

    @functools.wraps(function)
    async def guard_async(*args: P.args, **kwargs: P.kwargs) -> Any:
        events, call = begin(guard_async, args, kwargs)
        with events:
            events.value = await arun(call)
        return events.value

    chosen = guard_async if inspect.iscoroutinefunction(function) else guard
    return cast("Callable[P, R]", charging(chosen, step.signature))
