"""Early stopping and `cell=`: a step is charged what ran, or the cell of its output."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from dpflow import (
    Composed,
    EarlyStopping,
    Laplace,
    OutputDP,
    guarded,
    iterations,
    spend,
)
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import DPStepFailed, InvalidCost, ReleaseError
from dpflow.guard.charge import current_execution
from dpflow.rounding import number_from_text
from tests.projects import NOISY, POLICY, TENTH, account, journal, make_project

pytestmark = pytest.mark.quick

STOPS = (2, 4, 8)
STOPPING = EarlyStopping(TENTH, stops=STOPS)
COST = OutputDP({"none": "0.1", "answer": "0.5"})


def used(component: str = "epsilon") -> Fraction:
    """Return what is settled on the dataset; nothing may stay held."""
    view = account()
    assert set(view.reserved.values()) == {"0"}
    return number_from_text(view.spent[component])


def stopped_at(number: int, cost: Cost | None = None) -> int:
    """Run a step that stops after a number of sub-steps; return the number that ran."""
    seen = 0

    @guarded(dataset="shop", cost=cost or STOPPING)
    def fit() -> int:
        nonlocal seen
        for step in iterations():
            seen = step.number
            if step.number == number:
                break
        return seen

    assert fit() == seen
    return seen


def test_the_substeps_that_ran_are_charged(tmp_path, monkeypatch):
    """One tenth each, wherever the loop ended."""
    make_project(tmp_path, monkeypatch, POLICY.replace("epsilon: 1}", "epsilon: 9}"))
    total = 0
    for number in (1, 2, 3, 7, 8):
        assert stopped_at(number) == number
        total += number
        assert used() == Fraction(total, 10)


def test_under_output_a_stop_is_a_cell(tmp_path, monkeypatch):
    """An unlisted stop counts as the next listed one, and delta is never refunded."""
    policy = POLICY.replace("{epsilon: 1}", "{epsilon: 9, delta: 1e-6}")
    make_project(tmp_path, monkeypatch, policy.replace("basic", "output-dp"))
    cost = EarlyStopping(TENTH, stops=STOPS, accountant="optimal", delta="1e-7")
    epsilons, before = dict(zip(STOPS, cost.epsilons(), strict=True)), Fraction(0)
    stops = ((1, 2), (2, 2), (3, 4), (5, 8), (8, 8))
    for count, (number, stop) in enumerate(stops, 1):
        stopped_at(number, cost)
        assert used() - before == pytest.approx(epsilons[stop], rel=1e-12)
        assert used() - before >= epsilons[stop]
        before = used()
        assert used("delta") == Fraction(count, 10**7)


def test_a_body_that_fails_is_charged_in_full(shop: Path) -> None:
    """Its error may come from any sub-step."""

    @guarded(dataset="shop", cost=STOPPING)
    def fit() -> None:
        for step in iterations():
            if step.number == 2:
                raise ValueError

    with pytest.raises(DPStepFailed):
        fit()
    assert used() == Fraction(8, 10)


def test_a_loop_cannot_go_on_after_its_step_has_ended(shop: Path) -> None:
    """Its charge is posted, so nothing would pay for more."""
    kept = {}

    @guarded(dataset="shop", cost=EarlyStopping(NOISY, stops=STOPS))
    def fit() -> int:
        kept["loop"] = iterations()
        kept["step"] = next(kept["loop"])
        return 1

    fit()
    assert used() == Fraction(1, 10)
    with pytest.raises(ReleaseError, match="had ended"):
        kept["step"].release(1.0)
    with pytest.raises(ReleaseError, match="has ended"):
        next(kept["loop"])
    assert used() == Fraction(1, 10)


TEST = Laplace(sensitivity=1, epsilon="0.05")
BOTH = EarlyStopping(Composed(NOISY, TEST), stops=(3, 6))


def test_each_part_of_a_substep_is_drawn_once(shop):
    """The second draw of a part, and one after its sub-step, have nothing to pay."""
    answers, first = [], []

    @guarded(dataset="shop", cost=BOTH)
    def fit() -> int:
        for step in iterations():
            # No part that the sub-step lacks, and none unnamed where there are two.
            for cost in (None, Laplace(sensitivity=1, epsilon=1)):
                with pytest.raises(ReleaseError, match="Declare every draw"):
                    step.release(0.0, cost=cost)
            for earlier in first:
                with pytest.raises(ReleaseError, match="was over"):
                    earlier.release(0.0, cost=NOISY)
            answers.append(step.release(0.0, cost=NOISY))
            assert step.test(1e9, at_least=0, cost=TEST)
            with pytest.raises(ReleaseError, match="nothing remains"):
                step.release(0.0, cost=NOISY)
            first.append(step)
            if step.may_stop:
                break
        return step.number

    assert fit() == 3
    assert len(set(answers)) == 3
    assert used() == 3 * Fraction(15, 100)


def test_an_outcome_is_reported_once_and_in_time(shop: Path) -> None:
    """By a step whose cost has outcomes, and one that it knows."""
    with spend(dataset="shop", cost=COST, step="ask") as charge:
        with pytest.raises(InvalidCost, match="unknown cell"):
            charge.report("other")
        charge.report("none")
        with pytest.raises(ReleaseError, match="had reported"):
            charge.report("answer")
    with pytest.raises(ReleaseError, match="had ended"):
        charge.report("answer")
    with (
        spend(dataset="shop", cost=TENTH, step="ask") as charge,
        pytest.raises(ReleaseError, match="costs the same"),
    ):
        charge.report("none")


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a project whose dataset has epsilon 1 by cells."""
    return make_project(tmp_path, monkeypatch, POLICY.replace("basic", "output-dp"))


def ask(output: object, cell: object, cost: object = COST) -> object:
    """Run a step that returns an output, under a cell function."""
    return guarded(dataset="shop", cost=cost, cell=cell, name="n")(lambda: output)()


@pytest.mark.parametrize(("output", "epsilon"), [(None, "0.1"), (7, "0.5")])
def test_the_cell_of_the_output_is_charged(cells, output, epsilon):
    """It is read off what the body returned, and journaled."""
    assert ask(output, lambda o: "none" if o is None else "answer") == output
    assert used() == Fraction(epsilon)
    assert journal()[-1].body["reported"] == ("none" if output is None else "answer")


@pytest.mark.parametrize(
    "cell", [lambda _: "other", lambda _: None, lambda _: True, lambda n: {}[n]]
)
def test_without_a_known_cell_the_step_is_charged_in_full(cells, cell):
    """A warning says so, without the output; the output is kept."""
    with pytest.warns(RuntimeWarning, match="charged in full") as caught:
        assert ask(4711, cell) == 4711
    assert used() == Fraction("0.5")
    assert "4711" not in "".join(str(each.message) for each in caught)


def test_two_answers_that_differ_are_none(cells: Path) -> None:
    """What the body reported and what the cell function says must agree."""
    step = {"dataset": "shop", "cost": COST, "name": "n"}
    body = lambda: current_execution("a test").report("none")
    guarded(**step, cell=lambda _: "none")(body)()
    assert used() == Fraction("0.1")
    with pytest.warns(RuntimeWarning, match="contradicts"):
        guarded(**step, cell=lambda _: "answer")(body)()
    assert used() == Fraction("0.6")


def test_a_cell_needs_a_cost_with_cells(cells: Path) -> None:
    """For a cost function, that is noticed by a full charge."""
    with pytest.warns(RuntimeWarning, match="contradicts its cost"):
        ask(1, lambda _: "none", cost=lambda: TENTH)
    assert used() == Fraction("0.1")
