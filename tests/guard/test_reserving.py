"""Claims on a release key, and settlements that fail, wait or come too late."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpflow import guarded
from dpflow.exceptions import DPStepFailed, LedgerError, LedgerUnavailable
from dpflow.guard.project import current_project
from dpflow.ledger import Ledger, create_ledger
from tests.projects import (
    TENTH,
    bring_ledger_back,
    caught,
    held,
    hide_ledger,
    kinds,
    ledger_file,
    rows,
    run_python,
    spent,
)


class Clock:
    """Clock of steps that wait for a claim: it says when one waits."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self):
        self.waited = threading.Event()

    def sleep(self, seconds):
        """Sleep, and say so."""
        self.waited.set()
        time.sleep(seconds)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of steps that wait for a claim."""
    clock = Clock()
    monkeypatch.setattr("dpflow.guard.reserving.time", clock)
    return clock


def test_a_failing_claimant_lets_the_waiting_one_run(shop, clock):
    """Its claim ends with it; both are charged."""
    answers = [ValueError(), 7]

    @guarded(dataset="shop", cost=TENTH, release_key="x", ignore=("answers", "clock"))
    def count():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            assert clock.waited.wait(30)
            raise answer
        return answer

    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(count) for _ in range(2)]
    assert {type(call.exception()) for call in calls} == {DPStepFailed, type(None)}
    assert spent() == "0.2"


def test_patience_with_a_live_claim_ends(shop, monkeypatch):
    """The error names the other run, and no second body runs."""
    monkeypatch.setattr("dpflow.guard.reserving._CLAIM_SECONDS", -1.0)
    started, end, ran = threading.Event(), threading.Event(), []

    @guarded(
        dataset="shop", cost=TENTH, release_key="x", ignore=("end", "ran", "started")
    )
    def count():
        ran.append(1)
        started.set()
        assert end.wait(30)
        return 1

    with ThreadPoolExecutor() as pool:
        first = pool.submit(count)
        assert started.wait(30)
        error = caught(count)
        end.set()
    assert first.result() == 1
    assert type(error) is LedgerUnavailable
    assert "another run has been making the release of step 'count'" in error.message
    assert ran == [1]
    assert kinds() == ["reserve", "settle"]


def replace_ledger(folder):
    """Put another, empty ledger in its place."""
    hide_ledger(folder)
    create_ledger(f"sqlite:///{ledger_file(folder)}").close()


@pytest.mark.promise("removed-file")
def test_a_replaced_ledger_is_refused_for_good(shop):
    """The second and third step must not settle for the file that was put there."""
    ran = []
    step = guarded(dataset="shop", cost=TENTH, name="n")(ran.append)
    step(1)
    replace_ledger(shop)
    for _ in range(3):
        assert isinstance(caught(lambda: step(2)), LedgerError)
    assert rows(shop)["journal"] == []
    bring_ledger_back(shop)
    assert ran == [1]
    assert [entry[4] for entry in rows(shop)["journal"]] == [
        "open",
        "reserve",
        "settle",
    ]


def noted(monkeypatch, method):
    """Return two events: that a method of the ledger was called, and that it ended."""
    began, ended = threading.Event(), threading.Event()
    real = getattr(Ledger, method)

    def call(*args, **kwargs):
        began.set()
        try:
            return real(*args, **kwargs)
        finally:
            ended.set()

    monkeypatch.setattr(Ledger, method, call)
    return began, ended


async def test_a_step_cancelled_before_its_body_gives_its_charge_back(
    shop, monkeypatch
):
    """The thread that asks cannot be stopped, but what it is granted can be voided."""
    ran, ledger = [], current_project().ledger
    requests, _ = noted(monkeypatch, "reserve")
    _, voided = noted(monkeypatch, "void")

    @guarded(dataset="shop", cost=TENTH, release_key="x", ignore=("ran",))
    async def count():
        ran.append(1)
        return 5

    # The secret of the release keys is read once, which this thread could not below.
    ledger.digests.of("x")
    with ledger.database.transaction():
        task = asyncio.create_task(count())
        assert await asyncio.to_thread(requests.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await asyncio.to_thread(voided.wait, 30)
    assert ran == []
    assert kinds() == ["reserve", "void"]
    assert (spent(), held()) == ("0", "0")
    assert await count() == 5


ASK = """
from dpflow import PureDP, guarded

OF_TEST = "test_another_process_need_not_wait_for_this_one_to_end.<locals>.count"

@guarded(
    dataset="shop",
    cost=PureDP(epsilon="0.1"),
    release_key="x",
    name="count",
    moved_from=OF_TEST,
)
def count():
    return 6

print(count())
"""


@pytest.mark.promise("failing-disk")
@pytest.mark.parametrize("fails", [False, True])
def test_another_process_need_not_wait_for_this_one_to_end(shop, fails):
    """Its key is free, or replayed, once the ledger is back; the charge stays."""

    @guarded(
        dataset="shop",
        cost=TENTH,
        release_key="x",
        ignore=("shop", "fails"),
        name="count",
    )
    def count() -> int:
        hide_ledger(shop)
        return 5 // (not fails)

    with pytest.warns(RuntimeWarning, match="stays charged in full and unsettled"):
        assert count() == 5 if not fails else caught(count)
    bring_ledger_back(shop)
    assert run_python(ASK, folder=shop) == (6 if fails else 5)
    assert kinds() == ["reserve", "settle"] * (1 + fails)
    assert (spent(), held()) == ("0.2" if fails else "0.1", "0")
    for thread in threading.enumerate():
        if thread.name == "dpflow-unsettled":
            thread.join(60)
            assert not thread.is_alive()


LAST = """
import warnings
from pathlib import Path
from dpflow import PureDP, guarded
from tests.projects import bring_ledger_back, hide_ledger

folder = Path.cwd()

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), name="count")
def count():
    hide_ledger(folder)

warnings.simplefilter("ignore")
count()
bring_ledger_back(folder)
print("null")
"""


@pytest.mark.promise("failing-disk")
def test_a_process_tries_once_more_when_it_ends(shop: Path) -> None:
    """What the ledger can take then is not left for an operator to close."""
    run_python(LAST, folder=shop)
    assert kinds() == ["reserve", "settle"]
    assert (spent(), held()) == ("0.1", "0")
