"""The budget artifact after a run: what was asked, what is left and promised."""

from __future__ import annotations

import re

from prefect.artifacts import Artifact

from dpflow import BudgetRefused, PureDP, dp_flow, dp_task
from dpflow.prefect import artifacts
from tests.prefect.support import charges


@dp_task(dataset="shop", cost=PureDP(epsilon="0.5"))
def customers(week: int) -> int:
    """Stand for a step that fits twice."""
    return week


def test_the_budget_artifact_says_asked_left_and_guarantee(project):
    """After a halted run the artifact tells why, in Prefect's own UI."""

    @dp_flow(name="report")
    def report():
        return [customers(week) for week in range(3)]

    report(return_state=True)
    artifact = Artifact.get("dpflow-budget-shop")
    assert artifact.data.startswith("# Privacy budget of `shop`, term 1\n")
    assert "**BudgetExhausted.**" in artifact.data
    assert "dpflow policy apply shop --new-term --reason TEXT" in artifact.data
    assert "epsilon = 1" in artifact.data
    assert "| | dataset shop |" in artifact.data
    assert "| spent | epsilon 1 |" in artifact.data
    used = Artifact.get("dpflow-budget-shop-used")
    assert float(used.data) == 100


def test_no_name_in_a_refusal_is_markup(project, monkeypatch):
    """It is one line of the artifact, without a picture, a link or a tag."""
    told = []

    @dp_flow(name="report")
    def report(week):
        return customers(week)

    report(1)
    monkeypatch.setattr(artifacts, "_create", lambda _, **facts: told.append(facts))
    name = "x\n# Spent: 0\x1b ![x](http://e.example/x.png)<img src=x>"
    message = f"the step {name!s} was refused"
    artifacts.publish_budget(project, BudgetRefused(message, dataset="shop"))
    (text,) = [each["markdown"] for each in told if "markdown" in each]
    bare = re.sub(r"\\.", "", text)
    assert "the step x # Spent: 0" in text
    assert not set("<[\x1b") & set(bare)
    assert not any(line.startswith("# Spent") for line in text.splitlines())


def test_prefect_out_of_reach_never_touches_the_charge(project, monkeypatch, caplog):
    """A failing artifact is logged; the flow completes and the charge is settled."""

    def broken(*args, **kwargs):
        msg = "no server"
        raise RuntimeError(msg)

    monkeypatch.setattr("dpflow.prefect.artifacts.create_markdown_artifact", broken)

    @dp_flow(name="report")
    def report():
        return customers(1)

    assert report() == 1
    assert charges(project) == 1
    assert "could not be published" in caplog.text
