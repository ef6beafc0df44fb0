"""Recovered budget and early stopping on people in the format of Adult."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpflow.costs import ProposeTestRelease
from dpflow.guard.charge import current_execution
from dpflow.guard.project import current_project
from dpflow.ledger.views import accounts
from dpflow.mechanisms import propose_test_release as mechanism
from dpflow.rounding import number_from_text
from flows import (
    adult,
    individual_training,
    recover_budget,
    train_until_good,
    typical_age,
)
from tests import adult_people
from tests.projects import ROOT


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write people, as many as there are in the real files."""
    with pytest.MonkeyPatch.context() as patch:
        adult_people.write(tmp_path_factory.mktemp("data"), patch)
        yield
    adult._table.cache_clear()


@pytest.fixture
def people(data, examples):
    """Give the flows people, policies and an empty ledger."""


def spent(component: str = "epsilon"):
    """Return what the dataset has spent; nothing may stay held."""
    view = next(v for v in accounts(current_project().ledger, "adult"))
    assert set(view.reserved.values()) == {"0"}
    return number_from_text(view.spent[component])


@pytest.mark.parametrize(("threshold", "cell"), [(-1e6, "none"), (1e6, "model")])
def test_a_model_costs_its_epsilon_and_none_the_test(
    people, monkeypatch, threshold, cell
):
    """A second run replays the release, none included."""
    monkeypatch.setattr(recover_budget, "THRESHOLD", threshold)
    monkeypatch.setattr(recover_budget, "LARGEST_CHANCE", 0.5)
    weights = recover_budget.recover_budget(2000)
    assert (weights is None) == (cell == "none")
    assert spent() == dict(recover_budget.COST.cells)[cell]
    assert recover_budget.recover_budget(2000) == weights
    assert spent() == dict(recover_budget.COST.cells)[cell]


def test_a_caller_is_warned_of_a_test_that_says_little(people):
    """With 5,600 people the worst model passes in 17 of 100 runs; not with all."""
    assert recover_budget.chance_of_the_worst(recover_budget.PEOPLE) < 0.001
    with pytest.warns(UserWarning, match="would pass with a chance of 17%"):
        recover_budget.recover_budget(5600)


def test_figure_2_has_the_numbers_of_the_paper():
    """95th percentiles at 1,000 and 5,000 people."""
    expected = {
        1000: {0.1: 0.1535056729, 0.2: 0.0767528364, 0.5: 0.0307011346},
        5000: {0.1: 0.0307011346, 0.2: 0.0153505673, 0.5: 0.0061402269},
    }
    for size, values in expected.items():
        for test, value in values.items():
            assert recover_budget.reach(size, test) == pytest.approx(value, abs=1e-10)


def test_an_early_stop_leaves_what_the_pages_say():
    """By cells, in one piece, and under filters that charge the steps that ran."""
    left = {}
    for steps in (50, 70):
        cells, whole = (rest for _, _, rest, _ in train_until_good.table(steps))
        filters = {
            name: rest for name, rest, _ in train_until_good.under_filters(steps)
        }
        left[steps] = f"{cells:.3f}", f"{whole:.3f}", filters["rdp"], filters["auto"]
    assert left[50] == ("1.889", "1.592", 1.647, 1.317)
    assert left[70] == ("1.695", "1.592", 1.556, 1.227)
    page = (ROOT / "docs" / "data" / "studies.json").read_text("utf-8")
    said = "{} of epsilon 3 with cells, {} without, {} under `rdp`, {} under `auto`"
    assert said.format(*left[70]) in page


def test_training_stops_early_and_the_rest_pays_for_the_report(people):
    """A test that everybody passes ends it at the first stop; all of 3 is spent."""
    report = train_until_good.train_until_good(-100.0)
    first = train_until_good.STOPS[0]
    assert report["steps"] == first
    assert spent() == pytest.approx(3, abs=1e-8)
    assert spent() <= 3
    assert spent("delta") == number_from_text("1e-5")
    assert len(report["high_earners"]) == len(train_until_good.AGE_LABELS)
    true = adult.high_earners(train_until_good.AGES)
    scale = 2 / float(train_until_good.BUDGET - train_until_good.price(first))
    errors = np.abs(np.array(list(report["high_earners"].values())) - true)
    assert errors.max() < 40 * scale


def test_individual_training_reserves_the_whole_bound_once(people):
    """However many steps there are; a second run replays."""
    weights = individual_training.individual_training(300, 3)
    assert len(weights) == adult.FEATURES
    view = next(v for v in accounts(current_project().ledger, "adult-individual"))
    assert view.used_fraction == pytest.approx(1)
    assert individual_training.individual_training(300, 3) == weights


@pytest.fixture
def aged(people, monkeypatch):
    """Give everybody an age that no two share: a median that is no edge."""
    ages = np.random.default_rng(1).normal(38, 13, typical_age.PEOPLE)
    monkeypatch.setattr(adult, "age", lambda: ages)
    return ages


@pytest.mark.parametrize(
    ("answers", "charged"),
    [((20.0, None), "0.4"), ((None, 20.0), "0.6"), ((None, None), "0.4")],
)
def test_the_median_is_paid_by_what_the_range_left(aged, monkeypatch, answers, charged):
    """Whichever discretization answers."""
    calls = []

    def ranged(values, *, shift):
        """Take the draw of the running step, and report the cell of an answer."""
        assert values is aged
        answer = answers[len(calls)]
        calls.append(shift)
        execution = current_execution("a test")
        execution.claim_draw("a test")
        execution.report("none" if answer is None else "answer")
        return answer

    first = 0.0 if answers[0] is None else 0.5
    monkeypatch.setattr(typical_age, "coin", lambda: first)
    monkeypatch.setattr(typical_age, "interquartile_range", ranged)
    result = typical_age.typical_age()
    assert result.range == (answers[0] or answers[1])
    assert result.tries == len(calls) == len(set(calls)) == 1 + (answers[0] is None)
    assert calls[0] == first
    assert result.epsilon == 1 - Fraction(charged)
    assert result.median == pytest.approx(38, abs=80)
    assert spent() == 1
    assert spent("delta") == (result.tries + 1) * Fraction("1e-6")


def test_either_discretization_comes_first(people, monkeypatch):
    """By a fair coin: at an edge, half of the runs need no second try."""
    edge = np.linspace(0, 16, 1001)
    single = ProposeTestRelease(epsilon=10, delta="1e-9")
    coins = [typical_age.coin() for _ in range(400)]
    assert 140 <= coins.count(0.0) <= 260
    cells = {
        shift: mechanism.interquartile_range.__wrapped__(
            single, edge, base=2, shift=shift
        ).cell
        for shift in typical_age.SHIFTS
    }
    assert cells == {0.0: "none", 0.5: "answer"}
    assert {typical_age.SHIFTS[1] - shift for shift in cells} == set(cells)
