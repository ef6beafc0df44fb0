"""`dpflow calendar`: the runs to come, and what is kept for them."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from dpflow import Gaussian, guarded
from dpflow.config import settings
from dpflow.exceptions import BudgetRefused
from dpflow.forecast.cadence import Every, Schedule
from dpflow.forecast.calendar import calendars
from dpflow.guard.project import current_project, forget_projects
from tests.cli.support import run, run_fine, run_json
from tests.projects import make_project

POLICY = """
dataset: shop
unit: customer
relation: add-or-remove
version: "1"
budget: {epsilon: 1, delta: 1e-6}
lifetime: {epsilon: 9, delta: 1e-5}
filter: gaussian
other_flows: allow
flows:
  weekly-report: {keep: 10, costs: ["Gaussian(sensitivity=1, sigma=20)"]}
"""
DEPLOYED = """
deployments:
  - name: weekly
    entrypoint: report.py:report
    schedules: [{cron: "0 6 * * 1", timezone: UTC}]
"""
FLOW = """
from dpflow import dp_flow

@dp_flow(name="weekly-report")
def report(): ...
"""
#: A Sunday.
TODAY = date(2027, 1, 3)
STEP = Gaussian(sensitivity=1, sigma=20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a project that keeps ten runs, of which no deployment tells the days."""
    monkeypatch.setenv("DPFLOW_WITNESS", "none")
    yield make_project(tmp_path, monkeypatch, POLICY)
    forget_projects()


def charge(flow: str, day: date) -> None:
    """Release something of a day."""

    @guarded(
        dataset="shop", cost=STEP, flow=flow, release_key="{flow}/{day}", noise="own"
    )
    def count(flow: str, day: str) -> float:
        return 1.0

    count(flow, day.isoformat())


def deploy(folder: Path) -> None:
    """Say that the flow runs on Mondays."""
    (folder / "prefect.yaml").write_text(DEPLOYED, "utf-8")
    (folder / "report.py").write_text(FLOW, "utf-8")


def known() -> Any:
    """Return the calendar of the dataset as it is on one day."""
    project = current_project()
    [found] = calendars(
        settings(), project.ledger, project.policies, "shop", today=TODAY
    )
    return found


def test_kept_runs_have_the_days_of_the_deployment(folder: Path) -> None:
    """Before the first of them, and after two; the last kept one has its day."""
    deploy(folder)
    found = known()
    [flow] = found.flows
    assert (flow.kept.runs_left, flow.kept_until) == (10, date(2027, 3, 8))
    coming = found.coming(12)
    assert [run.day for run in coming][:2] == [date(2027, 1, 4), date(2027, 1, 11)]
    assert [run.kept for run in coming] == [True] * 10 + [False] * 2
    for week in range(2):
        charge("weekly-report", TODAY + timedelta(days=1 + 7 * week))
    assert known().flows[0].kept.runs_left == 8


def test_the_rest_ends_where_the_other_flow_is_refused(folder: Path) -> None:
    """What the calendar says is what the ledger does; the kept runs go on."""
    days = [TODAY + timedelta(days=day) for day in range(40)]
    for day in days[:5]:
        charge("ad-hoc", day)
    ends = known().rest_ends.outlook.exhausted_on
    for day in days[5 : days.index(ends)]:
        charge("ad-hoc", day)
    with pytest.raises(BudgetRefused, match="10 runs of flow"):
        charge("ad-hoc", ends)
    for week in range(10):
        charge("weekly-report", TODAY + timedelta(days=7 * week))
    with pytest.raises(BudgetRefused):
        charge("weekly-report", TODAY + timedelta(days=90))


def test_a_kept_flow_counts_its_own_hold(folder: Path) -> None:
    """It is not held against the flow that it is held for."""
    charge("weekly-report", TODAY)
    [flow] = known().flows
    assert flow.outlook.runs_left == 21
    charge("ad-hoc", TODAY)
    flows = {each.flow: each.outlook.runs_left for each in known().flows}
    assert flows == {"weekly-report": 20, "ad-hoc": 11}


def test_an_ended_term_has_no_runs_to_come(folder: Path) -> None:
    """The dataset is there once, with what the newest term keeps."""
    charge("weekly-report", TODAY)
    run_fine("policy", "apply", "shop", "--new-term", "--because", "a new year")
    forget_projects()
    assert known().flows[0].kept.runs_left == 10
    assert run_fine("calendar").count("shop\n") == 1


def test_status_tells_programs_what_is_kept(folder: Path) -> None:
    """With the numbers that the calendar has."""
    charge("weekly-report", TODAY)
    [dataset] = run_json("status")["datasets"]
    [account] = [each for each in dataset["accounts"] if each["kind"] == "dataset"]
    [kept] = account["kept"]
    assert (kept["flow"], kept["runs"], kept["runs_left"]) == ("weekly-report", 10, 9)


def test_the_command_shows_it(folder: Path) -> None:
    """In words, in JSON, and where nothing is known."""
    empty = run_fine("calendar")
    assert "weekly-report: 10 of 10 runs are kept." in empty
    assert "No day of a run is known" in empty
    deploy(folder)
    charge("weekly-report", TODAY)
    text = run_fine("calendar", "shop", "--runs", "3")
    assert "9 of 10 runs are kept, until " in text
    assert text.count("kept\n") + text.count("kept ") >= 3
    [data] = run_json("calendar", "--runs", "11")["datasets"]
    assert [run["kept"] for run in data["runs"]] == [True] * 9 + [False] * 2
    assert data["flows"][0]["every"] == "7 days"
    assert data["flows"][0]["keep"] == 10


def test_what_prefect_serves_is_asked_for_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server the command says what to do; its schedule goes before ours."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert "set PREFECT_API_URL" in run("calendar", "--served").stderr
    charge("weekly-report", TODAY)
    project = current_project()
    daily = Schedule(Every(seconds=86_400), TODAY, "schedule")
    [found] = calendars(
        settings(),
        project.ledger,
        project.policies,
        "shop",
        today=TODAY,
        served={"weekly-report": daily},
    )
    assert found.flows[0].kept_until == TODAY + timedelta(days=8)


def test_a_kept_run_hides_no_history(folder: Path) -> None:
    """Its account is no budget; the dataset's tells its charge, as in every list."""
    charge("weekly-report", TODAY)
    for options in ([], ["--all-accounts"], ["--decisions"], ["shop"]):
        entries = run_json("history", *options)["entries"]
        newest = "open" if "--decisions" in options else "settle"
        assert entries[0]["entry"] == newest
        assert run_fine("history", *options)
