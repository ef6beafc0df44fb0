"""`dpflow why`: sums by flow, step or week, and refusals with what would fit."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from dpflow import PureDP, guarded
from dpflow.cli.why import _when
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.spending import Spending
from dpflow.project import current_project
from tests.cli.support import run, run_fine, run_json
from tests.ledger.support import granted
from tests.projects import make_project


@pytest.fixture
def spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charge two steps of two flows, and let one be refused."""
    make_project(tmp_path, monkeypatch)
    for flow, step, cost, times in (
        ("weekly", "count", "0.1", 3),
        ("weekly", "sum", "0.2", 1),
        ("adhoc", "count", "0.05", 2),
    ):

        @guarded(
            dataset="shop", cost=PureDP(epsilon=cost), flow=flow, name=step, fresh=True
        )
        def ask() -> int:
            return 1

        for _ in range(times):
            ask()

    @guarded(dataset="shop", cost=PureDP(epsilon="0.9"), flow="adhoc", name="big")
    def too_much() -> int:
        return 1

    with pytest.raises(BudgetRefused):
        too_much()


@pytest.mark.usefixtures("spent")
def test_the_largest_spender_comes_first() -> None:
    """With sums that add up to what is spent."""
    found = run_json("why", "shop")["spending"]
    told = [
        (each["group"], each["charges"], each["amount"]["epsilon"]) for each in found
    ]
    assert told == [
        (["weekly", "count"], 3, "0.3"),
        (["weekly", "sum"], 1, "0.2"),
        (["adhoc", "count"], 2, "0.1"),
    ]
    status = run_json("status", "shop")["datasets"][0]["accounts"][0]
    total = sum(Fraction(each["amount"]["epsilon"]) for each in found)
    assert Fraction(status["spent"]["epsilon"]) == total
    text = run_fine("why", "shop")
    assert text.index("sum") > text.index("count")
    assert "30.0%" in text


@pytest.mark.usefixtures("spent")
def test_charges_can_be_grouped_otherwise() -> None:
    """By flow alone, or by week."""
    by_flow = run_json("why", "shop", "--by", "flow")["spending"]
    assert [(each["group"], each["amount"]["epsilon"]) for each in by_flow] == [
        (["weekly"], "0.5"),
        (["adhoc"], "0.1"),
    ]
    (week,) = run_json("why", "shop", "--by", "week")["spending"]
    assert week["charges"] == 6
    assert "-W" in week["group"][0]
    result = run("why", "shop", "--by", "color")
    assert result.exit_code == 2
    assert "flow, step, week" in result.stderr


@pytest.mark.usefixtures("spent")
def test_the_weeks_of_a_group_are_told() -> None:
    """From the first to the last; grouped by week, the newest charge's time is."""
    (week,) = run_json("why", "shop", "--by", "week")["spending"]
    rows = run_json("why", "shop")["spending"]
    assert {tuple(row["weeks"]) for row in rows} == {(week["group"][0],) * 2}
    assert f"{week['group'][0]}\n" in run_fine("why", "shop")
    assert week["last"][:10] in run_fine("why", "shop", "--by", "flow,step,week")


def test_several_weeks_are_told_from_the_first_to_the_last() -> None:
    """As years of a report are."""
    told = Spending(
        account="d#1",
        group=("f",),
        charges=2,
        amount={},
        used_fraction=0.1,
        last="2026-01-20T00:00:00",
        weeks=("2025-W50", "2026-W04"),
    )
    assert _when(told, "weeks") == "2025-W50 to 2026-W04"
    assert _when(told, "last") == "2026-01-20 00:00"


@pytest.mark.usefixtures("spent")
def test_refusals_say_asked_left_and_what_would_fit() -> None:
    """As the step was told."""
    (refusal,) = run_json("why", "shop")["refusals"]
    assert refusal["asked"]["epsilon"] == "0.9"
    assert refusal["left"]["epsilon"] == "0.4"
    assert "times its noise" in refusal["fits"]
    text = run_fine("why", "shop")
    assert "Refused, newest first" in text
    assert "'big'" in text


def test_an_untouched_dataset_has_no_spenders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an unknown one is an error."""
    make_project(tmp_path, monkeypatch)
    assert "Nothing was charged" in run_fine("why", "shop")
    result = run("why", "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr


def test_a_charge_that_nobody_settled_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held may have been spent."""
    make_project(tmp_path, monkeypatch)
    project = current_project()
    granted(project.ledger, "0.25", policies=(project.policies["shop"],))
    (each,) = run_json("why", "shop")["spending"]
    assert (each["charges"], each["amount"]["epsilon"]) == (1, "0.25")
