"""A replayed step is shown as `Replayed`, and everyone still gets its value."""

from __future__ import annotations

from collections import Counter

import pytest
from prefect import allow_failure, flow, task
from prefect.client.schemas.objects import State
from prefect.futures import as_completed

from dpflow import PureDP, dp_task
from tests.prefect.matrix.support import task_runs
from tests.prefect.support import charges, kinds

TENTH = PureDP(epsilon="0.1")
RAN: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _no_body_has_run():
    RAN.clear()


@dp_task(dataset="shop", cost=TENTH, release_key="count/{week}")
def count(week: str) -> int:
    """Tell how often the body has run for a week."""
    RAN[week] += 1
    return RAN[week]


@task
def add_one(value: int) -> int:
    """Stand for a step downstream."""
    assert isinstance(value, int)
    return value + 1


def told(state: State) -> tuple[str, str]:
    """Return the type and the name of a state."""
    return state.type.value, state.name


def test_a_replay_is_a_completed_state_of_its_own_name(project):
    """In hand and in Prefect's database, with a message; the charge is one."""

    @flow(name="report")
    def report():
        return [count("a", return_state=True) for _ in range(2)]

    run = report(return_state=True)
    first, second = run.result()
    assert (told(first), told(second)) == (
        ("COMPLETED", "Completed"),
        ("COMPLETED", "Replayed"),
    )
    assert "cost nothing" in second.message
    assert (first.result(), second.result()) == (1, 1)
    assert told(run) == ("COMPLETED", "Completed")
    stored = task_runs(run.state_details.flow_run_id, 2)
    assert [told(each.state) for each in stored] == [told(first), told(second)]
    assert kinds(project) == ["open", "reserve", "settle"]


def test_every_way_to_ask_gets_the_value(project):
    """Called, submitted, mapped, awaited for, passed on, and behind `allow_failure`."""

    @flow(name="report")
    def report():
        values = [count("a"), count("a")]
        future = count.submit("a")
        values += [future.result(), add_one(future) - 1, add_one(count("a")) - 1]
        values += [add_one.submit(allow_failure(future)).result() - 1]
        values += [add_one.submit(0, wait_for=[future]).result()]
        values += count.map(["a", "a"]).result()
        values += [each.result() for each in as_completed(count.map(["a", "a"]))]
        values += [count("a", return_state=True).result()]
        values += [add_one(count("a", return_state=True)) - 1]
        return values, future.state.name

    values, name = report()
    assert values == [1] * len(values)
    assert {type(value) for value in values} == {int}
    assert name == "Replayed"
    assert (RAN["a"], charges(project)) == (1, 1)
