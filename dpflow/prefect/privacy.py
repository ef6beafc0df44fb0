"""What keeps private data out of Prefect's database, storage, names and logs.

Prefect keeps more than it shows: the parameters of flows, the names of runs, cache keys
that digest the arguments, the arguments of background tasks. A step whose private
argument would be among them is refused, with the reason.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from datetime import date, time
from decimal import Decimal
from itertools import product
from pathlib import PurePath
from typing import Any, TypeVar
from uuid import UUID

from prefect import Flow, Task, settings
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import (
    MappingLengthMismatch,
    MappingMissingIterable,
    ParameterBindError,
)
from prefect.utilities.annotations import BaseAnnotation
from pydantic import BaseModel, SecretBytes, SecretStr

from dpflow.exceptions import ConfigurationError, require
from dpflow.guard.functions import HIDDEN, values_of
from dpflow.guard.release_keys import template_fields
from dpflow.guard.step import Step, check_template
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.prefect.api import flow_parameters, use_settings, without_storing

R = TypeVar("R")

#: Keywords of Prefect's that are no arguments of the function.
_NO_ARGUMENTS = {"return_state", "wait_for", "deferred"}
#: How Prefect keeps what a method is called on.
_INSTANCES = ("__prefect_self__", "__prefect_cls__")
_OPTIONS = set(inspect.signature(Task.__init__).parameters) - {"self", "fn"}
#: What is compared by value: a copy of it tells as much as the original.
_PLAIN = (str, bytes, int, float, complex, Decimal, date, time, UUID, PurePath)
_SECRETS = (SecretStr, SecretBytes)
_CONTAINERS = (list, tuple, set, frozenset, dict)
#: Numbers up to this one are equal too often for equality to tell anything.
_SMALL = 256
#: How many parts of a flow's parameters are looked at; they are JSON, and small.
_MOST_PARTS = 10_000

#: Settings through which Prefect keeps or shows what tasks return, print or log.
_STORING = (
    settings.PREFECT_DEBUG_MODE,
    settings.PREFECT_RESULTS_PERSIST_BY_DEFAULT,
    settings.PREFECT_TASKS_DEFAULT_PERSIST_RESULT,
    settings.PREFECT_LOGGING_LOG_PRINTS,
    settings.PREFECT_LOGGING_TO_API_ENABLED,
)

_PARAMETER = re.compile(r"(?:task_run\.)?parameters\[([^\]]*)\]")


def check_known(step: Step, options: Mapping[str, Any]) -> None:
    """Refuse what `with_options` would ignore: Prefect's own says nothing.

    Raises:
        ConfigurationError: If an option is not one of a task's.
    """
    unknown = sorted(set(options) - _OPTIONS)
    require(
        not unknown,
        f"with_options() of step {step.name!r} takes fresh=, assets= and the options "
        f"of a task, got {', '.join(unknown)}=. What a step declares stays as it is: "
        "make another step with @dp_task.",
    )


def check_function(function: Callable[..., Any], decorator: str) -> None:
    """Refuse to make a flow or a task of something else than a plain function.

    Raises:
        ConfigurationError: If it is a flow or task already, or it runs later.
    """
    name = getattr(function, "name", "")
    require(
        not isinstance(function, Flow | Task),
        f"@{decorator} goes directly on the function, and {name!r} is a Prefect flow "
        f"or task already: give the options of Prefect's decorator to @{decorator}.",
    )
    require(
        callable(function) and not isinstance(function, classmethod | staticmethod),
        f"@{decorator} goes on the function itself, got {function!r}",
    )
    require(
        not inspect.isgeneratorfunction(function)
        and not inspect.isasyncgenfunction(function),
        f"@{decorator} takes no generator, which runs behind its end. Return the whole "
        "output.",
    )


def check_options(step: Step, task: Task[..., Any]) -> None:
    """Refuse task options through which Prefect would keep a private argument.

    Args:
        step: What the author declared.
        task: The task with its options.

    Raises:
        ConfigurationError: If a run's name, a storage key or a cache key uses a
            private argument, or could be, or what its body prints is stored.
    """
    name = task.task_run_name
    if isinstance(name, str):
        check_template(step, "task_run_name", name)
    if not step.private:
        return
    keeps = {
        # None would be what the flow says.
        "log_prints= sends what the body prints to Prefect's database. Leave it away: "
        "it is off, whatever the flow says": task.log_prints is not False,
        "task_run_name= is a function, which sees the private arguments, and Prefect "
        "keeps the name in its database and events. Give a template over public "
        'parameters, such as "count-{week}"': callable(name),
        "cache_key_fn= sees the private arguments, and Prefect keeps the key. Use "
        "release_key=: the ledger replays the release": task.cache_key_fn is not None,
        "cache_policy= makes a key that Prefect keeps of the arguments, as an unsalted "
        "digest. Use release_key=: the ledger replays the release": (
            task.cache_policy not in (None, NO_CACHE)
        ),
    }
    for why, is_kept in keeps.items():
        if is_kept:
            _refuse(step, why)
    _check_storage_key(step, task.result_storage_key)


def _check_storage_key(step: Step, template: str | None) -> None:
    for field in template_fields(template or ""):
        if "parameters" not in field or field.startswith("flow_run."):
            continue
        result = _PARAMETER.match(field)
        if result is None or result[1] in step.private:
            _refuse(
                step,
                f"result_storage_key {template!r} speaks of {field!r}, and Prefect "
                "keeps the key. Use public parameters only",
            )


def refuse_background(step: Step) -> None:
    """Refuse a background task with private arguments.

    Raises:
        ConfigurationError: If the step has any, or is a method.
    """
    if step.private | _instance(step):
        _refuse(
            step,
            ".delay() and .apply_async() write the arguments to Prefect's result "
            "storage, as a pickle that stays there. Pass the name of the data, and "
            "load it inside the step",
        )


def _instance(step: Step) -> frozenset[str]:
    """Return the parameter that the instance of a method is: it is not public."""
    return HIDDEN & set(step.signature.parameters)


def check_call(
    task: Task[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by name.

    Args:
        task: What is called.
        args: The positional arguments.
        kwargs: The others, and Prefect's own.

    Raises:
        ParameterBindError: If they do not fit. Prefect's own says what they were.
    """
    signature = inspect.signature(task.fn)
    options = {k: v for k, v in kwargs.items() if k not in _NO_ARGUMENTS}
    # What Prefect calls a method with that it was made of.
    of = [getattr(task.fn, name) for name in _INSTANCES if hasattr(task.fn, name)]
    try:
        return dict(signature.bind(*of, *args, **options).arguments)
    except without_interrupts(TypeError) as error:
        why = error
    msg = f"task {task.name!r} takes ({_parameters(signature)}): {why}"
    raise ParameterBindError(msg)


def _parameters(signature: inspect.Signature) -> str:
    """Name the parameters, without defaults: one of a private parameter is private."""
    result = signature.parameters.values()
    return ", ".join(
        str(parameter.replace(annotation=parameter.empty))
        if parameter.default is parameter.empty
        else f"{parameter.name}=..."
        for parameter in result
    )


def check_map(
    mapped: Callable[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> R:
    """Map a task.

    Raises:
        MappingMissingIterable: If there is nothing to map over. Prefect's own says what
            there was.
        MappingLengthMismatch: If lengths differ. Prefect's own tells the lengths.
    """
    try:
        return mapped(*args, **kwargs)
    except (MappingMissingIterable, MappingLengthMismatch) as error:
        kind = type(error)
    msg = "map() takes at least one iterable argument, and all of one length"
    raise kind(msg)


def check_flow_parameters(step: Step, arguments: Mapping[str, Any]) -> None:
    """Refuse a private argument that is a parameter of the flow, or a part of one.

    It is recognised by identity, and if it is plain data also by its value: the
    processes of task runners hold copies.

    Raises:
        ConfigurationError: If there is one. It is in Prefect's database by then.
    """
    if not (parameters := flow_parameters()):
        return
    for name in step.private & set(arguments):
        arguments_of_name = values_of(step.signature.parameters[name], arguments[name])
        values = [*map(_unwrap, arguments_of_name)]
        for parameter, argument in parameters.items():
            pairs = product(values, _parts(argument))
            if any(_same(value, part, name == parameter) for value, part in pairs):
                # Nor does SecretStr mask them (PrefectHQ/prefect#11679, #16888).
                _refuse(
                    step,
                    f"its private argument {name!r} is in the parameter {parameter!r} "
                    "of its flow, and Prefect keeps the parameters of flows in its "
                    "database and shows them. Give the flow the name of the data, and "
                    "load it in a private_task or inside the step",
                )


def _refuse(step: Step, why: str) -> None:
    names = ", ".join(sorted(step.private | _instance(step)))
    msg = (
        f"step {step.name!r} has private arguments ({names}): {why}. The step did not "
        "run."
    )
    raise ConfigurationError(msg)


def _unwrap(value: Any) -> Any:
    while isinstance(value, BaseAnnotation):
        value = value.unwrap()
    return value.get_secret_value() if isinstance(value, _SECRETS) else value


def _same(value: Any, part: Any, same_name: bool) -> bool:  # noqa: FBT001
    """Return True if a private value is what a flow was given."""
    is_small = isinstance(value, int | float) and abs(value) <= _SMALL
    is_empty = isinstance(value, _PLAIN + _CONTAINERS) and not value
    # Those are too common to distinguish anything.
    if value is None or (not same_name and (is_small or is_empty)):
        return False
    if value is part:
        return True
    if type(value) is not type(part) or not isinstance(value, _PLAIN + _CONTAINERS):
        return False
    try:
        return bool(value == part)
    except without_interrupts(Exception):
        return False


def _parts(argument: Any) -> Iterator[Any]:
    """Yield a parameter of a flow and its parts."""
    waiting = [argument]
    for _ in range(_MOST_PARTS):
        if not waiting:
            return
        value = _unwrap(waiting.pop())
        yield value
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value
        elif isinstance(value, BaseModel) or is_dataclass(value):
            waiting += vars(value).values() if hasattr(value, "__dict__") else ()


@contextmanager
def nothing_stored() -> Iterator[None]:
    """Keep tasks and flows that are called in this block from storing or logging.

    No record of a logger reaches Prefect's database from this block, nor from threads
    with its context; plain threads are outside of it. A task that a step's body calls
    returns and prints data that was not released. It would inherit the step's
    `persist_result`, the flow's `log_prints`, or a setting's; what it says itself
    counts.
    """
    # The settings come before what a task inherits.
    off = {setting: False for setting in _STORING if setting.value()}
    with use_settings(off), without_storing():
        yield
