"""What was defined, in flow runs: it is charged once and prints nothing to Prefect."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.settings import PREFECT_LOGGING_LOG_PRINTS, temporary_settings

from dpflow import dp_flow
from tests.prefect.definitions.test_definitions import (
    step,
)
from tests.prefect.matrix.support import wait_until


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
