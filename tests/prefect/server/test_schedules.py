"""A scheduled report that is served for real, until its budget is exhausted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
)
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.guard.project import current_project
from tests.prefect.support import charges

NAME = "report/every-second"
POLICY = """
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 1}
filter: basic
on_exhausted: {flow: halt, schedule: pause}
"""
SERVED = """
from datetime import timedelta
from dpflow import PureDP, dp_flow, dp_task

@dp_task(dataset="shop", cost=PureDP(epsilon="0.5"), release_key="count/{tick}")
def count(tick: str) -> int:
    return 1

@dp_flow(name="report")
def report():
    from prefect.runtime import flow_run
    count(str(flow_run.scheduled_start_time))

if __name__ == "__main__":
    report.serve(name="every-second", interval=timedelta(seconds=2), limit=1)
"""
PATIENCE = 900.0


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a whole server, for the one of the other tests schedules nothing."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("server")
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start"]
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, "PREFECT_HOME": str(home), "PREFECT_API_URL": url},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: answers(url), patience=600)
        with temporary_settings({PREFECT_API_URL: url}):
            yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    """Say whether a server is up."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


@pytest.fixture
def served(make_project, scheduler) -> Callable[..., Any]:
    """Return a context manager that serves the report from a process of its own."""
    folder = make_project(POLICY)

    @contextmanager
    def serve(program: str = SERVED) -> Iterator[None]:
        (folder / "served.py").write_text(program, "utf-8")
        env = {
            **os.environ,
            "PREFECT_API_URL": scheduler,
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path]),
        }
        with (folder / "served.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "served.py"], cwd=folder, env=env,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    return serve


def until(told: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Wait until something holds; fail with what was seen last."""
    deadline = time.monotonic() + patience
    while not (found := told()):
        assert time.monotonic() < deadline, f"waited {patience:g} s; {found!r}"
        time.sleep(0.25)
    return found


def deployment(name: str = NAME) -> Any:
    """Return the deployment as the server has it, or None."""
    with get_client(sync_client=True) as client:
        try:
            return client.read_deployment_by_name(name)
        except Exception:
            return None


def paused(name: str = NAME) -> bool:
    """Say whether the schedule is paused."""
    found = deployment(name)
    return found is not None and found.paused


def ended() -> list[str]:
    """Return the names of the final states of the deployment's runs."""
    return [run.state.name for run in ended_runs(NAME)]


def ended_runs(name: str) -> list[Any]:
    """Return the runs of a deployment that have ended."""
    found = deployment(name)
    if found is None:
        return []
    this = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[found.id]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=this)
    return [run for run in runs if run.state and run.state.is_final()]


@pytest.mark.slow
def test_a_served_report_halts_pauses_and_pauses_again(served) -> None:
    """Two ticks fit; the third is an explained skip, and pauses the schedule.

    Serving again forgets the pause (PrefectHQ/prefect#19302): the ledger refuses the
    next tick as well, and it is paused again. Nothing is spent twice.
    """
    with served():
        until(paused)
        states = until(lambda: "BudgetExhausted" in (names := ended()) and names)
        assert states.count("Completed") == 2
        assert set(states) == {"Completed", "BudgetExhausted"}
    project = current_project()
    assert charges(project) == 2
    before = ended().count("BudgetExhausted")
    refused = CliRunner().invoke(app, ["resume", NAME])
    assert refused.exit_code == 1
    assert "stays paused" in refused.stderr
    assert "`dpflow policy apply shop --new-term --reason TEXT`" in refused.stderr
    assert paused()
    with served():
        until(lambda: not paused())
        until(paused)
        assert until(lambda: ended().count("BudgetExhausted") > before)
    assert charges(project) == 2
    done = CliRunner().invoke(app, ["resume", NAME, "--force"])
    assert done.exit_code == 0, done.stderr
    assert "refused all the same" in done.stdout
    assert not paused()


@pytest.mark.parametrize("name", ["report", "report/", "/daily"])
def test_a_deployment_is_named_with_its_flow(name: str) -> None:
    """Wrong usage, before the ledger or Prefect is asked."""
    result = CliRunner().invoke(app, ["resume", name])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "FLOW/DEPLOYMENT" in result.stderr


def test_an_unknown_deployment_cannot_be_resumed(make_project) -> None:
    """And says where to look."""
    make_project(POLICY)
    result = CliRunner().invoke(app, ["resume", "report/nowhere"])
    assert result.exit_code == 1
    assert "prefect deployment ls" in result.stderr
