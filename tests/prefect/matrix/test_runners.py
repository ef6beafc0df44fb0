"""Pools, clusters and background workers: what dies there, and what is run again."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

from tests.prefect.matrix.support import books, marked, marks, settled, wait_until


def process_pool(laboratory):
    """Exhaust the budget in a pool of processes."""
    folder = laboratory.project("process-pool")
    told = laboratory.run(folder, "process_pool")
    return SimpleNamespace(told=told, books=books(folder), marked=marked(folder))


def broken_process_pool(laboratory):
    """Lose a process of a pool in the middle of a body."""
    folder = laboratory.project("broken-process-pool")
    told = laboratory.run(folder, "broken_process_pool")
    return SimpleNamespace(told=told, books=books(folder), marks=marks(folder))


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


def background(laboratory):
    """Kill a background worker in the middle of a body, and start another."""
    folder = laboratory.project("background")
    with laboratory.running(folder, "worker"):
        told = laboratory.run(folder, "delay")
        wait_until(lambda: marks(folder)["endless"], "the body")
        laboratory.reaches("task", told["task_run"], "RUNNING")
        before = books(folder)
        os.kill(dict(marked(folder))["endless"], signal.SIGKILL)
        wait_until(lambda: books(folder).orphans, "the worker's end")
    after = books(folder)
    with laboratory.running(folder, "worker"):
        told_again = laboratory.run(folder, "delay_again")
    return SimpleNamespace(
        told=[told["value"], told_again["value"]],
        before=before,
        after=after,
        at_last=books(folder),
        task=laboratory.state("task", told["task_run"]),
        marks=marks(folder),
    )


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


def test_a_killed_process_of_a_pool_forfeits_its_charge(found):
    """The pool is broken, nothing runs again, and the charge stays in full."""
    seen = found(broken_process_pool)
    assert seen.told["type"] in {"CRASHED", "FAILED"}
    assert seen.marks == {"suicide": 1}
    lost = {"orphans": 1, "forfeited": "0.1"}
    assert seen.books == settled(1, "0", outcomes=(), **lost)


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


def test_a_killed_background_worker_forfeits_its_charge(found):
    """Nothing is delivered again: the task stays Running, the charge in full."""
    seen = found(background)
    assert seen.told == ["first 1", "first 2"]
    assert seen.before == settled(2, "0.1", outcomes=("completed",), open=1)
    lost = {"orphans": 1, "forfeited": "0.1"}
    assert seen.after == settled(2, "0.1", outcomes=("completed",), **lost)
    assert seen.at_last == settled(3, "0.2", outcomes=("completed",) * 2, **lost)
    assert (seen.task, seen.marks["endless"]) == ("RUNNING", 1)


EXPERIMENTS = [dask, process_pool, background, broken_process_pool]
