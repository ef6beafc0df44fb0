"""Pools, clusters and background workers: what dies there, and what is run again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.prefect.matrix.support import books, marked, marks, settled
from tests.projects import POLICY


def process_pool(laboratory):
    """Exhaust the budget in a pool of processes."""
    folder = laboratory.project("process-pool")
    told = laboratory.run(folder, "process_pool")
    return SimpleNamespace(told=told, books=books(folder), marked=marked(folder))


def dask(laboratory):
    """Lose workers of a Dask cluster, and exhaust the budget there."""
    policy = POLICY.replace("{epsilon: 1}", "{epsilon: 1.4}")
    folder = laboratory.project("dask", policy)
    told = laboratory.run(folder, "dask")
    return SimpleNamespace(told=told, books=books(folder), marks=marks(folder))


def test_a_process_pool_is_charged_and_refused_as_a_thread_is(found):
    """The refusal crosses processes with its numbers; nothing behind it runs."""
    seen = found(process_pool)
    assert seen.told["ended"] == "BudgetExhausted"
    bodies = [process for text, process in seen.marked if text == "third"]
    assert len(bodies) == 3
    assert seen.told["pid"] not in bodies
    assert [text for text, _ in seen.marked].count("after") == 3
    assert "left 0.1" in dict(seen.marked)
    assert seen.books == settled(3, "0.9", refused=1)


@pytest.mark.slow
def test_dask_is_charged_and_refused_as_a_thread_is(found):
    """A body whose worker died is charged again; a completed step is replayed."""
    seen = found(dask)
    assert seen.told == {
        "mid_task": "suicide 2",
        "recomputed": ["first 1", "first 2", "first 3"],
        "ended": "BudgetExhausted",
    }
    assert (seen.marks["suicide"], seen.marks["first"]) == (2, 3)
    assert (seen.marks["third"], seen.marks["after"]) == (3, 3)
    # Four tenths, three thirds and one orphan.
    lost = {"orphans": 1, "forfeited": "0.1"}
    done = ("completed",) * 7
    assert seen.books == settled(8, "1.3", outcomes=done, refused=1, **lost)
