"""How a refused step ends, and why it returns Cancelled and nothing else."""

from __future__ import annotations

import pytest
from prefect import allow_failure, flow, task
from prefect.client.orchestration import get_client
from typer.testing import CliRunner

from dpflow import BudgetExhausted, BudgetRefused, PureDP, dp_flow, dp_task
from dpflow.cli import app
from tests.prefect.matrix.support import books, execute, flow_run, mark, marks, settled
from tests.projects import POLICY

#: What a refused task could do, and what Prefect makes of it: its state; what is
#: behind it by data, by `wait_for`, through `allow_failure`; executions of its body
#: with `retries=2`; the end of a flow that returns nothing, of one that returns what is
#: downstream, and of one with `retries=1` that calls it, with that one's executions.


@task
def after(value):
    """Stand for what must not run after a refusal."""
    mark("after")
    return value


# How `dpflow` refuses comes first; the others are why it is the one.


EXHAUSTED = (
    f"{POLICY}flows: {{report: {{}}}}\non_exhausted: {{flow: halt, schedule: pause}}\n"
)


@dp_task(dataset="shop", cost=lambda epsilon: PureDP(epsilon=epsilon), retries=2)
def step(epsilon: str, turn: int) -> int:
    """Ask for so much; retries are there to be left alone."""
    return mark("step")


def called():
    """Call the refused step."""
    after(step(*ASKED[0]))


def submitted():
    """Submit it and what is behind it, and return nothing."""
    after.submit(step.submit(*ASKED[0]))


def mapped():
    """Map over one that fits, perhaps, and one that does not."""
    after.map(step.map([ASKED[0][0]] * 2, [7, 8]))


def waited_for():
    """Let something wait for it without its value."""
    after.submit(0, wait_for=[step.submit(*ASKED[0])])


def allowed_to_fail():
    """Let something go on if it fails."""
    after.submit(allow_failure(step.submit(*ASKED[0])))


def asked_for_its_result():
    """Ask for the result behind it: Prefect raises UnfinishedRun."""
    after.submit(step.submit(*ASKED[0])).result()


def returned():
    """Return what is behind it."""
    return after.submit(step.submit(*ASKED[0]))


def state_ignored():
    """Ask for its state and go on, to nothing that is private."""
    step(*ASKED[0], return_state=True)


def in_a_subflow():
    """Have it refused in a flow inside, which returns nothing."""
    child()


def in_a_halting_subflow():
    """Have it refused in a `dp_flow` inside."""
    halting_child()


@flow(name="child", retries=1)
def child():
    """Submit the step in a plain flow."""
    after.submit(step.submit(*ASKED[0])).wait()


@dp_flow(name="halting-child", retries=1)
def halting_child():
    """Submit the step in a flow that halts."""
    after.submit(step.submit(*ASKED[0]))


WAYS = [
    called,
    submitted,
    mapped,
    waited_for,
    allowed_to_fail,
    asked_for_its_result,
    returned,
    state_ignored,
    in_a_subflow,
    in_a_halting_subflow,
]

#: What the step asks for: more than it was ever granted, or as much as before.
ASKED: list[tuple[str, int]] = []


@dp_flow(name="report", retries=1)
def report(way: str, before: int) -> object:
    """Let the steps before fit, then refuse one."""
    for turn in range(before):
        step("0.5", turn)
    return globals()[way]()


@pytest.mark.parametrize(
    ("how", "way"),
    # A step that never fits ends the flow as an exhausted budget does: each in turn.
    [(("exhausted", "refused")[n % 2], way.__name__) for n, way in enumerate(WAYS)],
)
def test_a_refusal_ends_the_flow_whatever_the_way(make_project, how, way):
    """Cancelled, once, in spite of all retries; nothing behind it runs."""
    kind, asked, before = BudgetExhausted, "0.5", 2
    if how == "refused":
        kind, asked, before = BudgetRefused, "2", 1
    make_project(EXHAUSTED)
    ASKED[:] = [(asked, 99)]
    state = report(way, before, return_state=True)
    stored = flow_run(state.state_details.flow_run_id)
    assert (stored.state.type.value, stored.state.name) == ("CANCELLED", kind.__name__)
    assert stored.run_count == 1
    with pytest.raises(kind) as caught:
        state.result()
    assert type(caught.value) is kind
    assert marks() == {"step": before}
    refusals = 2 if way == "mapped" else 1
    spent = {2: "1", 1: "0.5"}[before]
    assert books() == settled(before, spent, refused=refusals)


@pytest.mark.parametrize(
    ("asked", "before", "name", "paused"),
    [("0.5", 2, "BudgetExhausted", True), ("2", 1, "BudgetRefused", False)],
    ids=["exhausted", "refused"],
)
def test_only_an_exhausted_budget_pauses_the_schedule(
    make_project, asked, before, name, paused
):
    """A mistyped cost leaves the schedule alone; an undone pause is repeated.

    A redeploy undoes it, too (PrefectHQ/prefect#19302).
    """
    make_project(EXHAUSTED)
    ASKED[:] = [(asked, 99)]
    parameters = {"way": "called", "before": before}
    deployment = report.to_deployment(f"nightly-{name}", parameters=parameters).apply()
    with get_client(sync_client=True) as client:
        for _ in range(2):
            run = client.create_flow_run_from_deployment(deployment).id
            assert execute(report, run).name == name
            assert client.read_deployment(deployment).paused is paused
            if paused:
                _resume(f"report/nightly-{name}")
            assert not client.read_deployment(deployment).paused
    assert "after" not in marks()


def _resume(deployment):
    """Resume a schedule as its author would, who is told why not, and insists."""
    refused = CliRunner().invoke(app, ["resume", deployment])
    assert refused.exit_code == 1
    assert "stays paused" in refused.stderr
    assert "`dpflow policy apply shop --new-term --reason TEXT`" in refused.stderr
    done = CliRunner().invoke(app, ["resume", deployment, "--force"])
    assert done.exit_code == 0, done.stderr
    assert "refused all the same" in done.stdout
