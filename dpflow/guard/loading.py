"""Loads: what reads a body's input before the reservation, so that a failure is free.

The ledger would grant the step when its load runs. What a load reads is private, so
that it may call no DP step, and its error is shown by its class at most.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from dpflow.exceptions import LoadFailed
from dpflow.guard.bodies import home, running
from dpflow.guard.functions import check_reusable, count_receivers
from dpflow.guard.redaction import StoredError, redact_load_error
from dpflow.guard.step import Step
from dpflow.ledger.requests import Granted, Request

#: The number of failed loads by the bodies of steps, since the last reservation.
_failed: WeakKeyDictionary[Callable[..., Any], int] = WeakKeyDictionary()

Around = Callable[[], AbstractContextManager[None]]


class StepLoad:
    """The load of one call of a step, which runs once at most.

    Args:
        step: The step.
        request: The request of the call.
        args: The positional arguments of the call.
        kwargs: The other arguments.
        around: Makes the context in which private data is read.

    Attributes:
        step: The step.
        request: The request of the call.
        home: The thread and the task of the call.
        is_due: Whether the step has a load that did not run.
    """

    def __init__(
        self,
        step: Step,
        request: Request,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        around: Around,
    ) -> None:
        self.request, self.home = request, home()
        self.is_due = step.load is not None
        self.step, self._around = step, around
        self._args, self._kwargs = args, kwargs
        self._value: Any = None
        self._error: BaseException | None = None

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
            with running(frame, self), StoredError(self._store_error), self._around():
                self._value = read()
            self._end()

    async def arun(self, answer: object) -> None:
        """Read as `run`; a load that is not async runs in a thread."""
        if self.is_due and isinstance(answer, Granted):
            read, frame = self._bound(), inspect.currentframe()
            if not inspect.iscoroutinefunction(self.step.load):
                read = partial(asyncio.to_thread, read)
            with running(frame, self), StoredError(self._store_error), self._around():
                self._value = await read()
            self._end()

    def pass_on(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of the body, whose reservation is made."""
        if self.step.load is None:
            return self._args, self._kwargs
        _failed.pop(self.step.body, None)
        count = count_receivers(self.step.body)
        first, others = self._args[:count], self._args[count:]
        if len(inspect.signature(self.step.body).parameters) == count + 1:
            return (*first, self._value), {}
        return (*first, self._value, *others), self._kwargs

    def _bound(self) -> Callable[[], Any]:
        """Return the load with those arguments of the call that it names."""
        function: Any = self.step.load
        call = self.step.signature.bind(*self._args, **self._kwargs)
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
            _failed[self.step.body] = _failed.get(self.step.body, 0) + 1
        if self._error is not None:
            raise self._error
        check_reusable(self.step.name, "load= returned", self._value)
        self.is_due = False


def count_failed_loads(step: Step) -> dict[str, int]:
    """Return the number of failed loads before this charge, for the journal."""
    number = 0 if step.load is None else _failed.get(step.body, 0)
    return {"failed_loads": number} if number else {}
