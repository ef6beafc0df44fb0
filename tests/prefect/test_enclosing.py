"""Guarded functions and blocks within flows: charged to the flow around them."""

from __future__ import annotations

import pytest
from prefect import flow, task

from dpflow import Gaussian, PureDP, dp_flow, guarded, spend
from dpflow.exceptions import BudgetExhausted, ConfigurationError
from dpflow.guard.project import current_project
from dpflow.ledger.views import accounts
from dpflow.ledger.views import history as journal_of
from tests.projects import POLICY, rows

TENTH = PureDP(epsilon="0.1")

#: The flow's share fits three charges of a tenth, the dataset's budget many more.
SHARED = (
    POLICY.replace("{epsilon: 1}", "{epsilon: 5}")
    + 'flows: {report: {epsilon: "0.3"}, parent: {}}\nother_flows: allow\n'
)


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
