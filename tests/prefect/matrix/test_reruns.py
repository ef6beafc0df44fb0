"""Prefect runs completed steps again; what was released is replayed, at no cost."""

from __future__ import annotations

import contextvars
import threading

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.flow_runs import pause_flow_run, resume_flow_run, suspend_flow_run
from typer.testing import CliRunner

from dpflow import PureDP, dp_flow, dp_task
from dpflow.cli import app
from tests.prefect.matrix.support import (
    books,
    charged_bodies,
    execute,
    flow_run,
    mark,
    marks,
    run_again,
    settled,
    task_runs,
    wait_until,
)
from tests.projects import POLICY

TENTH = PureDP(epsilon="0.1")


@dp_task(dataset="shop", cost=TENTH)
def steady(week: int) -> str:
    """Say which execution of the body this is: a replay repeats an earlier one."""
    return f"{week}: execution {mark('steady')}"


@dp_task(dataset="shop", cost=TENTH)
def shaky(good_from: int) -> int:
    """Fail until the body has run so often."""
    if (turn := mark("shaky")) < good_from:
        raise ValueError
    return turn


def test_each_retry_of_a_task_is_a_charge(project):
    """Prefect repeats the task run's id and counts up; every attempt may release."""

    @flow(name="report")
    def report():
        return shaky.with_options(retries=2)(3)

    assert report() == 3
    assert marks() == {"shaky": 3}
    outcomes = ("failed", "failed", "completed")
    assert books() == settled(3, "0.3", outcomes=outcomes)
    charged = charged_bodies(project)
    assert len({body["task_run"] for body in charged}) == 1
    assert [body["attempt"] for body in charged] == ["1", "2", "3"]


@pytest.mark.parametrize("make_flow", [flow, dp_flow])
def test_a_flow_retry_replays_completed_steps(project, make_flow):
    """The second execution makes new task runs; the release is served again."""

    @make_flow(name="report", retries=1)
    def report():
        value = steady(1)
        if mark("flow") == 1:
            raise RuntimeError
        return value

    state = report(return_state=True)
    assert state.result() == "1: execution 1"
    assert marks() == {"steady": 1, "flow": 2}
    assert books() == settled(1, "0.1")
    run = state.state_details.flow_run_id
    assert flow_run(run).run_count == 2
    assert len({each.id for each in task_runs(run, 2)}) == 2


def test_a_retry_from_the_ui_after_exhaustion_and_a_new_term_pays_for_the_rest(
    make_project,
):
    """What the old term paid for is replayed; only the refused step is charged anew."""
    make_project(f"{POLICY}lifetime: {{epsilon: 2}}\n")

    @dp_flow(name="report")
    def report():
        return [steady(week) for week in range(11)]

    first = report(return_state=True)
    run = first.state_details.flow_run_id
    done = books()
    assert (first.name, done) == ("BudgetExhausted", settled(10, "1", refused=1))
    applied = CliRunner().invoke(
        app, ["policy", "apply", "shop", "--new-term", "--reason", "a new year"]
    )
    assert applied.exit_code == 0, applied.stderr
    second = run_again(report, run)
    assert second.result() == [f"{week}: execution {week + 1}" for week in range(11)]
    assert marks() == {"steady": 11}
    stored = flow_run(run)
    assert (stored.state.name, stored.run_count) == ("Completed", 2)
    kinds = [entry.kind for entry in _newest_term()]
    assert sorted(kinds) == ["open", "reserve", "settle"]
    (charge,) = [entry for entry in _newest_term() if entry.kind == "reserve"]
    assert (charge.amount["epsilon"], charge.run) == ("0.1", str(run))


def test_two_executions_of_one_run_are_both_ended_by_a_refusal(project):
    """As after a worker that was only thought to be lost; each release is made once.

    PrefectHQ/prefect#12509, #8880, #17703
    """
    second_ended = threading.Event()

    @dp_flow(name="report")
    def report():
        value = steady(1)
        if mark("flow") == 1:
            assert second_ended.wait(60)
            return value
        return [steady(week) for week in range(11)]

    with get_client(sync_client=True) as client:
        run = client.create_flow_run(report).id
    states = []
    context = contextvars.copy_context()
    first = threading.Thread(
        target=lambda: states.append(context.run(execute, report, run))
    )
    first.start()
    wait_until(lambda: marks()["flow"], "the first execution")
    states.insert(0, execute(report, run))
    second_ended.set()
    first.join()
    assert [state.name for state in states] == ["BudgetExhausted"] * 2
    assert marks() == {"steady": 10, "flow": 2}
    assert books() == settled(10, "1", refused=1)


def _newest_term():
    from dpflow.guard.project import current_project
    from dpflow.ledger.views import history

    found = history(current_project().ledger, "shop")
    return [entry for entry in found if entry.account == "shop#2"]


@dp_flow(name="report")
def pausing(pause: str) -> list[str]:
    """Stop between two steps, and go on when told to."""
    mark("flow")
    first = steady(1)
    if pause == "suspend":
        suspend_flow_run(timeout=60)
    elif pause == "pause":
        pause_flow_run(timeout=60, poll_interval=1)
    return [first, steady(2)]


def test_suspend_and_resume_replays_what_was_released(project):
    """The whole flow runs again from the top, under the same run count."""
    deployment = pausing.to_deployment("nightly", parameters={"pause": "suspend"})
    with get_client(sync_client=True) as client:
        made = deployment.apply()
        run = client.create_flow_run_from_deployment(made).id
    # A worker's process ends here: Pause is no Exception.
    with pytest.raises(Pause):
        execute(pausing, run)
    assert flow_run(run).state.name == "Suspended"
    assert marks() == {"flow": 1, "steady": 1}
    resume_flow_run(run)
    assert execute(pausing, run).result() == ["1: execution 1", "2: execution 2"]
    assert marks() == {"flow": 2, "steady": 2}
    assert books() == settled(2, "0.2")
    assert flow_run(run).run_count == 1
