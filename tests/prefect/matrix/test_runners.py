"""Pools, clusters and background workers: what dies there, and what is run again."""

from __future__ import annotations

from types import SimpleNamespace

from tests.prefect.matrix.support import books, marked, marks, settled


def process_pool(laboratory):
    """Exhaust the budget in a pool of processes."""
    folder = laboratory.project("process-pool")
    told = laboratory.run(folder, "process_pool")
    return SimpleNamespace(told=told, books=books(folder), marked=marked(folder))


def dask(laboratory):
    """Lose workers of a Dask cluster, and exhaust the budget there."""
    folder = laboratory.project("dask", EPSILON_2)
    told = laboratory.run(folder, "dask")
    return SimpleNamespace(told=told, books=books(folder), marks=marks(folder))


EPSILON_2 = """
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: "1.4"}
filter: basic
"""


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


def test_a_dask_worker_that_dies_in_a_body_costs_one_charge_more(found):
    """Dask runs it again by itself, under the same task run and run count."""
    seen = found(dask)
    assert seen.told["mid_task"] == "suicide 2"
    assert seen.marks["suicide"] == 2


def test_what_dask_computes_again_is_replayed(found):
    """Completed steps whose worker died cost nothing a second time."""
    seen = found(dask)
    assert seen.told["recomputed"] == ["first 1", "first 2", "first 3"]
    assert seen.marks["first"] == 3


def test_dask_is_charged_and_refused_as_a_thread_is(found):
    """Every charge of the three flows: four tenths, three thirds, one orphan."""
    seen = found(dask)
    assert seen.told["ended"] == "BudgetExhausted"
    assert (seen.marks["third"], seen.marks["after"]) == (3, 3)
    lost = {"orphans": 1, "forfeited": "0.1"}
    done = ("completed",) * 7
    assert seen.books == settled(8, "1.3", outcomes=done, refused=1, **lost)


EXPERIMENTS = [dask, process_pool]
