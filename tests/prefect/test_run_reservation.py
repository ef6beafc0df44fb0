"""Flows that hold their whole worst case first, on real Prefect."""

from __future__ import annotations

import asyncio

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.exceptions import Pause
from prefect.flow_runs import resume_flow_run, suspend_flow_run

from dpflow import BudgetExhausted, BudgetRefused, PureDP, dp_flow, dp_task
from dpflow.costs import RunCosts
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.views import open_reservations
from dpflow.prefect import flow as flow_module
from dpflow.prefect import run_context
from tests.prefect.conftest import POLICY
from tests.prefect.matrix.support import execute, flow_run, in_flow, task_runs
from tests.projects import TENTH, account, held, kinds, spent

RAN: list[object] = []


@dp_task(dataset="shop", cost=TENTH)
def count(part: int) -> int:
    """Stand for one step of the report."""
    RAN.append(part)
    return part


@dp_task(dataset="shop", cost=TENTH, release_key="part/{part}")
def kept(part: int) -> int:
    """Stand for one step of a recurring report."""
    RAN.append(part)
    return part


@task
def publish(values: list[int]) -> list[int]:
    """Stand for what must never see half a report."""
    RAN.append("published")
    return values


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


@pytest.fixture
def project(project):
    """Give the project; whatever a test left in its ledger must verify."""
    yield project
    assert verify(project.ledger).bad == []
    assert open_reservations(project.ledger) == []


def holding(call, times=4):
    """Return a flow that holds a number of tenths for a function."""
    costs = {"shop": [TENTH] * times}
    return in_flow(call, make_flow=dp_flow, reserve_run=costs)


def test_a_flow_holds_all_and_returns_the_rest(project):
    """Four are held before the first step; two run; the end returns two."""

    def report():
        seen = [account().reserved["epsilon"]]
        values = [count(1), count(2)]
        publish(values)
        return [*seen, held()]

    assert holding(report)() == ["0.4", "0.2"]
    assert spent() == "0.2"
    assert kinds() == ["reserve", *["reserve", "settle"] * 2, "seal"]


def weekly(week: int) -> list[int]:
    """Publish four steps of a week."""
    return publish([kept(4 * week + part) for part in range(4)])


async def weekly_async(week: int) -> list[int]:
    """Publish the same."""
    return weekly(week)


def report(*args, **kwargs):
    """Run the report as an async flow."""
    later = dp_flow(name="report", reserve_run={"shop": [TENTH] * 4})(weekly_async)
    return asyncio.run(later(*args, **kwargs))


def test_published_releases_are_replayed_under_an_exhausted_budget(
    make_project, monkeypatch
):
    """A late duplicate costs nothing and pauses nothing; a new week ends refused."""
    make_project(POLICY + "on_exhausted: {schedule: pause}\n")
    pauses, events = [], []
    monkeypatch.setattr(flow_module, "_pause_schedule", lambda: pauses.append(1))
    monkeypatch.setattr(run_context, "send", lambda notice: events.append(notice.kind))
    assert report(0) == [0, 1, 2, 3]
    assert report(1) == [4, 5, 6, 7]
    del RAN[:]
    for _ in range(2):
        state = report(2, return_state=True)
        assert (state.name, state.type.value) == ("BudgetExhausted", "CANCELLED")
        with pytest.raises(BudgetExhausted) as caught:
            state.result()
        assert caught.value.asked["epsilon"] == "0.4"
        assert caught.value.left["epsilon"] == "0.2"
        assert "times its noise it would still fit" in caught.value.fits
    assert (RAN, pauses, events.count("exhausted")) == ([], [1, 1], 2)
    del pauses[:], events[:]
    assert report(0) == [0, 1, 2, 3]
    assert report(1, return_state=True).is_completed()
    assert RAN == ["published"] * 2
    assert (pauses, events.count("exhausted"), events.count("refused")) == ([], 0, 0)
    assert (held(), spent()) == ("0", "0.8")


def test_a_refused_run_publishes_no_half(project):
    """A cheap step that would fit is refused with the rest, however it is caught."""
    cheap = dp_task(dataset="shop", cost=PureDP(epsilon="0.01"))(lambda: RAN.append(1))

    def report():
        futures = [cheap.submit(), count.submit(1)]
        for future in futures:
            future.wait()
        try:
            cheap()
        except BudgetRefused as refusal:
            RAN.append(refusal.refused_with is not None)
        publish(futures)

    state = holding(report, times=11)(return_state=True)
    assert (state.name, state.type.value) == ("BudgetRefused", "CANCELLED")
    assert RAN == [True]
    assert kinds().count("reserve") == 0


def test_a_retry_goes_on_with_what_is_held(project):
    """Between two attempts no other run gets it; earlier releases are replayed free."""
    seen = []

    @dp_flow(name="report", retries=1, reserve_run={"shop": [TENTH] * 4})
    def report():
        seen.append((held(), spent()))
        count(1)
        if len(seen) == 1:
            raise ValueError("once")
        return count(2)

    assert report() == 2
    assert seen == [("0.4", "0"), ("0.3", "0.1")]
    assert RAN == [1, 2]
    assert (spent(), kinds().count("seal")) == ("0.2", 1)


@dp_flow(name="report", reserve_run={"shop": [TENTH] * 2})
def suspending() -> int:
    """Stop between two steps, the first time."""
    count(1)
    if len(RAN) == 1:
        RAN.append("suspended")
        suspend_flow_run(timeout=3600)
    return count(2)


def test_a_suspended_flow_keeps_what_it_holds_and_replays(project):
    """It runs again from the top, under the same run count, draws and seals."""
    with get_client(sync_client=True) as client:
        made = suspending.to_deployment("nightly").apply()
        run = client.create_flow_run_from_deployment(made).id
    # A worker's process ends here: Pause is no Exception.
    with pytest.raises(Pause):
        execute(suspending, run)
    assert (flow_run(run).state.name, held()) == ("Suspended", "0.1")
    task_runs(run, 1)  # A resumed run skips the steps that the server knows as ended.
    resume_flow_run(run)
    assert execute(suspending, run).is_completed()
    assert RAN == [1, "suspended", 2]
    assert (spent(), kinds().count("seal")) == ("0.2", 1)
    assert flow_run(run).run_count == 1


def test_a_subflow_draws_from_the_flow_around_it(project):
    """Its own reservation, too, is taken out of the parent's, and not held twice."""

    @dp_flow(name="part", reserve_run={"shop": [TENTH] * 2})
    def part():
        count(1)
        return held()

    plain = flow(name="plain")(lambda: count(3))

    def report():
        return [part(), count(2), held(), plain(), held()]

    assert holding(report, times=9)() == ["0.8", 2, "0.6", 3, "0.5"]
    assert spent() == "0.3"


def test_a_function_of_the_parameters_declares_it(make_project):
    """Such as the parts of a divided dataset that this run reads."""
    make_project(POLICY.replace("flows:", "partition: {by: key}\nflows:"))

    @dp_task(dataset="shop", cost=TENTH, partitions="{week}")
    def weekly(week: str) -> str:
        return week

    def declared(week: str) -> RunCosts:
        return RunCosts(costs={"shop": [TENTH] * 2}, partitions={"shop": [week]})

    def report(week: str, other: int = 1):
        return weekly(week)

    assert dp_flow(name="report", reserve_run=declared)(report)("w1") == "w1"
    part = account(kind="partition")
    assert (part.spent["epsilon"], part.reserved["epsilon"]) == ("0.1", "0")
    wrong = dp_flow(name="report", reserve_run=lambda month: {"shop": [month]})(report)
    with pytest.raises(ConfigurationError, match="asks for month"):
        wrong("w2")
