"""Prefect's server goes away in the middle of a flow run: the ledger goes on."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from dpflow import PureDP, guarded
from dpflow.guard.project import current_project
from dpflow.prefect import artifacts, client_calls
from tests.prefect.matrix.support import books, marks, settled, wait_until

#: One retry of Prefect's client takes two or three seconds; five took over a minute.
SOON = 15.0


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


def killed(laboratory):
    """Take the server away in the body of the second of three steps."""
    folder = laboratory.project("lost-server")
    relay = Relay(laboratory.url)
    reached = {"PREFECT_API_URL": relay.url}
    with laboratory.running(folder, "lost_server", **reached):
        wait_until(lambda: marks(folder)["patient"], "the body", 120)
        before = books(folder)
        relay.cut()
        (folder / "go").touch()
        wait_until(lambda: marks(folder)["first"] == 2, "the next step", SOON)
        wait_until((folder / "timed.json").exists, "the end of the flow", 180)
        # Prefect itself now tries for a minute to say how the flow ended.
        after = books(folder)
    return SimpleNamespace(
        before=before,
        after=after,
        told=json.loads((folder / "timed.json").read_text("utf-8")),
        log=(folder / "lost_server.log").read_text("utf-8"),
    )


def test_a_killed_server_delays_no_settlement_and_no_end(found):
    """Three charges are settled, and dpflow's own part of the end is short."""
    run = found(killed)
    assert run.before == settled(2, "0.1", outcomes=("completed",), open=1)
    assert run.after == settled(3, "0.3")
    assert run.told["values"] == ["first 1", "patient 1", "first 2"]
    assert 0 < run.told["seconds"] < SOON
    assert "the budget artifact could not be published" in run.log


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
    monkeypatch.setattr(client_calls, "PATIENCE_SECONDS", 0.5)
    count()
    begun = time.monotonic()
    with caplog.at_level(logging.ERROR, "dpflow"):
        artifacts.publish_budget(current_project())
    assert 0.4 < time.monotonic() - begun < SOON
    assert "the budget artifact could not be published" in caplog.text
