"""`dpflow status`, `why` and `forecast`: states of flows, refusals, what would fit."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import _KINDS, cost_from_description
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from tests.cli.support import CDNOW, STEP, Shop, run, run_fine, run_json


def newest(dataset: str = "cdnow") -> dict:
    """Return what `dpflow status --json` says of a dataset's newest term."""
    (status,) = run_json("status", dataset)["datasets"]
    return status


def word(dataset: str = "cdnow") -> str:
    """Return the state of a dataset in one word."""
    return newest(dataset)["overview"]["state"]["word"]


def test_an_undefined_reading_is_null_in_json(shop: Shop) -> None:
    """JSON has no infinity."""
    shop.write(
        CDNOW.replace("gdp", "{theorem: zcdp, delta_loss: 5e-7}").replace(
            "delta: 5e-7, halt_at_epsilon: 3", "delta: 6e-7"
        )
    )
    shop.charge(ApproxDP(epsilon="0.1", delta="1e-9"))
    assert "infinity" in run_fine("status", "--details")
    views = newest()["standing"]["accounts"]
    assert [v["reading"] for v in views if v["kind"] == "odometer"] == [None]


def test_a_mechanism_of_someone_elses_hides_nothing(shop: Shop) -> None:
    """Runs left need tallies only, no class that this process lacks."""

    class Elsewhere(PureDP):
        """A cost that only the flow's own code knows."""

    shop.charge(Elsewhere(epsilon="0.1"), dataset="adult", flow=None)
    _KINDS.pop("Elsewhere")
    (outlook,) = run_json("status", "adult")["datasets"][0]["outlooks"]
    assert outlook["runs_left"] == 9
    run_fine("policy", "check")


def test_a_new_term_answers_what_the_former_one_refused(shop: Shop) -> None:
    """The status is that of the newest term."""
    shop.write(CDNOW + "lifetime: {epsilon: 9, delta: 1e-5}\n")
    for _ in range(18):
        shop.charge()
    shop.refuse(STEP)
    assert word() == "no whole run fits"
    run_fine("policy", "apply", "cdnow", "--new-term", "--reason", "a new year")
    assert newest()["standing"]["term"] == 2
    assert word() == "not started"
    shop.charge()
    assert word() == "running"


def test_a_charge_by_hand_above_the_budget_overdraws_it(shop: Shop) -> None:
    """The state of the dataset says so."""
    shop.charge(PureDP(epsilon="0.1"), dataset="adult", flow=None)
    reservation = run_json("history", "adult")["entries"][0]["reservation"]
    amend = ("--cost", "PureDP(epsilon=2)", "--reason", "a wrong sensitivity")
    assert (
        run("ledger", "charge", "adult", "--charge", reservation, *amend).exit_code == 0
    )
    assert word("adult") == "overdrawn"


TOO_MUCH = Gaussian(sensitivity=100, noise_multiplier="0.1")


def test_refusals_of_each_gate_are_counted_once(shop: Shop) -> None:
    """By the dataset, a share, or an odometer, which journals others' refusals too."""
    flows = "  plain: {}\n  halting: {halt_at_epsilon: 1.5}\n  weekly-report"
    shop.write(CDNOW.replace("  weekly-report", flows))
    shop.refuse(TOO_MUCH, flow="plain")
    shop.refuse(Gaussian(sensitivity=1, noise_multiplier=2))
    for _ in range(2):
        shop.refuse(Gaussian(sensitivity=1, noise_multiplier=3), flow="halting")
    refusals = run_json("why", "cdnow")["refused"]
    times = [(each["newest"]["account"], each["times"]) for each in refusals]
    assert sorted(times) == [
        ("cdnow#1", 1),
        ("cdnow#1/flow/weekly-report", 1),
        ("cdnow#1/odometer/halting", 2),
    ]


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
    command = ("forecast", "cdnow", "--cost", WEEKLY, "--runs")
    answer = run_json(*command, "40")["enough"]
    (step,) = answer["workload"]
    cost = cost_from_description(step["cost"])
    assert counted(cost.sigma, "2", "5e-7") == 40
    assert counted(cost.sigma * 999 / 1000, "2", "5e-7") < 40
    assert "40 runs fit with" in run_fine(*command, "40")


def test_a_shell_stops_if_too_few_runs_fit(shop: Shop) -> None:
    """Exit code 1 only below the number; without end, all numbers fit."""
    fit = counted(1000, "2", "5e-7")
    command = ("forecast", "cdnow", "--cost", WEEKLY, "--at-least")
    assert f"{fit} runs fit." in run_fine(*command, str(fit))
    for more in ((), ("--json",)):
        refused = run(*command, str(fit + 1), *more)
        assert refused.exit_code == 1
        assert (f"Fewer than {fit + 1} runs fit." in refused.stdout) == (not more)
    assert json.loads(refused.stdout)["outlook"]["runs_left"] == fit
    assert run(*command, "-1").exit_code == 2
    free = ("forecast", "adult", "--cost", "PureDP(epsilon=0.1)", "--at-least")
    assert run(*free, "10").exit_code == 0
    assert run(*free, "11").exit_code == 1


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
    command = ("forecast", "planned", "--flow", "weekly")
    assert run_json(*command)["outlook"]["runs_left"] == 22
    assert run_json("forecast", "planned")["outlook"]["runs_left"] == 22
    run_fine("policy", "apply", "planned")
    assert "not started, 22 of 22 runs remain" in run_fine("status", "planned")
    assert "no run of the flow" in run("forecast", "cdnow").stderr


def test_a_forecast_needs_no_flow_either(shop: Shop) -> None:
    """Without a plan a run is like the last ones, a forecast for each flow."""
    shop.write(CDNOW.replace("flows:", "other_flows: allow\nflows:"))
    shop.charge(flow="weekly-report")
    shop.charge(flow="weekly-report")
    assert run_json("forecast", "cdnow")["outlook"]["flow"] == "weekly-report"
    shop.charge(flow=None)
    shop.charge(flow="monthly", cost=Gaussian(sensitivity=1, noise_multiplier=5))
    ahead = run_json("status", "cdnow")["datasets"][0]["outlooks"]
    counts = {each["flow"]: each["runs_left"] for each in ahead}
    records = run_json("forecast", "cdnow")["forecasts"]
    found = {each["outlook"]["flow"]: each["outlook"]["runs_left"] for each in records}
    assert found == counts
    assert set(counts) == {None, "monthly", "weekly-report"}
    text = run_fine("forecast", "cdnow")
    assert text.count("With other noise:") == 3
    command = ("forecast", "cdnow", "--at-least")
    assert run(*command, str(min(counts.values()))).exit_code == 0
    assert run(*command, str(min(counts.values()) + 1)).exit_code == 1


def test_gauges_of_parts_are_few_and_differ_in_their_labels(shop: Shop) -> None:
    """Prometheus refuses two samples with equal labels."""
    policy = CDNOW.replace("cdnow", "divided").replace("customer", "customer-week")
    shop.write(f"{policy}partition: {{by: week}}\n", "divided.yaml")
    for week in range(10, 36):
        shop.charge(dataset="divided", partitions=(f"2026-W{week}",))
    page = run_fine("status", "divided", "--format", "prometheus")
    samples = [line.split(" ")[0] for line in page.splitlines() if line[0] != "#"]
    assert len(set(samples)) == len(samples) < 60
    assert any('name="weekly-report",part="2026-W35"' in each for each in samples)


def test_gauges_say_that_the_disk_is_low_or_the_witness_out_of_reach(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk below ten times the least; the witness missing."""

    def gauges() -> dict[str, str]:
        page = run("status", "--format", "prometheus").stdout
        lines = [line.split() for line in page.splitlines() if line[0] != "#"]
        names = ("dpflow_disk_low", "dpflow_witness_problem")
        return {name: v for label, v in lines if (name := label.split("{")[0]) in names}

    shop.charge()
    usage, least = shutil.disk_usage(shop.root), 16 * 2**20
    for free, low in ((10 * least, "0"), (10 * least - 1, "1")):
        here = usage._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, here=here: here)
        assert gauges() == {"dpflow_disk_low": low, "dpflow_witness_problem": "0"}
    name = f"{run_json('status')['ledger']}*"
    (witness,) = Path(os.environ["XDG_STATE_HOME"]).rglob(name)
    witness.unlink()
    assert gauges()["dpflow_witness_problem"] == "1"


def test_a_forecast_names_the_step_of_each_interval(shop: Shop) -> None:
    """A column for each step of the run, in the order of the list above."""
    costs = ("Laplace(sensitivity=1, scale=20)", "Laplace(sensitivity=1, scale=60)")
    options = [word for cost in costs for word in ("--cost", cost)]
    text = run_fine("forecast", "adult", *options)
    assert "95 % within +-: step 1  95 % within +-: step 2\n" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("x 1 ")]
    assert row[-2:] == ["60", "180"]


def test_decisions_say_what_kind_of_change_was_made(shop: Shop) -> None:
    """An edit of the description tightens nothing."""
    shop.charge()
    shop.write(f"{CDNOW}about: {{data_curators: Shop}}\n")
    run_fine("policy", "apply", "cdnow", "--reason", "the name of the curator")
    decisions = run_fine("history", "cdnow", "--decisions")
    assert "description changed" in decisions
    assert "tightened" not in decisions
