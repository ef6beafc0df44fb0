"""The states in which a refused step or flow ends, and a step that was replayed.

A refusal is Cancelled, not Failed: no retries, no failure hooks, and everything
downstream stays NotReady, even behind `allow_failure`. Prefect 3 no longer makes a
flow's state of it (PrefectHQ/prefect#7694); `dp_flow` does.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled
from pydantic import SerializerFunctionWrapHandler, field_serializer

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.guard.request import Notice
from dpflow.prefect.api import keep_out_of_cache


def state_of_refusal(error: BudgetRefused) -> State[Any]:
    """Return the state of a refused step or flow, with the error as its data."""
    # A persisted task would serve the refusal from its cache permanently.
    keep_out_of_cache()
    name = type(error).__name__
    state: State[Any] = Cancelled(name=name, message=error.message, data=error)
    return state


def refusal_in(value: Any) -> BudgetRefused | None:
    """Return the refusal that a task run's result stands for, if it does."""
    kinds = {kind.__name__: kind for kind in (BudgetRefused, BudgetExhausted)}
    kind = kinds.get(value.name or "") if isinstance(value, State) else None
    if kind is None:
        return None
    data = getattr(value.data, "result", value.data)
    if isinstance(data, BudgetRefused):
        return data
    return kind(value.message or "the ledger refused this step")


class ReplayedState(State[Any]):
    """The state of a step whose value is a release that the ledger had already.

    Prefect names a state only if the task's function returns one. Its data is the
    value, which Prefect hands to futures, downstream tasks, storage and caches; a plain
    call would get the state itself, and `DPTask` unpacks it. A class of its own: bodies
    may return states of any name.
    """


class PrivateState(State[Any]):
    """The state of a task that has loaded private data.

    Prefect's debug mode logs the `repr` of states, with their data. Futures and
    downstream tasks get the data.
    """

    def __repr__(self) -> str:
        """Return the state without its data."""
        return str(self)

    def __getstate__(self) -> dict[Any, Any]:
        """Return what is pickled: without the data for Prefect's storage of results."""
        fields: dict[Any, Any] = super().__getstate__()
        if _is_for_storage():
            fields["__dict__"] = {**fields["__dict__"], "data": None}
        return fields

    @field_serializer("data", mode="wrap")
    def _serialize_data(
        self, data: object, serialize: SerializerFunctionWrapHandler
    ) -> Any:
        return None if _is_for_storage() else serialize(data)


def _is_for_storage() -> bool:
    """Return True if Prefect writes a result; task runners pickle by themselves."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None and frame.f_globals["__name__"] != "prefect.serializers":
        frame = frame.f_back
    return frame is not None


def private_state(value: Any) -> PrivateState:
    """Return the state that hands a private value to Prefect's engine."""
    if isinstance(value, State):
        return PrivateState(**dict(value))
    return PrivateState(type=StateType.COMPLETED, name="Completed", data=value)


class StepEvents:
    """Events of one call of a step, which end in the state of its task run.

    Args:
        listener: The function that hears of each event, too.
        in_engine: Whether Prefect's engine runs the call, and takes a state.
    """

    def __init__(self, listener: Callable[[Notice], None], *, in_engine: bool) -> None:
        self._replayed, self._in_engine = False, in_engine
        self._listener = listener
        self.value: Any = None

    def hear(self, notice: Notice) -> None:
        """Take notice of an event."""
        self._replayed = self._replayed or notice.kind == "replayed"
        self._listener(notice)

    def __enter__(self) -> Self:
        """Begin the call."""
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> bool:
        """Turn the value, or the refusal, into the state of the task run."""
        if not self._in_engine:
            return False
        if isinstance(error, BudgetRefused):
            self.value = state_of_refusal(error)
            return True
        if self._replayed:
            self.value = ReplayedState(
                type=StateType.COMPLETED,
                name="Replayed",
                message="The value is a release that the ledger had; it cost nothing.",
                data=self.value,
            )
        elif isinstance(self.value, ReplayedState):
            # A body may have got it from another step: then it is a value.
            self.value = State(**dict(self.value))
        return False


def value_of(result: Any) -> Any:
    """Return the value of a call, whose result may be a state that holds it.

    Of an async task it is a coroutine of the value.

    Raises:
        BudgetRefused: If the result is the state of a refused step.
    """
    return _await_value(result) if inspect.isawaitable(result) else _unpack(result)


async def _await_value(result: Any) -> Any:
    return _unpack(await result)


def _unpack(result: Any) -> Any:
    if (refusal := refusal_in(result)) is not None:
        raise refusal
    kinds = ReplayedState | PrivateState
    if not isinstance(result, kinds) or not result.is_completed():
        return result
    record: Any = result.data  # the engine has packed the value by now
    return record.result
