"""Deployed flows whose steps name no release key are told of, at deploy and at run."""

from __future__ import annotations

import warnings

import pytest
from prefect import Flow, flow
from prefect.client.orchestration import get_client

from dpflow import PureDP, dp_flow, dp_task
from dpflow.prefect import keyless_steps
from dpflow.prefect.deployments import DPFlow, steps_in_code
from tests.prefect.matrix.support import execute

TENTH = PureDP(epsilon="0.1")


@dp_task(dataset="shop", cost=TENTH)
def nameless(week: int = 1) -> int:
    """Name no release key."""
    return week


@dp_task(dataset="shop", cost=TENTH, release_key="named/{week}")
def named(week: int = 1) -> int:
    """Name one."""
    return week


@dp_task(dataset="shop", cost=TENTH, fresh=True)
def drawn(week: int = 1) -> int:
    """Say that every run draws."""
    return week


def helper():
    """Call a step from a plain function."""
    return nameless.with_options(name="renamed")(2), inner()


@flow
def inner():
    """Call one from a flow inside."""
    return [nameless.submit(week) for week in range(2)]


#: A step where its name alone does not tell.
HIDDEN = {"count": nameless}


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch):
    monkeypatch.setattr(keyless_steps, "_told", set())


@dp_flow(name="report")
def mixed():
    """Call all of them."""
    return named(), drawn(), nameless()


@dp_flow(name="report")
def careful():
    """Call those that say what they mean."""
    return named(), drawn()


@dp_flow(name="report")
def around():
    """Reach a step through a function, and another through a flow."""
    return helper()


@dp_flow(name="report")
def hiding():
    """Reach one in a way that the code does not show."""
    return HIDDEN["count"]()


@pytest.mark.parametrize("report", [mixed, around], ids=["itself", "by others"])
@pytest.mark.parametrize("how", ["to_deployment", "with_options"])
def test_deploying_warns_of_steps_without_a_key(report, how):
    """By name, with what to do, also after `with_options`."""
    made = report.with_options(retries=1) if how == "with_options" else report
    assert isinstance(made, DPFlow)
    with pytest.warns(UserWarning, match=r"nameless name no release_key.*fresh=True"):
        made.to_deployment("nightly")


def test_deploying_is_silent_where_every_step_says_what_it_means():
    """A key, or `fresh=True`; and it is a plain flow otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        careful.to_deployment("nightly")
        hiding.to_deployment("nightly")
    assert isinstance(careful, Flow)
    assert steps_in_code(hiding) == []


def _deployed(report):
    """Make a run of a deployment and execute it, as a worker does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        made = report.to_deployment("nightly").apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(made).id
    return execute(report, run)


def _told(caplog):
    texts = [record.getMessage() for record in caplog.records]
    return [text for text in texts if "names no release_key" in text]


@pytest.mark.parametrize(
    ("report", "steps"),
    [(mixed, 1), (hiding, 1), (careful, 0)],
    ids=["seen", "unseen", "careful"],
)
def test_a_deployed_run_tells_of_each_step_that_it_charged(
    project, caplog, report, steps
):
    """Exactly, once a process, whether the code showed them or not."""
    for _ in range(2):
        assert _deployed(report).is_completed()
    assert len(_told(caplog)) == steps
    assert all("'nameless'" in text for text in _told(caplog))
