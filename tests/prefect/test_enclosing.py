"""Guarded functions and blocks within flows: charged to the flow around them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest
from prefect import flow, task
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL
from prefect.task_runners import ProcessPoolTaskRunner

from dpflow import Gaussian, PureDP, dp_flow, guarded, spend
from dpflow.exceptions import BudgetExhausted, ConfigurationError
from dpflow.guard.project import current_project
from dpflow.ledger.views import accounts
from dpflow.ledger.views import history as journal_of
from tests.prefect.support import draws, kinds
from tests.projects import ROOT, rows

TENTH = PureDP(epsilon="0.1")

#: The flow's share fits three charges of a tenth, the dataset's budget many more.
SHARED = """
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 5}
filter: basic
flows: {report: {epsilon: "0.3"}, parent: {epsilon: "0.2"}}
other_flows: allow
"""


@pytest.fixture
def shared(make_project):
    """Return the folder of a project in which two flows have a share."""
    return make_project(SHARED)


RAN: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


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


@task
def plain(part: int) -> int:
    """Count within a task that knows nothing of the budget."""
    return count(part)


@task
def plain_block(part: int) -> int:
    """Count within such a task, in a block."""
    return block(part)


@task
def publish(part: int) -> int:
    """Stand for what comes after a step."""
    return part


def submitted(part: int) -> int:
    """Count in a thread of the flow's task runner."""
    return plain.submit(part).result()


def mapped(part: int) -> int:
    """Count in such a thread, by `map`."""
    return plain_block.map([part]).result()[0]


def in_subflow(part: int) -> int:
    """Count within a flow that no policy names."""
    return _subflow(part)


@flow(name="helper")
def _subflow(part: int) -> int:
    return count(part)


def views(kind="flow"):
    """Return what each account of a kind has spent, by its name."""
    found = accounts(current_project().ledger, "shop")
    return {v.name: v.spent["epsilon"] for v in found if v.kind == kind}


def charges():
    """Return what the journal says of each charge of the dataset."""
    entries = journal_of(current_project().ledger, "shop", limit=1000)
    return [e.body for e in sorted(entries, key=lambda e: e.seq) if e.kind == "reserve"]


WAYS = [(dp_flow, way) for way in (count, block, plain, mapped, in_subflow)]
WAYS += [(flow, count), (flow, submitted)]


@pytest.mark.parametrize(("decorator", "how"), WAYS)
def test_the_share_of_the_flow_around_a_step_is_charged_and_kept(
    shared, decorator, how
):
    """The fourth tenth does not run, though the dataset has room for it."""

    @decorator(name="report")
    def report():
        return [publish(how(part)) for part in range(5)]

    state = report(return_state=True)
    assert views() == {"report": "0.3"}
    assert len(RAN) == 3
    if decorator is dp_flow:
        assert (state.name, state.type.value) == ("BudgetExhausted", "CANCELLED")
    else:
        assert state.type.value == "FAILED"
    with pytest.raises(BudgetExhausted, match="report"):
        state.result()


@task
def elsewhere(part: int) -> int:
    """Count in another process, and tell which."""
    count(part)
    return os.getpid()


@dp_flow(name="report", task_runner=ProcessPoolTaskRunner(max_workers=1))
def in_processes():
    """Count in a pool of processes."""
    found = [elsewhere.submit(part) for part in range(5)]
    return [each.result() for each in found]


def test_a_task_in_another_process_is_charged_to_its_flow(shared):
    """The refusal there ends the flow here."""
    state = in_processes(return_state=True)
    assert state.name == "BudgetExhausted"
    assert views() == {"report": "0.3"}
    assert RAN == []


def test_a_subflow_that_the_policy_names_is_charged_itself(shared):
    """The nearest one, as for tasks; else the one around it."""

    @dp_flow(name="parent")
    def inner():
        count(1)

    @dp_flow(name="report")
    def report():
        inner()
        count(2)

    report()
    assert views() == {"parent": "0.1", "report": "0.1"}


def test_the_halt_of_the_flow_around_a_step_holds(make_project):
    """The odometer of the flow refuses the step, and the rest of its run."""
    make_project("""
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 50, delta: 1e-6}
filter: zcdp
odometer: {theorem: rdp, delta: 1e-6}
flows: {report: {halt_at_epsilon: 3}}
other_flows: allow
""")
    cost = Gaussian(sensitivity=1, sigma=4)
    step = guarded(dataset="shop", cost=cost, name="s", noise="own")

    @dp_flow(name="report")
    def report():
        return [step(lambda: 1)() for _ in range(100)]

    state = report(return_state=True)
    assert state.name == "BudgetExhausted"
    with pytest.raises(BudgetExhausted) as caught:
        state.result()
    assert caught.value.gate == "odometer"
    assert 0 < len(charges()) < 100


def test_a_step_journals_where_it_ran(shared):
    """The run of its flow, and the task run that it was in."""
    seen = []

    @task
    def telling() -> None:
        count(1)

    @dp_flow(name="report")
    def report():
        seen.append(str(FlowRunContext.get().flow_run.id))
        telling()
        block(2)

    report()
    inside, plainly = charges()
    assert inside["flow"] == plainly["flow"] == "report"
    assert inside["attempt"] == "1"
    assert "task_run" in inside
    assert "task_run" not in plainly
    ledger = current_project().ledger
    runs = {e.run for e in journal_of(ledger, "shop", limit=99) if e.kind == "reserve"}
    assert runs == set(seen)


def test_a_flow_that_is_named_has_to_be_the_one_around_the_step(shared):
    """Another one's share would be charged in place of this one's."""
    step = guarded(dataset="shop", cost=TENTH, flow="parent", name="s")(lambda: 1)
    told = []

    @dp_flow(name="report")
    def report():
        before = rows(shared)
        with pytest.raises(ConfigurationError) as error:
            step()
        told.append(error.value.message)
        with (
            pytest.raises(ConfigurationError) as error,
            spend(dataset="shop", cost=TENTH, step="s", flow="parent"),
        ):
            pytest.fail("the block ran")
        told.append(error.value.message)
        assert before == rows(shared)

    report()
    for text in told:
        assert "flow='parent'" in text
        assert "runs in flow 'report'" in text
        assert "Leave flow= away" in text


def test_a_whole_run_that_is_held_holds_these_steps(shared):
    """They draw from the preflight of the flow around them."""

    @dp_flow(name="report", reserve_run={"shop": [TENTH] * 2})
    def report():
        count(1)
        block(2)

    report()
    found = kinds(current_project())
    assert draws(current_project()) == 2
    assert found[-1] == "seal"
    assert views() == {"report": "0.2"}


ALONE = """
import sys
from prefect import flow
from dpflow import PureDP, guarded

step = guarded(dataset="shop", cost=PureDP(epsilon="0.1"), name="s")(lambda: 1)
assert not [name for name in sys.modules if name.startswith("dpflow.prefect")]

@flow(name="report")
def report():
    step()

report()
"""


def test_a_program_that_loads_nothing_of_ours_for_prefect_is_charged(shared):
    """A flow is a flow, whoever wrote its decorator."""
    away = {
        "PREFECT_LOGGING_LEVEL": "ERROR",
        "PREFECT_API_URL": PREFECT_API_URL.value(),
    }
    found = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=shared,
        env={**os.environ, **away, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert views() == {"report": "0.1"}


def test_outside_of_a_flow_a_step_is_in_none(shared):
    """Though Prefect is loaded, and other flows have run."""
    dp_flow(name="report")(lambda: count(1))()
    count(2)
    with contextlib.suppress(BudgetExhausted):
        block(3)
    assert views() == {"report": "0.1"}
    assert [body["flow"] for body in charges()] == ["report", None, None]
