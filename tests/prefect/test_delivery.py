"""Events reach Prefect in order, and from processes that end immediately."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
from prefect.client.orchestration import get_client

import dpflow.prefect.events
from dpflow import dp_flow, dp_task
from dpflow.prefect import delivery
from dpflow.prefect.delivery import Delivery
from tests.pages import run_forked
from tests.prefect.matrix.support import in_flow, wait_until
from tests.projects import POLICY, TENTH, kinds

#: Longer than any test: nothing is delivered unless it is flushed.
NEVER = 3600.0


def notice(number):
    """Return a notice with a number."""
    return SimpleNamespace(number=number, request=SimpleNamespace(step=f"s{number}"))


class Prefect:
    """What was delivered; it can be held up, and fail."""

    def __init__(self):
        """Begin with nothing."""
        self.got = []
        self.open = threading.Event()
        self.open.set()
        self.began = threading.Event()

    def __call__(self, event, _occurred):
        """Take a notice; every seventh fails."""
        self.began.set()
        assert self.open.wait(60)
        self.got.append(event.number)
        if event.number % 7 == 0:
            msg = "no connection"
            raise ConnectionError(msg)


def test_notices_are_delivered_in_their_order(monkeypatch):
    """Of one thread; and all of them, though some fail."""
    prefect = Prefect()
    monkeypatch.setattr(delivery, "PAUSE_SECONDS", 0.001)
    made = Delivery(prefect)
    for number in range(500):
        made.put(notice(number))
    assert made.flush(60)
    assert prefect.got == list(range(500))


@pytest.mark.promise("unreachable-prefect")
def test_a_queue_that_stays_full_drops_and_says_so(caplog, monkeypatch):
    """One step waits, the next do not; what was taken is delivered after all."""
    prefect = Prefect()
    prefect.open.clear()
    limits = {"PAUSE_SECONDS": NEVER, "MOST_WAITING": 2, "PATIENCE_SECONDS": 0}
    for name, limit in limits.items():
        monkeypatch.setattr(delivery, name, limit)
    made = Delivery(prefect)
    made.put(notice(1))
    assert not made.flush(0)
    assert prefect.began.wait(60)  # One is under way, two wait.
    waits = mock.Mock(wraps=made._hurry)
    monkeypatch.setattr(made, "_hurry", waits)
    for number in range(2, 104):
        made.put(notice(number))
    assert waits.call_count == 1
    assert caplog.text.count("Prefect takes no events") == 1
    prefect.open.set()
    assert made.flush(60)
    assert prefect.got == [1, 2, 3]
    wait_until(lambda: "100 events of DP steps were dropped" in caplog.text, "the log")
    made.put(notice(104))
    assert made.flush(60)
    assert prefect.got[-1] == 104


ENDING = """
from prefect import flow
from dpflow import PureDP, dp_task
from dpflow.prefect import delivery

delivery.PAUSE_SECONDS = 3600.0

@dp_task(dataset="shop", cost=PureDP(epsilon="0.1"))
def count(number):
    return number

@flow(name="report")
def report():
    for number in range(3):
        count(number)

report()
"""


def _events(folder):
    """Return the names and times of the events of a project's dataset."""
    chosen = {
        "filter": {
            "event": {"prefix": ["dpflow.budget."]},
            "resource": {"labels": {"prefect.resource.name": [folder]}},
        },
        "limit": 50,
    }
    with get_client(sync_client=True) as client:
        page = client.request("POST", "/events/filter", json=chosen).json()
    return sorted((each["occurred"], each["event"]) for each in page["events"])


def test_a_process_that_ends_sends_what_waits(make_project, forked):
    """Before Prefect's own thread ends: without the flush at exit nothing would be."""
    name = f"shop-{os.getpid()}"
    folder = make_project(POLICY.replace("dataset: shop", f"dataset: {name}"))
    done = run_forked(forked, folder, "-c", ENDING.replace('"shop"', repr(name)))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: len(_events(name)) >= 7, "the events")
    names = [event.removeprefix("dpflow.budget.") for _, event in _events(name)]
    first = ["reserved", "term-opened", "settled"]
    assert names == [*first, *["reserved", "settled"] * 2]


def test_the_end_of_a_flow_sends_what_waits(project, sent, monkeypatch):
    """After a value and after an error."""
    assert delivery.flush(60)
    sent.clear()
    monkeypatch.setattr(delivery, "PAUSE_SECONDS", NEVER)
    count = dp_task(dataset="shop", cost=TENTH, name="count")(lambda: 1)
    opened = ["term-opened"]
    for ending in ("value", "error"):

        def report(ending=ending):
            count()
            return {"value": 1}[ending]

        sent.clear()
        in_flow(report, make_flow=dp_flow)(return_state=True)
        names = ["reserved", *opened, "settled"]
        assert [each["event"] for each in sent] == [f"dpflow.budget.{n}" for n in names]
        opened.clear()


@pytest.mark.promise("unreachable-prefect")
def test_a_step_is_settled_while_prefect_hangs(project, monkeypatch):
    """The charge is posted, and the next step runs."""
    opened = threading.Event()
    monkeypatch.setattr(
        dpflow.prefect.events, "emit_event", lambda **_: opened.wait(60)
    )
    count = dp_task(dataset="shop", cost=TENTH, name="count")(lambda number: number)
    try:
        assert in_flow(lambda: [count(n) for n in range(3)])() == [0, 1, 2]
        assert kinds() == ["reserve", "settle"] * 3
        assert not opened.is_set()
    finally:
        opened.set()
    assert delivery.flush(60)
