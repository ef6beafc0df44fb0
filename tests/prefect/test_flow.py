"""`dp_flow` ends by asking the ledger, and the flow around a step pays for it."""

from __future__ import annotations

import uuid

import pytest
from prefect import flow, task
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_FLOWS_DEFAULT_RETRIES, temporary_settings

from dpflow import (
    BudgetExhausted,
    BudgetRefused,
    PureDP,
    dp_flow,
    dp_task,
    guarded,
    private_task,
    spend,
)
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import current_project
from dpflow.ledger.requests import Request
from dpflow.ledger.views import accounts
from tests.prefect.matrix.support import in_flow
from tests.projects import POLICY, TENTH, kinds, rows, spent

HALF = PureDP(epsilon="0.5")
CANARY = "canary-" + "2718281828"

#: The flow's share fits three charges of a tenth, the dataset's budget many more.
SHARED = (
    POLICY.replace("{epsilon: 1}", "{epsilon: 5}")
    + 'flows: {report: {epsilon: "0.3"}, parent: {}}\nother_flows: allow\n'
)
RAN: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


@dp_task(dataset="shop", cost=HALF)
def customers(week: int) -> int:
    """Stand for a step that fits twice."""
    return week


@task
def publish(values):
    """Stand for what must not run after a refusal."""
    RAN.append(values)
    return values


def test_a_flow_that_retries_says_that_each_run_of_a_body_is_a_charge(project, caplog):
    """Prefect's own setting counts; it is said once for each run, and not without."""
    for make_flow, setting in ((flow, 1), (dp_flow, 2), (dp_flow, 0)):
        caplog.clear()
        with temporary_settings({PREFECT_FLOWS_DEFAULT_RETRIES: setting}):

            @make_flow(name="report")
            def report():
                return guarded(dataset="shop", cost=TENTH)(publish.fn)(len(RAN)) / 0

        with pytest.raises(ZeroDivisionError):
            report()
        texts = [record.getMessage() for record in caplog.records]
        said = [text for text in texts if "PREFECT_FLOWS_DEFAULT_RETRIES" in text]
        assert len(said) == bool(setting)
        assert all(f"runs up to {setting} times more" in text for text in said)
    assert spent() == "0.6"


def test_the_refusal_survives_a_second_process(project):
    """The flow's end is the ledger's word: a refusal of this run by another process."""

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

    state = in_flow(report, make_flow=dp_flow)(return_state=True)
    assert state.name == "BudgetRefused"


def test_skipping_takes_only_the_refused_steps_downstream_along(make_project):
    """The rest runs, and the flow ends with its value."""
    make_project(f"{POLICY}on_exhausted: {{flow: skip}}\n")

    def report():
        futures = [publish.submit(customers.submit(week)) for week in range(3)]
        publish("always")
        for future in futures:
            future.wait()
        return "done"

    assert in_flow(report, make_flow=dp_flow)() == "done"
    assert len(RAN) == 3
    assert "always" in RAN


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
    assert report(3, return_state=True).name == "BudgetExhausted"
    (refusal,) = heard
    assert refusal.details["left"] == {"epsilon": "0", "delta": "0"}


def test_a_flow_that_returns_what_is_yet_to_run_fails(project):
    """Its steps would run behind the question whether one was refused."""

    def streamed():
        yield customers(1)

    async def streamed_later():
        yield customers(1)

    async def later():
        return customers(1)

    for call in (streamed, later, streamed_later):
        report = in_flow(call, make_flow=dp_flow)
        with pytest.raises(ConfigurationError, match="has not run yet"):
            report(return_state=True).result()
    assert kinds() == []


def test_a_refused_step_inside_a_loader_stays_a_refusal(project):
    """Its text may be made of what was loaded."""

    @private_task(name="load")
    def load():
        with spend(dataset="shop", cost=PureDP(epsilon=50), step=CANARY):
            pass

    def report():
        with pytest.raises(BudgetRefused) as error:
            load()
        RAN.append(error.value)

    in_flow(report, make_flow=dp_flow)(return_state=True)
    assert "inside private task 'load'" in RAN[0].message
    assert CANARY not in str(RAN[0])


@guarded(dataset="shop", cost=TENTH)
def count(part: int) -> int:
    """Count one part of the customers."""
    RAN.append(part)
    return part


def block(part: int) -> int:
    """Count one part of the customers in a block."""
    with spend(dataset="shop", cost=TENTH, step="count"):
        RAN.append(part)
    return part


#: Tasks that know nothing of the budget.
plain, plain_block = task(count, name="plain"), task(block)


def mapped(part: int) -> int:
    """Count in such a thread, by `map`."""
    return plain_block.map([part]).result()[0]


def in_subflow(part: int) -> int:
    """Count within a flow that no policy names."""
    return flow(name="helper")(lambda: count(part))()


WAYS = [(dp_flow, way) for way in (block, plain, mapped, in_subflow)] + [(flow, count)]


@pytest.mark.promise("flow-around")
@pytest.mark.parametrize(("decorator", "how"), WAYS)
def test_the_share_of_the_flow_around_a_step_is_charged_and_kept(
    make_project, decorator, how
):
    """The fourth tenth does not run, though the dataset has room for it."""
    make_project(SHARED)
    report = in_flow(lambda: [how(part) for part in range(4)], make_flow=decorator)
    state = report(return_state=True)
    views = accounts(current_project().ledger, "shop")
    shares = {v.name: v.spent["epsilon"] for v in views if v.kind == "flow"}
    assert shares == {"report": "0.3"}
    assert len(RAN) == 3
    ended = ("CANCELLED", "BudgetExhausted")
    if decorator is flow:
        ended = ("FAILED", "Failed")
    assert (state.type.value, state.name) == ended
    with pytest.raises(BudgetExhausted, match="report"):
        state.result()


@pytest.mark.promise("flow-around")
def test_a_flow_that_is_named_has_to_be_the_one_around_the_step(make_project):
    """Another one's share would be charged in place of this one's."""
    folder = make_project(SHARED)
    step = guarded(dataset="shop", cost=TENTH, flow="parent", name="s")(lambda: 1)
    runs = []

    def report():
        before = rows(folder)
        with pytest.raises(ConfigurationError) as error:
            step()
        runs.append(error.value.message)
        with (
            pytest.raises(ConfigurationError) as error,
            spend(dataset="shop", cost=TENTH, step="s", flow="parent"),
        ):
            pytest.fail("the block ran")
        runs.append(error.value.message)
        assert before == rows(folder)

    in_flow(report, make_flow=dp_flow)()
    for text in runs:
        assert "flow='parent'" in text
        assert "runs in flow 'report'" in text
        assert "Leave flow= away" in text
