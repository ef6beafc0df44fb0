"""No transaction of a ledger waits for a number that has to be solved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dpflow import EarlyStopping, PureDP
from dpflow.accounting.rules import residue_charge
from dpflow.accounting.rules.basic import BasicFilter
from dpflow.accounting.rules.zcdp import ZcdpFilter
from dpflow.exceptions import BudgetRefused
from dpflow.ledger import model
from dpflow.ledger.decision import gates
from dpflow.ledger.ledger import Ledger
from tests.ledger.support import granted, make_policy

STEP = PureDP(epsilon="0.01")
#: What solves a number, by filter.
SOLVERS: dict[str, list[tuple[Any, str]]] = {
    "basic": [(BasicFilter, "step_price")],
    "zcdp": [(ZcdpFilter, "step_price")],
    "residue": [(residue_charge, "pure_mu_squared")],
    "auto": [
        (residue_charge, "pure_mu_squared"),
        (BasicFilter, "step_price"),
        (ZcdpFilter, "step_price"),
    ],
}


@pytest.fixture(autouse=True)
def _nothing_solved() -> None:
    """Let each test solve its numbers itself."""
    for remembered in (
        residue_charge.residue_charge,
        gates._solved_price,
        gates.fitting_factor,
        model.rule_of,
    ):
        remembered.cache_clear()


def solved(ledger: Ledger, theorem: str, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that says of each solved number whether a transaction was open."""
    found: list[bool] = []
    inside = [False]

    def watched(open_one: Any) -> Any:
        @contextmanager
        def opened() -> Iterator[Any]:
            with open_one() as transaction:
                inside[0] = True
                try:
                    yield transaction
                finally:
                    inside[0] = False

        return opened

    def recording(solver: Any) -> Any:
        def recorded(*arguments: Any, **options: Any) -> Any:
            found.append(inside[0])
            return solver(*arguments, **options)

        return recorded

    for name in ("read", "write"):
        monkeypatch.setattr(
            ledger.storage, name, watched(getattr(ledger.storage, name))
        )
    for owner, name in [*SOLVERS[theorem], (model, "make_filter")]:
        monkeypatch.setattr(owner, name, recording(getattr(owner, name)))
    return found


def use(ledger: Ledger, theorem: str) -> None:
    """Open a term, run steps, settle one for less, have one refused."""
    policy = make_policy(
        budget="{epsilon: 1, delta: 1e-6}", filter=theorem, flows="{f: {}}"
    )
    given = {"policies": (policy,), "flow": "f"}
    ledger.settle(granted(ledger, STEP, **given))
    stopping = EarlyStopping(STEP, stops=(5, 20))
    ledger.settle(granted(ledger, stopping, **given), reported=5)
    with pytest.raises(BudgetRefused, match="times its noise"):
        granted(ledger, PureDP(epsilon="1.5"), **given)


@pytest.mark.parametrize("theorem", SOLVERS)
def test_nothing_is_solved_inside_a_transaction(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, theorem: str
) -> None:
    """Thresholds, prices of steady and unsteady rules, outcomes and suggestions."""
    found = solved(ledger, theorem, monkeypatch)
    use(ledger, theorem)
    assert len(found) > len(SOLVERS[theorem])
    assert not any(found)


def test_what_changes_all_the_time_is_solved_inside_at_last(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three transactions end for a number; the fourth solves it (negative control)."""
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="residue")
    granted(ledger, STEP, policies=(policy,))
    begun: list[None] = []
    load = ledger.storage.write

    def forgetting() -> Any:
        begun.append(None)
        residue_charge.residue_charge.cache_clear()
        return load()

    monkeypatch.setattr(ledger.storage, "write", forgetting)
    found = solved(ledger, "residue", monkeypatch)
    granted(ledger, STEP, policies=(policy,))
    assert len(begun) == 4
    assert found.count(True) == 1
