"""Who draws, in tasks: the first ones of a process, and those that forget to."""

from __future__ import annotations

import json

from prefect import flow, task

from dpflow import Laplace, dp_flow, dp_task
from dpflow.exceptions import ReleaseError
from tests.pages import run_forked
from tests.prefect.support import charges, kinds, spent
from tests.projects import caught

TENTH = Laplace(sensitivity=1, epsilon="0.1")

COLD = """
import json, sys
from dpflow import Laplace, dp_flow, dp_task, release
COST = Laplace(sensitivity=1, epsilon="0.01")
@dp_task(dataset="shop", cost=COST, release_key="{name}")
def count(name):
    return release(4000)
@dp_flow(name="report")
def report():
    futures = [*count.map([f"m{i}" for i in range(12)])]
    futures += [count.submit(f"s{i}") for i in range(12)]
    return [future.result(raise_on_failure=False) for future in futures]
assert not {"numpy", "polars", "opendp"} & set(sys.modules)
print(json.dumps([str(each) for each in report() if not isinstance(each, int)]))
"""


def test_the_first_tasks_of_a_process_can_draw(project, tmp_path, forked):
    """Mapped and submitted ones, in a program that has loaded no library of numbers."""
    done = run_forked(forked, tmp_path, "-c", COLD)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [], done.stderr
    assert charges(project) == kinds(project).count("settle") == 24


def test_a_task_that_forgets_to_release_publishes_nothing(project):
    """Its run is Failed, nothing downstream runs, and it is charged in full."""
    ran, published = [], []

    @dp_task(dataset="shop", cost=TENTH, release_key="count", ignore=("ran",))
    def count():
        ran.append(1)
        return 4000

    @task
    def publish(value):
        published.append(value)

    @dp_flow(name="report")
    def report():
        future = count.submit()
        publish.submit(future).wait()
        return future.wait() or future.state

    error = caught(report)
    assert isinstance(error, ReleaseError)
    assert 'noise="own"' in error.message
    assert "charged in full" in error.message

    @flow(name="report")
    def states():
        return count(return_state=True)

    state = states(return_state=True)
    assert state.is_failed()
    assert "4000" not in str(state.message)
    assert published == []
    assert ran == [1, 1]
    assert spent(project) == {"epsilon": "0.2", "delta": "0"}
