"""What DP steps are made of, and what they return.

Their decorators go on a function that nothing has wrapped yet, and its output must be
there when it returns.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CellType
from typing import Any, TypeVar, cast

from dpflow.exceptions import ConfigurationError, PublicError, public_name

F = TypeVar("F", bound=Callable[..., Any])

#: Set on functions that charge for themselves. `functools.wraps` hands it on, and so
#: do Prefect's tasks and flows.
_CHARGES = "__dpflow_charges__"

_LATER = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
#: Outputs that are yet to be computed, too.
_FUTURES = {
    "concurrent.futures._base.Future",
    "prefect.futures.PrefectFuture",
    "prefect.futures.PrefectFutureList",
}


def charging(guard: F) -> F:
    """Mark the guard of a step, so that no second one goes over it."""
    setattr(guard, _CHARGES, True)
    return guard


def with_parentheses(decorator: F) -> F:
    """Have a decorator say what to write where it is used without parentheses."""

    @functools.wraps(decorator)
    def checked(*positional: Any, **declared: Any) -> Any:
        if positional:
            name = decorator.__name__
            msg = (
                f"@{name} takes keywords: what the step reads, and its worst case. "
                f'Write @{name}(dataset="...", cost=Gaussian(sensitivity=1, '
                f"sigma=20)) above the function, got {positional[0]!r:.80}"
            )
            raise ConfigurationError(msg)
        return decorator(**declared)

    return cast("F", checked)


def check_body(function: Callable[..., Any]) -> None:
    """Refuse a body that Prefect runs, or that is a DP step already.

    Raises:
        ConfigurationError: If it is one, or no function at all.
    """
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        msg = f"@{kind} goes on top of @dp_task or @guarded, not under it"
        raise ConfigurationError(msg)
    if not callable(function):
        msg = f"a DP step is made of a function, got {function!r}"
        raise ConfigurationError(msg)
    inner = _inside(function)
    why = _why_not(inner)
    if why:
        name = getattr(inner, "name", None) or getattr(inner, "__name__", inner)
        msg = (
            f"the decorator of a DP step goes directly on the function; {name!r} {why}"
        )
        raise ConfigurationError(msg)


def _inside(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _why_not(function: Any) -> str:
    """Say why no DP step can be made of something callable, if so."""
    if getattr(function, _CHARGES, False) is True:
        return "is a DP step already, and would be charged twice. Use one decorator."
    kinds = _kinds(function)
    if "prefect.flows.Flow" in kinds:
        return (
            "is a Prefect flow, whose arguments Prefect keeps in its database. Make "
            "the step of a function, and call it in the flow."
        )
    if "prefect.tasks.Task" in kinds:
        return (
            "is a Prefect task already: make it of the function by @dp_task, which "
            "takes the options of @task."
        )
    return ""


def _kinds(value: object) -> set[str]:
    """Return the classes of a value by name: this room does without Prefect."""
    return {f"{cls.__module__}.{cls.__name__}" for cls in type(value).__mro__}


def check_output(step: str, value: object) -> None:
    """Refuse an output that is yet to be computed: that would be outside the guard.

    Raises:
        ReleaseError: If it is one.
    """
    if not any(is_later(value) for is_later in _LATER) and not _kinds(value) & _FUTURES:
        return
    if inspect.iscoroutine(value):
        value.close()
    msg = (
        f"step {step!r} returned a {public_name(type(value))}, which reads "
        "the data only after the step has ended. Return the whole output."
    )
    raise PublicError(msg)


def captured(function: Callable[..., Any] | None) -> dict[str, Any]:
    """Return by name the variables that a function captures; `self` of another one."""
    if function is None:
        return {}
    if not inspect.isfunction(function):
        return {"self": getattr(function, "__self__", function)}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # One that is assigned after the definition is empty until then.
    empty = CellType()
    return {name: None if cell == empty else cell.cell_contents for name, cell in cells}


def is_constant(value: object) -> bool:
    """Say whether something captured is the same in each call: a module's own."""
    inner = "<locals>" in getattr(value, "__qualname__", "<locals>")
    defined = inspect.isfunction(value) or inspect.isclass(value)
    return inspect.ismodule(value) or (defined and not inner)


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called.

    Raises:
        ConfigurationError: If it has no name.
    """
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name:
        msg = (
            f"a {type(function).__name__} has no name of its own, and the journal "
            'calls a step by one: say name="...", or make the step of a function'
        )
        raise ConfigurationError(msg)
    return name
