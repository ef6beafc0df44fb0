"""Tasks that load private data, of which Prefect keeps nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import TaskOptions
from typing_extensions import Unpack

from dpflow.exceptions import ConfigurationError, require
from dpflow.guard.redaction import StoredError, redact_loader_error
from dpflow.prefect.api import is_run_as_task
from dpflow.prefect.privacy import check_call, check_function, check_map
from dpflow.prefect.states import private_state, value_of

P = ParamSpec("P")
R = TypeVar("R")

#: Options that would store the result, or what the body prints.
_STORING = (
    *("cache_key_fn", "cache_policy", "log_prints", "persist_result"),
    *("result_serializer", "result_storage", "result_storage_key"),
)


class PrivateTask(Task[P, R]):
    """A Prefect task whose result is never stored, as `private_task` returns it."""

    # As in DPTask: the overrides would hide Prefect's overloads.
    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Run the task."""
            check_call(self, args, kwargs)
            result = super().__call__(*args, **kwargs)
            return result if kwargs.get("return_state") else value_of(result)

        def submit(self, *args: Any, **kwargs: Any) -> Any:
            """Submit the task to the flow's task runner."""
            check_call(self, args, kwargs)
            return super().submit(*args, **kwargs)

        def map(self, *args: Any, **kwargs: Any) -> Any:
            """Submit one task for each item."""
            check_call(self, args, kwargs)
            return check_map(super().map, args, kwargs)

        def with_options(self, **options: Any) -> PrivateTask[P, R]:
            """Return the task with other options, except those that store results."""
            _check_storing(options)
            task = super().with_options(**options)
            task.__class__ = type(self)
            return task

        def apply_async(self, *_: Any, **__: Any) -> Any:
            """Refuse to be a background task: its result would have to be stored."""
            msg = (
                f"private task {self.name!r} cannot run in the background: .delay() "
                "and .apply_async() keep arguments and result in Prefect's result "
                "storage. Call it, or submit it."
            )
            raise ConfigurationError(msg)


@overload
def private_task(function: Callable[P, R], /) -> PrivateTask[P, R]: ...


@overload
def private_task(
    *, errors: Literal["redact", "keep"] = "redact", **task_options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], PrivateTask[P, R]]: ...


def private_task(
    function: Callable[P, R] | None = None,
    /,
    *,
    errors: Literal["redact", "keep"] = "redact",
    **task_options: Unpack[TaskOptions],
) -> PrivateTask[P, R] | Callable[[Callable[P, R]], PrivateTask[P, R]]:
    """Make a Prefect task that loads private data and never stores its result.

    Result persistence may be switched on for a whole flow, a project or a server; this
    task's result stays out of storage, caches and logs all the same. So is the text
    of its errors, which can quote the data. Use it also for tasks that the body of
    a DP step calls: Prefect keeps the text of a plain task's error.

    Args:
        function: What it decorates, where it is written without parentheses.
        errors: "keep" shows the original error, where that is safe.
        **task_options: Options of `prefect.task`, except those that store results.

    Returns:
        The task with the function's parameters and types, or a decorator that makes it.

    Raises:
        ConfigurationError: For an option that would store the result, or a generator.

    Examples:
        >>> @private_task(name="load")
        ... def purchases(week: str) -> pd.DataFrame:
        ...     return pd.read_parquet(f"{week}.parquet")
    """
    _check_storing(task_options)
    allowed = ("redact", "keep")
    require(errors in allowed, f"errors= takes 'redact' or 'keep', got {errors!r}")
    task_options["persist_result"] = task_options["log_prints"] = False
    task_options["cache_policy"] = NO_CACHE

    def decorate(function: Callable[P, R]) -> PrivateTask[P, R]:
        check_function(function, "private_task")
        name = str(task_options.get("name") or getattr(function, "__name__", "task"))
        return PrivateTask(fn=_redact(name, function, errors), **task_options)

    return decorate if function is None else decorate(function)


def _redact(task: str, function: Callable[P, R], errors: str) -> Callable[P, R]:
    """Return the function with its value, and the text of its errors, withheld."""

    def show(error: BaseException) -> BaseException:
        return error if errors == "keep" else redact_loader_error(error, task=task)

    @functools.wraps(function)
    def loader(*args: P.args, **kwargs: P.kwargs) -> Any:
        shown = list[BaseException]()
        # Timeouts carry frames, too.
        with StoredError(lambda error: shown.append(show(error))):
            return _hand_on(loader, function(*args, **kwargs))
        raise shown[0]

    @functools.wraps(function)
    async def loader_async(*args: P.args, **kwargs: P.kwargs) -> Any:
        shown = list[BaseException]()
        with StoredError(lambda error: shown.append(show(error))):
            value = await cast("Any", function(*args, **kwargs))
            return _hand_on(loader_async, value)
        raise shown[0]

    chosen = loader_async if inspect.iscoroutinefunction(function) else loader
    return cast("Callable[P, R]", chosen)


def _hand_on(loader: Callable[..., Any], value: Any) -> Any:
    """Return a private value as it is, and to Prefect's engine in a closed state."""
    return private_state(value) if is_run_as_task(loader) else value


def _check_storing(options: Any) -> None:
    for name in _STORING:
        msg = f"private_task keeps its result out of storage; leave {name}= away"
        require(name not in options, msg)
