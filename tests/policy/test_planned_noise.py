"""From the budget to the noise: all runs fit, and not one more."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from pydantic import ValidationError

from dpflow import Gaussian, Laplace
from dpflow.accounting import make_filter
from dpflow.exceptions import InvalidCost
from dpflow.policy import Policy
from dpflow.policy.changes import judge
from dpflow.rounding import number_from_text
from tests.tables import read_tables

STEPS = {"revenue": 2, "active_customers": 1}


def policy(theorem="gdp", *, share=None, flows=None, **fields):
    """Return a policy that plans one flow."""
    own = dict(share or {})
    plan = {"runs": 52, "steps": STEPS, **own.pop("plan", {})}
    planned = {"plan": plan, **own}
    return Policy(
        dataset="cdnow",
        unit="customer",
        relation="add-or-remove",
        budget={"epsilon": 3, "delta": "1e-6"},
        filter=theorem,
        flows={"weekly-report": planned, **(flows or {})},
        **fields,
    )


def noise_of(pinned, flow="weekly-report"):
    """Return the multipliers that a copy plans."""
    plan = pinned["flows"][flow]["noise"]
    return {name: number_from_text(text) for name, text in plan.items()}


def runs_of(rule, noise, kind=Gaussian):
    """Count the whole runs that a filter admits, one step after the other."""
    spread = "sigma" if kind is Gaussian else "scale"
    steps = [kind(sensitivity=100, **{spread: 100 * m}) for m in noise.values()]
    tally, runs = rule.zero(), 0
    while True:
        for step in steps:
            tally = tally + rule.price(step)
            if not rule.admits(tally):
                return runs
        runs += 1


def test_all_planned_runs_fit_and_the_next_one_does_not():
    """At any sensitivity, under each theorem that prices steps alone."""
    for theorem in ("gdp", "zcdp", "rdp"):
        governed = policy(theorem)
        noise = noise_of(governed.to_pinned())
        assert runs_of(governed.dataset_filter(), noise) == 52
        less = {name: m * Fraction(999, 1000) for name, m in noise.items()}
        assert runs_of(governed.dataset_filter(), less) < 52
    # The weights are of precision, whatever else is rounded.
    noise = noise_of(policy().to_pinned())
    ratio = noise["active_customers"] / noise["revenue"]
    assert math.isclose(ratio, math.sqrt(2), rel_tol=1e-8)


def test_a_share_is_planned_for_and_two_shares_stand_side_by_side():
    """The noise is solved for the flow's own filter where that is smaller."""
    share = {"epsilon": 1, "delta": "5e-7"}
    other = {"other": {"plan": {"runs": 10, "steps": {"count": 1}}, **share}}
    governed = policy(share=share, flows=other)
    noise = noise_of(governed.to_pinned())
    assert runs_of(governed.flow_filter("weekly-report"), noise) == 52
    noise = noise_of(governed.to_pinned(), "other")
    assert runs_of(governed.flow_filter("other"), noise) == 10


def test_laplace_noise_is_planned_under_a_pure_budget():
    """Each step says its mechanism in the plan."""
    steps = {k: {"weight": v, "mechanism": "Laplace"} for k, v in STEPS.items()}
    governed = policy("basic", share={"plan": {"steps": steps}})
    noise = noise_of(governed.to_pinned())
    assert runs_of(make_filter("basic", epsilon=3, delta="1e-6"), noise, Laplace) == 52


def test_a_steps_own_cost_takes_its_part_of_each_run():
    """What remains is solved for the other steps; without others nothing is solved."""
    own = {"cost": "PureDP(epsilon=0.1)"}
    laplace = {"weight": 1, "mechanism": "Laplace"}
    plan = {"runs": 20, "steps": {"ages": laplace, "own": own}}
    noise = noise_of(policy("basic", share={"plan": plan}).to_pinned())
    assert 20 <= noise["ages"] < Fraction("20.000001")
    alone = policy("basic", share={"plan": {"runs": 30, "steps": {"own": own}}})
    assert "noise" not in alone.to_pinned()["flows"]["weekly-report"]


def test_an_odometers_halt_is_planned_for():
    """A halt below the budget asks for more noise."""
    free = noise_of(policy().to_pinned())
    halted = policy(
        odometer={"theorem": "rdp", "delta": "1e-6"}, share={"halt_at_epsilon": 1}
    )
    noise = noise_of(halted.to_pinned())
    assert noise["revenue"] > free["revenue"]
    odometer, tally = halted.flow_odometer("weekly-report"), None
    run = [odometer.price(Gaussian(sensitivity=1, sigma=m)) for m in noise.values()]
    tally = sum(run * 51, sum(run, odometer.zero()))
    assert odometer.read(tally) <= 1 < odometer.read(sum(run, tally))


def test_what_cannot_be_planned_is_refused_with_its_reason():
    """No plan is pinned that a run could not rely on.

    A problem is placed at its own flow, not at one with another plan or share.
    """
    for theorem, more, reason in read_tables(__file__)["unplanned"]:
        with pytest.raises(ValidationError, match=reason):
            policy(theorem, **more)


def test_another_plan_is_another_term_unless_the_flow_never_ran():
    """Runs are counted from an empty account."""
    old, new = (
        policy().to_declared(),
        policy(share={"plan": {"runs": 60}}).to_declared(),
    )
    verdicts = {c.field: c.verdict for c in judge(old, new)}
    assert verdicts == {"flows.weekly-report.plan.runs": "other"}
    (change,) = judge(old, new, charged_flows=())
    assert change.verdict == "neutral"


def test_planned_noise_is_no_cost_and_is_said_once():
    """No theorem can price it by mistake."""
    planned = Gaussian(sensitivity=100, noise="planned")
    assert repr(planned) == 'Gaussian(sensitivity=100, noise="planned")'
    with pytest.raises((InvalidCost, AttributeError, TypeError)):
        make_filter("gdp", epsilon=1, delta="1e-6").price(planned)
    with pytest.raises(InvalidCost, match="noise="):
        Gaussian(sensitivity=1, sigma=3, noise="planned")
    with pytest.raises(InvalidCost, match='noise="planned" needs a sensitivity'):
        Laplace(sensitivity=1, scale="planned")
