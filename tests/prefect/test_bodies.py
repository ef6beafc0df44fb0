"""Bodies that fork, ask for themselves, are stopped late, or return too early."""

from __future__ import annotations

import concurrent.futures
import logging
import multiprocessing
import os
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
from prefect import get_run_logger, task
from prefect.logging import handlers
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from dpflow import (
    EarlyStopping,
    Gaussian,
    Laplace,
    PureDP,
    dp_flow,
    dp_task,
    iterations,
    private_task,
    release,
)
from dpflow.exceptions import ReleaseError
from dpflow.interop import releasable
from dpflow.mechanisms import gradient_descent
from tests.prefect.matrix.support import books, settled
from tests.prefect.support import spent

TENTH = PureDP(epsilon="0.1")
FORK = multiprocessing.get_context("fork")


def told_by_a_child(act):
    """Return what an act does in a forked child: its value, or the error's text."""
    told = FORK.Queue()

    def child():
        try:
            told.put(("value", act()))
        except BaseException as error:
            told.put((type(error).__name__, str(error)))

    process = FORK.Process(target=child)
    process.start()
    found = told.get(timeout=600)
    process.join()
    return found


def test_a_forked_child_of_a_body_draws_nothing(project):
    """The charge pays for one draw, and each child would have a copy of it."""

    @dp_task(dataset="shop", cost=Laplace(sensitivity=1, epsilon="0.1"))
    def count() -> list[str]:
        drawn = [told_by_a_child(lambda: release(5)) for _ in range(2)]
        release(5)
        return [f"{kind}: {text}" for kind, text in drawn]

    @dp_flow(name="report")
    def report():
        return count()

    for said in report():
        assert said.startswith("PublicError: release() was called in a process that")
    assert books() == settled(1, "0.1")


def test_a_forked_child_of_a_body_draws_no_substep(make_project):
    """Nor does it count one, or begin a loop of its own."""
    make_project("""
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 50, delta: 1e-6}
filter: zcdp
""")
    cost = EarlyStopping(Gaussian(sensitivity=1, sigma=9), stops=(1, 2))

    @dp_task(dataset="shop", cost=cost)
    def fit() -> list[str]:
        told = [told_by_a_child(lambda: len(list(iterations())))]
        for step in iterations():
            told.append(told_by_a_child(lambda step=step: step.release(1.0)))
            step.release(1.0)
        return [f"{kind}: {text}" for kind, text in told]

    @dp_flow(name="report")
    def report():
        return fit()

    told = report()
    assert len(told) == 3
    assert all("was called in a process that" in each for each in told), told


def test_a_forked_child_does_not_settle_for_its_parent(make_project):
    """It would post what it has seen itself, and the parent draws on."""
    make_project("""
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 9}
filter: basic
""")
    cost = EarlyStopping(TENTH, stops=(1, 2, 3))

    @dp_task(dataset="shop", cost=cost)
    def fit() -> int:
        for step in iterations():
            if step.number == 1:
                child = os.fork()
                if child == 0:
                    return 1
                os.waitpid(child, 0)
        return 3

    @dp_flow(name="report")
    def report():
        here = os.getpid()
        try:
            return fit()
        finally:
            if os.getpid() != here:
                os._exit(0)

    assert report() == 3
    assert books() == settled(1, "0.3")


@dp_task(dataset="shop", cost=TENTH, release_key="tree/{week}", ignore=("depth", "how"))
def tree(week: int, depth: int, how: str) -> int:
    """Ask for itself under one key."""
    if depth == 0:
        return 1
    if how == "submit":
        return tree.submit(week, depth - 1, how).result()
    return tree(week, depth - 1, how)


SLOW = threading.Event()


@releasable
@dataclass
class Slow:
    """An output that takes its time to be stored."""

    number: int

    def __getattribute__(self, name: str) -> object:
        if name == "number" and SLOW.is_set():
            time.sleep(3)
        return object.__getattribute__(self, name)


@dp_task(
    dataset="shop",
    cost=TENTH,
    release_key="slow/{week}",
    timeout_seconds=1,
    retries=1,
    on_running=[lambda *_: ATTEMPTS.append(1)],
)
def slow(week: int) -> Slow:
    """Return what is slow to store, the first time."""
    if len(ATTEMPTS) > 1:
        SLOW.clear()
    return Slow(week)


ATTEMPTS: list[int] = []


def test_a_step_that_is_stopped_while_it_settles_can_be_asked_again(
    project, monkeypatch
):
    """Its charge stays, in full, and its key does not stay with a body that ended."""
    monkeypatch.setattr("dpflow.guard.reserving._CLAIM_SECONDS", 20)
    ATTEMPTS.clear()
    SLOW.set()

    @dp_flow(name="report")
    def report():
        return slow(7, return_state=True).name

    assert report() == "Completed"
    assert len(ATTEMPTS) == 2
    assert books() == settled(2, "0.2", outcomes=("failed", "completed"))


def test_a_step_that_is_stopped_before_its_body_can_be_asked_again(
    project, monkeypatch
):
    """By Ctrl-C, say: the ledger has answered, and nobody runs the body."""
    monkeypatch.setattr("dpflow.guard.reserving._CLAIM_SECONDS", 20)
    reserve = type(project.ledger).reserve
    presses = [KeyboardInterrupt]

    def interrupted(ledger, request):
        answer = reserve(ledger, request)
        if presses:
            raise presses.pop()
        return answer

    monkeypatch.setattr(type(project.ledger), "reserve", interrupted)

    @dp_flow(name="report")
    def report():
        return tree(3, 0, "call")

    with pytest.raises(KeyboardInterrupt):
        report()
    assert report() == 1
    assert books() == settled(2, "0.2", outcomes=("failed", "completed"))


@task
def inside() -> str:
    """Stand for a task that reads the data."""
    time.sleep(0.2)
    RAN.append(1)
    return "not-released"


RAN: list[int] = []


def _of_prefect():
    return inside.submit()


def _of_python():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: 1)


@pytest.mark.parametrize("body", [_of_prefect, _of_python], ids=["prefect", "python"])
def test_a_future_is_no_output(project, body):
    """What it stands for would be computed behind the end of the step."""

    @dp_flow(name="report")
    def report():
        return dp_task(dataset="shop", cost=TENTH, name="lazy")(body)()

    with pytest.raises(ReleaseError, match="Return the whole output"):
        report()
    assert spent(project)["epsilon"] == "0.1"


class Stopped(BaseException):
    """An error that is no Exception, and tells of what it carries."""

    def __init__(self, row: str) -> None:
        super().__init__()
        self.row = row

    def __str__(self) -> str:
        return f"stopped at {self.row}"


@pytest.mark.parametrize("loads", [False, True], ids=["step", "loader"])
def test_an_error_that_is_no_exception_tells_nothing_that_it_carries(
    project, caplog, loads
):
    """Prefect writes its text to its database, log and events."""

    def body() -> int:
        raise Stopped("canary-27182")

    step = private_task(body) if loads else dp_task(dataset="shop", cost=TENTH)(body)
    ended = []

    @dp_flow(name="report")
    def report():
        try:
            step()
        except BaseException as error:
            ended.append((type(error), vars(error)))

    report()
    assert ended == [(BaseException, {})]
    assert "canary-27182" not in caplog.text


def test_how_many_people_there_are_is_not_told_by_an_error(make_project):
    """It is private under add-or-remove, and this error's text is kept."""
    make_project("""
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 50, delta: 1e-6}
filter: zcdp
""")
    cost = EarlyStopping(Gaussian(sensitivity=1, sigma=9), stops=(1,))

    @dp_task(dataset="shop", cost=cost)
    def fit():
        wrong = np.zeros(31415)
        return gradient_descent(np.zeros(1), lambda _: wrong, norm=1, rate=1)

    @dp_flow(name="report")
    def report():
        return fit()

    state = report(return_state=True)
    with pytest.raises(ReleaseError, match="one row for each"):
        state.result()
    assert "31415" not in state.message


def test_no_log_of_a_body_reaches_prefects_database(project, monkeypatch):
    """Neither of its run logger nor of a library's; what the flow logs does."""
    sent = []
    monkeypatch.setattr(handlers, "emit_api_log", lambda log: sent.append(str(log)))
    library = logging.getLogger("library")
    monkeypatch.setattr(library, "handlers", [handlers.APILogHandler()])

    @dp_task(dataset="shop", cost=TENTH)
    def count() -> int:
        get_run_logger().warning("canary-27182")
        library.warning("canary-27182")
        return 1

    @dp_flow(name="report")
    def report():
        library.warning("of the flow")
        return count()

    with temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: True}):
        assert report() == 1
    assert "of the flow" in "".join(sent)
    assert "canary-27182" not in "".join(sent)
