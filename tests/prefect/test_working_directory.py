"""Flows that change the working directory: the project of their start stays."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from prefect import flow

from dpflow import BudgetRefused, PureDP, dp_flow, dp_task, status
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import Project, current_project
from tests.prefect.matrix.support import books, in_flow, settled
from tests.projects import TENTH, fill_project, make_project


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    """Return a project, in whose folder the test starts."""
    (tmp_path / "one").mkdir()
    make_project(tmp_path / "one", monkeypatch)
    return current_project()


@pytest.fixture
def other(tmp_path, project) -> Path:
    """Return another project with a dataset of the same name."""
    folder = tmp_path / "two"
    folder.mkdir()
    fill_project(folder)
    return folder


@pytest.fixture
def count():
    """Return a new task, which has run in no project yet."""
    return dp_task(dataset="shop", cost=TENTH, fresh=True, name="count")(lambda: 1)


@pytest.mark.parametrize("elsewhere", ["two", "removed"])
def test_later_steps_are_charged_in_the_same_ledger(project, other, count, elsewhere):
    """Of the flow, a subflow and a retry; `status` agrees."""
    seen = []
    inner = dp_flow(name="inner")(lambda: count() + 1)
    folder = other.with_name(elsewhere)

    @dp_flow(name="report", retries=1)
    def report():
        if not seen:
            folder.mkdir(exist_ok=True)
            os.chdir(folder)
            if elsewhere == "removed":
                folder.rmdir()
        count()
        seen.append(status("shop").datasets[0].standing.accounts)
        if len(seen) == 1:
            raise ValueError("once")
        return inner()

    assert report() == 2
    assert len(seen) == 2
    there = books(project.settings.root)
    assert (there.spent, there.open, there.orphans) == ("0.3", 0, 0)
    assert books(other).reserved == 0


def test_a_subflow_charges_where_the_first_step_did(project, other, count):
    """Also in a flow of Prefect's own, which keeps no settings."""
    inner = dp_flow(name="inner")(lambda: count() + 1)

    @flow
    def report():
        count()
        os.chdir(other)
        return inner()

    assert report() == 2
    assert books(project.settings.root).spent == "0.2"
    assert books(other).reserved == 0


def test_a_refused_flow_ends_as_refused(project, other):
    """Its end asks the ledger of its start, in an event loop too."""
    too_much = dp_task(dataset="shop", cost=PureDP(epsilon=2), name="much")(lambda: 1)

    def report():
        with pytest.raises(BudgetRefused):
            too_much()
        os.chdir(other)
        return 7

    @dp_flow(name="report")
    async def report_async():
        return report()

    states = [in_flow(report, make_flow=dp_flow)(return_state=True)]
    os.chdir(project.settings.root)
    states.append(asyncio.run(report_async(return_state=True)))
    for state in states:
        assert (state.type.value, state.name) == ("CANCELLED", "BudgetRefused")
    assert books(other).refused == 0


def test_a_step_of_another_project_is_refused(project, other, count):
    """With both roots; outside of a flow the process keeps the first project."""
    count()
    os.chdir(other)
    count()
    state = in_flow(count, make_flow=dp_flow)(return_state=True)
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(state.result())
    assert str(project.settings.root) in caught.value.message
    assert str(other) in caught.value.message
    assert books(project.settings.root) == settled(2, "0.2")
    assert books(other).reserved == 0
