"""Runs left: what is counted is what the ledger then admits, run by run."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from dpflow import EarlyStopping, PureDP
from dpflow.exceptions import BudgetRefused
from dpflow.forecast import flow_outlooks, outlooks
from dpflow.forecast.counting import Load, WorkloadStep, loads_of, runs_left
from dpflow.forecast.outlook import loads_of_run
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.requests import Request
from dpflow.ledger.views.accounts import standing_gates
from dpflow.ledger.views.runs import dataset_runs, run_charges
from dpflow.policy import Policy, parse_policy
from tests.tables import read_tables

TENTH = PureDP(epsilon="0.1")
STOPPING = EarlyStopping(PureDP(epsilon="0.01"), stops=(10, 25))


@pytest.fixture
def ledger(path: Path | str) -> Iterator[Ledger]:
    """Make an empty ledger; in the campaign also on SQLite and on PostgreSQL."""
    where = path if isinstance(path, str) else f"sqlite:///{path}"
    made = create_ledger(where, witness="none")
    yield made
    made.close()


def run_once(ledger, policy, steps, *, flow="f", outside=False, key="", **fields):
    """Reserve and settle the steps of one run; a refusal is raised."""
    run = None if outside else uuid.uuid4().hex
    for cost, reported in steps:
        request = Request(
            reservation=uuid.uuid4().hex,
            owner=ledger.owners.mine(),
            policies=(policy,),
            cost=cost,
            step="s",
            flow=flow,
            flow_run=run,
            release_key=ledger.digests.of(key) if key else None,
            key_text=key,
            **fields,
        )
        ledger.reserve(request)
        ledger.settle(request.reservation, reported=reported)


def runs_until_refused(ledger: Ledger, policy: Policy, *arguments, **named) -> int:
    """Count the runs that the ledger really lets through."""
    count = 0
    with contextlib.suppress(BudgetRefused):
        while True:
            run_once(ledger, policy, *arguments, **named)
            count += 1
    return count


def governed(*lines: str, dataset: str = "d", unit: str = "person") -> Policy:
    """Return a policy with further lines."""
    first = (f"dataset: {dataset}", f"unit: {unit}", "relation: add-or-remove")
    return parse_policy("\n".join((*first, *lines)))


def summed(epsilon: int, *lines: str, **names: str) -> Policy:
    """Return a policy under the sum rule."""
    budget = f"budget: {{epsilon: {epsilon}}}"
    return governed(budget, "filter: basic", *lines, **names)


POLICIES = read_tables(__file__)


@pytest.mark.parametrize(
    "steps",
    [[(TENTH, None)], [(TENTH, None), (STOPPING, 10)], [(STOPPING, 7), (TENTH, None)]],
    ids=["plain", "stops last", "stops first"],
)
@pytest.mark.parametrize("name", POLICIES)
def test_the_count_is_what_the_ledger_admits(ledger, name, steps):
    """Worst cases that are reserved and given back count, as they do there."""
    policy = governed(POLICIES[name])
    run_once(ledger, policy, steps)
    (outlook,) = outlooks(ledger)
    runs = outlook.runs_left
    assert runs == runs_until_refused(ledger, policy, steps)
    assert runs > 0
    assert outlooks(ledger)[0].runs_left == 0


def test_dividing_what_is_left_would_be_wrong(ledger):
    """A count that forgets the worst case is caught by the test above."""
    policy = summed(1)
    run_once(ledger, policy, [(STOPPING, 10)])
    runs = dataset_runs(ledger, "d")
    (charge,) = run_charges(ledger, "d", runs.runs[0]).values()
    naive = Load(account=charge.gate, spent=charge.spent, peaks=(charge.spent,))
    assert runs_left([naive])[0] == 9
    assert runs_until_refused(ledger, policy, [(STOPPING, 10)]) == 7


def test_a_population_limits_too(ledger):
    """Also by what another dataset's runs charge it, as they stand."""
    account = {"dataset": "population/all", "budget": {"epsilon": "0.5"}}
    unit = {"unit": "person", "relation": "add-or-remove"}
    whole = Policy(**account, **unit, filter="basic", other_flows="allow")
    policy = summed(3, "population: all")
    run_once(ledger, policy, [(TENTH, None)], populations=(whole,))
    (outlook,) = outlooks(ledger, "d")
    assert (outlook.runs_left, outlook.limited_by) == (4, "population all")
    assert (
        runs_until_refused(ledger, policy, [(TENTH, None)], populations=(whole,)) == 4
    )


def test_the_lifetime_of_all_weeks_limits(ledger):
    """Every week's run counts against the cap."""
    policy = summed(
        1, "partition: {by: week}", "lifetime: {epsilon: 1}", unit="person-week"
    )
    for week in range(1, 6):
        name = f"2026-W0{week}"
        run_once(ledger, policy, [(TENTH, None)], partitions=(name,), key=f"n/{name}")
    (outlook,) = outlooks(ledger)
    assert (outlook.runs_left, outlook.limited_by) == (5, "dataset d")
    assert outlook.every.text == "7 days"
    assert str(outlook.exhausted_on) == "2026-03-09"
    for week in range(6, 11):
        run_once(ledger, policy, [(TENTH, None)], partitions=(f"2026-W{week:02}",))
    with pytest.raises(BudgetRefused):
        run_once(ledger, policy, [(TENTH, None)], partitions=("2026-W11",))


def test_a_region_has_its_budget_once(ledger):
    """Parts that are no periods are read again; the fullest is what limits."""
    policy = summed(1, "partition: {by: region}")
    for region in ("north", "north", "south"):
        run_once(ledger, policy, [(TENTH, None)], partitions=(region,))
    (outlook,) = outlooks(ledger)
    assert (outlook.runs_left, outlook.limited_by) == (8, "partition north")
    pinned = dataset_runs(ledger, "d").term.fields["pinned"]
    # A forecast names no part: the fullest decides.
    for gates, runs in ((standing_gates(ledger, "d"), 8), (None, 10)):
        loads = loads_of(pinned, "f", (WorkloadStep(TENTH),), accounts=gates)
        assert runs_left(loads)[0] == runs


def test_a_run_that_replayed_a_step_is_no_example(ledger):
    """It charged less than the next ones will; the dearest of the last five counts."""
    policy = summed(2)
    run_once(ledger, policy, [(PureDP(epsilon="0.9"), None)])
    for _ in range(4):
        run_once(ledger, policy, [(TENTH, None), (TENTH, None)])
    run_once(ledger, policy, [(TENTH, None)])
    (outlook,) = outlooks(ledger)
    assert (outlook.per_run, outlook.runs_left) == ("2 steps, epsilon 0.2", 1)
    # The last run alone would promise twice as much.
    runs = dataset_runs(ledger, "d")
    charges = run_charges(ledger, "d", runs.runs[-1])
    assert runs_left(loads_of_run(runs, runs.runs[-1], charges))[0] == 2


def test_a_deployments_own_schedule_comes_first(ledger, tmp_path, monkeypatch):
    """Its runs are on the calendar; runs by hand are on none, whatever their times."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "prefect.yaml").write_text(
        "deployments:\n  - entrypoint: flows.py:f\n    schedules:\n"
        "      - {cron: '0 6 * * 1'}\n",
        "utf-8",
    )
    monkeypatch.chdir(tmp_path)

    def read() -> tuple[str, str]:
        (outlook,) = outlooks(ledger, today=date(2100, 1, 1))
        return outlook.source, str(outlook.exhausted_on)

    policy = summed(1)
    for week in range(10, 15):
        run_once(ledger, policy, [(TENTH, None)], key=f"w/2019-W{week}")
    assert read() == ("release keys", "2019-05-13")
    run_once(ledger, policy, [(TENTH, None)], body={"deployment": "d"})
    assert read() == ("schedule", "2100-02-01")
    (tmp_path / "prefect.yaml").unlink()
    assert read()[0] == "release keys"


def test_charges_outside_of_a_run_are_counted_as_steps(ledger):
    """No record says how many of them make a run."""
    run_once(ledger, summed(1), [(TENTH, None), (TENTH, None)], outside=True)
    (outlook,) = outlooks(ledger)
    assert outlook.single
    assert outlook.sentence == "f: 8 steps remain, limited by the dataset d"


def test_a_flow_over_several_datasets_has_the_fewest_of_them(ledger):
    """It ends with the first that refuses; a flow on one dataset is not repeated."""
    first, second = summed(1), summed(3, dataset="e")
    run_once(ledger, first, [(TENTH, None)])
    run_once(ledger, second, [(TENTH, None)])
    run_once(ledger, second, [(TENTH, None)], flow="g")
    every = outlooks(ledger)
    runs = [(each.dataset, each.flow, each.runs_left) for each in every]
    assert runs == [("d", "f", 9), ("e", "f", 28), ("e", "g", 28)]
    assert [(o.dataset, o.runs_left) for o in flow_outlooks(every)] == [("d", 9)]


def test_a_run_that_may_have_begun_before_what_was_read_is_no_example(ledger):
    """Its newest entries alone would be cheaper than the run."""
    policy = summed(9)
    run_once(ledger, policy, [(TENTH, None)] * 20)
    runs = dataset_runs(ledger, "d", most=10)
    assert runs.older
    assert [(len(run.steps), run.complete) for run in runs.runs] == [(5, False)]
    run_once(ledger, policy, [(TENTH, None)])
    whole = dataset_runs(ledger, "d")
    assert not whole.older
    complete = [(len(run.steps), run.complete) for run in whole.runs]
    assert complete == [(20, True), (1, True)]
    assert dataset_runs(ledger, "d", most=6).runs[-1].complete


def test_a_frozen_dataset_has_no_runs_left(ledger):
    """And says why."""
    run_once(ledger, summed(1), [(TENTH, None)])
    ledger.freeze("d", reason="an incident")
    (outlook,) = outlooks(ledger)
    assert outlook.runs_left == 0
    assert "frozen" in outlook.limited_by
