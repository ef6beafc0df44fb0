"""A year of reports: what is kept for it is what others are refused for."""

from __future__ import annotations

from fractions import Fraction

from dpflow.accounting import make_filter
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.accounting.rules.tally import Tally
from dpflow.policy import load_policies
from dpflow.policy.kept_runs import holds_of
from dpflow.policy.planned_noise import planned_multiplier
from flows.year_of_reports import DATASET, PLANNED, QUESTION, WEEKS, WORST
from tests.projects import ROOT

POLICY = load_policies(ROOT / "policies").policy_for(DATASET)


def test_the_policy_is_short_and_its_runs_are_the_flows() -> None:
    """At most 25 lines; what is kept for a run is what the flow's steps declare."""
    text = (ROOT / "policies" / "cdnow-year.yaml").read_text("utf-8")
    assert len(text.splitlines()) <= 25
    pinned = POLICY.pinned()
    assert isinstance(PLANNED, PlannedNoise)
    most = planned_multiplier(pinned, "year-report", "revenue", PLANNED)
    rule = make_filter(**pinned["filter"])
    run, runs = holds_of(pinned)["year-report"]
    steps = (PLANNED.at(most), WORST)
    assert run.amounts == tuple(
        map(sum, zip(*(rule.price(cost).amounts for cost in steps), strict=True))
    )
    assert runs == WEEKS


def test_questions_end_and_the_report_goes_on() -> None:
    """The rest holds some of them, fewer than there are weeks."""
    pinned = POLICY.pinned()
    rule = make_filter(**pinned["filter"])
    run, runs = holds_of(pinned)["year-report"]
    used = Tally(tuple(runs * amount for amount in run.amounts))
    assert rule.admits(used)
    answered = 0
    while rule.admits(used + rule.price(QUESTION)):
        used, answered = used + rule.price(QUESTION), answered + 1
    assert 5 <= answered < WEEKS // 2
    assert isinstance(QUESTION, Gaussian)
    assert QUESTION.sensitivity == Fraction(1)
