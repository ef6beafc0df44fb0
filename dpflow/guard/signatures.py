"""The public parameters of a step: its body's, or those of the load before it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any

from dpflow.exceptions import require
from dpflow.guard.functions import find_captured

#: The instance of a method is no public argument.
HIDDEN = frozenset({"self", "cls"})
_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


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
    read = [*inspect.signature(load).parameters.values()]
    names = {parameter.name for parameter in receivers + others}
    new = [parameter for parameter in read if parameter.name not in names]
    unknown = [parameter.name for parameter in new]
    require(
        not (others and new),
        f"the load of step {step!r} takes {unknown}, which are no "
        f"parameters of the step: {', '.join(sorted(names))}. Name them alike, or let "
        "the body take the loaded value alone",
    )
    public = receivers + (others or new)
    shared = sorted(
        find_captured(load).keys() & {parameter.name for parameter in public}
    )
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
