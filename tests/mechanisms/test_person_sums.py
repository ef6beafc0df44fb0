"""Steps that people pay from budgets of their own, run after run."""

from __future__ import annotations

import os
import signal
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from dpflow import guarded, status
from dpflow.exceptions import ConfigurationError, ReleaseError
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.views import accounts
from dpflow.ledger.views.entries import people_lines
from dpflow.mechanisms import person_sum, person_sums
from dpflow.people import PersonBudgets
from tests.people.places import BOUND
from tests.projects import journal, make_project

POLICY = """
dataset: shop
unit: customer
relation: add-or-remove
data_version: "1"
budget: {epsilon: 1, delta: 1e-6}
filter: {theorem: individual, measure: gdp}
"""
STEP = {"dataset": "shop", "cost": PersonBudgets()}
#: Somebody who is in each run can pay for four of them.
SIGMA = float(BOUND / 4) ** -0.5 * (1 + 1e-12)


def no_noise():
    """Add none within a block, to see who takes part."""
    return mock.patch.object(person_sums, "add_noise", lambda _, value: value)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a project, with a folder for witnesses outside of it."""
    monkeypatch.setenv("DPFLOW_WITNESS", str(tmp_path / "witness"))
    (tmp_path / "shop").mkdir()
    make_project(tmp_path / "shop", monkeypatch, POLICY)
    yield tmp_path / "shop"
    forget_projects()


def customers(week, people, values=None, **options):
    """Count the customers of a week, or sum what they have."""
    ignore = ("options", "people", "values")

    @guarded(**STEP, release_key="customers/{week}", ignore=ignore)
    def count(week):
        result = person_sum(people, values, **({"sigma": SIGMA} | options))
        return np.asarray(result).tolist()

    return count(str(week))


# What is charged


def test_the_budget_is_taken_once_and_people_pay(folder):
    """People of four runs are excluded from the fifth; new people are counted."""
    with no_noise():
        old = [f"c{number}" for number in range(10)]
        assert [customers(week, old) for week in range(4)] == [10.0] * 4
        assert customers(4, [*old, "new", 7]) == 2.0
        assert customers(5, [7, "7"]) == 2.0
        assert customers(0, ["not read"]) == 10.0
    reserved = [e.amount["mu_squared"] for e in journal() if e.kind == "reserve"]
    assert [Fraction(text) > 0 for text in reserved] == [True, *[False] * 5]
    assert len([*(folder / ".dpflow" / "people").glob("*.people")]) == 1
    [line] = people_lines(accounts(current_project().ledger, "shop"))
    assert line.startswith("People have the budget")
    # Of the whole budget, which people hold, no share is called used.
    assert status("shop").datasets[0].used is None
    assert verify(current_project().ledger).fine


def test_rows_of_a_person_are_summed_clipped_and_paid_for(folder):
    """Half of the clip costs a quarter; a person has one row; strange ids have none."""
    with no_noise():
        for week in range(16):
            assert customers(week, ["a", "a"], np.array([0.25, 0.25])) == 0.5
        assert customers("more", ["a"], np.array([0.25])) == 0
        people = ["b", "b", None, 2.5, True, float("nan")]
        assert customers("long", people, np.full(6, 3.0)) == pytest.approx(1)
        rows = np.array([[0.0, 4.0], [3.0, 0.0]])
        sums = customers("rows", ["c", "c"], rows, norm=5, sigma=5 * SIGMA)
    assert sums == pytest.approx([3, 4])


def test_the_noise_is_the_declared_one(folder):
    """And it is drawn: the journal names OpenDP."""
    sums = [customers(week, [], sigma=1) for week in range(40)]
    assert 0.4 < np.std(sums) < 2  # beyond seven standard errors
    assert {e.body["noise"] for e in journal() if e.kind == "settle"} == {"opendp"}


# What goes wrong


@pytest.mark.promise("lost-store")
def test_a_kill_behind_the_charge_keeps_it(folder):
    """What was paid stays paid, and the run goes on under the same key."""
    with no_noise():
        assert customers(0, ["a"]) == 1
        for _ in range(2):
            child = os.fork()
            if child == 0:
                forget_projects()
                person_sums.add_noise = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
                customers(1, ["a"])
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert customers(1, ["a"]) == 1
        assert customers(2, ["a"]) == 0


def test_a_body_that_charges_no_people_is_refused(folder):
    """It would be a step for free."""
    step = guarded(dataset="shop", cost=PersonBudgets(), release_key="free")
    with pytest.raises(ReleaseError, match="person_sum"):
        step(lambda: 3.0)()


def test_another_filter_share_or_partition_is_refused_before(tmp_path, monkeypatch):
    """No charge is made."""
    shared = "flows: {report: {epsilon: 0.5, delta: 1e-7}}\ndata_version:"
    divided = "customer-week\npartition: {by: week}\n"
    for old, new, message in (
        ("{theorem: individual, measure: gdp}", "gdp", "filter: gdp"),
        ("data_version:", shared, "share of its own"),
        ("customer\n", divided, "divided"),
    ):
        (tmp_path / message).mkdir()
        make_project(tmp_path / message, monkeypatch, POLICY.replace(old, new))
        words = {"partitions": ["2026-W01"]} if new == divided else {}
        step = guarded(dataset="shop", cost=PersonBudgets(), flow="report", **words)
        with pytest.raises(ConfigurationError, match=message):
            step(lambda: float(person_sum(["a"], sigma=1)))()
        assert journal() == []
        forget_projects()
