"""Theorems on a list of steps: counts, needs and readings."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from types import SimpleNamespace

import pytest

from dpflow import ApproxDP, EarlyStopping, Gaussian, PureDP
from dpflow.accounting import FILTERS, make_filter
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counting import WorkloadStep, merge, runs_of, workload_of
from dpflow.forecast.theorems import epsilon_used, fits
from tests.sizes import spread

pytestmark = pytest.mark.quick

EPSILON, DELTA = Fraction(1), Fraction(1, 10**6)
GAUSSIAN, TENTH = Gaussian(sensitivity=1, sigma=20), PureDP(epsilon="0.1")
STOPPING = EarlyStopping(PureDP(epsilon="0.01"), stops=(10, 50))
WORKLOAD = (
    WorkloadStep(GAUSSIAN, 3),
    WorkloadStep(TENTH, 2),
    WorkloadStep(STOPPING, 1, 10),
)
ADAPTIVE = sorted(set(FILTERS) - {"sequence", "individual"})


def one_by_one(rule, workload, rounds=1):
    """Count steps as a ledger decides them: reserve, then settle."""
    total, count = rule.zero(), 0
    for step in workload * rounds:
        for _ in range(step.times):
            if not rule.admits(total + rule.price(step.cost, total)):
                return count
            total = total + rule.price_realised(step.cost, step.outcome, total)
            count += 1
    return count


@pytest.mark.parametrize("epsilon", spread(["0.3", "1", "4"], 2))
@pytest.mark.parametrize("theorem", ADAPTIVE)
def test_counts_are_those_of_deciding_one_by_one(theorem, epsilon):
    """Whole rounds, with worst cases given back."""
    rule = make_filter(theorem, epsilon=epsilon, delta=DELTA)
    # The other theorems have no price of a Gaussian.
    workload = WORKLOAD[theorem in ("basic", "output-dp", "rogers") :]
    rounds = runs_of(rule, workload)
    size = sum(step.times for step in workload)
    assert one_by_one(rule, workload, rounds + 1) // size == rounds
    assert one_by_one(rule, workload, max(rounds, 1)) == size * rounds or rounds == 0


def test_theorems_without_a_price_say_why():
    """And stand at the end."""
    rows = fits((WorkloadStep(GAUSSIAN),), epsilon=EPSILON, delta=DELTA, sequence=True)
    named = {fit.theorem: fit.problem for fit in rows}
    assert "no sound price" in named["basic"]
    assert "for each person" in named["individual"]
    assert named["gdp"] == ""
    reached = [bool(fit.problem) for fit in rows]
    assert reached == sorted(reached)
    assert rows[0].theorem in ("gdp", "sequence")


def test_equal_steps_in_a_row_become_one():
    """Order matters to what is admitted, so others stay apart.

    A journaled step that reported an unknown outcome was settled in full.
    """
    tenth, gaussian = WorkloadStep(TENTH), WorkloadStep(GAUSSIAN)
    steps = [tenth, WorkloadStep(TENTH, 2), gaussian, tenth]
    assert merge(steps) == (WorkloadStep(TENTH, 3), gaussian, tenth)
    journaled = [
        SimpleNamespace(cost=STOPPING, body={"reported": outcome})
        for outcome in (10, 10, 99, None)
    ]
    expected = (WorkloadStep(STOPPING, 2, 10), WorkloadStep(STOPPING, 2))
    assert workload_of(journaled) == expected


SEQUENCES = [
    ((WorkloadStep(TENTH, 2),), 1, "1e-6", 5),
    ((WorkloadStep(TENTH, 2),), 1, "0", 5),
    ((WorkloadStep(ApproxDP(epsilon="0.1", delta="1e-9")),), 3, "1e-6", 46),
    ((WorkloadStep(GAUSSIAN), WorkloadStep(TENTH)), 3, "1e-6", 35),
]


def test_a_sequence_counts_what_its_filter_accepts():
    """The next run is refused; without a declared sequence it is no choice."""
    for workload, epsilon, delta, rounds in SEQUENCES:
        budget = {"epsilon": Fraction(epsilon), "delta": Fraction(delta)}
        every = {f.theorem: f for f in fits(workload, **budget, sequence=True)}
        assert every["sequence"].rounds == rounds
        fitting, more = (
            [{"cost": s.cost, "times": s.times * times} for s in workload]
            for times in (rounds, rounds + 1)
        )
        make_filter("sequence", **budget, steps=fitting)
        with pytest.raises(InvalidCost, match="needs epsilon"):
            make_filter("sequence", **budget, steps=more)
    undeclared = fits((WorkloadStep(TENTH, 2),), epsilon=EPSILON, delta=DELTA)
    assert "sequence" not in {fit.theorem for fit in undeclared}


@pytest.mark.parametrize("theorem", ADAPTIVE)
@pytest.mark.parametrize("count", spread([1, 7, 40, 400], 2))
def test_the_epsilon_that_was_used_admits_it_and_little_less_does_not(theorem, count):
    """A smaller budget of the same constants refuses; of auto, each member's."""
    rule = make_filter(theorem, epsilon=EPSILON, delta=DELTA)
    # Enough for the gdp member of auto, which covers no pure step well.
    cost = GAUSSIAN if theorem in ("gdp", "zcdp", "auto") else TENTH
    used = rule.price(cost).times(count)
    least = epsilon_used(rule, used)
    assert least is not None
    parts = rule.covering(used) if theorem == "auto" else [(rule, used)]

    def admits(epsilon):
        for member, own in parts:
            # A member that cannot be made admits nothing.
            with contextlib.suppress(InvalidCost):
                rule = make_filter(**{**member.parameters(), "epsilon": epsilon})
                if rule.admits(own):
                    return True
        return False

    assert admits(least)
    assert not admits(least * Fraction(98, 100))
    assert (least <= EPSILON) == rule.admits(used)


def test_a_sequence_used_what_its_last_stop_says():
    """A sequence has a reading of its own."""
    steps = [{"cost": PureDP(epsilon="0.1"), "times": 10}]
    rule = make_filter("sequence", epsilon=1, delta=0, steps=steps, stops=[5, 10])
    assert epsilon_used(rule, rule.price(TENTH).times(5)) == Fraction(1, 2)
    assert epsilon_used(rule, rule.price(TENTH).times(11)) is None
