"""Eight processes race to the limit: exactly the budget is granted, and no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction

import pytest

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused
from dpflow.ledger import views
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.policy import Policy
from tests.hunts.support import audited, figure
from tests.ledger.processes import Child
from tests.ledger.processes import Gate as Door
from tests.ledger.support import granted, make_policy
from tests.sizes import SCALE, scaled

PROCESSES = 8
UNITS = 1000 if SCALE > 1 else 250


def race(url: str, dataset: str, units: int, ask: Callable[..., str]) -> list[str]:
    """Let eight processes ask until they are refused; return what they were granted."""
    policy = make_policy(dataset, budget="{epsilon: 1}")
    cost, door = PureDP(epsilon=Fraction(1, units)), Door()

    def run(number: int) -> Callable[[Callable[[str], None]], None]:
        def work(say: Callable[[str], None]) -> None:
            door.wait()
            ledger = open_ledger(url)
            while True:
                try:
                    name = ask(ledger, cost, policies=[policy])
                except BudgetRefused:
                    say("refused")
                    return
                say(name)
                if number % 2:
                    ledger.settle(name)

        return work

    children = [Child(run(number)) for number in range(PROCESSES)]
    door.open()
    found: list[str] = []
    for child in children:
        code, lines = child.end()
        assert code == 0, "\n".join(lines)
        assert lines[-1] == "refused"
        found += lines[:-1]
    return found


def test_exactly_the_budget_is_granted(ledger_url: str) -> None:
    """Whoever asks for them; the ledger knows each of them."""
    create_ledger(ledger_url).close()
    races = scaled(1)
    for number in range(races):
        names = race(ledger_url, f"race-{number}", UNITS, granted)
        assert len(names) == len(set(names)) == UNITS
    ledger = open_ledger(ledger_url)
    facts = audited(ledger_url, Fraction(1))
    for view in views.accounts(ledger):
        assert view.left == {"epsilon": "0", "delta": "0"}
    ledger.close()
    assert len(facts.states) == races * UNITS
    assert facts.total() == races
    assert facts.refused == races * PROCESSES
    figure("race to the limit", violations=0, races=races, granted=races * UNITS)


def test_a_check_outside_the_transaction_is_found(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks first and charges later grants more than there is."""
    create_ledger(ledger_url).close()
    monkeypatch.setattr(Gate, "admits", lambda *_: True)

    def ask(ledger: Ledger, cost: PureDP, policies: list[Policy]) -> str:
        seen = [v for v in views.accounts(ledger) if v.dataset == policies[0].dataset]
        if any(view.left["epsilon"] == "0" for view in seen):
            raise BudgetRefused
        time.sleep(0.002)
        return granted(ledger, cost, policies=policies)

    assert len(race(ledger_url, "stale", 50, ask)) > 50
