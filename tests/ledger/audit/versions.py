"""What a ledger of an earlier version still does: it replays, refuses and charges."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused, ConfigurationError, ReservationConflict
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Granted, Replayed, Request
from dpflow.ledger.witness.comparison import state_of_ledger
from tests.ledger.support import request
from tests.ledgers.make import find_members, make_policies

POLICIES = make_policies()


def ask(ledger: Ledger, *names: str, epsilon: str = "0.01", **fields: Any) -> Request:
    """Make a request of datasets of the ledger."""
    return request(ledger, epsilon, **find_members(POLICIES, *names), **fields)


def check_ledger(
    ledger: Ledger, facts: dict[str, Any], evidence: dict[str, tuple[str, str | None]]
) -> None:
    """Check that a ledger goes on as its facts say.

    Args:
        ledger: The ledger.
        facts: Its releases, its halted run, and the newest step of a store of people.
        evidence: The dataset and the flow that each evidence was charged to.
    """
    before = state_of_ledger(ledger.database).uses
    for key, release in facts["releases"].items():
        partitions, flow = tuple(release.get("partitions", ())), release.get("flow")
        fields = {"key": key, "flow": flow, "partitions": partitions}
        step = ask(ledger, *release["datasets"], **fields)
        if "stopped" in release["datasets"]:
            with pytest.raises(BudgetRefused, match="frozen"):
                ledger.reserve(step)
            continue
        answer = ledger.reserve(step)
        assert isinstance(answer, Replayed)
        assert answer.value == release["value"]
    assert state_of_ledger(ledger.database).uses == before
    halted = ask(ledger, "visits", flow="f", flow_run=facts["halted_run"])
    with pytest.raises(BudgetRefused, match="halt"):
        ledger.reserve(halted)
    for digest, (name, flow) in evidence.items():
        more = {"evidence": digest, "flow": flow, "reason": "x"}
        (policy,), populations = find_members(POLICIES, name).values()
        with pytest.raises(ConfigurationError, match="this evidence"):
            ledger.charge_prior(
                policy, PureDP(epsilon="0.01"), populations=populations, **more
            )
    ((account, newest),) = facts["people"].items()
    step = ask(ledger, "renewed")
    assert isinstance(ledger.reserve(step), Granted)
    with pytest.raises(ReservationConflict, match="another copy"):
        ledger.pay(account, step.reservation, before=None)
    ledger.pay(account, step.reservation, before=newest)
    ledger.settle(step.reservation)
    assert verify(ledger).bad == []
