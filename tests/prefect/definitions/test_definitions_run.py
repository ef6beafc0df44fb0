"""What was defined, in flow runs: it is charged once and prints nothing to Prefect."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.settings import PREFECT_LOGGING_LOG_PRINTS, temporary_settings

from dpflow import dp_flow, dp_task, private_task
from dpflow.prefect import PrivateTask
from dpflow.prefect.deployments import DPFlow
from tests.prefect.definitions.test_definitions import (
    TENTH,
    body,
    loud,
    plain_guard,
    step,
)
from tests.prefect.matrix.support import wait_until
from tests.prefect.support import charges


def test_what_a_guard_was_made_of_can_be_a_step_again(project):
    """The mark is on the guard, not on the function under it."""
    plain_guard(body)
    again = step(step(body).fn.__wrapped__)

    @dp_flow
    def report():
        return again(3)

    assert report() == 3
    assert charges(project) == 1


def test_a_flow_and_a_loader_work_without_parentheses(project):
    """As Prefect's own do, with the names of their functions."""

    @private_task
    def load(week: int) -> list[int]:
        return [week]

    @dp_flow
    def report(week: int) -> int:
        return step(body)(load(week)[0])

    assert type(load) is PrivateTask
    assert (load.persist_result, load.log_prints, load.name) == (False, False, "load")
    assert type(report) is DPFlow
    assert report.name == "report"
    assert report(4) == 4
    assert charges(project) == 1


def test_what_the_flow_logs_of_prints_leaves_its_steps_out(project, caplog):
    """`log_prints` of a flow: its own prints are logged, those of the step are not."""
    private = dp_task(dataset="shop", cost=TENTH, private=("frame",), data_version="1")
    counted = private(loud)

    @task
    def chatty():
        print("told by a task")

    @dp_flow(name="report", log_prints=True)
    def report():
        print("told by the flow")
        chatty()
        return counted([1]), counted.submit([1, 2]).result()

    assert report() == (1, 1)
    wait_until(lambda: "told by a task" in caplog.text, "the log")
    assert "told by the flow" in caplog.text
    assert "canary-7714" not in caplog.text


@pytest.mark.parametrize("setting", [True, False])
def test_what_a_body_calls_prints_nothing_to_prefect(project, caplog, setting):
    """Tasks and flows would inherit `log_prints`; what they say themselves counts."""

    @task
    def inside():
        print("canary-7715")

    @flow
    def inside_flow():
        print("canary-7715")

    @task(log_prints=True)
    def chatty():
        print("told by a task")

    def calling() -> int:
        inside()
        inside.submit().wait()
        inside_flow()
        print("canary-7715")
        chatty()
        return 1

    counted = step(calling)

    @dp_flow(name="report", log_prints=None if setting else True)
    def report():
        print("told by the flow")
        return counted(), counted.fn()

    with temporary_settings({PREFECT_LOGGING_LOG_PRINTS: setting}):
        assert report() == (1, 1)
    wait_until(lambda: "told by a task" in caplog.text, "the log")
    assert "told by the flow" in caplog.text
    assert "canary-7715" not in caplog.text
