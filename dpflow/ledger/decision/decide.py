"""The one answer to every command."""

from __future__ import annotations

from dpflow.ledger.decision.admit import reserve
from dpflow.ledger.decision.end import end, seal
from dpflow.ledger.decision.office import amend, freeze, prior
from dpflow.ledger.decision.terms import apply
from dpflow.ledger.model import (
    Amend,
    Apply,
    Command,
    Decision,
    End,
    Freeze,
    Prior,
    Reserve,
    Seal,
    State,
)


def decide(state: State, command: Command) -> Decision:
    """Answer a command.

    Raises:
        DpflowError: If it cannot be decided; then it contributes nothing.
    """
    match command:
        case Reserve():
            return reserve(state, command)
        case End():
            return end(state, command)
        case Seal():
            return seal(state, command)
        case Apply():
            return apply(state, command)
        case Freeze():
            return freeze(state, command)
        case Amend():
            return amend(state, command)
        case Prior():
            return prior(state, command)
        case _:
            msg = f"no decision is made about {type(command).__name__}"
            raise TypeError(msg)
