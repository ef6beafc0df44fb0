"""Planned noise: what the term pins is charged, drawn and journaled."""

from __future__ import annotations

import pytest

from dpflow import Gaussian, guarded, release
from dpflow.exceptions import BudgetRefused, ConfigurationError
from tests.projects import kinds, make_project, rewrite_policy

POLICY = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 1, delta: 1e-6}
filter: gdp
flows:
  weekly: {plan: {runs: 3, steps: {revenue: 2, customers: 1}}}
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return the folder of a project whose one flow plans three runs."""
    return make_project(tmp_path, monkeypatch, POLICY)


def step(name="revenue", sensitivity=100, flow="weekly", **said):
    """Return a step with planned noise."""
    said = said or {"fresh": True}

    def body(week):
        return release(0.0)

    cost = Gaussian(sensitivity=sensitivity, noise="planned")
    return guarded(dataset="shop", cost=cost, flow=flow, name=name, **said)(body)


def test_three_planned_runs_fit_and_the_fourth_does_not(shop):
    """Whatever the sensitivity of a step, the ledger admits what was planned."""
    run = [step(), step("customers", sensitivity=1)]
    for week in range(3):
        for each in run:
            each(week)
    refused = 0
    for each in run:
        try:
            each(3)
        except BudgetRefused:
            refused += 1
    assert refused > 0


def test_a_step_without_a_plan_is_refused_and_nothing_is_written(shop):
    """Nobody guesses a noise."""
    for unplanned in (step("profit"), step(flow=None)):
        with pytest.raises(ConfigurationError, match="plans no noise for it"):
            unplanned(1)
    assert kinds() == []


@pytest.mark.parametrize(("sigma", "warned"), [(90, True), (100, False), (110, False)])
def test_a_step_above_its_planned_cost_is_logged_and_runs(shop, caplog, sigma, warned):
    """The bound is for planning; the filter decides."""
    bound = "{cost: 'Gaussian(sensitivity=1, sigma=100)'}"
    rewrite_policy(shop, "customers: 1", f"customers: {bound}")

    @guarded(
        dataset="shop",
        cost=Gaussian(sensitivity=1, sigma=sigma),
        flow="weekly",
        name="customers",
        fresh=True,
    )
    def customers():
        return release(0.0)

    customers()
    assert kinds() == ["reserve", "settle"]
    assert ("more than the plan of flow 'weekly'" in caplog.text) is warned
