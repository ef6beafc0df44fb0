"""Runs that held their whole worst case first: each counts once, at its peak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import BudgetRefused
from dpflow.forecast import outlooks
from dpflow.forecast.counting import Load, runs_left
from dpflow.forecast.outlook import loads_of_run
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.records import Granted
from dpflow.ledger.views import accounts
from dpflow.ledger.views.runs import dataset_runs, run_charges
from tests.ledger.support import make_policy, request, whole

pytestmark = pytest.mark.quick

POLICY = make_policy(alerts="[0.3]")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Make an empty ledger."""
    made = create_ledger(f"sqlite:///{tmp_path}/ledger.db", witness="none")
    yield made
    made.close()


def hold(ledger: Ledger, run: str, steps: int, **fields: Any) -> str:
    """Hold a run of the weekly flow with a number of steps of 0.1."""
    given = {"flow": "weekly", "flow_run": run, "policies": (POLICY,), **fields}
    answer = ledger.reserve(whole(ledger, ["0.1"] * steps, run=run, **given))
    assert isinstance(answer, Granted)
    return answer.reservation


def step(ledger: Ledger, run: str, *, settled: bool = True, **fields: Any) -> str:
    """Run a step of a run of the weekly flow."""
    given = {"flow": "weekly", "flow_run": run, "preflights": (run,), **fields}
    answer = ledger.reserve(request(ledger, policies=(POLICY,), **given))
    assert isinstance(answer, Granted)
    if settled:
        ledger.settle(answer.reservation)
    return answer.reservation


def run_once(ledger: Ledger, run: str, *, held: int, steps: int) -> None:
    """Hold a run, let some of its steps happen, and seal it."""
    hold(ledger, run, held)
    for _ in range(steps):
        step(ledger, run)
    ledger.seal(run, outcome="completed")


def test_a_reserved_run_counts_once(ledger):
    """Its steps, and not its preflight: while it runs, and when it has ended."""
    hold(ledger, "one", 4)
    assert dataset_runs(ledger, "a").runs == ()
    for _ in range(2):
        step(ledger, "one")
    (run,) = dataset_runs(ledger, "a").runs
    names = [each.body["step"] for each in run.steps]
    assert (names, run.complete) == (["count"] * 2, False)
    assert epsilon(ledger, run) == "0.4"  # two posted, and what is still held
    ledger.seal("one", outcome="completed")
    (run,) = dataset_runs(ledger, "a").runs
    names = [each.body["step"] for each in run.steps]
    assert (names, run.complete) == (["count"] * 2, True)
    assert epsilon(ledger, run) == "0.2"


def epsilon(ledger: Ledger, run: Any) -> str:
    """Return what a run spent on the dataset."""
    (view,) = accounts(ledger)
    charge = run_charges(ledger, "a", run)[view.id]
    return charge.gate.rule.named(charge.spent)["epsilon"]


def test_the_whole_run_reservation_has_to_be_admitted(ledger):
    """A run that holds 0.4 and posts 0.2 fits three times into 0.8, not four times."""
    run_once(ledger, "one", held=4, steps=2)
    (outlook,) = outlooks(ledger)
    assert outlook.per_run == "2 steps, epsilon 0.2"
    assert (outlook.runs_left, outlook.complete) == (3, True)
    runs = dataset_runs(ledger, "a")
    (run,) = runs.runs
    (load,) = loads_of_run(runs, run, run_charges(ledger, "a", run))
    # The control: what the steps ask one after the other would promise one too many.
    alone = Load(account=load.account, spent=load.spent, peaks=(load.spent,))
    assert runs_left([alone])[0] == 4
    for number in range(3):
        run_once(ledger, f"next/{number}", held=4, steps=2)
    with pytest.raises(BudgetRefused):
        hold(ledger, "last", 4)
    (outlook,) = outlooks(ledger)
    assert outlook.runs_left == 0


@pytest.mark.parametrize("end", ["forfeited", "failed"])
def test_a_run_that_did_not_come_to_its_end_is_no_example(ledger, end):
    """Nor is one whose rest an operator closed."""
    run_once(ledger, "one", held=3, steps=3)
    nobody = {"owner": "0" * 32} if end == "forfeited" else {}
    name = hold(ledger, "two", 3, **nobody)
    step(ledger, "two")
    if end == "forfeited":
        ledger.forfeit(name, reason="killed")
    else:
        ledger.seal("two", outcome="failed")
    first, second = dataset_runs(ledger, "a").runs
    assert (first.complete, second.complete) == (True, False)
    (outlook,) = outlooks(ledger)
    assert outlook.run == "one"
