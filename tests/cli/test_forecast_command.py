"""`dpflow forecast` says what would fit, before anything runs."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.costs.noise import Gaussian
from tests.cli.support import Shop, run, run_fine, run_json

WEEKLY = "Gaussian(sensitivity=100, sigma=1000)"


def counted(sigma: int, epsilon: str, delta: str) -> int:
    """Count Gaussians step by step, as a filter decides them."""
    rule = make_filter("gdp", epsilon=epsilon, delta=delta)
    price = rule.price(Gaussian(sensitivity=100, sigma=sigma))
    total, count = rule.zero(), 0
    while rule.admits(total + price):
        total, count = total + price, count + 1
    return count


def test_other_noise_has_other_counts_and_intervals(shop: Shop) -> None:
    """Each row is what a forecast of that noise would say."""
    rows = run_json("forecast", "cdnow", "--cost", WEEKLY)["rows"]
    assert [row["factor"] for row in rows] == ["0.5", "0.75", "1", "1.5", "2", "3", "4"]
    for row in rows:
        sigma = int(1000 * float(row["factor"]))
        assert row["runs_left"] == counted(sigma, "2", "5e-7")
        (width,) = map(float, row["widths"])
        assert width == pytest.approx(1.959964 * sigma, rel=1e-5)


def test_the_noise_for_a_number_of_runs_lets_them_fit_and_no_more(shop: Shop) -> None:
    """With the factor that it prints the runs fit; with a little less they do not."""
    asked = ("forecast", "cdnow", "--cost", WEEKLY, "--runs")
    found = run_json(*asked, "40")["enough"]
    (step,) = found["workload"]
    cost = cost_from_description(step["cost"])
    assert counted(cost.sigma, "2", "5e-7") == 40
    assert counted(cost.sigma * 999 / 1000, "2", "5e-7") < 40
    assert "40 runs fit with" in run_fine(*asked, "40")


PLANNED = """\
dataset: planned
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
flows:
  weekly: {plan: {runs: 22, steps: {count: 1, revenue: 2}}}
"""


def test_a_plan_needs_no_cost(shop: Shop) -> None:
    """All planned runs fit; `status` says so of a flow that has not run."""
    shop.write(PLANNED, "planned.yaml")
    asked = ("forecast", "planned", "--flow", "weekly")
    assert run_json(*asked)["outlook"]["runs_left"] == 22
    assert run_json("forecast", "planned")["outlook"]["runs_left"] == 22
    run_fine("policy", "apply", "planned")
    assert "not started, 22 of 22 runs remain" in run_fine("status", "planned")
    assert "no run of the flow" in run("forecast", "cdnow").stderr
