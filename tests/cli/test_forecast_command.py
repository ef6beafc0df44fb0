"""`dpflow forecast` says what would fit, before anything runs."""

from __future__ import annotations

import pytest

from dpflow.accounting import make_filter
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.text import cost_from_text
from dpflow.accounting.costs.top_k import TopK
from dpflow.exceptions import BudgetRefused
from dpflow.forecast.counting import WorkloadStep, runs_of
from tests.cli.support import CDNOW, Shop, run, run_fine, run_json, run_terminal
from tests.cli.support import without_colour as plain

SAMPLED = "PoissonSampledGaussian(sampling_rate=0.01, noise_multiplier=1)"
WEEKLY = "Gaussian(sensitivity=100, sigma=1000)"


def counted(sigma: int, epsilon: str, delta: str) -> int:
    """Count Gaussians step by step, as a filter decides them."""
    rule = make_filter("gdp", epsilon=epsilon, delta=delta)
    price = rule.price(Gaussian(sensitivity=100, sigma=sigma))
    total, count = rule.zero(), 0
    while rule.admits(total + price):
        total, count = total + price, count + 1
    return count


def test_the_count_is_what_the_ledger_then_grants(shop: Shop) -> None:
    """From what was charged so far, until the share refuses."""
    shop.charge()
    told = run_json("forecast", "cdnow", "--cost", WEEKLY)["outlook"]["runs_left"]
    granted = 0
    while True:
        try:
            shop.charge()
        except BudgetRefused:
            break
        granted += 1
    assert told == granted == counted(1000, "2", "5e-7") - 1


def test_a_schedule_has_a_date(shop: Shop) -> None:
    """The day of the first run that is refused."""
    arguments = ("cdnow", "--cost", WEEKLY, "--every", "week", "--from", "2026-01-05")
    data = run_json("forecast", *arguments)
    outlook = data["outlook"]
    assert (outlook["runs_left"], outlook["exhausted_on"]) == (18, "2026-05-11")
    assert (outlook["every"], outlook["every_from"]) == ("7 days", "given")
    assert outlook["limited_by"] == "share of weekly-report"
    assert data["points"][0]["date"] == "2026-01-05"
    text = run_fine("forecast", *arguments)
    assert "18 runs fit. The share of weekly-report refuses the next one, on " in text
    assert "2026-05-11 at one every 7 days." in text


def test_the_largest_groups_need_so_many_people(shop: Shop) -> None:
    """The margin is made of declared numbers alone, so a plan can say it."""
    cost = TopK(epsilon="0.3", delta="1e-8", most=5)
    shop.write(CDNOW.split("odometer")[0].replace("gdp", "output-dp"))
    text = " ".join(
        run_fine(
            "forecast", "cdnow", "--from-full-budget", "--cost", repr(cost)
        ).split()
    )
    assert f"even odds with a margin of {cost.margin} people" in text


def test_other_noise_has_other_counts_and_intervals(shop: Shop) -> None:
    """Each row is what a forecast of that noise would say."""
    rows = run_json("forecast", "cdnow", "--cost", WEEKLY)["noise"]
    assert [row["factor"] for row in rows] == [0.5, 0.75, 1, 1.5, 2, 3, 4]
    for row in rows:
        sigma = int(1000 * row["factor"])
        assert row["runs_left"] == counted(sigma, "2", "5e-7")
        assert row["half_widths"] == [pytest.approx(1.959964 * sigma, rel=1e-5)]


def test_every_theorem_is_asked_with_a_whole_budget(shop: Shop) -> None:
    """Only on request; the policy's own theorem counts as in `policy check`."""
    arguments = ("forecast", "cdnow", "--cost", WEEKLY)
    assert run_json(*arguments)["theorems"] == []
    assert "Under each theorem" not in run_fine(*arguments)
    data = run_json(*arguments, "--theorems")
    theorems = {each["theorem"]: each for each in data["theorems"]}
    assert theorems["gdp"]["runs"] == counted(1000, "3", "1e-6")
    assert theorems["rdp"]["runs"] < theorems["gdp"]["runs"]
    assert theorems["sequence"]["runs"] >= theorems["gdp"]["runs"]
    assert theorems["basic"]["priced"] is False
    text = run_fine(*arguments, "--theorems")
    without = sorted(name for name, each in theorems.items() if not each["priced"])
    line = f"Without a price for it: {', '.join(without)}. --json says why."
    assert line in " ".join(text.split())
    rows = [row.split()[0] for row in text.splitlines() if row.strip()]
    assert not set(without) & set(rows)
    assert "the policy's" in text


def test_orders_are_tried_for_sampled_steps(shop: Shop) -> None:
    """The best one has a row of its own, beside the default order."""
    text = CDNOW.replace("gdp", "rdp").replace(
        "weekly-report: {epsilon: 2, delta: 5e-7,", "f: {"
    )
    shop.write(text)
    arguments = ("forecast", "cdnow", "--theorems", "--cost", SAMPLED)
    fits = {
        each["order"]: each["runs"]
        for each in run_json(*arguments)["theorems"]
        if each["theorem"] == "rdp"
    }
    best = max(order for order in fits if order is not None)
    assert len(fits) == 2
    assert fits[best] >= fits[None]
    assert f"rdp, order {best}" in run_fine(*arguments)


def test_the_policys_own_options_count(shop: Shop) -> None:
    """A filter of another order admits another number."""
    text = CDNOW.replace("gdp", "{theorem: rdp, order: 40}")
    shop.write(text.replace("weekly-report: {epsilon: 2, delta: 5e-7,", "f: {"))
    data = run_json("forecast", "cdnow", "--theorems", "--cost", WEEKLY)
    runs = {each["theorem"]: each["runs"] for each in data["theorems"]}
    rule = make_filter("rdp", epsilon=3, delta="1e-6", order=40)
    tuned = make_filter("rdp", epsilon=3, delta="1e-6")
    step = (WorkloadStep(cost_from_text(WEEKLY)),)
    assert runs["rdp"] == runs_of(rule, step) < runs_of(tuned, step)


def test_like_takes_the_last_run_of_a_flow(shop: Shop) -> None:
    """It needs no dataset, for the flow's own is known."""
    for week in range(2, 7):
        shop.charge(key=f"revenue/2026-W0{week}")
    data = run_json("forecast", "--like", "weekly-report")
    status = run_json("status", "cdnow")["datasets"][0]["outlooks"][0]
    assert data["dataset"] == "cdnow"
    assert data["outlook"] == status
    assert data["workload"] == [
        {"cost": "Gaussian(sensitivity=100, sigma=1000)", "times": 1, "outcome": None}
    ]
    assert status["every_from"] == "release keys"
    assert "as its release keys tell" in run_fine("forecast", "--like", "weekly-report")


def test_a_first_day_needs_a_known_interval(shop: Shop) -> None:
    """Two keys tell none, and a date is not ignored in silence."""
    shop.charge(key="revenue/2026-W05")
    shop.charge(key="revenue/2026-W06")
    arguments = ("forecast", "--like", "weekly-report", "--from", "2026-03-02")
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--from needs --every INTERVAL" in result.stderr
    assert "2026" in run_fine(*arguments, "--every", "week")


def test_a_forecast_starts_from_a_full_budget(shop: Shop) -> None:
    """As a new term would."""
    shop.charge()
    now = run_json("forecast", "--like", "weekly-report")
    fresh = run_json("forecast", "--like", "weekly-report", "--from-full-budget")
    assert fresh["outlook"]["runs_left"] == now["outlook"]["runs_left"] + 1
    assert fresh["starts_from"] == "A full budget, as asked."


def test_a_flow_that_the_policy_keeps_out_is_a_mistake(shop: Shop) -> None:
    """A typing error is told with the name that was meant, and no table of zeros."""
    result = run("forecast", "cdnow", "--cost", WEEKLY, "--flow", "weekly")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "does not let the flow 'weekly' in" in result.stderr
    assert "Did you mean 'weekly-report'? Known: weekly-report." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "--cost COST"),
        (("--cost", WEEKLY, "--like", "x"), 2, "either"),
        (("cdnow", "--cost", WEEKLY, "--from", "2026-01-05"), 2, "--every"),
        (("--cost", WEEKLY), 1, "adult, cdnow"),
        (("nowhere", "--cost", WEEKLY), 1, "nowhere"),
        (("cdnow", "--cost", "Gausian(sigma=1)"), 1, "unknown mechanism"),
        (("cdnow", "--cost", "PureDP(epsilon=-1)"), 1, "-1"),
        (("cdnow", "--cost", WEEKLY, "--every", "blue moon"), 2, "no interval"),
        (
            ("cdnow", "--cost", WEEKLY, "--every", "day", "--from", "soon"),
            2,
            "2026-01-05",
        ),
        (("--like", "weekly-report"), 1, "Run it once, or describe it with --cost."),
        (("adult", "--cost", WEEKLY), 1, "no sound price"),
        (("adult", "--cost", SAMPLED), 1, "adult' says replace-one"),
    ],
)
def test_wrong_questions_get_clear_answers(
    shop: Shop, arguments: tuple[str, ...], code: int, told: str
) -> None:
    """Naming what was wrong, and what would be right."""
    result = run("forecast", *arguments)
    assert result.exit_code == code
    assert told in plain(result.stderr).replace("\n", " ")


def test_it_fits_eighty_columns(shop: Shop) -> None:
    """Nothing is cut in a terminal."""
    arguments = ("forecast", "cdnow", "--theorems", "--cost", WEEKLY)
    text = run_terminal(*arguments, columns=80)
    lines = [plain(line) for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert any("auto" in line for line in lines)


def test_an_answer_without_end_is_said(empty: Shop) -> None:
    """Where each week has a budget of its own."""
    empty.write(
        "dataset: weeks\nunit: user-week\nrelation: add-or-remove\n"
        "budget: {epsilon: 1}\nfilter: basic\npartition: {by: week}\n"
    )
    text = run_fine("forecast", "--theorems", "--cost", "PureDP(epsilon=0.1)")
    assert "There is no end to the runs that fit" in text
    assert "with the whole budget of one partition:" in text


def test_the_noise_for_so_many_runs_lets_them_fit_and_no_more(shop: Shop) -> None:
    """With the factor that it prints the runs fit; with a little less they do not."""
    asked = ("forecast", "cdnow", "--cost", WEEKLY, "--runs")
    found = run_json(*asked, "40")["enough_noise"]
    (step,) = found["workload"]
    cost = cost_from_text(step["cost"])
    assert counted(cost.sigma, "2", "5e-7") == 40
    assert counted(cost.sigma * 999 / 1000, "2", "5e-7") < 40
    assert "40 runs fit with" in run_fine(*asked, "40")
