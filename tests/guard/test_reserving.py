"""Claims on a release key, failed settlements, and askers that leave."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dpflow import guarded, release
from dpflow.exceptions import (
    DPStepFailed,
    LedgerError,
    LedgerUnavailable,
)
from dpflow.guard.project import current_project
from dpflow.ledger import create_ledger
from tests.projects import (
    NOISY,
    TENTH,
    account,
    bring_ledger_back,
    caught,
    held,
    hide_ledger,
    kinds,
    ledger_file,
    rows,
    spent,
    start_python,
)

# A step in another process. It says when its body runs and ends when told to.
WORKER = """
import sys
from dpflow import PureDP, guarded

@guarded(dataset="shop", cost=PureDP(epsilon="0.1"), release_key="count/{week}")
def count(week):
    print("running", flush=True)
    return int(sys.stdin.readline())

print(count(1))
"""


# Claims


def in_threads(*calls):
    """Run calls in threads of their own and return what they returned, in order."""
    values = [None] * len(calls)

    def store(place, call):
        values[place] = call()

    threads = [
        threading.Thread(target=store, args=each, daemon=True)
        for each in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return values


def test_threads_on_one_key_make_one_charge_and_get_one_value(shop):
    """The second waits while the first runs, and then replays."""
    ran = []

    @guarded(dataset="shop", cost=NOISY, release_key="x", ignore=("ran",))
    def count():
        ran.append(1)
        time.sleep(0.2)
        return release(100.0)

    values = in_threads(count, count, count)
    assert ran == [1]
    assert len(set(values)) == 1
    assert isinstance(values[0], float)
    assert kinds() == ["reserve", "settle"]


def test_a_failing_claimant_lets_the_waiting_one_run(shop):
    """Its claim ends with it; both are charged."""
    started, answers = threading.Event(), [ValueError(), 7]

    @guarded(dataset="shop", cost=TENTH, release_key="x", ignore=("answers", "started"))
    def count():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            started.set()
            time.sleep(0.2)
            raise answer
        return answer

    def first():
        with pytest.raises(DPStepFailed):
            count()
        return "failed"

    def second():
        started.wait(10)
        return count()

    assert in_threads(first, second) == ["failed", 7]
    assert spent() == "0.2"


def test_patience_with_a_live_claim_ends(shop, monkeypatch):
    """A run that takes for ever is told, and nothing runs beside it."""
    monkeypatch.setattr("dpflow.guard.reserving._CLAIM_SECONDS", 0.3)
    started, end, ran = threading.Event(), threading.Event(), []

    @guarded(
        dataset="shop", cost=TENTH, release_key="x", ignore=("end", "ran", "started")
    )
    def count():
        ran.append(1)
        started.set()
        end.wait(30)
        return 1

    def second():
        started.wait(10)
        error = caught(count)
        end.set()
        return error

    value, error = in_threads(count, second)
    assert value == 1
    assert type(error) is LedgerUnavailable
    assert "another run has been making the release of step 'count'" in error.message
    assert ran == [1]
    assert kinds() == ["reserve", "settle"]


def test_a_killed_claimant_frees_the_key_and_stays_charged(shop):
    """Nobody knows what it released: its charge is forfeited, the key is free."""

    @guarded(dataset="shop", cost=TENTH, release_key="count/{week}")
    def count(week):
        return 9

    with start_python(WORKER, folder=shop) as worker:
        assert worker.stdout.readline() == "running\n"
        assert account().forfeited["epsilon"] == "0"
        worker.kill()
    assert count(1) == 9
    assert count(1) == 9
    view = account()
    assert view.forfeited["epsilon"] == "0.1"
    assert view.spent["epsilon"] == "0.1"
    assert view.reserved["epsilon"] == "0"
    assert view.left["epsilon"] == "0.8"


# A settlement that fails


def lose_ledger(folder):
    """Take the ledger away."""
    hide_ledger(folder)


def replace_ledger(folder):
    """Put another, empty ledger in its place."""
    hide_ledger(folder)
    create_ledger(f"sqlite:///{ledger_file(folder)}").close()


def damage_ledger(folder):
    """Put something in its place that is no ledger."""
    hide_ledger(folder)
    ledger_file(folder).write_text("nothing", "utf-8")


@pytest.mark.parametrize("harm", [lose_ledger, replace_ledger, damage_ledger])
def test_a_failed_settlement_returns_the_value_and_keeps_the_charge(shop, caplog, harm):
    """The value comes with a warning; the charge stays held in full."""

    @guarded(dataset="shop", cost=TENTH, release_key="x", ignore=("harm", "shop"))
    def count():
        harm(shop)
        return 5

    with pytest.warns(RuntimeWarning, match="stays charged in full and unsettled"):
        assert count() == 5
    assert "stays charged in full" in caplog.text
    bring_ledger_back(shop)
    found = rows(shop)
    assert [entry[1] for entry in found["entry"]] == ["open", "reserve"]
    (charge,) = found["charge"]
    assert "open" in charge
    (claim,) = found["release"]
    assert "claimed" in claim


def test_a_replaced_ledger_is_refused_for_good(shop):
    """The second and third step must not settle for the file that was put there."""
    ran = []
    step = guarded(dataset="shop", cost=TENTH, name="n")(ran.append)
    step(1)
    replace_ledger(shop)
    for _ in range(3):
        assert isinstance(caught(lambda: step(2)), LedgerError)
    assert rows(shop)["entry"] == []
    bring_ledger_back(shop)
    assert ran == [1]
    assert [entry[1] for entry in rows(shop)["entry"]] == ["open", "reserve", "settle"]


# Leaving while the ledger is asked


async def kinds_at_last():
    """Return the journal's kinds once its second entry is there."""
    deadline = time.monotonic() + 20
    while len(kinds()) < 2 and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return kinds()


async def test_a_step_cancelled_before_its_body_gives_its_charge_back(shop):
    """The thread that asks cannot be stopped, but what it is granted can be voided."""
    ran, ledger = [], current_project().ledger

    @guarded(dataset="shop", cost=TENTH, release_key="x", ignore=("ran",))
    async def count():
        ran.append(1)
        return 5

    # The secret of the release keys is read once, which this thread could not below.
    ledger.digests.of("x")
    with ledger.storage.write():
        task = asyncio.create_task(count())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ran == []
    assert await kinds_at_last() == ["reserve", "void"]
    assert (spent(), held()) == ("0", "0")
    assert await asyncio.wait_for(count(), 20) == 5
