"""Theorems on a list of steps: counts, needs and readings."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow.accounting import FILTERS, make_filter, make_odometer
from dpflow.accounting.costs.early_stopping import EarlyStopping
from dpflow.accounting.costs.noise import Gaussian
from dpflow.accounting.costs.notions import PureDP
from dpflow.exceptions import InvalidCost
from dpflow.forecast.counts import NO_END, WorkloadStep, count_admitted
from dpflow.forecast.workload import (
    Fit,
    epsilon_used,
    fit_of,
    fits,
    merged,
    reading_of,
    rounds_admitted,
    steps_admitted,
)

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


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 9, 1000, 123_456_789])
def test_the_largest_count_is_found(limit):
    """By doubling and halving, whatever it is."""
    assert count_admitted(lambda n: n <= limit) == limit


def test_a_gate_that_never_refuses_has_no_end():
    """And asking it costs some forty questions."""
    asked = []
    assert count_admitted(lambda n: asked.append(n) or True) is None
    assert len(asked) < 50
    assert max(asked) > NO_END / 2


@pytest.mark.parametrize("epsilon", ["0.3", "1", "4"])
@pytest.mark.parametrize("theorem", ADAPTIVE)
def test_counts_are_those_of_deciding_one_by_one(theorem, epsilon):
    """Steps in order, and whole rounds, with worst cases given back."""
    rule = make_filter(theorem, epsilon=epsilon, delta=DELTA)
    workload = WORKLOAD if theorem not in _NO_GAUSSIANS else WORKLOAD[1:]
    assert steps_admitted(rule, workload) == one_by_one(rule, workload)
    rounds = rounds_admitted(rule, workload)
    size = sum(step.times for step in workload)
    assert one_by_one(rule, workload, rounds + 1) // size == rounds
    assert one_by_one(rule, workload, max(rounds, 1)) == size * rounds or rounds == 0


_NO_GAUSSIANS = ("basic", "output", "rogers")


def test_the_least_epsilon_is_enough_and_one_percent_less_is_not():
    """For every filter that has a price."""
    workload = (WorkloadStep(TENTH, 7),)
    for fit in fits(workload, epsilon=EPSILON, delta=DELTA):
        if fit.theorem in ("individual", "sequence"):
            continue
        for factor, expected in ((1, True), (Fraction(99, 100), False)):
            rule = make_filter(fit.theorem, epsilon=fit.needs * factor, delta=DELTA)
            assert (steps_admitted(rule, workload) == 7) is expected, fit
    (basic,) = [
        f for f in fits(workload, epsilon=EPSILON, delta=DELTA) if f.theorem == "basic"
    ]
    assert basic.needs == Fraction(7, 10)


def test_a_sequence_is_what_its_filter_accepts():
    """Its rounds are as many as fit within the budget."""
    fit = fit_of("sequence", (WorkloadStep(TENTH, 2),), epsilon=EPSILON, delta=DELTA)
    steps = {"cost": TENTH, "times": 2 * fit.rounds}
    make_filter("sequence", epsilon=EPSILON, delta=DELTA, steps=[steps])
    with pytest.raises(Exception, match="needs epsilon"):
        make_filter(
            "sequence",
            epsilon=EPSILON,
            delta=DELTA,
            steps=[{**steps, "times": steps["times"] + 2}],
        )
    assert (fit.admitted, fit.needs) == (2, Fraction(1, 5)) or fit.needs < Fraction(
        1, 5
    )


def test_theorems_without_a_price_say_why():
    """And stand at the end."""
    found = fits((WorkloadStep(GAUSSIAN),), epsilon=EPSILON, delta=DELTA, needs=False)
    named = {fit.theorem: fit.problem for fit in found}
    assert "no sound price" in named["basic"]
    assert "for each person" in named["individual"]
    assert named["gaussian"] == ""
    reached = [bool(fit.problem) for fit in found]
    assert reached == sorted(reached)
    assert found[0].theorem in ("gaussian", "sequence")


def test_readings_are_those_of_the_odometer():
    """Settled steps are read as they settled."""
    reading = reading_of("renyi", WORKLOAD, tuned_for=Fraction(3), delta=DELTA)
    rule = make_odometer("renyi", delta=DELTA, halt_at_epsilon=3)
    total = rule.zero()
    for step in WORKLOAD:
        for _ in range(step.times):
            total = total + rule.price_realised(step.cost, step.outcome)
    assert reading.epsilon == rule.read(total)
    worst = reading_of(
        "renyi",
        (*WORKLOAD[:2], WorkloadStep(STOPPING)),
        tuned_for=Fraction(3),
        delta=DELTA,
    )
    assert worst.epsilon > reading.epsilon
    assert (
        "Gaussian"
        in reading_of("basic", WORKLOAD, tuned_for=Fraction(3), delta=DELTA).problem
    )


def test_equal_steps_in_a_row_become_one():
    """Order matters to what is admitted, so others stay apart."""
    told = [
        WorkloadStep(TENTH),
        WorkloadStep(TENTH, 2),
        WorkloadStep(GAUSSIAN),
        WorkloadStep(TENTH),
    ]
    assert merged(told) == (
        WorkloadStep(TENTH, 3),
        WorkloadStep(GAUSSIAN),
        WorkloadStep(TENTH),
    )
    assert Fit(theorem="x").problem == ""


@pytest.mark.parametrize("theorem", ADAPTIVE)
@pytest.mark.parametrize("count", [1, 7, 40, 400])
def test_the_epsilon_that_was_used_admits_it_and_little_less_does_not(theorem, count):
    """A smaller budget of the same constants refuses; of a portfolio, each member's."""
    rule = make_filter(theorem, epsilon=EPSILON, delta=DELTA)
    # Enough for the gaussian member of a portfolio, which covers no pure step well.
    cost = GAUSSIAN if theorem in ("gaussian", "concentrated", "portfolio") else TENTH
    used = rule.price(cost).times(count)
    found = epsilon_used(rule, used)
    assert found is not None
    parts = rule.covering(used) if theorem == "portfolio" else [(rule, used)]

    def admits(epsilon):
        known = [{**m.parameters(), "epsilon": epsilon} for m, _ in parts]
        return any(
            _admits(constants, own)
            for constants, (_, own) in zip(known, parts, strict=True)
        )

    assert admits(found)
    assert not admits(found * Fraction(98, 100))
    assert (found <= EPSILON) == rule.admits(used)


def _admits(constants, own):
    try:
        return make_filter(**constants).admits(own)
    except InvalidCost:
        return False


def test_nothing_used_no_epsilon():
    """Before the first charge."""
    rule = make_filter("gaussian", epsilon=EPSILON, delta=DELTA)
    assert epsilon_used(rule, rule.zero()) == 0


def test_a_sequence_used_what_its_last_stop_says():
    """A sequence has a reading of its own."""
    steps = [{"cost": PureDP(epsilon="0.1"), "times": 10}]
    rule = make_filter("sequence", epsilon=1, delta=0, steps=steps, stops=[5, 10])
    assert epsilon_used(rule, rule.price(TENTH).times(5)) == Fraction(1, 2)
    assert epsilon_used(rule, rule.price(TENTH).times(11)) is None
