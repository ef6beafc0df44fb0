"""Processes, workers and servers that are killed or stopped in the middle of a body."""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from dpflow import guarded
from dpflow.guard.project import current_project
from dpflow.prefect import artifacts, client_calls
from tests.prefect.matrix.support import books, marked, marks, settled, wait_until
from tests.projects import POLICY, TENTH

DONE = ("completed",)
LOST = {"orphans": 1, "forfeited": "0.1"}
#: One retry of Prefect's client takes two or three seconds; five took over a minute.
SOON = 15.0


@contextmanager
def in_body(laboratory, name, flow, body):
    """Run a flow until it is in a body; yield the folder, the process and the run."""
    folder = laboratory.project(name)
    with laboratory.running(folder, "run", flow) as process:
        wait_until(lambda: marks(folder)[body], "the body")
        yield folder, process, (folder / "run.txt").read_text("utf-8")


def test_a_killed_script_forfeits_its_charge(laboratory):
    """The step's outcome is unknown: it stays charged in full, permanently.

    A retry of its flow run replays what was settled and pays for the rest.
    """
    with in_body(laboratory, "killed", "called", "endless") as (folder, process, run):
        assert books(folder) == settled(2, "0.1", outcomes=DONE, open=1)
        laboratory.reaches(run, "RUNNING", "endless")
        process.kill()
        process.wait()
    assert books(folder) == settled(2, "0.1", outcomes=DONE, **LOST)
    assert laboratory.state(run) == laboratory.tasks(run)["endless"] == "RUNNING"
    again = laboratory.run(folder, "again", "called", run)
    assert again == {"name": "Completed", "value": ["first 1", "endless 2"]}
    assert (marks(folder)["first"], marks(folder)["endless"]) == (1, 2)
    assert books(folder) == settled(3, "0.2", outcomes=DONE * 2, **LOST)


def _logged_end(folder, name):
    """Return how a task ended; at shutdown the server may never hear of it."""
    # PrefectHQ/prefect#19261, PrefectHQ/prefect#18310, PrefectHQ/prefect#22247
    log = (folder / "run.log").read_text("utf-8")
    (end,) = re.findall(rf"Task run '{name}-\w+' - Finished in state (\w+)\(", log)
    return end


def test_a_called_step_that_is_terminated_is_charged_in_full(laboratory):
    """The body sees no Exception; Prefect's hook fires twice, the charge is one."""
    with in_body(laboratory, "term", "called", "endless") as (folder, process, run):
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=600)
    assert laboratory.state(run) == "CRASHED"
    assert _logged_end(folder, "endless") == "Crashed"
    outcomes = (*DONE, "failed")
    assert books(folder) == settled(2, "0.2", outcomes=outcomes)
    again = laboratory.run(folder, "again", "called", run)
    assert again == {"name": "Completed", "value": ["first 1", "endless 2"]}
    assert (marks(folder)["first"], marks(folder)["on_running"]) == (1, 3)
    assert books(folder) == settled(3, "0.3", outcomes=(*outcomes, *DONE))


def test_a_submitted_step_runs_to_its_end_behind_the_crash(laboratory):
    """Its release is kept, and a retry of the flow run replays it."""
    with in_body(laboratory, "int", "submitted", "lasting") as (folder, process, run):
        process.send_signal(signal.SIGINT)
        process.wait(timeout=600)
    assert laboratory.state(run) == "CRASHED"
    # Whether Prefect still logs how the task ended depends on the machine.
    assert books(folder) == settled(2, "0.2")
    again = laboratory.run(folder, "again", "submitted", run)
    assert again == {"name": "Completed", "value": ["first 1", "lasting 1"]}
    assert books(folder) == settled(2, "0.2")


def test_a_process_pool_is_charged_and_refused_as_a_thread_is(laboratory):
    """The refusal crosses processes with its numbers; nothing behind it runs."""
    folder = laboratory.project("process-pool")
    result = laboratory.run(folder, "process_pool")
    assert result["ended"] == "BudgetExhausted"
    seen = marked(folder)
    bodies = [process for text, process in seen if text == "third"]
    assert len(bodies) == 3
    assert result["pid"] not in bodies
    assert [text for text, _ in seen].count("after") == 3
    assert "left 0.1" in dict(seen)
    assert books(folder) == settled(3, "0.9", refused=1)


@pytest.mark.slow
def test_dask_is_charged_and_refused_as_a_thread_is(laboratory):
    """A body whose worker died is charged again; a completed step is replayed."""
    policy = POLICY.replace("{epsilon: 1}", "{epsilon: 1.4}")
    folder = laboratory.project("dask", policy)
    assert laboratory.run(folder, "dask") == {
        "mid_task": "suicide 2",
        "recomputed": ["first 1", "first 2", "first 3"],
        "ended": "BudgetExhausted",
    }
    seen = marks(folder)
    assert (seen["suicide"], seen["first"], seen["third"], seen["after"]) == (
        2,
        *[3] * 3,
    )
    # Four tenths, three thirds and one orphan.
    assert books(folder) == settled(8, "1.3", outcomes=DONE * 7, refused=1, **LOST)


class Relay:
    """Leads to Prefect's server until it is cut: then nothing answers any more.

    For a client it is the server, which serves other experiments meanwhile.
    """

    def __init__(self, server: str) -> None:
        self._server = urlsplit(server)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sides = [self._listening]
        port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{self._server.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and take no more."""
        for side in self._sides:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _accept(self) -> None:
        address = self._server.hostname, self._server.port
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                pair = client, socket.create_connection(address)
                self._sides += pair
                for ends in (pair, pair[::-1]):
                    threading.Thread(target=_forward, args=ends, daemon=True).start()


def _forward(one: socket.socket, other: socket.socket) -> None:
    """Hand on what one side says until it says no more."""
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


@pytest.mark.promise("killed-prefect")
def test_a_killed_server_delays_no_settlement_and_no_end(laboratory):
    """Three charges are settled, and dpflow's own part of the end is short."""
    folder = laboratory.project("lost-server")
    relay = Relay(laboratory.url)
    reached = {"PREFECT_API_URL": relay.url}
    with laboratory.running(folder, "lost_server", **reached):
        wait_until(lambda: marks(folder)["lasting"], "the body", 120)
        assert books(folder) == settled(2, "0.1", outcomes=DONE, open=1)
        relay.cut()
        (folder / "go").touch()
        wait_until((folder / "values").exists, "the other steps", SOON)
        wait_until((folder / "flushed").exists, "the end of the flow", SOON)
        # Prefect itself now tries for a minute to say how the flow ended.
        assert books(folder) == settled(3, "0.3")
    assert (folder / "values").read_text("utf-8") == "first 1 lasting 1 first 2"
    log = (folder / "lost_server.log").read_text("utf-8")
    assert "the budget artifact could not be published" in log


@pytest.mark.promise("killed-prefect")
def test_a_server_that_does_not_answer_is_given_up(project, monkeypatch, caplog):
    """After the patience that there is, with a line in the log."""
    guarded(dataset="shop", cost=TENTH, flow="report", name="count")(lambda: 1)()
    monkeypatch.setattr(client_calls, "PATIENCE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        with (
            temporary_settings({PREFECT_API_URL: url}),
            caplog.at_level(logging.ERROR, "dpflow"),
        ):
            artifacts.publish_budget(current_project())
    assert "the budget artifact could not be published" in caplog.text
