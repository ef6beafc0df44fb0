"""Flows that change the working directory: the project of their start stays."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dpflow import BudgetRefused, PureDP, dp_flow, dp_task, status
from dpflow.exceptions import ConfigurationError
from dpflow.guard.project import Project, current_project
from dpflow.ledger.views import accounts
from tests.prefect.support import kinds, spent
from tests.projects import fill_project, make_project

TENTH = PureDP(epsilon="0.1")


def steps():
    """Return a new task, which has run in no project yet, and one that never fits."""

    @dp_task(dataset="shop", cost=TENTH, fresh=True)
    def count() -> int:
        return 1

    @dp_task(dataset="shop", cost=PureDP(epsilon=2))
    def too_much() -> int:
        return 1

    return count, too_much


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    """Return a project, in whose folder the test starts."""
    (tmp_path / "one").mkdir()
    make_project(tmp_path / "one", monkeypatch)
    return current_project()


@pytest.fixture
def other(tmp_path, project) -> Project:
    """Return another project with a dataset of the same name."""
    (tmp_path / "two").mkdir()
    fill_project(tmp_path / "two")
    os.chdir(tmp_path / "two")
    found = current_project()
    os.chdir(project.settings.root)
    return found


@pytest.fixture(params=["a project", "no project", "removed"])
def elsewhere(request, tmp_path, other) -> str:
    """Return a folder to go to: of another project, of none, or one to be removed."""
    if request.param == "a project":
        return str(other.settings.root)
    folder = tmp_path / request.param
    folder.mkdir()
    return str(folder)


def go(folder: str) -> None:
    """Change to a folder, which is removed if it is named so."""
    os.chdir(folder)
    if folder.endswith("removed"):
        Path(folder).rmdir()


def reserved(project: Project) -> str:
    """Return the epsilon that is held on the dataset."""
    (view,) = [v for v in accounts(project.ledger, "shop") if v.kind == "dataset"]
    return view.reserved["epsilon"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_refused_flow_ends_as_refused(project, other, elsewhere, kind):
    """Its end asks the ledger of its start."""
    _, too_much = steps()

    def body():
        with pytest.raises(BudgetRefused):
            too_much()
        go(elsewhere)
        return 7

    @dp_flow(name="report")
    def report():
        return body()

    @dp_flow(name="report")
    async def report_async():
        return body()

    state = (
        report(return_state=True)
        if kind == "sync"
        else asyncio.run(report_async(return_state=True))
    )
    assert (state.type.value, state.name) == ("CANCELLED", "BudgetRefused")
    assert kinds(other) == []


def test_a_run_reservation_is_sealed(project, other, elsewhere):
    """What no step drew is returned to the ledger that holds it."""
    count, _ = steps()

    @dp_flow(name="report", reserve_run={"shop": [TENTH] * 5})
    def report():
        count()
        go(elsewhere)
        return 7

    state = report(return_state=True)
    assert state.is_completed()
    assert reserved(project) == "0"
    assert spent(project)["epsilon"] == "0.1"
    assert kinds(other) == []


def test_later_steps_are_charged_in_the_same_ledger(project, other, elsewhere):
    """So are those of a subflow, and of a retry; `status` shows the same project."""
    count, _ = steps()
    seen = []

    @dp_flow(name="inner")
    def inner():
        return count()

    @dp_flow(name="report", retries=1)
    def report():
        if not seen:
            go(elsewhere)
        count()
        inner()
        seen.append(status("shop").datasets[0].standing.accounts)
        if len(seen) == 1:
            msg = "once"
            raise ValueError(msg)
        return 7

    assert report() == 7
    assert spent(project)["epsilon"] == "0.4"
    assert kinds(other) == []
    assert len(seen) == 2


def test_a_step_of_another_project_is_refused(project, other):
    """Before anything is charged, and with both roots."""
    count, _ = steps()
    count()
    os.chdir(other.settings.root)

    @dp_flow(name="report")
    def report():
        return count()

    state = report(return_state=True)
    assert state.is_failed()
    with pytest.raises(ConfigurationError) as caught:
        asyncio.run(state.result())
    assert str(project.settings.root) in caught.value.message
    assert str(other.settings.root) in caught.value.message
    assert spent(project)["epsilon"] == "0.1"
    assert kinds(other) == []
