"""Entries that a changed program wrote are found by each reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpflow import EarlyStopping, PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision import policy_changes
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.model import Decision
from dpflow.ledger.office import apply_policy
from dpflow.ledger.opening import open_ledger
from dpflow.policy import Policy
from tests.ledger.audit.books import settle_for
from tests.ledger.support import (
    Place,
    freeze_of,
    granted,
    make_ledger,
    make_policy,
    url,
)

OTHER = make_policy("b")


def written_as(
    patch: pytest.MonkeyPatch, change: Callable[[Any, Any], tuple[Any, Any]]
) -> None:
    """Let decisions write changed amounts and bodies."""
    write = Decision.write

    def forging(pen: Decision, kind: str, amounts: Any, body: Any, **kw: Any) -> Any:
        return write(pen, kind, *change(amounts, body), **kw)

    patch.setattr(Decision, "write", forging)


def test_a_part_is_not_charged_without_its_whole(path: Place) -> None:
    """A term whose whole has no account would count as uncharged."""
    ledger = make_ledger(path)
    policy = make_policy(partition="{by: region}")
    with pytest.MonkeyPatch.context() as patch:
        written_as(
            patch,
            lambda amounts, body: (
                {name: amounts[name] for name in amounts if name != "a#1"},
                {**body, "accounts": [n for n in body.get("accounts", []) if "/" in n]},
            ),
        )
        granted(ledger, policies=[policy], partitions=("x",))
    assert any("not on the whole" in str(bad) for bad in verify(ledger).bad)
    with pytest.raises(LedgerCorrupt, match="not on the whole"):
        granted(open_ledger(url(path)), policies=[OTHER])


def test_a_tightening_widens_no_flow_that_it_takes_off(path: Place) -> None:
    """The flow could be put back with a wider share."""
    ledger = make_ledger(path)
    flows = {"flows": "{f: {epsilon: 0.3}, g: {}}", "other_flows": "refuse"}
    granted(ledger, policies=[make_policy(**flows)], flow="g")

    def widened(amounts: Any, body: Any) -> tuple[Any, Any]:
        term = body["term"]
        gates = {**term["gates"], "flow/f": term["gates"]["dataset"]}
        return amounts, {**body, "term": {**term, "gates": gates}}

    with pytest.MonkeyPatch.context() as patch:
        written_as(patch, widened)
        patch.setattr(policy_changes, "check", lambda *_: None)
        flows["flows"] = "{g: {}}"
        apply_policy(ledger, make_policy(**flows))
    assert any("'flow/f'" in str(bad) for bad in verify(ledger).bad)
    with pytest.raises(LedgerCorrupt, match="gate is not the one"):
        granted(open_ledger(url(path)), policies=[OTHER])


def test_a_tightening_may_take_off_a_flow_where_others_are_allowed(path: Place) -> None:
    """It keeps the gate that it had, and every process follows (negative control)."""
    ledger = make_ledger(path)
    flows = {"flows": "{f: {}, g: {}}", "other_flows": "allow"}
    granted(ledger, policies=[make_policy(**flows)], flow="f")
    flows["flows"] = "{f: {}}"
    assert apply_policy(ledger, make_policy(**flows)).action == "tighten"
    assert verify(ledger).fine
    granted(open_ledger(url(path)), policies=[OTHER])


def test_a_freeze_passes_no_entry_that_was_not_followed(
    path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's freeze follows earlier entries first, and stops at a forged one."""
    ledger = make_ledger(path)
    charge = granted(ledger)
    granted(ledger, policies=[OTHER])
    settle_for(ledger, charge, monkeypatch, 0)
    with pytest.raises(LedgerCorrupt, match="settled for less"):
        open_ledger(url(path)).ask(Freeze(book="b", reason="an operator"))
    assert freeze_of(ledger, "b") is None


PLAIN = PureDP(epsilon="0.01")
STOPPING = EarlyStopping(PLAIN, stops=(5, 20))
STEADY = make_policy()
UNSTEADY = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="residue")


@pytest.mark.parametrize(
    ("policy", "cost", "share", "facts"),
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
    facts: dict[str, Any],
) -> None:
    """By `verify`, and by the first step of each process."""
    ledger = make_ledger(path)
    given: dict[str, Any] = {"policies": (policy,)}
    granted(ledger, PLAIN, **given)
    charge = granted(ledger, cost, **given)
    if policy is UNSTEADY:
        granted(ledger, PLAIN, **given)
    assert verify(ledger).fine
    settle_for(ledger, charge, monkeypatch, share, **facts)
    assert not verify(ledger).fine
    with pytest.raises(LedgerCorrupt, match=r"settled for less|do not follow"):
        granted(open_ledger(url(path)), PLAIN, **given)
    ledger.close()


@pytest.mark.parametrize("facts", [{"reported": 5}, {"outcome": "void"}])
def test_an_allowed_settlement_for_less_is_not_found(
    path: Place, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    """A quarter of the sub-steps ran, or the step was void (negative control)."""
    ledger = make_ledger(path)
    granted(ledger, PLAIN, policies=(STEADY,))
    charge = granted(ledger, STOPPING, policies=(STEADY,))
    settle_for(ledger, charge, monkeypatch, 5 if "reported" in facts else 0, **facts)
    assert verify(ledger).fine
    granted(open_ledger(url(path)), PLAIN, policies=(STEADY,))
    ledger.close()


@pytest.mark.parametrize("share", [4, 5])
def test_a_group_settles_for_what_its_outcome_costs_and_no_less(
    path: Place, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """A quarter of a step of two weeks ran: a quarter on each account, no fifth."""
    ledger = make_ledger(path)
    weeks = {"unit": "user-week", "partition": "{by: week}"}
    policy = make_policy(**weeks, lifetime="{epsilon: 2}")
    given: dict[str, Any] = {"partitions": ("2026-W05", "2026-W06")}
    charge = granted(ledger, STOPPING, policies=[policy], **given)
    settle_for(ledger, charge, monkeypatch, share, reported=5)
    bad = verify(ledger).bad
    assert ["settled for less" in str(each) for each in bad] == [True] * (share == 4)


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
