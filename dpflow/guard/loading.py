"""Loads: what reads a body's input before the reservation, so that a failure is free.

The ledger would grant the step when its load runs. What a load reads is private, so
that it may call no DP step, and its error is shown by its class at most.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dpflow.exceptions import LoadFailed
from dpflow.guard.bodies import Home, home, running
from dpflow.guard.functions import check_reusable, count_receivers
from dpflow.guard.project import Project
from dpflow.guard.redaction import StoredError, redact_load_error
from dpflow.guard.request import StepContext, ask
from dpflow.guard.step import Step, failed_loads
from dpflow.ledger.requests import Granted, Request

Around = Callable[[], AbstractContextManager[None]]


@dataclass(slots=True)
class Call:
    """One call of a step: its request, and its load, which runs once at most.

    Attributes:
        step: The step.
        args: The positional arguments of the call.
        kwargs: The other arguments.
        context: The context of the call.
        around: Makes the context in which private data is read.
        project: The project that is charged.
        request: The request to its ledger.
        home: The thread and the task of the call.
        is_due: Whether the step has a load that did not run.

    Raises:
        DpflowError: If anything declared is wrong; nothing was charged.
    """

    step: Step
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    context: StepContext
    around: Around = nullcontext
    project: Project = field(init=False)
    request: Request = field(init=False)
    home: Home = field(init=False)
    is_due: bool = field(init=False)
    _value: Any = field(init=False, repr=False, default=None)
    _error: BaseException | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self.home, self.is_due = home(), self.step.load is not None
        request = ask(self.step, self.args, self.kwargs, self.context)
        self.project, self.request = request

    def run(self, answer: object) -> None:
        """Read the input of the body where the ledger grants the step, once.

        Args:
            answer: What the ledger answers, or would answer.

        Raises:
            LoadFailed: If the load raises.
            ConfigurationError: If it returns an iterator.
        """
        if self.is_due and isinstance(answer, Granted):
            read, frame = self._bound(), inspect.currentframe()
            with running(frame, self), StoredError(self._store_error), self.around():
                self._value = read()
            self._end()

    async def arun(self, answer: object) -> None:
        """Read as `run`; a load that is not async runs in a thread."""
        if self.is_due and isinstance(answer, Granted):
            read, frame = self._bound(), inspect.currentframe()
            if not inspect.iscoroutinefunction(self.step.load):
                read = partial(asyncio.to_thread, read)
            with running(frame, self), StoredError(self._store_error), self.around():
                self._value = await read()
            self._end()

    def pass_on(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of the body, whose reservation is made."""
        if self.step.load is None:
            return self.args, self.kwargs
        failed_loads.pop(self.step.body, None)
        count = count_receivers(self.step.body)
        first, others = self.args[:count], self.args[count:]
        if len(inspect.signature(self.step.body).parameters) == count + 1:
            return (*first, self._value), {}
        return (*first, self._value, *others), self.kwargs

    def _bound(self) -> Callable[[], Any]:
        """Return the load with those arguments of the call that it names."""
        function: Any = self.step.load
        call = self.step.signature.bind(*self.args, **self.kwargs)
        call.apply_defaults()
        signature = inspect.signature(function)
        named = {name: call.arguments[name] for name in signature.parameters}
        own = inspect.BoundArguments(signature, named)
        return partial(function, *own.args, **own.kwargs)

    def _store_error(self, error: BaseException) -> None:
        self._error = redact_load_error(error, self.request)

    def _end(self) -> None:
        """Raise the error of the load, or note that the input is read."""
        if isinstance(self._error, LoadFailed):
            failed_loads[self.step.body] = failed_loads.get(self.step.body, 0) + 1
        if self._error is not None:
            raise self._error
        check_reusable(self.step.name, "load= returned", self._value)
        self.is_due = False
