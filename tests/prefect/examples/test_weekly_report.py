"""The weekly and the sparse report on real data; `dpflow demo`."""

from __future__ import annotations

import json
import re
import shutil
from fractions import Fraction

import pytest

from dpflow import load_policy
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger.views import accounts, history
from dpflow.rounding import number_from_text
from flows import data, sparse_report, weekly_report
from tests.pages import run_forked
from tests.projects import ROOT, journal

#: 3 weeks of mu**2 = 1/21**2 + 1/13**2 + 1/17**2 leave half a week of epsilon 0.85.
SMALL = "budget: {epsilon: 0.85, delta: 1e-6}"


@pytest.fixture
def small(examples):
    """Return the folder of the examples, at a smaller budget."""
    policy = examples / "policies" / "cdnow.yaml"
    text = policy.read_text("utf-8")
    text = re.sub(r"^budget: .*$", SMALL, text, count=1, flags=re.MULTILINE)
    policy.write_text(text, "utf-8")
    return examples


async def test_weeks_are_published_until_one_is_refused(small, monkeypatch):
    """Three weeks fit; the fourth publishes nothing; a second pass spends nothing."""
    weeks, reads, read = data.weeks(), [], data.purchases
    monkeypatch.setattr(
        data, "purchases", lambda week: reads.append(week) or read(week)
    )
    weekly_report._read.cache_clear()
    season = await weekly_report.run_weeks(weeks)
    assert season.published == tuple(weeks[:3])
    assert season.halted == weeks[3]
    assert season.refusal.details["asked"]["mu_squared"] > "0"
    assert "partial=True" in season.refusal.fits
    reports = {path.name: path.read_bytes() for path in (small / "reports").iterdir()}
    assert sorted(reports) == [f"{week}.json" for week in weeks[:3]]
    # The three steps of a week share one read, and a refused or replayed one has none.
    assert reads == weeks[:3]

    before = journal("cdnow")
    again = await weekly_report.run_weeks(weeks)
    assert (again.published, again.halted) == (season.published, season.halted)
    assert reads == weeks[:3]
    assert {entry.kind for entry in journal("cdnow")[len(before) :]} == {"refuse"}
    assert reports == {p.name: p.read_bytes() for p in (small / "reports").iterdir()}


@pytest.mark.slow
def test_the_demo_shows_everything_and_again_spends_nothing(small, forked):
    """Guarantee, typo, forfeit, values, halt; the second run charges nothing."""

    def demo(*words):
        wide = {"NO_COLOR": "1", "COLUMNS": "100"}
        done = run_forked(forked, small, "-m", "dpflow", "demo", *words, **wide)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shutil.copytree(ROOT / "flows", small / "flows")
    text = " ".join(re.sub(r"[│╭╮╰╯─┃]", " ", demo()).split())
    for shown in (
        "Every customer (add-or-remove)",
        "epsilon = 0.85, delta = 1e-06",
        "if every declared sensitivity is right",
        "A mistyped sigma is refused, uncharged",
        "forfeited mu_squared 0.002268",
        "(true: ",
        "Week 1997-W04 was refused",
        "it needs mu_squared",
        "Remaining: mu_squared",
        "3 weeks were published",
    ):
        assert shown in text, shown
    assert (small / "reports" / "burn-down.png").is_file()
    before = len(journal("cdnow"))
    forget_projects()
    record = json.loads(demo("--json"))
    assert record["published"] == ["1997-W01", "1997-W02", "1997-W03"]
    assert record["halted"] == "1997-W04"
    assert "it needs mu_squared" in record["refusal"]
    assert record["forfeited"] == "mu_squared 0.002268"
    assert {entry.kind for entry in journal("cdnow")[before:]} <= {"refuse"}


def test_the_policy_fits_between_thirty_and_forty_weeks():
    """The shipped budget halts the report in the demo, not before and not never."""
    policy = load_policy(ROOT / "policies" / "cdnow.yaml")
    rule = policy.dataset_filter()
    steps = (weekly_report.CUSTOMERS, weekly_report.REVENUE, weekly_report.BASKETS)
    week = sum(rule.price(cost).amounts[0] for cost in steps)
    assert 30 <= rule.limit.amounts[0] // week <= 40
    odometer = policy.flow_odometer("weekly-report")
    tally = odometer.zero()
    for cost in steps * 36:
        tally += odometer.price(cost)
    assert odometer.read(tally) <= policy.flows["weekly-report"].halt_at_epsilon


#: Expected deviations by quadrature, computed apart from this project.
EXPECTED = {0: 0.2619, 1: 1.778094, 5: 8.669876, 10: 19.733073, 20: 56.408513}


def test_figure_1_has_the_exact_expectations() -> None:
    """At the split 1 : 40^(2/3) of the paper."""
    cost = sparse_report.FIGURE
    assert float(cost.threshold_scale) == pytest.approx(25.392141905702925, rel=1e-9)
    assert float(cost.answer_scale) == pytest.approx(86.8399037867068, rel=1e-9)
    for large, expected in EXPECTED.items():
        assert sparse_report.expected_deviation(large) == pytest.approx(
            expected, abs=2e-6
        )


def test_busy_weeks_cost_their_cell_and_the_rest_pays_for_counts(examples) -> None:
    """The whole budget is spent, to the ninth place; a second run spends nothing."""
    report = sparse_report.sparse_report()
    weeks = data.weeks()
    # 13 weeks lie far above 1000, and the first ones did: their noise has scale 45.
    assert 5 <= len(report) <= 20
    assert set(report) <= set(weeks)
    (view,) = accounts(current_project().ledger, "cdnow-weeks")[:1]
    spent = number_from_text(view.spent["epsilon"])
    assert 1 - Fraction(1, 10**9) < spent <= 1
    before = len(history(current_project().ledger, limit=1000))
    assert sparse_report.sparse_report() == report
    assert len(history(current_project().ledger, limit=1000)) == before
