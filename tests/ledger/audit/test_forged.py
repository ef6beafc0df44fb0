"""Entries that a changed program wrote are found by whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision import policy_changes
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.model import Decision
from dpflow.ledger.office import apply_policy
from dpflow.ledger.opening import open_ledger
from tests.ledger.forging import settle_for
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
    """The witness is told of it, and who began there would follow nothing before."""
    ledger = make_ledger(path)
    charge = granted(ledger)
    granted(ledger, policies=[OTHER])
    settle_for(ledger, charge, monkeypatch, 0)
    with pytest.raises(LedgerCorrupt, match="settled for less"):
        open_ledger(url(path)).ask(Freeze(book="b", reason="an operator"))
    assert freeze_of(ledger, "b") is None
