"""Loads and release keys, shared reads, and budgets that end meanwhile."""

from __future__ import annotations

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dpflow import guarded, spend
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    LoadFailed,
    ReservationConflict,
)
from dpflow.guard.project import current_project
from dpflow.ledger.requests import Granted
from tests.guard.test_loads import Source, counting, loading
from tests.projects import TENTH, kinds, spent

pytestmark = pytest.mark.quick


def of_region(region: str, **declared: Any) -> Any:
    """Return a step of a region, which the load captures alone."""

    def read(week: int) -> list[str]:
        return [region] * week

    return loading(read, lambda rows: rows[0], **declared)


def test_what_a_load_captures_counts_for_the_key(shop):
    """Else the other region's release would be replayed."""
    with pytest.raises(ConfigurationError, match="reads nothing of 'region'"):
        of_region("north", release_key="{week}")
    steps = {r: of_region(r, release_key="{region}/{week}") for r in ("north", "south")}
    assert all(step(1) == region for region, step in steps.items())
    cached = functools.lru_cache(maxsize=1)(lambda: shop)
    with pytest.raises(ConfigurationError, match="reads nothing of 'shop'"):
        loading(cached, release_key="x")


def test_a_release_belongs_to_its_load_too(shop):
    """One body behind two loads, under one key, is two functions."""
    loads = (lambda: [1], lambda: [1, 2])
    north, south = (loading(load, release_key="count") for load in loads)
    assert [north(), north()] == [1, 1]
    with pytest.raises(ReservationConflict, match="other code"):
        south()


def test_two_steps_share_one_read(shop):
    """By a cache on a function that their loads call."""
    source = Source()
    read = functools.lru_cache(maxsize=1)(source.read)
    load = lambda week: [*read(week)]
    count, total = loading(load), loading(load, lambda rows: rows[0] + rows[1])
    assert [count(3), total(3), source.reads] == [2, 6, 1]


# Async steps


async def test_an_async_step_loads_both_ways(shop):
    """An async load is awaited, a sync one has a thread of its own."""
    seen = []

    def read(week: int) -> list[int]:
        seen.append(threading.current_thread())
        return [week]

    async def read_later(week: int) -> list[int]:
        seen.append(threading.current_thread())
        await asyncio.sleep(0)
        return [week]

    async def add(rows: list[int]) -> int:
        return sum(rows)

    for load in (read, read_later):
        assert await loading(load, add)(5) == 5
    here = threading.current_thread()
    assert [thread is here for thread in seen] == [False, True]
    assert kinds() == ["reserve", "settle"] * 2


async def test_a_failed_load_of_an_async_step_is_free(shop):
    """Refused steps, nested ones and errors, as in a sync step."""

    async def count(rows: tuple[int, ...] = ()) -> int:
        return 1

    inner = guarded(dataset="shop", cost=TENTH)(count)

    async def fail() -> list[int]:
        raise ConnectionError

    for load, name in (
        (fail, "ConnectionError"),
        (Source(ValueError()).read, "an error"),
        (inner, "PublicError"),
        (lambda: asyncio.run(inner()), "PublicError"),
    ):
        with pytest.raises(LoadFailed) as error:
            await loading(load, count)()
        assert error.value.error_type == name
    assert kinds() == []


async def test_a_cancelled_load_is_free(shop):
    """As a timeout does."""

    async def read() -> list[int]:
        await asyncio.sleep(60)
        return []

    async def count(rows: list[int]) -> int:
        return 1

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loading(read, count)(), 0.1)
    assert kinds() == []


def test_the_ledger_is_free_while_a_load_runs(shop):
    """The load reads under no lock: another step is charged meanwhile."""
    other = guarded(dataset="shop", cost=TENTH, name="other")(lambda: 1)

    def read() -> list[int]:
        with ThreadPoolExecutor() as pool:
            pool.submit(other).result(10)
        return [len(kinds())]

    assert loading(read, lambda rows: rows[0])() == 2


def test_a_step_that_no_longer_fits_after_its_load_is_refused(shop):
    """Its rows are dropped."""
    whole = TENTH.but(epsilon=1)

    def read() -> list[int]:
        with ThreadPoolExecutor() as pool:
            pool.submit(take).result(10)
        return [1]

    def take() -> None:
        with spend(dataset="shop", cost=whole, step="take", noise="own"):
            pass

    with pytest.raises((BudgetRefused, BudgetExhausted)):
        loading(read, pytest.fail)()
    assert spent() == "1"


def test_a_granted_load_is_decided_twice_only(shop, monkeypatch):
    """Once without a lock, and once to reserve; a step without a load once."""
    ledger, answers = current_project().ledger, []
    preview = ledger.would_answer

    def ask(request: Any) -> Any:
        answers.append(preview(request))
        return answers[-1]

    monkeypatch.setattr(ledger, "would_answer", ask)
    counting(Source(), cost=TENTH, noise="own")(1)
    assert [type(answer) for answer in answers] == [Granted]
    guarded(dataset="shop", cost=TENTH)(len)([1])
    assert len(answers) == 1
