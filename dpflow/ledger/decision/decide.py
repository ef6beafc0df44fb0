"""The one answer to every command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpflow.ledger import model, orders
from dpflow.ledger.decision import admit, applying, end, office
from dpflow.ledger.model import Command, Decision, State

_DECISIONS: Mapping[type[Command], Callable[[State, Any], Decision]] = {
    model.Reserve: admit.reserve,
    model.End: end.end,
    model.Seal: end.seal,
    orders.Apply: applying.apply,
    orders.Freeze: office.freeze,
    orders.Amend: office.amend,
    orders.Prior: office.prior,
    orders.Repair: office.repair,
    orders.Forget: office.forget,
    orders.Checkpoint: office.checkpoint,
}


def decide(state: State, command: Command) -> Decision:
    """Answer a command.

    Raises:
        DpflowError: If it cannot be decided; then it contributes nothing.
    """
    return _DECISIONS[type(command)](state, command)
