"""The functions behind DP steps, and what they return.

Their decorators go on a function that nothing has wrapped yet, and its output must be
there when it returns. The public parameters of a step are its body's, or those of the
load before it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any, TypeVar

from dpflow.exceptions import PublicError, public_name, require

F = TypeVar("F", bound=Callable[..., Any])

#: Set on functions that charge for themselves. `functools.wraps` hands it on, and so
#: do Prefect's tasks and flows.
_CHARGES = "__dpflow_charges__"

#: A chain of decorators is not followed for ever.
_MOST_LAYERS = 100
#: Attributes of the classes of frames, arrays and Series.
_TABLES = ("shape", "__arrow_c_stream__", "__arrow_c_array__")
_TEXTS = (str, bytes)
#: Methods of what can be read once only.
_ONCE = ("__next__", "__anext__", "__aiter__")
_LATER = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)
#: Outputs that are yet to be computed, too.
_FUTURES = {"concurrent.futures._base.Future", "prefect.futures.PrefectFuture"}
_FUTURES |= {"prefect.futures.PrefectFutureList"}

#: The instance of a method is no public argument.
HIDDEN = frozenset({"self", "cls"})
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def charging(guard: F, signature: inspect.Signature) -> F:
    """Mark the guard of a step, so that no second one goes over it.

    Args:
        guard: The function that callers call.
        signature: Its parameters, which are the load's if it has one.
    """
    setattr(guard, _CHARGES, True)
    if _parts(signature) != _parts(inspect.signature(guard)):
        annotated: Any = guard
        annotated.__signature__ = signature
        types = {p.name: p.annotation for p in signature.parameters.values()}
        types["return"] = signature.return_annotation
        empty = inspect.Parameter.empty
        annotated.__annotations__ = {n: t for n, t in types.items() if t is not empty}
    return guard


def _parts(signature: inspect.Signature) -> list[tuple[object, ...]]:
    """Return what distinguishes a signature; arrays as defaults cannot be compared."""
    parameters = signature.parameters.values()
    return [(p.name, p.kind, p.annotation, id(p.default)) for p in parameters]


def check_body(function: Callable[..., Any]) -> None:
    """Refuse a body that Prefect runs, or that is a DP step already.

    Raises:
        ConfigurationError: If it is one, or no function at all.
    """
    require(
        not isinstance(function, classmethod | staticmethod),
        f"@{type(function).__name__} goes on top of @dp_task or @guarded, not under it",
    )
    require(callable(function), f"a DP step wraps a function, got {function!r}")
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    kinds, problem = _kinds(inner), ""
    if getattr(inner, _CHARGES, False) is True:
        problem = "is a DP step already, and would be charged twice. Use one decorator."
    elif "prefect.flows.Flow" in kinds:
        problem = (
            "is a Prefect flow, whose arguments Prefect keeps in its database. Make "
            "the step of a function, and call it in the flow."
        )
    elif "prefect.tasks.Task" in kinds:
        problem = (
            "is a Prefect task already: make it of the function by @dp_task, which "
            "takes the options of @task."
        )
    name = getattr(inner, "name", None) or getattr(inner, "__name__", inner)
    rule = "the decorator of a DP step goes directly on the function"
    require(not problem, f"{rule}; {name!r} {problem}")


def _kinds(value: object) -> set[str]:
    """Return the classes of a value by name: this package does without Prefect."""
    return {f"{cls.__module__}.{cls.__name__}" for cls in type(value).__mro__}


def check_output(step: str, value: object) -> None:
    """Refuse an output that is yet to be computed: that would be outside the guard.

    Raises:
        ReleaseError: If it is one.
    """
    is_later = any(is_kind(value) for is_kind in _LATER) or _kinds(value) & _FUTURES
    if inspect.iscoroutine(value):
        value.close()
    require(
        not is_later,
        f"step {step!r} returned a {public_name(type(value))}, which reads the data "
        "only after the step has ended. Return the whole output.",
        PublicError,
    )


def check_reusable(step: str, what: str, value: object) -> None:
    """Refuse private data that only the first reader would get.

    Raises:
        ConfigurationError: If it is an iterator, such as a cursor, or a coroutine.
    """
    is_once = any(hasattr(type(value), name) for name in _ONCE)
    require(
        not is_once and not inspect.iscoroutine(value),
        f"step {step!r}: {what} a {public_name(type(value))}, which can be read once "
        "only: a retry or another step would read nothing. The step did not run, and "
        "nothing was charged. Pass list(...), or an object with __iter__, such as a "
        "DataLoader.",
    )


def layers(function: Any) -> list[Any]:
    """Return a function with those that it decorates, the innermost last."""
    result: list[Any] = []
    inner = function
    while callable(inner) and len(result) < _MOST_LAYERS:
        result.append(inner)
        is_partial = isinstance(inner, functools.partial)
        inner = getattr(inner, "func" if is_partial else "__wrapped__", None)
    return result or [function]


def list_held_values(layer: Any) -> list[Any]:
    """Return the values that a function, or an object that is called, holds."""
    is_function = inspect.isfunction(layer)
    variables = _variables(layer) if is_function else getattr(layer, "__dict__", {})
    return [*variables.values()]


def find_captured(function: Callable[..., Any] | None) -> dict[str, Any]:
    """Return by name what a function takes with it into each call.

    These are the variables that the function under all decorators captures, the
    instance of a bound method, and the positional arguments of a `partial`.
    """
    result: dict[str, Any] = {}
    every = [] if function is None else layers(function)
    for layer in every:
        if isinstance(layer, functools.partial):
            result |= inspect.signature(layer.func).bind_partial(*layer.args).arguments
        elif inspect.isfunction(layer) and layer is every[-1]:
            result |= _variables(layer)
        elif inspect.ismethod(layer) or layer is every[-1]:
            result["self"] = getattr(layer, "__self__", layer)
    return result


def decorator_of(function: Callable[..., Any]) -> str:
    """Return what an undeclared decorator made of a function; "" of a plain function.

    A decorator without `functools.wraps` leaves no way to what it decorates but a
    variable of its wrapper, or an attribute of its object.
    """
    inner = layers(function)[-1]
    if inspect.isclass(inner) or not any(map(callable, list_held_values(inner))):
        return ""
    return str(getattr(inner, "__qualname__", type(inner).__qualname__))


def _variables(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # One that is assigned after the definition is empty until then.
    empty = CellType()
    return {name: None if cell == empty else cell.cell_contents for name, cell in cells}


def constants_named(function: Any, kind: str) -> list[Any]:
    """Return what a function captures or names of its module, of a class by name."""
    inner = layers(function)[-1]
    names = getattr(getattr(inner, "__code__", None), "co_names", ())
    named = [getattr(inner, "__globals__", {}).get(name) for name in names]
    return [v for v in (*named, *find_captured(function).values()) if kind in _kinds(v)]


def is_constant(value: object) -> bool:
    """Return True if something captured is the same in each call: a module's own."""
    inner = "<locals>" in getattr(value, "__qualname__", "<locals>")
    defined = inspect.isfunction(value) or inspect.isclass(value)
    return inspect.ismodule(value) or (defined and not inner)


def holds_rows(value: object) -> bool:
    """Return whether a value is a frame, an array, a Series or a list of rows."""
    kind = type(value)
    if isinstance(value, list | tuple):
        row = next(iter(value), None)
        return isinstance(row, Mapping | Sequence) and not isinstance(row, _TEXTS)
    is_sized = hasattr(kind, "__len__") and not isinstance(value, _TEXTS)
    return (is_sized and any(hasattr(kind, name) for name in _TABLES)) or (
        hasattr(kind, "collect_schema")
    )


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called.

    Raises:
        ConfigurationError: If it has no name.
    """
    name = getattr(function, "__name__", "")
    require(
        isinstance(name, str) and name,
        f"a {type(function).__name__} has no name of its own, and the journal calls a "
        'step by one: say name="...", or make the step of a function',
    )
    return str(name)


def count_receivers(body: Callable[..., Any]) -> int:
    """Return the number of parameters before the loaded value: 1 of a method."""
    first = next(iter(inspect.signature(body).parameters), "")
    return int(first in HIDDEN)


def public_signature(
    step: str, body: Callable[..., Any], load: Callable[..., Any] | None
) -> inspect.Signature:
    """Return the signature with which a step is called.

    Raises:
        ConfigurationError: If a load does not fit the body.
    """
    signature = inspect.signature(body)
    if load is None:
        return signature
    _check_load(step, body, load)
    parameters, count = [*signature.parameters.values()], count_receivers(body)
    receivers, others = parameters[:count], parameters[count + 1 :]
    loaded = parameters[count : count + 1]
    require(
        loaded and loaded[0].kind in _BY_POSITION,
        f"step {step!r} has load=, and its first parameter takes the loaded value: "
        "write one that is passed by position",
    )
    names = {parameter.name for parameter in receivers + others}
    read = inspect.signature(load).parameters
    new = {name: read[name] for name in read if name not in names}
    require(
        not (others and new),
        f"the load of step {step!r} takes {[*new]}, which are no "
        f"parameters of the step: {', '.join(sorted(names))}. Name them alike, or let "
        "the body take the loaded value alone",
    )
    public = receivers + (others or [*new.values()])
    names = {parameter.name for parameter in public}
    shared = sorted(find_captured(load).keys() & names)
    require(
        not shared,
        f"the load of step {step!r} captures {shared}, and the step has parameters of "
        "these names. Rename one of the two",
    )
    return signature.replace(parameters=public)


def _check_load(step: str, body: Callable[..., Any], load: Callable[..., Any]) -> None:
    """Refuse a load that does not read when it is called.

    Raises:
        ConfigurationError: If so.
    """
    problems = {
        f"takes load= as a function, got {load!r}": not callable(load),
        "has a generator as its load, which reads nothing before the body: return "
        "list(...)": inspect.isgeneratorfunction(load)
        or inspect.isasyncgenfunction(load),
        "has an async load and is not async: make both async, or neither": (
            inspect.iscoroutinefunction(load) > inspect.iscoroutinefunction(body)
        ),
    }
    for problem, is_there in problems.items():
        require(not is_there, f"step {step!r} {problem}")


def values_of(parameter: inspect.Parameter, value: Any) -> Collection[Any]:
    """Return the arguments for a parameter; `*args` and `**kwargs` take several."""
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple(value)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return tuple(value.values())
    return (value,)
