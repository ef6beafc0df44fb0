"""The one answer to every command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpflow.ledger.decision import admit, office, policy_changes, settlement
from dpflow.ledger.model import Command, Decision, End, Reserve, Seal, State
from dpflow.ledger.office_records import (
    Amend,
    Apply,
    Checkpoint,
    Freeze,
    Prior,
    Repair,
    Resume,
    Withdraw,
)

_DECISIONS: Mapping[type[Command], Callable[[State, Any], Decision]] = {
    Reserve: admit.reserve,
    End: settlement.end,
    Seal: settlement.seal,
    Apply: policy_changes.apply,
    Freeze: office.freeze,
    Amend: office.amend,
    Prior: office.prior,
    Repair: office.repair,
    Withdraw: office.withdraw,
    Checkpoint: office.checkpoint,
    Resume: office.resume,
}


def decide(state: State, command: Command) -> Decision:
    """Answer a command.

    Raises:
        DpflowError: If it cannot be decided; then it contributes nothing.
    """
    return _DECISIONS[type(command)](state, command)
