"""A year of reports: others are refused at its reserved share."""

from __future__ import annotations

from functools import reduce
from operator import add

from dpflow.accounting import make_filter
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.policy import load_policies
from dpflow.policy.planned_noise import plan_multiplier
from flows.year_of_reports import DATASET, PLANNED, QUESTION, WEEKS, WORST
from tests.projects import ROOT

POLICY = load_policies(ROOT / "policies").policy_for(DATASET)


def test_the_policy_is_short_and_its_runs_are_the_flows() -> None:
    """At most 25 lines; 52 runs of the flow's own steps fit the share, and no 53rd."""
    text = (ROOT / "policies" / "cdnow-year.yaml").read_text("utf-8")
    assert len(text.splitlines()) <= 25
    pinned = POLICY.to_pinned()
    assert isinstance(PLANNED, PlannedNoise)
    most = plan_multiplier(pinned, "year-report", "revenue", PLANNED)
    rule = make_filter(**pinned["flows"]["year-report"]["filter"])
    run = reduce(add, map(rule.price, (PLANNED.at(most), WORST)))
    assert rule.admits(run.times(WEEKS))
    assert not rule.admits(run.times(WEEKS + 1))


def test_questions_end_and_the_report_goes_on() -> None:
    """The rest holds some of them, fewer than there are weeks."""
    pinned = POLICY.to_pinned()
    price = make_filter(**pinned["filter"]).price(QUESTION)
    (rest,) = pinned["others"]["thresholds"]
    assert 5 <= rest // price.amounts[0] < WEEKS // 2
