"""What type checkers must see of steps and loaders.

Nothing here runs. A line that must be an error says so to the checker, which complains
if it is not an error.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
from prefect import Flow
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, PrefectFutureList

from dpflow import (
    Estimate,
    Gaussian,
    IntEstimate,
    dp_flow,
    dp_task,
    guarded,
    private_task,
    release,
)
from dpflow.prefect import DPTask, PrivateTask

COST = Gaussian(sensitivity=1, sigma=20)


@dp_task(dataset="shop", cost=COST)
def count(week: str, scale: float = 1.0) -> int:
    """Stand for a sync step."""
    assert_type(release(len(week) * scale), Estimate)
    assert_type(release(len(week), as_int=True), IntEstimate)
    assert_type(release([1, 2]), list[float])
    assert_type(release((1, 2.5), as_int=True), tuple[int, ...])
    assert_type(release({"a": 1}), dict[str, float])
    assert_type(release(np.zeros(2)), NDArray[np.float64])
    assert_type(release(np.zeros(2), as_int=True), NDArray[np.int64])
    assert_type(release([1, 2], until=bool), tuple[tuple[int, ...], ...])
    assert_type(release(1.5, within="10%"), Estimate)
    release("text", within="10%")  # type: ignore[call-overload]
    return release(len(week), as_int=True)


@dp_task(dataset=("shop", "web"), cost=COST, private=("frame",), data_version="1")
async def mean(frame: list[float]) -> float:
    """Stand for an async step."""
    return sum(frame)


@private_task(name="load", retries=2)
def load(path: str) -> list[float]:
    """Stand for a loader."""
    return [float(path)]


@dp_flow(name="report")
def report(week: str) -> float:
    """Stand for a flow."""
    assert_type(count(week), int)
    assert_type(count(week, scale=2.0), int)
    assert_type(count.submit(week), PrefectFuture[int])
    assert_type(count.submit(week).result(), int)
    assert_type(count.map([week]), PrefectFutureList[int])
    assert_type(count(week, return_state=True), State[int])
    assert_type(count.fn(week), int)
    assert_type(load(week), list[float])
    assert_type(load.submit(week), PrefectFuture[list[float]])
    count(7)  # type: ignore[call-overload]
    count()  # type: ignore[call-overload]
    count(week, sacle=2.0)  # type: ignore[call-overload]
    load(7)  # type: ignore[call-overload]
    return count(week)


assert_type(count, DPTask[[str, float], int])  # type: ignore[assert-type]
assert_type(load, PrivateTask[[str], list[float]])  # type: ignore[assert-type]
assert_type(count.step.name, str)
assert_type(report("1997-01"), float)
assert_type(report.with_options(retries=1)("1997-01"), float)
report.to_deployment("nightly", crn="0")  # type: ignore[call-overload,call-arg,unused-ignore]
flow_of: Flow[..., float] = report
awaited: Callable[[list[float]], Coroutine[Any, Any, float]] = mean.fn

renamed = count.with_options(name="renamed", fresh=True, retries=1)
assert_type(renamed("1997-01"), int)
assert_type(renamed.step.fresh, bool)
count.with_options(frsh=True)  # type: ignore[call-arg]


@private_task
def load_bare(path: str) -> list[float]:
    """Stand for a loader without options."""
    return [float(path)]


@dp_flow
def report_bare(week: str) -> float:
    """Stand for a flow without options."""
    assert_type(load_bare(week), list[float])
    assert_type(load_bare.submit(week), PrefectFuture[list[float]])
    load_bare(7)  # type: ignore[call-overload]
    return 1.0


assert_type(report_bare("1997-01"), float)
report_bare(7)  # type: ignore[call-overload]


@dp_task  # type: ignore[call-arg,arg-type]
def count_bare(week: str) -> int:
    """Lack a dataset and a cost."""
    return 1


async def awaits() -> None:
    """Await an async step."""
    assert_type(await mean([1.0]), float)


all_options = dp_task(
    dataset="shop",
    cost=COST,
    description="text",
    tags=["a"],
    cache_policy=NO_CACHE,
    cache_expiration=timedelta(1),
    retry_delay_seconds=[1.0, 2.0],
    persist_result=True,
    timeout_seconds=9,
    on_completion=[],
    asset_deps=[],
)
dp_task(dataset="shop")  # type: ignore[call-arg]
dp_task(dataset="shop", cost=COST, retires=1)  # type: ignore[call-arg]
dp_task(dataset="shop", cost=COST, retries="1")  # type: ignore[arg-type]
private_task(persist=True)  # type: ignore[call-overload]


def read(week: str, *, city: str = "Bonn") -> list[int]:
    """Stand for a load."""
    return [len(week + city)]


async def read_later(week: str) -> list[int]:
    """Stand for an async load."""
    return [len(week)]


@guarded(dataset="shop", cost=COST, load=read)
def count_rows(rows: list[int]) -> float:
    """Take the loaded value alone."""
    return release(len(rows))


@guarded(dataset="shop", cost=COST, load=read, release_key="{week}/{city}/{low}")
def count_above(rows: list[int], week: str, city: str, *, low: int = 0) -> float:
    """Take arguments of its own, too."""
    return release(len(rows) + len(week + city) + low)


@dp_task(dataset="shop", cost=COST, load=read, retries=3)
def total(rows: list[int]) -> float:
    """Take the loaded value alone, as a task."""
    return release(sum(rows))


@dp_task(dataset="shop", cost=COST, load=read_later, retries=3)
async def total_later(rows: list[int]) -> float:
    """Await its load."""
    return release(sum(rows))


@dp_task(dataset="shop", cost=COST, load=read)
def total_above(rows: list[int], week: str, city: str) -> float:
    """Take arguments of its own, too."""
    return release(sum(rows))


async def loads() -> None:
    """Call steps with loads."""
    assert_type(count_rows("1997-01", city="Rom"), float)
    assert_type(count_above("1997-01", "Rom", low=2), float)
    assert_type(total("1997-01"), float)
    assert_type(total.submit("1997-01", city="Rom"), PrefectFuture[float])
    assert_type(await total_later("1997-01"), float)
    assert_type(total_above("1997-01", city="Rom"), float)
    count_rows([1])  # type: ignore[arg-type]
    count_rows("1997-01", low=2)  # type: ignore[call-arg]
    count_above([1], "1997-01", "Rom")  # type: ignore[call-arg,arg-type]
    total(7)  # type: ignore[call-overload]
    total_above("1997-01")  # type: ignore[call-overload]


@guarded(dataset="shop", cost=COST, load=read)  # type: ignore[arg-type]
def count_names(rows: list[str]) -> float:
    """Take another value than the load returns."""
    return release(len(rows))
