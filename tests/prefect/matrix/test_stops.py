"""Timeouts, flows that end early, and hooks that fail: each body is charged once."""

from __future__ import annotations

import time

import pytest
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.transactions import transaction

from dpflow import PureDP, dp_flow, dp_task
from tests.prefect.matrix.support import books, mark, marks, settled, wait_until

TENTH = PureDP(epsilon="0.1")
ONE_BY_ONE = ThreadPoolTaskRunner(max_workers=1)


@dp_task(dataset="shop", cost=TENTH)
def slow(seconds: float) -> int:
    """Take a while, in small steps that a timeout can interrupt."""
    turn = mark("slow")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)
    mark("slow ended")
    return turn


def time_out_in_body(run):
    """Run with longer timeouts until one ends the body; return its name and outcome.

    A timeout that ends before the body begins may be charged, too.
    """
    earlier = ()
    for seconds in (0.5, 4, 30, 240):
        name = run(seconds)
        wait_until(lambda: books().open == 0, "the settlement")
        found = books()
        if marks():
            break
        earlier = found.outcomes
    count = len(found.outcomes)
    assert (found.orphans, found.spent) == (0, f"0.{count}")
    return name, found.outcomes[len(earlier) :]


@pytest.mark.parametrize("how", ["called", "submitted"])
def test_a_task_timeout_is_charged_in_full(project, how):
    """The body sees CancelledError, no Exception, in worker threads too."""

    @flow(name="report")
    def report(seconds):
        limited = slow.with_options(timeout_seconds=seconds)
        if how == "called":
            return limited(900, return_state=True).name
        future = limited.submit(900)
        future.wait()
        return future.state.name

    assert time_out_in_body(report) == ("TimedOut", ("failed",))
    assert marks() == {"slow": 1}


@pytest.mark.parametrize(
    ("make_flow", "how"),
    [(dp_flow, "called"), (dp_flow, "submitted"), (flow, "called")],
)
def test_a_flow_timeout_leaves_no_step_uncharged(project, make_flow, how):
    """A submitted step runs to its end behind the flow's, and is settled."""

    @make_flow(name="report")
    def report(seconds):
        if how == "called":
            slow(900)
        else:
            slow.submit(seconds + 1).wait()

    def timed(seconds):
        limited = report.with_options(timeout_seconds=seconds)
        return limited(seconds, return_state=True).name

    ended = how == "submitted"
    outcome = "completed" if ended else "failed"
    assert time_out_in_body(timed) == ("TimedOut", (outcome,))
    assert marks() == {"slow": 1, **({"slow ended": 1} if ended else {})}


# The body lasts longer than a busy machine needs to end the flow around it.


# The first body lasts longer than a busy machine needs to end the flow around it.
@pytest.mark.parametrize(
    ("make_flow", "bodies", "seconds"), [(flow, 1, 3.0), (dp_flow, 3, 0.1)]
)
def test_steps_that_nobody_awaits_are_charged_if_they_run(
    project, make_flow, bodies, seconds
):
    """`dp_flow` waits for all; a plain flow drops those that have not started."""

    @make_flow(name="report", task_runner=ONE_BY_ONE)
    def report():
        for week in range(3):
            slow.with_options(name=f"slow-{week}", fresh=True).submit(seconds)
        wait_until(lambda: marks()["slow"], "the first body")

    assert report(return_state=True).is_completed()
    assert marks() == {"slow": bodies, "slow ended": bodies}
    assert books() == settled(bodies, f"0.{bodies}")


@task
def sibling():
    """Fail beside a DP step."""
    raise RuntimeError


def test_a_rolled_back_transaction_refunds_nothing(project):
    """Its hook fires, but the value was seen; a retry replays it."""
    rolled = []
    step = slow.with_options(persist_result=True)
    step.on_rollback_hooks = [lambda _: rolled.append(1)]

    @flow(name="report", retries=1)
    def report():
        with transaction():
            value = step(0)
            if mark("flow") == 1:
                sibling()
        return value

    assert report() == 1
    assert rolled == [1]
    assert marks() == {"slow": 1, "slow ended": 1, "flow": 2}
    assert books() == settled(1, "0.1")
