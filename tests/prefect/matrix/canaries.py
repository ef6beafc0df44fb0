"""Steps that let private data pass by every place in which Prefect keeps something."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pandas as pd
from prefect import flow, get_run_logger, task
from prefect.assets import Asset
from prefect.states import Completed
from prefect.task_runners import ProcessPoolTaskRunner

from dpflow import PureDP, dp_flow, dp_task, private_task
from tests.prefect.matrix.support import run_deployed

#: Private arguments, texts of errors, and what was not released.
TEXT, NUMBER = "private-canary-2718281828", 57721566490
#: A body may print and log; that is for the terminal, not for Prefect.
PRINTED, WARNED = "printed-canary-1618033988", "warned-canary-3141592653"
#: What is public, to show that the search finds what there is.
PUBLIC, RELEASED, STORED = "public-canary-1414", "released-canary-1732", "plain-2236"
LOGGED = "logged-canary-2449"
#: What a task prints by an option of its own goes to the terminal as a log.
SAID = "said-canary-2645"

STEP: Any = {
    "dataset": "shop",
    "cost": PureDP(epsilon="0.1"),
    "private": ("frame",),
    "persist_result": True,
}
VERSIONED = {**STEP, "data_version": "1"}
SWITCHED_ON: Any = {"persist_result": True, "log_prints": True}


class Private:
    """An object whose repr holds private text."""

    def __repr__(self) -> str:
        """Return private data."""
        return TEXT


class Telling(Exception):
    """An error that carries private data."""

    def __init__(self, frame: object) -> None:
        super().__init__(frame)
        self.row = TEXT


class Stopping(BaseException):
    """A BaseException whose text shows what it carries."""

    def __str__(self) -> str:
        """Return private data."""
        return f"{TEXT}{self.args}"


@private_task()
def load() -> list[Any]:
    """Load private data."""
    print(PRINTED)
    table = pd.DataFrame({TEXT: [NUMBER], "name": [TEXT]})
    return [table, {TEXT: NUMBER}, Private(), TEXT]


@private_task()
def load_state() -> Any:
    """Return private data in a state."""
    return Completed(data=[TEXT])


@private_task(errors="keep")
async def load_later() -> dict[str, str]:
    """Return private data from an event loop."""
    return {"name": TEXT}


@flow
def load_inside() -> Any:
    """Return private data from a flow that a flow calls, as a future."""
    return load.submit()


@private_task()
async def fail_to_load() -> None:
    """Fail as loaders do: with the row in the error."""
    raise ValueError(f"cannot parse {TEXT}")


@task
def tidy(frame: Any) -> str:
    """Be called by a body: what this returns and prints was not released."""
    print(PRINTED)
    return f"{TEXT}{frame!r}"


@task
async def tidy_later(frame: Any) -> str:
    """Be called in an event loop."""
    return f"{TEXT}{frame!r}"


inside = flow(lambda: print(PRINTED), name="inside")
chatty = task(lambda: print(SAID), name="chatty", log_prints=True)


def _count(frame: Any, week: str) -> str:
    print(PRINTED)
    get_run_logger().warning(WARNED)
    logging.getLogger("library").warning(WARNED)
    if week == PUBLIC:
        inside()
        chatty()
    assert TEXT in tidy(frame)
    return RELEASED


_ASSETS: list[Any] = [Asset(key="dpflow://shop/canary")]
count = dp_task(
    task_run_name=f"{PUBLIC}-{{week}}",
    result_storage_key=f"{PUBLIC}-{{parameters[week]}}",
    assets=_ASSETS,
    **VERSIONED,
)(_count)
kept = dp_task(release_key="kept/{week}", name="kept", **STEP)(_count)
large = dp_task(name="large", **{**VERSIONED, "cost": PureDP(epsilon=99)})(_count)


def _fail(frame: Any, kind: str) -> None:
    if kind in {"slow", "late"}:
        try:
            while frame is not None:
                time.sleep(0.02)
        except BaseException as stopped:
            # Put the data into what follows a timeout.
            raise (RuntimeError(TEXT) if kind == "late" else stopped) from stopped
    error = KeyError(TEXT)
    error.add_note(TEXT)
    if kind == "chained":
        raise Telling(frame) from error
    raise {
        "noted": error,
        "group": ExceptionGroup(TEXT, [Telling(frame), OSError(2, TEXT, TEXT)]),
        "exit": SystemExit(TEXT),
        "interrupt": KeyboardInterrupt(TEXT, frame),
        "stopping": Stopping(frame),
        "plain": Telling(frame),
    }[kind]


async def _fail_later(frame: Any, kind: str) -> None:
    assert TEXT in await tidy_later(frame)
    _fail(frame, kind)


failing = dp_task(name="failing", **VERSIONED)(_fail)
failing_later = dp_task(name="later", **VERSIONED)(_fail_later)


@task
def publish(value: str) -> str:
    """Keep what was released."""
    get_run_logger().info("publishing %s", LOGGED)
    return f"{STORED}{value}"


def _attempt(call: Callable[[], Any], seen: list[str]) -> None:
    """Note the type of the error that a call raises."""
    try:
        call()
    except BaseException as error:
        seen.append(type(error).__name__)
        # As an author would, who wants to know.
        logging.getLogger("dpflow").warning("%s %r", error, error.args, exc_info=True)
    else:
        seen.append("")


@dp_flow(name="canaries", **SWITCHED_ON)
def succeed() -> None:
    """Call, submit and map steps over private data of each shape."""
    frames = load()
    assert load_state() == [TEXT]
    assert TEXT not in repr(load(return_state=True))
    load_inside(return_state=True)
    count(asyncio.run(load_later()), "later")
    values = [count(frame, f"{turn}") for turn, frame in enumerate(frames)]
    values += [count.submit(load.submit(), "submitted").result()]
    values += count.map(frames, [f"mapped-{turn}" for turn in range(4)]).result()
    values += [kept(frames[0], PUBLIC), kept(frames[1], PUBLIC)]
    publish("".join(values))


@flow(name="canaries-fail", **SWITCHED_ON)
def fail() -> list[str]:
    """Fail in every way, called and submitted, retried and timed out."""
    (table, *_), seen = load(), list[str]()
    for kind in ("noted", "group", "plain"):
        _attempt(lambda kind=kind: failing(table, kind), seen)
    _attempt(lambda: failing.submit(table, "chained").result(), seen)
    _attempt(lambda: failing.with_options(retries=1)(table, "group"), seen)
    # Long enough for the guard to be done, on a loaded machine too.
    limited = failing.with_options(timeout_seconds=2)
    _attempt(lambda: limited(table, "late"), seen)
    _attempt(lambda: limited(table, "slow"), seen)
    _attempt(lambda: failing(table, TEXT, TEXT), seen)
    _attempt(lambda: count.map(NUMBER, 1), seen)
    _attempt(lambda: count.delay(table, "delayed"), seen)
    _attempt(load.delay, seen)
    return seen


@flow(name="canaries-later", **SWITCHED_ON)
async def fail_later() -> list[str]:
    """Fail in an event loop."""
    seen: list[str] = []
    for call in (lambda: failing_later(TEXT, "chained"), fail_to_load):
        try:
            await call()
        except Exception as error:
            seen.append(type(error).__name__)
    return seen


@flow(name="canaries-crash", **SWITCHED_ON)
def crash(kind: str) -> None:
    """End the program from inside a body."""
    failing(load()[0], kind)


@dp_flow(name="canaries-refused", retries=1, **SWITCHED_ON)
def refuse() -> None:
    """Have a step over private data refused."""
    large.submit(load()[0], PUBLIC).result()


@dp_flow(name="canaries-pool", **SWITCHED_ON)
def pool() -> None:
    """Send private data to another process, which fails with it."""
    (table, *_) = load()
    count.submit(table, "pooled").wait()
    failing.submit(table, "chained").wait()


def pass_by() -> dict[str, Any]:
    """Run all of them; return the errors that they saw."""
    results: dict[str, Any] = {"fail": fail(), "later": asyncio.run(fail_later())}
    for kind in ("exit", "interrupt", "stopping"):
        with suppress(BaseException):
            crash(kind)
    results["refused"] = refuse(return_state=True).name
    # It warns of steps without a key when it is made.
    results["deployed"] = run_deployed(succeed)[1].name
    runner: Any = ProcessPoolTaskRunner(max_workers=1)
    results["pool"] = pool.with_options(task_runner=runner)(return_state=True).name
    return results
