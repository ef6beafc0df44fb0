"""Deployed flows: keyless steps, paused schedules, and servers that start late."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime

import pytest
from prefect import Flow, flow
from prefect.context import use_profile
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    Profile,
    temporary_settings,
)
from typer.testing import CliRunner

from dpflow import dp_flow, dp_task
from dpflow.cli import app
from dpflow.prefect import api, keyless_steps
from dpflow.prefect.deployments import DPFlow, steps_in_code
from tests.prefect.matrix.support import run_deployed
from tests.projects import TENTH


@dp_task(dataset="shop", cost=TENTH)
def nameless(week: int = 1) -> int:
    """Name no release key."""
    return week


@dp_task(dataset="shop", cost=TENTH, release_key="named/{week}")
def named(week: int = 1) -> int:
    """Name one."""
    return week


@dp_task(dataset="shop", cost=TENTH, fresh=True)
def drawn(week: int = 1) -> int:
    """Say that every run draws."""
    return week


def helper():
    """Call a step from a plain function."""
    return nameless.with_options(name="renamed")(2), inner()


@flow
def inner():
    """Call one from a flow inside."""
    return [nameless.submit(week) for week in range(2)]


#: A step where its name alone does not tell.
HIDDEN = {"count": nameless}


@dp_flow(name="report")
def mixed():
    """Call all of them."""
    return named(), drawn(), nameless()


@dp_flow(name="report")
def careful():
    """Call those that say what they mean."""
    return named(), drawn()


@dp_flow(name="report")
def around():
    """Reach a step through a function, and another through a flow."""
    return helper()


@dp_flow(name="report")
def hiding():
    """Reach one in a way that the code does not show."""
    return HIDDEN["count"]()


def test_deploying_warns_of_steps_without_a_key():
    """By name, with what to do; it is silent where every step says what it means."""
    for report in (mixed, around, mixed.with_options(retries=1)):
        assert isinstance(report, DPFlow)
        with pytest.warns(UserWarning, match="nameless name no release_key.*fresh=Tr"):
            report.to_deployment("nightly")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        careful.to_deployment("nightly")
        hiding.to_deployment("nightly")
    assert steps_in_code(hiding) == []


def test_a_deployed_run_logs_each_step_without_a_key_once(project, caplog):
    """Exactly the steps that were charged, whether the code shows them or not."""
    for report in (mixed, hiding):
        caplog.clear()
        keyless_steps._warn_once.cache_clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(2 if report is hiding else 1):
                assert run_deployed(report)[1].is_completed()
        texts = [record.getMessage() for record in caplog.records]
        logged = [text for text in texts if "names no release_key" in text]
        assert len(logged) == 1
        assert "'nameless'" in logged[0]


def test_a_flow_waits_longer_than_prefect_does_for_a_new_server(monkeypatch):
    """A number of seconds that the user sets is kept, and a named server needs none."""
    seconds, waited = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS, []
    monkeypatch.setattr(Flow, "__call__", lambda *_: waited.append(seconds.value()))
    nothing = dp_flow(lambda: None, name="nothing")
    # A server of other tests has settings of its own.
    with use_profile(Profile(name="user", settings={}), include_current_context=False):
        nothing()
        with temporary_settings({seconds: 7}):
            nothing()
        with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
            nothing()
    assert waited == [180, 7, 20]


def test_a_deployment_is_resumed_by_its_whole_name(project):
    """Wrong usage comes before the ledger; an unknown one says where to look."""
    for name in ("report", "report/", "/daily"):
        result = CliRunner().invoke(app, ["resume", name])
        assert (result.exit_code, result.stdout) == (2, "")
        assert "FLOW/DEPLOYMENT" in result.stderr
    result = CliRunner().invoke(app, ["resume", "report/nowhere"])
    assert result.exit_code == 1
    assert "prefect deployment ls" in result.stderr


AT = datetime(2026, 1, 5, 6, tzinfo=UTC)
LATER = datetime(2026, 1, 12, 6, tzinfo=UTC)


@dp_task(dataset="shop", cost=TENTH, release_key="count/{store}")
def count(store: str) -> int:
    """Stand for a step whose key lacks the period."""
    return 1


@dp_flow(name="report")
def report(store: str) -> int:
    """Release one count."""
    return count(store)


def test_a_replay_of_another_scheduled_time_is_announced(project, caplog, monkeypatch):
    """In the log, with both times; repeated runs and runs by hand replay quietly."""
    current = api.FlowRunContext.get
    for store, time, warns in (
        ("north", AT, False),
        ("north", AT, False),
        ("north", None, False),
        ("north", LATER, True),
        ("drawn by hand", None, False),
        ("drawn by hand", LATER, False),
    ):

        def scheduled(time=time):
            context = current()
            if context is not None and context.flow_run is not None and time:
                context.flow_run.auto_scheduled = True
                context.flow_run.expected_start_time = time
            return context

        monkeypatch.setattr(api.FlowRunContext, "get", scheduled)
        caplog.clear()
        assert report(store) == 1
        text = "\n".join(record.getMessage() for record in caplog.records)
        assert ("2026-01-05T06:00:00+00:00" in text) == warns
        assert ("scheduled for 2026-01-12T06:00:00+00:00 replayed" in text) == warns
