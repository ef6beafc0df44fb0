"""Single operations to break, and what must hold of them afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpflow.exceptions import DpflowError
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Granted, Request
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.owners import Liveness
from tests.ledger.support import make_policy, request

CAP = Fraction(100)
POLICY = make_policy(budget="{epsilon: 100}")


@dataclass
class Trial:
    """One operation on a ledger that fails, and a view of it that does not.

    Attributes:
        ledger: The ledger whose driver fails.
        requests: Every request that was ever made.
        sure: The states that were acknowledged.
    """

    ledger: Ledger
    requests: dict[str, Request] = field(default_factory=dict)
    sure: dict[str, str] = field(default_factory=dict)

    @classmethod
    def on(cls, database: Database) -> Trial:
        """Start on an empty ledger; its account is opened in peace."""
        trial = cls(Ledger(database, Liveness()))
        trial.held()
        return trial

    def make(self, **fields: Any) -> Request:
        """Make a request and remember it."""
        made = request(self.ledger, "0.001", policies=[POLICY], **fields)
        self.requests[made.reservation] = made
        return made

    def held(self, **fields: Any) -> str:
        """Reserve something in peace."""
        made = self.make(**fields)
        assert isinstance(self.ledger.reserve(made), Granted)
        self.sure[made.reservation] = "open"
        return made.reservation


#: What an operation does and which states it leads to.
Action = tuple[Callable[[], Any], dict[str, str]]


def reserve(trial: Trial) -> Action:
    """Reserve one step under a release key."""
    made = trial.make(key=uuid.uuid4().hex)
    return lambda: trial.ledger.reserve(made), {made.reservation: "open"}


def settle(trial: Trial) -> Action:
    """Post a charge."""
    name = trial.held()
    return lambda: trial.ledger.settle(name, value='"x"'), {name: "settled"}


def void(trial: Trial) -> Action:
    """Give a charge back."""
    name = trial.held()
    return lambda: trial.ledger.void(name, reason="test"), {name: "void"}


def forfeit(trial: Trial) -> Action:
    """Close a charge whose owner is dead."""
    name = trial.held(owner=uuid.uuid4().hex)
    return lambda: trial.ledger.forfeit(name, reason="test"), {name: "forfeited"}


def reopen(trial: Trial) -> Action:
    """Open the ledger anew, and read something of it."""
    database = trial.ledger.database
    database.close()
    return lambda: Ledger(database, trial.ledger.owners).digests.of("x"), {}


ACTIONS = [reserve, settle, void, forfeit, reopen]


def attempt(do: Callable[[], Any]) -> DpflowError | None:
    """Do it; return the error, if there was one."""
    try:
        do()
    except DpflowError as error:
        return error
    return None


def check(trial: Trial, states: dict[str, str], aims: dict[str, str]) -> None:
    """Compare the states in the ledger with those that were acknowledged."""
    assert set(states) <= set(trial.requests), "charged without a request"
    for name, state in trial.sure.items():
        allowed = {state, aims.get(name, state)}
        assert states.get(name) in allowed, "an acknowledgement is lost"
    for name, state in states.items():
        assert name in trial.sure or aims[name] == state
