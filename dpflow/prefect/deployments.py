"""Flows of DP steps, and what they tell of their steps when they are deployed."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from prefect import Flow

from dpflow.prefect.client_calls import patience, patiently
from dpflow.prefect.keyless_steps import WHAT_TO_DO
from dpflow.prefect.task import DPTask

P = ParamSpec("P")
R = TypeVar("R")

#: How many functions are looked into for steps.
_MOST_FUNCTIONS = 1000


class DPFlow(Flow[P, R]):
    """A Prefect flow of DP steps, as `dp_flow` returns it.

    Deploying it warns of steps that name no release key, as far as its code shows
    them. `prefect deploy` asks no flow: there, the first run tells.
    """

    # Under TYPE_CHECKING the overrides would hide Prefect's own signatures.
    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Run the flow, with patience for a server that Prefect starts for it."""
            with patience():
                run = super().__call__(*args, **kwargs)
            return patiently(run) if inspect.iscoroutine(run) else run

        def with_options(self, **options: Any) -> DPFlow[P, R]:
            """Return the flow with other options."""
            # Prefect builds a plain Flow here; only its class is lost.
            flow = super().with_options(**options)
            flow.__class__ = type(self)
            return flow

        def to_deployment(self, *args: Any, **kwargs: Any) -> Any:
            """Make a deployment of the flow, with a warning where one is due."""
            warn_of_unnamed(self)
            return super().to_deployment(*args, **kwargs)

        async def ato_deployment(self, *args: Any, **kwargs: Any) -> Any:
            """Make a deployment of the flow; `serve` and `deploy` come by here."""
            warn_of_unnamed(self)
            return await super().ato_deployment(*args, **kwargs)


def warn_of_unnamed(flow: Flow[..., Any]) -> None:
    """Warn of the steps in a flow's code that name no release key."""
    steps = sorted({step.name for step in steps_in_code(flow) if _is_unnamed(step)})
    if steps:
        msg = (
            f"flow {flow.name!r} is deployed, and its steps {', '.join(steps)} name no "
            f"release_key: every run of it charges them again, a late or repeated one "
            f"too. {WHAT_TO_DO} (Looked for in the flow's code; a step that is "
            "reached in another way is reported when it first runs.)"
        )
        warnings.warn(msg, UserWarning, stacklevel=2)


def _is_unnamed(step: DPTask[..., Any]) -> bool:
    return step.step.release_key is None and not step.step.fresh


# Steps are known by their use only: what follows reads it off the code.


def steps_in_code(flow: Flow[..., Any]) -> list[DPTask[..., Any]]:
    """Return the DP steps that a flow's code names, itself or through functions.

    What is looked up while it runs (in a list, by `getattr`) is not seen.
    """
    result: list[DPTask[..., Any]] = []
    seen: set[int] = set()
    waiting: list[Any] = [flow]
    while waiting and len(seen) < _MOST_FUNCTIONS:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, DPTask):
            result.append(value)
        elif isinstance(value, Flow):
            waiting.append(inspect.unwrap(value.fn))
        elif inspect.isfunction(value):
            waiting += _values_of_names(inspect.unwrap(value))
    return result


def _values_of_names(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield what the names in a function's code stand for."""
    names = set(_names(function.__code__))
    values = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for name in names & set(values):
        value = values[name]
        yield value
        if isinstance(value, ModuleType):
            # `steps.count(week)` has both names in its code.
            yield from (vars(value)[n] for n in names & set(vars(value)))


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in a function's code and in those of its inner functions."""
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
