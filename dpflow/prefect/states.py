"""The state in which a refused step or flow ends.

Cancelled, not Failed: no retries, no failure hooks, and everything downstream stays
NotReady, even behind `allow_failure`. Prefect 3 no longer makes a flow's state of it
(PrefectHQ/prefect#7694); `dp_flow` does.
"""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from prefect.transactions import get_transaction

from dpflow.exceptions import BudgetExhausted, BudgetRefused

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
