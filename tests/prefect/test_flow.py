"""`dp_flow` ends as BudgetExhausted by asking the ledger, and tells what is left."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client

from dpflow import BudgetRefused, PureDP, dp_flow, dp_task
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import current_project
from dpflow.ledger.views import accounts
from tests.prefect.support import charges
from tests.projects import POLICY

HALF = PureDP(epsilon="0.5")


@dp_task(dataset="shop", cost=HALF)
def customers(week: int) -> int:
    """Stand for a step that fits twice."""
    return week


@task
def publish(values):
    """Stand for what must not run after a refusal."""
    PUBLISHED.append(values)
    return values


PUBLISHED: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_published():
    PUBLISHED.clear()


def stored(run_id):
    """Return the state of a flow run as Prefect's database has it."""
    with get_client(sync_client=True) as client:
        return client.read_flow_run(run_id)


def test_a_called_refusal_ends_the_flow_as_budget_exhausted(project):
    """Cancelled in the database, once, in spite of retries; nothing is published."""

    @dp_flow(name="report", retries=2)
    def report():
        publish([customers(week) for week in range(3)])

    state = report(return_state=True)
    run = stored(state.state_details.flow_run_id)
    assert (run.state.type.value, run.state.name) == ("CANCELLED", "BudgetExhausted")
    assert run.run_count == 1
    assert "It needs epsilon 0.5" in run.state.message
    assert PUBLISHED == []
    assert charges(project) == 2


def test_a_subflow_is_charged_to_the_flow_the_policy_names(make_project):
    """The nearest enclosing flow that the policy names pays, else the root flow."""
    make_project(f"{POLICY}flows: {{parent: {{epsilon: 0.5}}}}\n")

    @flow(name="unnamed-child")
    def child():
        return customers(1)

    @dp_flow(name="parent")
    def parent():
        return child()

    assert parent() == 1
    views = accounts(current_project().ledger, "shop")
    assert {v.name: v.spent["epsilon"] for v in views if v.kind == "flow"} == {
        "parent": "0.5"
    }


def test_the_refusal_survives_a_second_process(project, tmp_path):
    """The flow's end is the ledger's word: a refusal of this run by another process."""
    import uuid

    from prefect.context import FlowRunContext

    from dpflow.ledger.records import Request

    @dp_flow(name="report")
    def report():
        run = str(FlowRunContext.get().flow_run.id)
        request = Request(
            reservation=uuid.uuid4().hex,
            owner=project.ledger.owners.mine(),
            policies=(project.policies["shop"],),
            cost=PureDP(epsilon=50),
            step="elsewhere",
            flow="report",
            flow_run=run,
            enclosing_runs=(run,),
        )
        with pytest.raises(BudgetRefused):
            project.ledger.reserve(request)
        return "unaware"

    assert report(return_state=True).name == "BudgetRefused"


def test_skipping_takes_only_the_refused_steps_downstream_along(make_project):
    """The rest runs, and the flow ends with its value."""
    make_project(f"{POLICY}on_exhausted: {{flow: skip}}\n")

    @dp_flow(name="report")
    def report():
        futures = [publish.submit(customers.submit(week)) for week in range(3)]
        publish("always")
        for future in futures:
            future.wait()
        return "done"

    assert report() == "done"
    assert len(PUBLISHED) == 3
    assert "always" in PUBLISHED


def test_a_callback_hears_of_the_refusal(project):
    """Once for each run, and its failure changes nothing."""
    heard = []

    def tell(refusal):
        heard.append(refusal)
        raise OSError

    @dp_flow(name="report", on_exhausted=tell)
    def report(weeks: int):
        return [customers(week) for week in range(weeks)]

    assert report(2) == [0, 1]
    assert heard == []
    state = report(3, return_state=True)
    assert state.name == "BudgetExhausted"
    (refusal,) = heard
    assert refusal.details["left"] == {"epsilon": "0", "delta": "0"}


def _streamed():
    yield customers(1)


async def _streamed_later():
    yield customers(1)


async def _later():
    return customers(1)


@pytest.mark.parametrize(
    ("later", "preflight"),
    [
        (_streamed, None),
        (_later, {"shop": [HALF] * 2}),
        (_streamed_later, None),
    ],
)
def test_a_flow_that_returns_what_is_yet_to_run_fails(project, later, preflight):
    """Its steps would run behind the question whether one was refused."""

    @dp_flow(name="report", reserve_run=preflight)
    def report():
        return later()

    state = report(return_state=True)
    with pytest.raises(ConfigurationError, match="has not run yet"):
        state.result()
    found = [v for v in accounts(project.ledger, "shop") if v.kind == "dataset"]
    assert {v.spent["epsilon"] for v in found} <= {"0"}
    assert {v.reserved["epsilon"] for v in found} <= {"0"}
