"""Bodies that Prefect runs again, stops or caches: each is charged or replayed."""

from __future__ import annotations

import threading
import uuid

import pytest
from prefect import flow
from prefect.cache_policies import INPUTS
from prefect.locking.memory import MemoryLockManager
from prefect.transactions import IsolationLevel, transaction
from typer.testing import CliRunner

from dpflow import dp_flow, dp_task
from dpflow.cli import app
from tests.prefect.matrix.support import (
    books,
    flow_run,
    in_flow,
    mark,
    marks,
    run_again,
    settled,
    task_runs,
    wait_until,
)
from tests.projects import POLICY, TENTH, journal

#: Lets the bodies that wait go on.
OVER = threading.Event()


@pytest.fixture(autouse=True)
def _waiting():
    OVER.clear()


@dp_task(dataset="shop", cost=TENTH)
def steady(week: int) -> str:
    """Say which execution of the body this is: a replay repeats an earlier one."""
    return f"{week}: execution {mark('steady')}"


@dp_task(dataset="shop", cost=TENTH)
def endless() -> None:
    """Wait in small steps that a timeout can interrupt."""
    mark("body")
    while not OVER.wait(0.02):
        pass
    mark("body ended")


@pytest.mark.promise("retries")
def test_each_retry_of_a_task_is_a_charge(project):
    """Prefect repeats the task run's id and counts up; every attempt may release."""

    @dp_task(dataset="shop", cost=TENTH, retries=2)
    def shaky() -> int:
        if (turn := mark("shaky")) < 3:
            raise ValueError
        return turn

    assert in_flow(shaky)() == 3
    assert marks() == {"shaky": 3}
    outcomes = ("failed", "failed", "completed")
    assert books() == settled(3, "0.3", outcomes=outcomes)
    charged = [entry.body for entry in journal() if entry.kind == "reserve"]
    assert len({body["task_run"] for body in charged}) == 1
    assert [body["attempt"] for body in charged] == ["1", "2", "3"]


@pytest.mark.parametrize("make_flow", [flow, dp_flow])
def test_a_flow_retry_replays_completed_steps(project, make_flow):
    """The second execution makes new task runs; the release is served again.

    A transaction that is rolled back refunds nothing: the value was seen.
    """
    rolled = []
    step = steady.with_options(persist_result=True)
    step.on_rollback_hooks = [lambda _: rolled.append(1)]

    def report():
        with transaction():
            value = step(1)
            if mark("flow") == 1:
                raise RuntimeError
        return value

    state = in_flow(report, make_flow=make_flow, retries=1)(return_state=True)
    assert state.result() == "1: execution 1"
    assert (marks(), rolled) == ({"steady": 1, "flow": 2}, [1])
    assert books() == settled(1, "0.1")
    run = state.state_details.flow_run_id
    assert flow_run(run).run_count == 2
    assert len({each.id for each in task_runs(run, 2)}) == 2


def test_a_retry_from_the_ui_after_exhaustion_and_a_new_term_pays_for_the_rest(
    make_project,
):
    """What the old term paid for is replayed; only the refused step is charged anew."""
    make_project(f"{POLICY}lifetime: {{epsilon: 2}}\n")
    report = in_flow(lambda: [steady(week) for week in range(11)], make_flow=dp_flow)
    first = report(return_state=True)
    run = first.state_details.flow_run_id
    assert (first.name, books()) == ("BudgetExhausted", settled(10, "1", refused=1))
    words = ("policy", "apply", "shop", "--new-term", "--reason", "a new year")
    applied = CliRunner().invoke(app, [*words])
    assert applied.exit_code == 0, applied.stderr
    second = run_again(report, run)
    assert second.result() == [f"{week}: execution {week + 1}" for week in range(11)]
    assert marks() == {"steady": 11}
    stored = flow_run(run)
    assert (stored.state.name, stored.run_count) == ("Completed", 2)
    assert books(run=run).spent == "1.1"


def time_out_in_body(run):
    """Run with longer timeouts until one ends the body; return its name and outcome.

    A timeout that ends before the body begins may be charged, too.
    """
    earlier = ()
    for seconds in (0.5, 4, 30, 240):
        OVER.clear()
        name = run(seconds)
        wait_until(lambda: books().open == 0, "the settlement")
        record = books()
        if marks():
            break
        earlier = record.outcomes
    count = len(record.outcomes)
    assert (record.orphans, record.spent) == (0, f"0.{count}")
    return name, record.outcomes[len(earlier) :]


@pytest.mark.parametrize("how", ["called", "submitted"])
@pytest.mark.parametrize("limited", ["task", "flow"])
def test_a_timeout_leaves_no_step_uncharged(project, how, limited):
    """The body sees CancelledError, no Exception, in worker threads too.

    A step that a flow had submitted runs to its end behind the flow's.
    """

    def timed(seconds):
        of_task = {"timeout_seconds": seconds} if limited == "task" else {}
        of_flow = {} if of_task else {"timeout_seconds": seconds}
        step, states = endless.with_options(**of_task), []

        def report():
            if how == "called":
                states.append(step(return_state=True))
                states[0].result()
            try:
                future = step.submit()
                future.wait()
                states.append(future.state)
            finally:
                OVER.set()

        ended = in_flow(report, make_flow=dp_flow, **of_flow)(return_state=True)
        return states[0].name if of_task else ended.name

    behind = (limited, how) == ("flow", "submitted")
    outcome = "completed" if behind else "failed"
    assert time_out_in_body(timed) == ("TimedOut", (outcome,))
    assert marks() == {"body": 1, **({"body ended": 1} if behind else {})}


def test_another_run_is_charged_unless_prefect_has_the_value(project):
    """The guard is in the body: Prefect's hit is free, its miss is a charge."""
    inputs = {"cache_policy": INPUTS, "persist_result": True}
    for bodies, second, options in (
        (1, "Cached", inputs),
        (3, "Completed", {**inputs, "persist_result": False}),
        (5, "Completed", {**inputs, "refresh_cache": True}),
        (7, "Completed", {}),
    ):
        # An argument of this test alone: INPUTS keys are shared by all tasks.
        step, week = steady.with_options(**options), uuid.uuid4().hex
        run = in_flow(lambda step=step, week=week: step(week, return_state=True).name)
        assert [run(), run()] == ["Completed", second]
        assert marks() == {"steady": bodies}
        assert books() == settled(bodies, f"0.{bodies}")


def test_three_identical_submits_are_one_charge(project):
    """The first claims the release, the others wait for it and replay."""
    serial = INPUTS.configure(
        isolation_level=IsolationLevel.SERIALIZABLE, lock_manager=MemoryLockManager()
    )
    for number, options in enumerate(
        ({}, {"cache_policy": serial, "persist_result": True}), 1
    ):
        OVER.clear()

        @dp_task(dataset="shop", cost=TENTH, name=f"count {number}", **options)
        def count(week: str) -> int:
            assert OVER.wait(60)
            return mark("count")

        def thrice(count=count):
            week = uuid.uuid4().hex
            futures = [count.submit(week) for _ in range(3)]
            OVER.set()
            return [future.result() for future in futures]

        assert in_flow(thrice)() == [number] * 3
        assert marks() == {"count": number}
        assert books() == settled(number, f"0.{number}")
