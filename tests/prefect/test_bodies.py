"""Bodies that fork, ask for themselves, are stopped late, or return too early."""

from __future__ import annotations

import logging
import multiprocessing
import os

from prefect import get_run_logger
from prefect.logging import handlers
from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from dpflow import (
    EarlyStopping,
    Laplace,
    PureDP,
    dp_flow,
    dp_task,
    iterations,
    release,
)
from tests.prefect.matrix.support import books, settled
from tests.projects import POLICY

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


def test_a_forked_child_does_not_settle_for_its_parent(make_project):
    """It would post what it has seen itself, and the parent draws on."""
    make_project(POLICY.replace("{epsilon: 1}", "{epsilon: 9}"))
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
