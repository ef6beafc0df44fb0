"""Honest histories verify."""

from __future__ import annotations

from typing import Any

import pytest
from dpflow.ledger.office import apply_policy

from dpflow import EarlyStopping, PureDP
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.opening import open_ledger
from tests.ledger.support import Place, granted, make_ledger, make_policy, url

STOPPING = EarlyStopping(PureDP(epsilon="0.01"), stops=(5, 20))


def test_a_tightening_may_take_off_a_flow_where_others_are_allowed(path: Place) -> None:
    """It keeps the gate that it had."""
    ledger = make_ledger(path)
    flows = {"flows": "{f: {}, g: {}}", "other_flows": "allow"}
    granted(ledger, policies=[make_policy(**flows)], flow="f")
    flows["flows"] = "{f: {}}"
    assert apply_policy(ledger, make_policy(**flows)).action == "tighten"
    assert verify(ledger).fine


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
