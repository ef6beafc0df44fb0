"""A settlement for less than its outcome costs is found, however well it is hashed."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow import EarlyStopping, PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import InvalidCost, LedgerCorrupt
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision import settlement
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.opening import open_ledger
from dpflow.policy import Policy
from tests.ledger.forging import settle_for
from tests.ledger.support import Place, granted, make_ledger, make_policy, url

PLAIN = PureDP(epsilon="0.01")
STOPPING = EarlyStopping(PLAIN, stops=(5, 20))
STEADY = make_policy()
UNSTEADY = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="residue")


@pytest.mark.parametrize(
    ("policy", "cost", "share", "told"),
    [
        (STEADY, PLAIN, 0, {}),
        (STEADY, PLAIN, 0, {"reported": 0}),
        (STEADY, PLAIN, 19, {"reported": 5}),
        (STEADY, STOPPING, 4, {"reported": 5}),
        (STEADY, STOPPING, 5, {"reported": 20}),
        (STEADY, STOPPING, 5, {"reported": 7}),
        (STEADY, STOPPING, 5, {}),
        (STEADY, STOPPING, 5, {"reported": 5, "outcome": "failed"}),
        (UNSTEADY, STOPPING, 19, {"reported": 5}),
        (UNSTEADY, STOPPING, 19, {"outcome": "void"}),
    ],
)
def test_a_settlement_for_less_than_its_outcome_costs_is_found(
    path: Place,
    monkeypatch: pytest.MonkeyPatch,
    *,
    policy: Policy,
    cost: Cost,
    share: int,
    told: dict[str, Any],
) -> None:
    """By `verify`, and by the first step of each process."""
    ledger = make_ledger(path)
    given: dict[str, Any] = {"policies": (policy,)}
    granted(ledger, PLAIN, **given)
    charge = granted(ledger, cost, **given)
    if policy is UNSTEADY:
        granted(ledger, PLAIN, **given)
    assert verify(ledger).fine
    settle_for(ledger, charge, monkeypatch, share, **told)
    assert not verify(ledger).fine
    with pytest.raises(LedgerCorrupt, match=r"settled for less|do not follow"):
        granted(open_ledger(url(path)), PLAIN, **given)
    ledger.close()


@pytest.mark.parametrize("told", [{"reported": 5}, {"outcome": "void"}])
def test_an_allowed_settlement_for_less_is_not_found(
    path: Place, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    """A quarter of the sub-steps ran, or the step was void (negative control)."""
    ledger = make_ledger(path)
    granted(ledger, PLAIN, policies=(STEADY,))
    charge = granted(ledger, STOPPING, policies=(STEADY,))
    settle_for(ledger, charge, monkeypatch, 5 if "reported" in told else 0, **told)
    assert verify(ledger).fine
    granted(open_ledger(url(path)), PLAIN, policies=(STEADY,))
    ledger.close()


def test_a_step_of_an_unknown_class_returns_nothing_to_a_group(
    path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no outcome returns anything, its class need not be loaded to see that."""
    ledger = make_ledger(path)
    fields = {
        "unit": "user-week",
        "partition": "{by: week}",
        "lifetime": "{epsilon: 2}",
    }
    given: dict[str, Any] = {"partitions": ("2026-W05", "2026-W06")}
    charge = granted(ledger, STOPPING, policies=[make_policy(**fields)], **given)
    settle_for(ledger, charge, monkeypatch, 0, reported=5)

    def unknown(_: object) -> Cost:
        raise InvalidCost("unknown", name="mechanism", value="unknown")

    monkeypatch.setattr(settlement, "cost_from_description", unknown)
    assert "settled for less" in str(verify(ledger).bad[0])


def test_a_cost_without_outcomes_returns_nothing_at_a_lower_price(
    path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later version may have lower prices, and the charge stays as it was."""
    ledger = make_ledger(path)
    charge = granted(ledger, PLAIN, policies=(STEADY,))
    settle_for(ledger, charge, monkeypatch, 0, reported=5)
    monkeypatch.setattr(Gate, "price", lambda gate, *_: gate.rule.zero())
    assert "settled for less" in str(verify(ledger).bad[0])


@pytest.mark.parametrize(
    "theorem",
    [
        *("basic", "zcdp", "gdp", "rdp", "residue", "auto"),
        *("rogers", "whitehouse", "output-dp"),
    ],
)
def test_honest_histories_of_all_filters_verify(path: Place, theorem: str) -> None:
    """Outcomes, failures, late settlements and late voids."""
    ledger = make_ledger(path)
    policy = make_policy(
        budget="{epsilon: 3, delta: 1e-6}",
        filter=theorem,
        flows="{f: {epsilon: 2, delta: 5e-7}}",
        odometer="{theorem: rdp, delta: 1e-7}",
    )
    given: dict[str, Any] = {"policies": (policy,), "flow": "f"}
    for _ in range(2):
        names = [granted(ledger, STOPPING, **given) for _ in range(4)]
        ledger.settle(names[3], reported=5)
        ledger.settle(names[0], reported=5)
        ledger.settle(names[1], outcome="failed")
        ledger.void(names[2], reason="never ran")
    assert verify(ledger).bad == []
    granted(open_ledger(url(path)), STOPPING, **given)
    ledger.close()
