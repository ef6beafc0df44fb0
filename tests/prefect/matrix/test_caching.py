"""Prefect's caches beside the ledger's releases: a hit is free, a body is a charge."""

from __future__ import annotations

import time
import uuid

import pytest
from prefect import flow
from prefect.cache_policies import INPUTS
from prefect.locking.memory import MemoryLockManager
from prefect.transactions import IsolationLevel

from dpflow import PureDP, dp_task
from tests.prefect.matrix.support import books, mark, marks, settled

TENTH = PureDP(epsilon="0.1")
SERIAL = INPUTS.configure(
    isolation_level=IsolationLevel.SERIALIZABLE, lock_manager=MemoryLockManager()
)


@dp_task(dataset="shop", cost=TENTH)
def count(week: str) -> int:
    """Say which execution of the body this is."""
    return mark("count")


@dp_task(dataset="shop", cost=TENTH)
def count_slowly(week: str) -> int:
    """Take long enough for the same call to come again."""
    turn = mark("count")
    time.sleep(0.3)
    return turn


@pytest.fixture
def week():
    """Return an argument of this test alone: INPUTS keys are shared by all tasks."""
    return uuid.uuid4().hex


@flow(name="report")
def report(options: dict, week: str, times: int = 1) -> list:
    """Call the step with these options; return states and values."""
    step = count.with_options(**options)
    states = [step(week, return_state=True) for _ in range(times)]
    return [(state.name, state.result()) for state in states]


@pytest.mark.parametrize(
    ("options", "second", "bodies"),
    [
        ({"cache_policy": INPUTS, "persist_result": True}, ("Cached", 1), 1),
        ({"cache_policy": INPUTS, "persist_result": False}, ("Completed", 2), 2),
        (
            {"cache_policy": INPUTS, "persist_result": True, "refresh_cache": True},
            ("Completed", 2),
            2,
        ),
        ({}, ("Completed", 2), 2),
    ],
    ids=["inputs", "not stored", "refreshed", "plain"],
)
def test_another_run_is_charged_unless_prefect_has_the_value(
    project, week, options, second, bodies
):
    """The guard is in the body: Prefect's hit is free, its miss is a charge."""
    # Objects that Prefect would copy when it validates the parameters of the flow.
    run = report.with_options(validate_parameters=False)
    assert run(options, week) == [("Completed", 1)]
    assert run(options, week) == [second]
    assert marks() == {"count": bodies}
    assert books() == settled(bodies, f"0.{bodies}")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_policy": SERIAL, "persist_result": True},
    ],
    ids=["plain", "serializable"],
)
def test_three_identical_submits_are_one_charge(project, week, options):
    """The first claims the release, the others wait for it and replay."""
    step = count_slowly.with_options(**options)

    @flow(name="report")
    def thrice():
        futures = [step.submit(week) for _ in range(3)]
        return [future.result() for future in futures]

    assert thrice() == [1, 1, 1]
    assert marks() == {"count": 1}
    assert books() == settled(1, "0.1")
