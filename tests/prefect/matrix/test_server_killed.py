"""Prefect's server goes away in the middle of a flow run: the ledger goes on."""

from __future__ import annotations

import json
import logging
import socket
import time

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from dpflow import PureDP, guarded
from dpflow.guard.project import current_project
from dpflow.prefect import artifacts, time_limit
from tests.prefect.matrix.laboratory import Laboratory
from tests.prefect.matrix.support import books, marks, settled, wait_until

#: One retry of Prefect's client takes two or three seconds; five took over a minute.
SOON = 15.0


@pytest.mark.slow
def test_a_killed_server_delays_no_settlement_and_no_end(tmp_path):
    """Three charges are settled, and dpflow's own part of the end is short."""
    with Laboratory(tmp_path) as laboratory:
        laboratory.wait_for_server()
        folder = laboratory.project("lost-server")
        with laboratory.running(folder, "lost_server"):
            wait_until(lambda: marks(folder)["patient"], "the body", 120)
            assert books(folder) == settled(2, "0.1", outcomes=("completed",), open=1)
            laboratory.kill_server()
            (folder / "go").touch()
            wait_until(lambda: marks(folder)["first"] == 2, "the next step", SOON)
            wait_until((folder / "timed.json").exists, "the end of the flow", 180)
            told = json.loads((folder / "timed.json").read_text("utf-8"))
            # Prefect itself now tries for a minute to say how the flow ended.
            assert books(folder) == settled(3, "0.3")
        log = (folder / "lost_server.log").read_text("utf-8")
    assert told["values"] == ["first 1", "patient 1", "first 2"]
    assert told["seconds"] < SOON
    assert "the budget artifact could not be published" in log


@pytest.fixture
def silent_server():
    """Take connections and answer none of them."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/api"
        with temporary_settings({PREFECT_API_URL: url}):
            yield


@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), flow="report")
def count() -> int:
    """Make an account to tell of."""
    return 1


def test_a_server_that_does_not_answer_is_given_up(
    project, silent_server, monkeypatch, caplog
):
    """After the patience that there is, with a line in the log."""
    monkeypatch.setattr(time_limit, "PATIENCE_SECONDS", 0.5)
    count()
    begun = time.monotonic()
    with caplog.at_level(logging.ERROR, "dpflow"):
        artifacts.publish_budget(current_project())
    assert 0.4 < time.monotonic() - begun < SOON
    assert "the budget artifact could not be published" in caplog.text


def test_progress_is_not_told_again_soon_after_it_was_not_taken(monkeypatch):
    """A body would wait at every second; later it is told again."""
    monkeypatch.setattr(time_limit, "_refused_at", [])
    asked = []

    def fail():
        asked.append(1)
        raise ConnectionError

    with pytest.raises(ConnectionError):
        time_limit.tell_progress(fail)
    time_limit.tell_progress(fail)
    assert len(asked) == 1
    monkeypatch.setattr(time_limit, "_QUIET_SECONDS", 0.0)
    time_limit.tell_progress(lambda: asked.append(2))
    assert asked == [1, 2]


def test_what_a_call_returns_or_raises_comes_through():
    """In the caller's context."""
    assert time_limit.ask_briefly(PREFECT_API_URL.value) == PREFECT_API_URL.value()
    with pytest.raises(ZeroDivisionError):
        time_limit.ask_briefly(lambda: 1 / 0)
