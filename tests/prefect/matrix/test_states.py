"""End of a refused step: Cancelled and no other state; the example automations."""

from __future__ import annotations

import uuid

import pytest
from prefect import allow_failure, flow, task
from prefect.client.orchestration import get_client
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent

from dpflow import BudgetExhausted, BudgetRefused, PureDP, dp_flow, dp_task
from dpflow.prefect.delivery import flush
from flows.automations import automations, install
from tests.prefect.matrix.support import (
    books,
    flow_run,
    in_flow,
    mark,
    marks,
    resume_insisting,
    run_deployed,
    settled,
)
from tests.projects import POLICY, TENTH

EXHAUSTED = (
    f"{POLICY}flows: {{report: {{}}}}\non_exhausted: {{flow: halt, schedule: pause}}\n"
)
#: What the step asks for: more than it was ever granted, or as much as before.
ASKED: list[tuple[str, int]] = []


@task
def after(value):
    """Stand for what must not run after a refusal."""
    mark("after")
    return value


@dp_task(dataset="shop", cost=lambda epsilon: PureDP(epsilon=epsilon), retries=2)
def step(epsilon: str, turn: int) -> int:
    """Request an epsilon; the retries must not run."""
    return mark("step")


def submit():
    """Submit the refused step."""
    return step.submit(*ASKED[0])


#: A plain flow inside, and one that halts.
child = flow(name="child", retries=1)(lambda: after.submit(submit()).wait())
halting_child = dp_flow(name="halting-child", retries=1)(
    lambda: after.submit(submit()) and None
)
#: Ways to meet the refused step, with something behind it.
WAYS = {
    "called": lambda: after(step(*ASKED[0])),
    "submitted": lambda: after.submit(submit()) and None,
    "mapped": lambda: after.map(step.map([ASKED[0][0]] * 2, [7, 8])) and None,
    "waited for": lambda: after.submit(0, wait_for=[submit()]) and None,
    "allowed to fail": lambda: after.submit(allow_failure(submit())) and None,
    # Prefect raises UnfinishedRun.
    "asked for its result": lambda: after.submit(submit()).result(),
    "returned": lambda: after.submit(submit()),
    "its state ignored": lambda: step(*ASKED[0], return_state=True) and None,
    "in a subflow": child,
    "in a halting subflow": halting_child,
}


@dp_flow(name="report", retries=1)
def report(way: str, before: int) -> object:
    """Let the steps before fit, then refuse one."""
    for turn in range(before):
        step("0.5", turn)
    return WAYS[way]()


@pytest.mark.parametrize(
    ("how", "way"),
    # A step that never fits ends the flow as an exhausted budget does: each in turn.
    [(("exhausted", "refused")[number % 2], way) for number, way in enumerate(WAYS)],
)
def test_a_refusal_ends_the_flow_whatever_the_way(make_project, how, way):
    """Cancelled, once, in spite of all retries; nothing behind it runs."""
    kind, cost, before = BudgetExhausted, "0.5", 2
    if how == "refused":
        kind, cost, before = BudgetRefused, "2", 1
    make_project(EXHAUSTED)
    ASKED[:] = [(cost, 99)]
    state = report(way, before, return_state=True)
    stored = flow_run(state.state_details.flow_run_id)
    assert (stored.state.type.value, stored.state.name) == ("CANCELLED", kind.__name__)
    assert f"it needs epsilon {cost}" in stored.state.message
    assert stored.run_count == 1
    with pytest.raises(kind) as caught:
        state.result()
    assert type(caught.value) is kind
    assert marks() == {"step": before}
    refusals = 2 if way == "mapped" else 1
    spent = {2: "1", 1: "0.5"}[before]
    assert books() == settled(before, spent, refused=refusals)


@pytest.mark.parametrize(
    ("cost", "before", "name", "paused"),
    [("0.5", 2, "BudgetExhausted", True), ("2", 1, "BudgetRefused", False)],
)
def test_only_an_exhausted_budget_pauses_the_schedule(
    make_project, cost, before, name, paused
):
    """A mistyped cost leaves the schedule alone; an undone pause is repeated.

    A redeploy undoes it, too (PrefectHQ/prefect#19302).
    """
    make_project(EXHAUSTED)
    ASKED[:] = [(cost, 99)]
    parameters = {"way": "called", "before": before}
    with get_client(sync_client=True) as client:
        for _ in range(1 + paused):
            made, state = run_deployed(report, f"nightly-{name}", parameters=parameters)
            assert state.name == name
            assert client.read_deployment(made).paused is paused
            if paused:
                resume_insisting(f"report/nightly-{name}")
            assert not client.read_deployment(made).paused
    assert "after" not in marks()


def test_the_example_automations_notify_and_pause(make_project, sent):
    """At 80 %, once; at exhaustion, of the deployment that the event names."""
    make_project(POLICY.replace("shop", "patients") + "alerts: [0.5, 0.8]\n")
    step = dp_task(dataset="patients", cost=TENTH, name="tenth")(lambda turn: turn)
    report = in_flow(lambda: [step(turn) for turn in range(11)], make_flow=dp_flow)
    made, state = run_deployed(report)
    assert (state.name, flush()) == ("BudgetExhausted", True)
    events = [ReceivedEvent(id=uuid.uuid4(), **event) for event in sent]
    matched = []
    for automation in automations("patients", notify=uuid.uuid4()):
        trigger = EventTrigger(**automation.trigger.model_dump())
        matched += [[each for each in events if trigger.covers(each)]]
    (exhausted,), (alert,) = matched
    assert exhausted.event == "dpflow.budget.exhausted"
    assert alert.resource["dpflow.threshold"] == "0.8"
    for event in (exhausted, alert):
        assert {"message", "flow", "step"} <= event.payload.keys()
    assert [each.id for each in exhausted.related] == [f"prefect.deployment.{made}"]
    wanted = automations("patients")
    for _ in range(2):
        install(wanted)
    with get_client(sync_client=True) as client:
        assert len(client.read_automations_by_name(wanted[0].name)) == 1
