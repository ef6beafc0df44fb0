"""A process worker's flow run, killed in a body: forfeited, retried, run again."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import pytest

from tests.prefect.matrix.support import books, marked, marks, settled, wait_until

DEPLOY = (
    "prefect", "--no-prompt", "deploy", "flows.py:keyed_week",
    "--name", "worker", "--pool", "killed",
)  # fmt: skip
WORKER = ["-m", "prefect", "worker", "start", "--type", "process", "--pool", "killed"]
POOL = ("prefect", "work-pool", "create", "--type", "process", "killed")
RETRY = {"type": "SCHEDULED", "name": "AwaitingRetry"}


def killed(laboratory):
    """Kill a worker's flow process in a step; run the flow again, then retry it."""
    folder = laboratory.project("worker-killed")
    source = "from tests.prefect.matrix.programs import keyed_week\n"
    (folder / "flows.py").write_text(source, "utf-8")
    laboratory.command(folder, *POOL)
    laboratory.command(folder, *DEPLOY)
    query = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    with laboratory.serving(laboratory.folder("worker"), *WORKER, **query):
        lost = _run(laboratory)
        process = wait_until(lambda: dict(marked(folder)).get("endless"), "the body")
        laboratory.task_reaches(lost, "endless_week", "RUNNING")
        before = books(folder), _reservations(laboratory, folder)
        os.kill(process, signal.SIGKILL)
        laboratory.reaches("flow", lost, "CRASHED")
        after = books(folder), _reservations(laboratory, folder)
        tasks = laboratory.tasks(lost)
        said = laboratory.command(folder, "dpflow", "ledger", "reservations")
        following = _run(laboratory)
        laboratory.reaches("flow", following, "COMPLETED")
        anew = books(folder)
        laboratory.ask(f"flow_runs/{lost}/set_state", state=RETRY)
        laboratory.reaches("flow", lost, "COMPLETED")
    laboratory.command(folder, "dpflow", "ledger", "verify")
    return SimpleNamespace(
        before=before,
        after=after,
        tasks=tasks,
        said=said,
        anew=anew,
        at_last=(books(folder), _reservations(laboratory, folder)),
        following=books(folder, following),
        retried=books(folder, lost),
        marks=marks(folder),
    )


def _run(laboratory):
    """Start a run of the deployment and return its id."""
    made = laboratory.ask("deployments/name/keyed-week/worker")
    path = f"deployments/{made['id']}/create_flow_run"
    return laboratory.ask(path, state={"type": "SCHEDULED"})["id"]


def _reservations(laboratory, folder):
    """Return the step and the state of each open reservation, as the command tells."""
    said = laboratory.command(folder, "dpflow", "ledger", "reservations", "--json")
    told = json.loads(said)["reservations"]
    return [(e["step"], "running" if e["alive"] else "forfeited") for e in told]


LOST = {"orphans": 1, "forfeited": "0.1"}


@pytest.mark.slow
def test_a_run_that_a_worker_lost_is_charged_in_full(found):
    """The next run pays for its release; a retry of the lost one replays all."""
    seen, done = found(killed), ("completed",)
    running = settled(2, "0.1", outcomes=done, open=1)
    assert seen.before == (running, [("endless_week", "running")])
    dead = settled(2, "0.1", outcomes=done, **LOST)
    assert seen.after == (dead, [("endless_week", "forfeited")])
    assert seen.tasks == {"kept_week": "COMPLETED", "endless_week": "RUNNING"}
    assert "forfeited" in seen.said
    assert "dpflow ledger reservations --close" in seen.said
    assert seen.following == settled(1, "0.1", outcomes=done)
    assert seen.anew == settled(3, "0.2", outcomes=done * 2, **LOST)
    assert seen.retried == settled(2, "0.1", outcomes=done, **LOST)
    dead = settled(3, "0.2", outcomes=done * 2, **LOST)
    assert seen.at_last == (dead, [("endless_week", "forfeited")])
    assert seen.marks == {"kept": 1, "endless": 2}
