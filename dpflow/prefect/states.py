"""The states in which a refused step or flow ends, and a step that was replayed.

A refusal is Cancelled, not Failed: no retries, no failure hooks, and everything
downstream stays NotReady, even behind `allow_failure`. Prefect 3 no longer makes a
flow's state of it (PrefectHQ/prefect#7694); `dp_flow` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect.client.schemas.objects import State, StateType
from prefect.states import Cancelled
from prefect.transactions import get_transaction

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.guard.request import Notice

REFUSAL_STATES = frozenset({BudgetRefused.__name__, BudgetExhausted.__name__})


def refused_state(error: BudgetRefused) -> State[Any]:
    """Return the state of a refused step or flow, with the error as its data."""
    transaction = get_transaction()
    if transaction is not None:
        # Without this, a persisted task would serve the refusal from its cache for
        # ever, budget or not.
        transaction.write_on_commit = False
    name = type(error).__name__
    state: State[Any] = Cancelled(name=name, message=error.message, data=error)
    return state


def refusal_in(value: Any) -> BudgetRefused | None:
    """Return the refusal that a task run's result stands for, if it does."""
    if not isinstance(value, State) or value.name not in REFUSAL_STATES:
        return None
    data = getattr(value.data, "result", value.data)
    if isinstance(data, BudgetRefused):
        return data
    exhausted = value.name == BudgetExhausted.__name__
    kind = BudgetExhausted if exhausted else BudgetRefused
    return kind(value.message or "the ledger refused this step")


class ReplayedState(State[Any]):
    """The state of a step whose value is a release that the ledger had already.

    Prefect names a state only if the task's function returns one. Its data is the
    value, which Prefect hands to futures, downstream tasks, storage and caches; a plain
    call would get the state itself, and `DPTask` unpacks it. A class of its own: bodies
    may return states of any name.
    """


class Told:
    """What the ledger tells of one call of a step.

    Args:
        tell: Who is told as well.
    """

    def __init__(self, tell: Callable[[Notice], None]) -> None:
        self._replayed = False
        self._tell = tell

    def hear(self, notice: Notice) -> None:
        """Take notice of it."""
        self._replayed = self._replayed or notice.kind == "replayed"
        self._tell(notice)

    def shown(self, value: Any) -> Any:
        """Return what Prefect is to make the task run's state of."""
        if self._replayed:
            return ReplayedState(
                type=StateType.COMPLETED,
                name="Replayed",
                message="The value is a release that the ledger had; it cost nothing.",
                data=value,
            )
        # A body may have got it from another step: then it is a value.
        return State(**dict(value)) if isinstance(value, ReplayedState) else value


def value_of(result: Any) -> Any:
    """Return the value of a call whose result may be the state of a replay."""
    if not isinstance(result, ReplayedState):
        return result
    record: Any = result.data  # the engine has packed the value by now
    return record.result
