"""Loads in Prefect: retries are for failed loads, and nothing read is stored."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import flow

from dpflow import dp_flow, dp_task, release
from dpflow.exceptions import DPStepFailed, LoadFailed
from tests.guard.test_loads import SECRET, Source
from tests.guard.test_loads import counting as counting_by
from tests.projects import NOISY, TENTH, journal, kinds


def failing(times: int) -> Source:
    """Return a source that fails a number of times."""
    return Source(*(ConnectionError(SECRET) for _ in range(times)))


def counting(source: Source, **options: Any) -> Any:
    """Return a task that counts the rows of a source."""
    return counting_by(source, dp_task, retry_delay_seconds=0, **options)


@pytest.mark.promise("failed-loads")
def test_prefect_retries_a_failed_load(project, caplog):
    """Two failures, two calls: one charge, three reads and one number."""
    source = failing(2)
    count = counting(source)

    @dp_flow(log_prints=True)
    def report() -> tuple[float, float, float]:
        return count(7), count.submit(7).result(), count.map([7]).result()[0]

    assert len({*report()}) == 1
    assert (source.reads, kinds()) == (3, ["reserve", "settle"])
    assert journal()[1].body["failed_loads"] == 2
    assert SECRET not in caplog.text


@pytest.mark.promise("failed-loads")
def test_retries_are_for_loads_alone(project):
    """A failed body is charged, and not retried; the user's condition holds, too."""
    asked = []

    def never(_task: Any, _run: Any, state: Any) -> bool:
        asked.append(state)
        return False

    @dp_task(dataset="shop", cost=TENTH, load=list, retries=5, retry_delay_seconds=0)
    def fail(rows: list[int]) -> float:
        raise ConnectionError

    source = failing(9)
    stopped = counting(source, retry_condition_fn=never)
    later = counting(source).with_options(retry_condition_fn=never)

    @flow
    def report() -> None:
        with pytest.raises(DPStepFailed):
            fail(())
        for task in (stopped, later):
            with pytest.raises(LoadFailed):
                task(7)

    report()
    assert kinds() == ["reserve", "settle"]
    assert (len(asked), source.reads) == (2, 2)


async def test_an_async_task_has_a_load(project):
    """Awaited, and retried."""
    source = failing(1)

    async def read(week: int) -> list[int]:
        return source.read(week)

    @dp_task(dataset="shop", cost=NOISY, load=read, retry_delay_seconds=0)
    async def count(rows: list[int]) -> float:
        return release(len(rows))

    @flow
    async def report() -> float:
        return await count(7)

    assert isinstance(await report(), float)
    assert (source.reads, kinds()) == (2, ["reserve", "settle"])


def test_the_defaults_of_retries():
    """Two, after 10 and 60 seconds; what a user says holds; none without a load."""
    plain, loaded = dp_task(dataset="shop", cost=TENTH), {"load": list}
    own = dp_task(dataset="shop", cost=TENTH, retries=0, load=list)
    tasks = [plain, dp_task(dataset="shop", cost=TENTH, **loaded), own]

    def count(rows: list[int]) -> int:
        return 1

    made = [task(count) for task in tasks]
    assert [task.retries for task in made] == [0, 2, 0]
    assert made[1].retry_delay_seconds == [10, 60]
    assert made[0].retry_condition_fn is None
    assert made[1].with_options(retries=7).retries == 7
