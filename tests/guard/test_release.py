"""Who draws: what `release` loads first, a body that forgets it, and whose charge pays.

`release` finds the step by the frames that called it: other threads, other tasks and
what runs between two steps of a generator are not called by the block that they are in.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

import dpflow
from dpflow import (
    DiscreteGaussian,
    DiscreteLaplace,
    EarlyStopping,
    Estimate,
    Gaussian,
    Laplace,
    guarded,
    iterations,
    release,
    spend,
)
from dpflow.exceptions import DpflowError, DPStepFailed, ReleaseError
from dpflow.guard.charge import Execution
from dpflow.guard.project import current_project
from dpflow.ledger.views.releases import releases
from tests.projects import (
    NOISY,
    POLICY,
    TENTH,
    caught,
    chain,
    journal,
    kinds,
    make_project,
    outcome,
    rows,
    run_python,
    spent,
    traceback_of,
)
from tests.sizes import spread

#: Delta for Gaussians, and order by order.
CURVES = POLICY.replace("basic", "rdp").replace(
    "budget: {epsilon: 1", "budget: {delta: 0.000001, epsilon: 1"
)
EXACT = 4211.5


#: Twenty threads that draw at once; VALUE is the number that gets noise.
COLD = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from dpflow import Laplace, guarded, release
COST = Laplace(sensitivity=1, epsilon="0.01")
@guarded(dataset="shop", cost=COST, release_key="{number}")
def count(number):
    return release(VALUE)
assert not {"numpy", "polars", "opendp"} & set(sys.modules)
with ThreadPoolExecutor(20) as pool:
    print(json.dumps(len([*pool.map(count, range(20))])))
"""


@pytest.mark.promise("first-threads")
@pytest.mark.parametrize("value", spread(["4000.5", "4000"], 1))
def test_the_first_threads_of_a_process_can_draw(shop: Path, value: str) -> None:
    """No thread uses a library that another thread has loaded by half."""
    assert run_python(COLD.replace("VALUE", value), folder=shop) == 20
    settled = [entry.body["noise"] for entry in journal() if entry.kind == "settle"]
    assert settled == ["opendp"] * 20


@pytest.mark.promise("no-opendp")
async def test_a_draw_without_opendp_is_refused_before_it_is_charged(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was released before is still replayed, and other bodies run."""
    ran: list[int] = []

    @guarded(dataset="shop", cost=NOISY, release_key="{value}", ignore=("ran",))
    def count(value: int) -> int:
        ran.append(value)
        return release(value, as_int=True)

    @guarded(dataset="shop", cost=NOISY)
    async def count_later() -> float:
        return release(1.0)

    first = count(1)
    for module in ("opendp", "opendp.measurements"):
        monkeypatch.setitem(sys.modules, module, None)
    before = rows(shop)
    assert count(1) == first
    with pytest.raises(ReleaseError, match=r"not installed; .*install.*opendp"):
        count(2)
    with pytest.raises(ReleaseError, match="not installed"):
        await count_later()
    assert (ran, rows(shop)) == ([1], before)
    for declared in ({"cost": NOISY, "noise": "own"}, {"cost": TENTH}):
        assert guarded(dataset="shop", name="one", **declared)(lambda: 1)() == 1
    assert spent() == "0.3"


def test_a_scale_that_cannot_be_drawn_is_refused_before_it_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sigma between two floats has no discrete Gaussian of OpenDP's."""
    make_project(tmp_path, monkeypatch, CURVES)
    step = guarded(dataset="shop", cost=DiscreteGaussian(sensitivity=1, sigma="1e9"))(
        lambda: release(1)
    )
    assert isinstance(step(), int)
    before = rows(tmp_path)
    huge = DiscreteGaussian(sensitivity="1e10", sigma="1e15")
    with pytest.raises(ReleaseError, match="cannot be drawn"):
        guarded(dataset="shop", cost=huge)(lambda: release(1))()
    assert rows(tmp_path) == before


DRAWN = [
    NOISY,
    Gaussian(sensitivity=1, sigma=20),
    DiscreteLaplace(sensitivity=1, epsilon="0.1"),
    DiscreteGaussian(sensitivity=1, sigma=20),
]


@pytest.mark.promise("forgotten-release")
def test_a_body_that_forgets_to_release_fails(tmp_path, monkeypatch):
    """It is charged in full, and its exact value goes nowhere."""
    make_project(tmp_path, monkeypatch, CURVES)
    for cost in DRAWN:
        count = guarded(dataset="shop", cost=cost, release_key="count", name="count")(
            lambda: EXACT
        )
        error = caught(count)
        assert isinstance(error, ReleaseError)
        for words in ("release(value)", 'noise="own"', "charged in full", "'count'"):
            assert words in error.message
        assert str(EXACT) not in traceback_of(error)
        assert outcome()["outcome"] == "failed"
    assert not [each for each in releases(current_project().ledger) if each.digest]
    assert str(EXACT) not in repr(rows(tmp_path))


@pytest.mark.promise("forgotten-release")
def test_a_block_that_forgets_to_release_fails(shop: Path) -> None:
    """What it computed is the block's own; the error says what to write."""
    with (
        pytest.raises(ReleaseError, match=r'noise="own"'),
        spend(dataset="shop", cost=NOISY, step="count"),
    ):
        pass
    assert spent() == "0.1"
    assert outcome()["outcome"] == "failed"


def test_a_body_may_say_that_it_draws_its_own_noise(shop):
    """The journal says so, and the value is kept; a draw of dpflow's contradicts it."""
    own = {"dataset": "shop", "noise": "own"}
    count = guarded(**own, cost=NOISY, release_key="count")(lambda: 7)
    assert count() == count() == 7
    with spend(**own, cost=NOISY, step="block"):
        pass
    assert {entry.body["noise"] for entry in journal()[2::2]} == {"own"}
    assert spent() == "0.2"

    def fit():
        for step in iterations():
            step.release(1.0)

    stopping = EarlyStopping(Laplace(sensitivity=1, epsilon="0.1"), stops=(1, 2))
    for cost, body in ((NOISY, lambda: release(EXACT)), (stopping, fit)):
        step = guarded(**own, cost=cost, name="n")(body)
        with pytest.raises(ReleaseError, match=r'noise="own".*charged in full'):
            step()
        assert outcome()["outcome"] == "failed"


class Odd:
    """An object that compares by code of its own."""

    def __eq__(self, other: object) -> bool:
        raise ValueError(EXACT)

    __hash__ = object.__hash__


def holding_itself(number: float) -> list[object]:
    """Return a list that contains itself."""
    values: list[object] = [number]
    values.append(values)
    return values


ODD = [
    lambda number: np.ma.array([number, number]),
    lambda number: pd.Index([number, 2 * number]),
    *(pl.lit, lambda _: Odd(), holding_itself),
]


@pytest.mark.parametrize("make", ODD)
def test_no_output_fails_where_it_is_compared_with_the_draw(shop: Path, make) -> None:
    """What cannot be compared is not as drawn, and its charge completes."""
    value = guarded(dataset="shop", cost=NOISY)(lambda: make(release(EXACT)))()
    assert value is not None
    assert (outcome()["outcome"], outcome()["as_drawn"]) == ("completed", False)
    assert kinds() == ["reserve", "settle"]


CHECKS = [
    (lambda: 3, "ended without release(value), so the noise of its Laplace was"),
    (lambda: [release(3), release(4)], "drew noise twice (now by release())"),
    (lambda: {}["absent"], "KeyError"),
]


@pytest.mark.parametrize(("body", "words"), CHECKS)
def test_the_journal_says_which_check_a_body_failed(shop: Path, body, words) -> None:
    """The words of dpflow's own checks hold declared names; of others, the type."""
    cost = Laplace(sensitivity=1, epsilon="0.01")
    with pytest.raises(DpflowError):
        guarded(dataset="shop", cost=cost, name="count")(body)()
    assert f"failed: {words}" in dpflow.why("shop").unusual[0].what
    settled = dpflow.history("shop").entries[0]
    assert f"failed: {words}" in settled.outcome


def block(sensitivity: int, step: str) -> Iterator[object]:
    """Enter a block and wait in it; then release what the caller sends."""
    cost = Laplace(sensitivity=sensitivity, epsilon="0.1")
    with spend(dataset="shop", cost=cost, step=step):
        value = yield
        yield release(value)


@pytest.mark.promise("other-thread")
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


@pytest.mark.promise("other-thread")
def test_a_thread_has_no_charge_even_with_the_context(shop: Path) -> None:
    """It may go on while the body enters another block; the block's own handle may."""
    with (
        spend(dataset="shop", cost=NOISY, step="count") as charge,
        ThreadPoolExecutor() as pool,
    ):
        context = contextvars.copy_context()
        refusal = pool.submit(context.run, release, 1.0).exception()
        drawn = pool.submit(context.run, charge.release, 1.0).result()
    assert isinstance(refusal, ReleaseError)
    assert "charge.release" in refusal.message
    assert isinstance(drawn, float)
    assert outcome()["noise"] == "opendp"


@pytest.mark.promise("other-thread")
async def test_another_task_has_no_charge(shop: Path) -> None:
    """An awaited coroutine has; a task or a thread that the body starts has not."""

    async def draw() -> float:
        await asyncio.sleep(0)
        return release(1.0)

    async def another_task() -> float:
        return await asyncio.create_task(draw())

    async def in_a_worker() -> float:
        return await asyncio.to_thread(release, 1.0)

    async def awaited() -> float:
        return await draw()

    step = guarded(dataset="shop", cost=NOISY)
    for body in (another_task, in_a_worker):
        with pytest.raises(ReleaseError, match="in the same thread"):
            await step(body)()
    results = await asyncio.gather(*(step(awaited)() for _ in range(3)))
    assert [type(each) for each in results] == [Estimate] * 3


@pytest.mark.promise("other-thread")
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
