"""`dpflow why`: sums by flow, step or week, and refusals with what would fit."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from dpflow import Gaussian, PureDP, guarded
from dpflow.exceptions import BudgetRefused
from dpflow.guard.project import current_project
from tests.cli.support import CDNOW, Shop, run, run_fine, run_json
from tests.ledger.support import granted
from tests.projects import make_project

pytestmark = pytest.mark.quick

TOO_MUCH = Gaussian(sensitivity=100, noise_multiplier="0.1")


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
def test_refusals_say_asked_left_and_what_would_fit() -> None:
    """As the step was told."""
    (refusal,) = run_json("why", "shop")["refusals"]
    assert refusal["asked"]["epsilon"] == "0.9"
    assert refusal["left"]["epsilon"] == "0.4"
    assert "times its noise" in refusal["fits"]
    text = run_fine("why", "shop")
    assert "Refused, newest first" in text
    assert "'big'" in text


def test_a_charge_that_nobody_settled_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held may have been spent."""
    make_project(tmp_path, monkeypatch)
    project = current_project()
    granted(project.ledger, "0.25", policies=(project.policies["shop"],))
    (each,) = run_json("why", "shop")["spending"]
    assert (each["charges"], each["amount"]["epsilon"]) == (1, "0.25")


# Terms


def test_who_spent_an_earlier_term_can_be_asked(shop: Shop) -> None:
    """A new term has a budget and spenders of its own; the old one keeps its."""
    shop.charge(step="first")
    shop.refuse(TOO_MUCH)
    shop.write(CDNOW.replace("filter:", "lifetime: {epsilon: 6, delta: 2e-6}\nfilter:"))
    run_fine("policy", "apply", "cdnow", "--new-term", "--reason", "a new year")
    assert "in its newest term" in run_fine("why", "cdnow")
    shop.charge(step="second")
    told = {
        term: run_json("why", "cdnow", *(("--term", term) if term else ()))
        for term in ("", "1", "2")
    }
    steps = {
        term: [each["group"][1] for each in found["spending"]]
        for term, found in told.items()
    }
    assert steps == {"": ["second"], "1": ["first"], "2": ["second"]}
    assert [told[term]["term"] for term in ("", "1", "2")] == [2, 1, 2]
    refused = {term: found["refused"] for term, found in told.items()}
    assert refused == {"": 0, "1": 1, "2": 0}
    assert "first" in run_fine("why", "cdnow", "--term", "1")


def test_an_unknown_term_is_an_error(shop: Shop) -> None:
    """It says which there are."""
    shop.charge()
    result = run("why", "cdnow", "--term", "7")
    assert result.exit_code == 1
    assert "'cdnow' has no term 7; it has the term 1" in result.stderr
    assert "has no term yet" in run("why", "adult", "--term", "1").stderr


# Refusals


def test_refusals_of_each_gate_are_counted_once(shop: Shop) -> None:
    """By the dataset, a share, or an odometer, which journals others' refusals too."""
    flows = "  plain: {}\n  halting: {halt_at_epsilon: 1.5}\n  weekly-report"
    shop.write(CDNOW.replace("  weekly-report", flows))
    shop.refuse(TOO_MUCH, flow="plain")
    shop.refuse(Gaussian(sensitivity=1, noise_multiplier=2))
    for _ in range(2):
        shop.refuse(Gaussian(sensitivity=1, noise_multiplier=3), flow="halting")
    found = run_json("why", "cdnow")
    assert found["refused_by"] == {
        "cdnow#1": 1,
        "cdnow#1/flow/weekly-report": 1,
        "cdnow#1/odometer/halting": 2,
    }
    assert found["refused"] == sum(each["times"] for each in found["refusals"]) == 4


# Unusual steps


def test_steps_that_went_otherwise_are_told(shop: Shop) -> None:
    """Who drew noise alone, what failed, what nobody settled; the rest is not."""
    assert "No step drew its own noise" in run_fine("why", "cdnow")
    shop.charge(step="plain")
    shop.charge(step="bare", noise="self-declared")
    shop.charge(step="bare", noise="own")
    shop.charge(step="broken", outcome="failed")
    shop.reserve(step="killed")
    closed = shop.reserve(step="closed")
    ledger = shop.ledger()
    ledger.forfeit(closed, reason="the machine is gone")
    ledger.close()
    found = run_json("why", "cdnow")["unusual"]
    assert {(each["step"], each["what"]): each["times"] for each in found} == {
        ("bare", "drew its own noise"): 2,
        ("broken", "failed: ValueError"): 1,
        ("killed", "was forfeited"): 1,
        ("closed", "was forfeited"): 1,
    }
    assert all(each["flow"] == "weekly-report" for each in found)
    text = run_fine("why", "cdnow")
    assert "Unusual steps; each of them is charged:" in text
    for word in ("bare", "broken", "killed", "closed"):
        assert word in text.split("Unusual steps")[1]
    assert "plain" not in text.split("Unusual steps")[1]
