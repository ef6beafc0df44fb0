"""`dpflow status`, `why` and `forecast`: states of flows, refusals, what would fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.base import _KINDS, cost_from_description
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from tests.cli.support import CDNOW, Shop, run, run_fine, run_json


def test_a_mechanism_of_someone_elses_hides_nothing(shop: Shop) -> None:
    """Runs left need tallies only, no class that this process lacks."""

    class Elsewhere(PureDP):
        """A cost that only the flow's own code knows."""

    shop.charge(Elsewhere(epsilon="0.1"), dataset="adult", flow=None)
    _KINDS.pop("Elsewhere")
    (outlook,) = run_json("status", "adult")["datasets"][0]["outlooks"]
    assert outlook["runs_left"] == 9
    run_fine("policy", "check")


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
        (width,) = row["widths"]
        assert type(width) is float, "a number, not hundreds of digits"
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


@pytest.mark.parametrize(
    "words",
    [
        *("status", "status new", "why new", "history new", "forecast new"),
        *("status --next 3", "history", "forecast"),
        *("freeze new --reason x", "plot burndown new --out x.png"),
    ],
)
def test_a_file_that_cannot_be_read_is_not_a_file_that_is_not_there(
    empty: Shop, words: str
) -> None:
    """Who asks is told of the file, not that nothing knows the dataset."""
    assert run("ledger", "init").exit_code == 0
    empty.write("dataset: new\nunit: [\n", "new.yaml")
    result = run(*words.split())
    shown = result.stdout + result.stderr
    assert "new.yaml" in shown
    assert "policy check" in shown
    for false in ("No policies yet", "neither", "no policy governs"):
        assert false not in shown


def test_a_raised_share_ends_what_the_lower_one_stopped(empty: Shop) -> None:
    """The next answer counts with the share as it is now."""
    text = "dataset: a\nunit: u\nrelation: add-or-remove\nbudget: {epsilon: 1}\n"
    text += "filter: basic\nflows: {w: {share: SHARE}}\n"
    assert run("ledger", "init").exit_code == 0
    for share, word in (("20%", "no whole run fits"), ("60%", "running")):
        empty.write(text.replace("SHARE", share), "a.yaml")
        run_fine("policy", "apply", "a", "--reason", "more")
        if share == "20%":
            cost = PureDP(epsilon="0.2")
            empty.charge(cost, dataset="a", flow="w", step="s")
            empty.refuse(cost, dataset="a", flow="w", step="s")
        (flow,) = run_json("status", "a")["datasets"][0]["overview"]["flows"]
        assert flow["state"]["word"] == word
