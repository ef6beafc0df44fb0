"""Claims on a release key, and settlements that fail, wait or come too late."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dpflow import guarded
from dpflow.exceptions import LedgerUnavailable
from dpflow.guard.project import current_project
from dpflow.ledger import Ledger
from tests.ledger.processes import Child, Gate
from tests.projects import (
    TENTH,
    bring_ledger_back,
    caught,
    held,
    hide_ledger,
    kinds,
    run_python,
    spent,
)


def test_patience_with_a_live_claim_ends(shop, monkeypatch):
    """The error names the other run, and no second body runs."""
    monkeypatch.setattr("dpflow.guard.reserving._CLAIM_SECONDS", -1.0)
    started, end, ran = threading.Event(), threading.Event(), []
    unread = ("end", "ran", "started")

    @guarded(dataset="shop", cost=TENTH, release_key="x", ignore=unread)
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


@pytest.mark.promise("failing-disk")
@pytest.mark.parametrize("fails", [False, True])
def test_another_process_need_not_wait_for_this_one_to_end(shop, fails):
    """Its key is free, or replayed, once the ledger is back; the charge stays."""
    own, unread = os.getpid(), ("shop", "fails", "own")

    @guarded(dataset="shop", cost=TENTH, release_key="x", ignore=unread)
    def count() -> int:
        if os.getpid() != own:
            return 6
        hide_ledger(shop)
        return 5 // (not fails)

    def count_later(say):
        gate.wait()
        say(count())

    gate = Gate()
    # Before this process has a thread that settles.
    child = Child(count_later)
    with pytest.warns(RuntimeWarning, match="stays charged in full and unsettled"):
        assert count() == 5 if not fails else caught(count)
    bring_ledger_back(shop)
    gate.open()
    assert child.speaks(60)
    assert child.end() == (0, ["6" if fails else "5"])
    assert kinds() == ["reserve", "settle"] * (1 + fails)
    assert (spent(), held()) == ("0.2" if fails else "0.1", "0")
    for thread in threading.enumerate():
        if thread.name == "dpflow-unsettled":
            thread.join(60)
            assert not thread.is_alive()


LAST = """
import warnings
from pathlib import Path
from dpflow import guarded
from tests.projects import TENTH, bring_ledger_back, hide_ledger

warnings.simplefilter("ignore")
guarded(dataset="shop", cost=TENTH, name="count")(lambda: hide_ledger(Path.cwd()))()
bring_ledger_back(Path.cwd())
print("null")
"""


@pytest.mark.promise("failing-disk")
def test_a_process_tries_once_more_when_it_ends(shop: Path) -> None:
    """What the ledger can take then is not left for an operator to close."""
    run_python(LAST, folder=shop)
    assert kinds() == ["reserve", "settle"]
    assert (spent(), held()) == ("0.1", "0")
