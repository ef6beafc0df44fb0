"""Events reach Prefect in order, and from processes that end at once."""

from __future__ import annotations

import os
import threading
import time
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.events.worker import EventsWorker, ProcessPoolForwardingEventsClient

import dpflow.prefect.events
from dpflow import dp_flow, dp_task
from dpflow.prefect import delivery
from dpflow.prefect.delivery import Delivery
from tests.pages import run_forked
from tests.prefect.matrix.support import wait_until
from tests.prefect.support import charges
from tests.projects import POLICY, TENTH, run_python

#: Longer than any test: nothing is delivered unless it is flushed.
NEVER = 3600.0


def notice(number):
    """Return a notice that can be told from others."""
    return SimpleNamespace(number=number, request=SimpleNamespace(step=f"s{number}"))


class Prefect:
    """What was delivered; it can be held up, and fail."""

    def __init__(self):
        """Begin with nothing."""
        self.got = []
        self.open = threading.Event()
        self.open.set()
        self.began = threading.Event()

    def __call__(self, told, _occurred):
        """Take a notice; every seventh fails."""
        self.began.set()
        assert self.open.wait(60)
        self.got.append(told.number)
        if told.number % 7 == 0:
            msg = "no connection"
            raise ConnectionError(msg)


def test_notices_are_delivered_in_their_order():
    """Of one thread; and all of them, though some fail."""
    prefect = Prefect()
    made = Delivery(prefect, pause=0.001)
    for number in range(500):
        made.put(notice(number))
    assert made.flush(60)
    assert prefect.got == list(range(500))


def test_nothing_is_delivered_before_the_pause_is_over():
    """The step goes on undisturbed; a flush ends the pause."""
    prefect = Prefect()
    made = Delivery(prefect, pause=NEVER)
    made.put(notice(1))
    made.put(notice(2))
    assert not prefect.began.wait(0.2)
    assert made.flush(60)
    assert prefect.got == [1, 2]


def test_a_failure_is_logged_and_stops_nothing(caplog):
    """The next notice is delivered."""
    prefect = Prefect()
    made = Delivery(prefect)
    made.put(notice(7))
    made.put(notice(8))
    assert made.flush(60)
    assert prefect.got == [7, 8]
    assert "a notice of step 's7' was not delivered" in caplog.text
    assert "'s8'" not in caplog.text


def test_the_contexts_and_the_time_are_those_of_the_step():
    """Prefect finds the run in them, and orders events by their time."""
    run = ContextVar("run")
    seen = []
    made = Delivery(
        lambda _, occurred: seen.append((run.get(), occurred.timestamp())),
        pause=0.2,
    )
    token = run.set("first")
    before = time.time()
    made.put(notice(1))
    after = time.time()
    run.reset(token)
    run.set("second")
    assert made.flush(60)
    ((found, occurred),) = seen
    assert found == "first"
    assert before <= occurred <= after


def test_a_full_queue_is_waited_for(caplog):
    """While Prefect takes events, however slowly, none is lost."""
    prefect = Prefect()
    prefect.open.clear()
    made = Delivery(prefect, pause=NEVER, most=2, patience=60)
    for number in (1, 2):
        made.put(notice(number))
    opened = threading.Timer(0.2, prefect.open.set)
    opened.start()
    # No flush: the full queue itself ends the pause.
    made.put(notice(3))
    assert made.flush(60)
    assert prefect.got == [1, 2, 3]
    assert "dropped" not in caplog.text


def test_a_queue_that_stays_full_drops_and_says_so(caplog):
    """One step waits, the next do not; what was taken is delivered after all."""
    prefect = Prefect()
    prefect.open.clear()
    made = Delivery(prefect, pause=NEVER, most=2, patience=0.2)
    made.put(notice(1))
    assert not made.flush(0.01)
    assert prefect.began.wait(60)  # one is under way, two wait
    for number in (2, 3):
        made.put(notice(number))
    start = time.monotonic()
    for number in range(4, 104):
        made.put(notice(number))
    assert time.monotonic() - start < 10  # not a hundred times its patience
    assert caplog.text.count("Prefect takes no events") == 1
    prefect.open.set()
    assert made.flush(60)
    assert prefect.got == [1, 2, 3]
    wait_until(lambda: "100 events of DP steps were dropped" in caplog.text, "the log")
    made.put(notice(104))
    assert made.flush(60)
    assert prefect.got[-1] == 104


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_replaced():
    """As after an error that is no Exception."""
    got = []

    def deliver(told, _occurred):
        got.append(told.number)
        if told.number == 1:
            raise SystemExit

    others = set(threading.enumerate())
    made = Delivery(deliver, pause=0.2)
    made.put(notice(1))
    (thread,) = set(threading.enumerate()) - others
    thread.join(60)
    assert not thread.is_alive()
    made.put(notice(2))
    assert made.flush(60)
    assert got == [1, 2]


FORKED = """
import json, os, threading, time
from types import SimpleNamespace as N
from dpflow.prefect import delivery

got = []
delivery.announce = lambda notice, occurred: got.append(notice.number)
delivery.should_emit_events = lambda: False
delivery._delivery._pause = 3600.0

def notice(number):
    return N(number=number, request=N(step="s"))

delivery.send(notice(1))
with delivery._delivery._changed:  # as if another thread were in it
    reading, writing = os.pipe()
    child = os.fork()
if child == 0:
    delivery.send(notice(2))
    flushed = delivery.flush(20)
    os.write(writing, json.dumps([flushed, got]).encode())
    os._exit(0)
os.waitpid(child, 0)
delivery.send(notice(3))
print(json.dumps([json.loads(os.read(reading, 1000)), delivery.flush(20), got]))
"""


def test_a_forked_child_has_a_delivery_of_its_own():
    """It delivers what it sends, by a thread of its own, and nothing of its parent."""
    assert run_python(FORKED) == [[True, [2]], True, [1, 3]]


ENDING = """
import sys
from prefect import flow
from dpflow import PureDP, dp_task
from dpflow.prefect import delivery

delivery._delivery._pause = 3600.0
if sys.argv[1] == "forgets":
    delivery._exit.register = lambda: None

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
            "any_resource": {"id": [f"dpflow.dataset.{folder}"]},
        },
        "limit": 50,
    }
    with get_client(sync_client=True) as client:
        page = client.request("POST", "/events/filter", json=chosen).json()
    return sorted((each["occurred"], each["event"]) for each in page["events"])


@pytest.mark.parametrize(("how", "expected"), [("flushes", 7), ("forgets", 0)])
def test_a_process_that_ends_sends_what_waits(make_project, forked, how, expected):
    """Before Prefect's own thread ends; without the flush at exit nothing would be."""
    name = f"shop-{how}-{os.getpid()}"
    folder = make_project(POLICY.replace("dataset: shop", f"dataset: {name}"))
    script = ENDING.replace('"shop"', repr(name))
    done = run_forked(forked, folder, "-c", script, how)
    assert done.returncode == 0, done.stderr
    if expected:
        wait_until(lambda: len(_events(name)) >= expected, "the events")
    else:
        time.sleep(3)
    found = [event.removeprefix("dpflow.budget.") for _, event in _events(name)]
    first = ["reserved", "term-opened", "settled"]
    assert found == ([*first, *["reserved", "settled"] * 2] if expected else [])


def test_in_a_process_of_a_pool_notices_are_sent_at_once(monkeypatch):
    """It hands its events to its parent after each task, and may end then."""
    sent = []
    monkeypatch.setattr(delivery, "announce", lambda told, _: sent.append(told.number))
    monkeypatch.setattr(delivery, "_delivery", Delivery(Prefect(), pause=NEVER))
    delivery.send(notice(1))
    assert sent == []
    # As Prefect says it, in a process that it made.
    EventsWorker.set_client_override(ProcessPoolForwardingEventsClient)
    try:
        delivery.send(notice(2))
    finally:
        EventsWorker.set_client_override(None)
    assert sent == [2]
    assert delivery.flush(60)


@pytest.mark.parametrize("ending", ["value", "error"])
def test_the_end_of_a_flow_sends_what_waits(project, monkeypatch, ending):
    """However it ends."""
    sent = _sent(monkeypatch)
    monkeypatch.setattr(delivery._delivery, "_pause", NEVER)

    @dp_task(dataset="shop", cost=TENTH)
    def count():
        return 1

    @dp_flow(name="report")
    def report():
        count()
        if ending == "error":
            raise LookupError
        return 1

    report(return_state=True)
    assert sent == ["reserved", "term-opened", "settled"]


def test_a_step_is_settled_while_prefect_hangs(project, monkeypatch):
    """The charge is posted, and the next step runs."""
    opened = threading.Event()
    monkeypatch.setattr(
        dpflow.prefect.events, "emit_event", lambda **_: opened.wait(60)
    )

    @dp_task(dataset="shop", cost=TENTH)
    def count(number):
        return number

    @flow(name="report")
    def report():
        return [count(number) for number in range(3)]

    try:
        assert report() == [0, 1, 2]
        assert charges(project) == 3
        assert not opened.is_set()
    finally:
        opened.set()
    assert delivery.flush(60)


def _sent(monkeypatch):
    """Collect the kinds of events instead of sending them."""
    assert delivery.flush(60)
    found = []
    monkeypatch.setattr(
        dpflow.prefect.events,
        "emit_event",
        lambda event, **_: found.append(event.removeprefix("dpflow.budget.")),
    )
    return found
