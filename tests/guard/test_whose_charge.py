"""Whose charge pays: other threads, tasks and generators have none of a block's."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from dpflow import Estimate, Laplace, guarded, release, spend
from dpflow.exceptions import DPStepFailed, ReleaseError
from dpflow.guard.charge import Execution
from tests.projects import NOISY, chain, outcome, spent


def block(sensitivity: int, step: str) -> Iterator[object]:
    """Enter a block and wait in it; then release what the caller sends."""
    cost = Laplace(sensitivity=sensitivity, epsilon="0.1")
    with spend(dataset="shop", cost=cost, step=step):
        value = yield
        yield release(value)


def test_a_block_in_a_generator_draws_its_own_noise(shop: Path) -> None:
    """Whichever block was entered last."""
    wide, narrow = block(10**6, "wide"), block(1, "narrow")
    next(wide)
    next(narrow)
    # By the narrow block's noise it would be closer by a factor of a million.
    drawn = wide.send(5e9)
    assert abs(drawn - 5e9) > 10
    assert abs(narrow.send(5e9) - 5e9) < 10**4
    assert list(wide) == list(narrow) == []
    assert spent() == "0.2"


def test_a_generator_may_be_closed_in_another_context(shop: Path) -> None:
    """No error of Python's own carries the body's along."""
    canary = "canary-" + "271828"

    def failing() -> Iterator[None]:
        with spend(dataset="shop", cost=NOISY, step="block"):
            yield
            raise ValueError(canary)

    for end in (next, lambda generator: generator.close()):
        generator = failing()
        next(generator)
        context = contextvars.copy_context()
        error: Exception | None = None
        try:
            contextvars.Context().run(end, generator)
        except Exception as found:
            error = found
        assert error is None or isinstance(error, DPStepFailed)
        assert canary not in repr([] if error is None else list(chain(error)))
        context.run(list, generator)
    assert spent() == "0.2"
    # And nothing of the blocks is left in this context.
    guarded(dataset="shop", cost=NOISY)(lambda: release(1.0))()


def refused_in(run: Callable[[Callable[[], None]], object]) -> str:
    """Return the error of a release that something else runs."""
    errors: list[str] = []

    def work() -> None:
        try:
            release(1.0)
        except ReleaseError as error:
            errors.append(error.message)

    run(work)
    (text,) = errors
    return text


def in_a_thread(work: Callable[[], None]) -> None:
    """Run in a thread that inherits the context."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work,))
    thread.start()
    thread.join()


def test_a_thread_has_no_charge_even_with_the_context(shop: Path) -> None:
    """It may go on while the body enters another block; the block's own handle may."""
    with spend(dataset="shop", cost=NOISY, step="count") as charge:
        assert "charge.release" in refused_in(in_a_thread)
        results: list[float] = []
        in_a_thread(lambda: results.append(charge.release(1.0)))
    assert isinstance(results[0], float)
    assert outcome()["noise"] == "opendp"


async def test_another_task_has_no_charge(shop: Path) -> None:
    """An awaited coroutine has; a task or a thread that the body starts has not."""

    async def draw() -> float:
        await asyncio.sleep(0)
        return release(1.0)

    @guarded(dataset="shop", cost=NOISY)
    async def another_task() -> float:
        return await asyncio.create_task(draw())

    @guarded(dataset="shop", cost=NOISY)
    async def in_a_worker() -> float:
        return await asyncio.to_thread(release, 1.0)

    @guarded(dataset="shop", cost=NOISY)
    async def awaited() -> float:
        return await draw()

    for step in (another_task, in_a_worker):
        with pytest.raises(ReleaseError, match="in the same thread"):
            await step()
    results = await asyncio.gather(awaited(), awaited(), awaited())
    assert [type(each) for each in results] == [Estimate] * 3


def test_a_block_that_others_entered_is_drawn_by_its_handle(shop: Path) -> None:
    """A stack of the caller's own is the caller's; a generator's is not."""

    @contextmanager
    def wrapped() -> Iterator[Execution]:
        with spend(dataset="shop", cost=NOISY, step="wrapped") as charge:
            yield charge

    with wrapped() as charge:
        with pytest.raises(ReleaseError, match=r"charge\.release"):
            release(1.0)
        assert isinstance(charge.release(1.0), float)
    with ExitStack() as stack:
        stack.enter_context(spend(dataset="shop", cost=NOISY, step="stacked"))
        assert isinstance(release(1.0), float)
    assert spent() == "0.2"
