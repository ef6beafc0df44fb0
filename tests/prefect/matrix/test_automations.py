"""The example's automations: the events that they match, and the pause."""

from __future__ import annotations

import uuid

from prefect.client.orchestration import get_client
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent

import dpflow.prefect.events
from dpflow import dp_flow, dp_task
from dpflow.prefect.delivery import flush
from flows.automations import automations, install
from tests.prefect.matrix.support import in_flow, run_deployed
from tests.projects import POLICY, TENTH


def test_the_example_automations_notify_and_pause(make_project, monkeypatch):
    """At 80 %, once; at exhaustion, of the deployment that the event names."""
    make_project(POLICY.replace("shop", "patients") + "alerts: [0.5, 0.8]\n")
    step = dp_task(dataset="patients", cost=TENTH, name="tenth")(lambda turn: turn)
    report = in_flow(lambda: [step(turn) for turn in range(11)], make_flow=dp_flow)
    sent = []
    assert flush()
    monkeypatch.setattr(
        dpflow.prefect.events,
        "emit_event",
        lambda **event: sent.append(ReceivedEvent(id=uuid.uuid4(), **event)),
    )
    made, state = run_deployed(report)
    assert (state.name, flush()) == ("BudgetExhausted", True)
    matched = []
    for automation in automations("patients", notify=uuid.uuid4()):
        trigger = EventTrigger(**automation.trigger.model_dump())
        matched += [[each for each in sent if trigger.covers(each)]]
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
