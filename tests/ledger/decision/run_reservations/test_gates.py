"""A run is held on all its accounts or on none; a gate that closes stops its draws."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dpflow import Gaussian
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import BudgetRefused, UnsupportedCost
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.office import apply_policy
from dpflow.ledger.views import usage
from dpflow.ledger.views.spending import spending
from tests.ledger.journals import kinds, sums
from tests.ledger.run_reservations import RUN, drawn, held_run
from tests.ledger.support import granted, make_policy

TENTH = Fraction(1, 10)


def test_all_accounts_or_none(ledger: Any) -> None:
    """A step of two datasets draws from both, or is reserved on both by itself."""
    both = (make_policy("a"), make_policy("b"))
    held_run(ledger, ["0.2"], policies=both)
    drawn(ledger, "0.1", policies=both[:1])
    assert (sums(ledger, "a#1"), sums(ledger, "b#1")) == ((0, 2 * TENTH),) * 2
    assert drawn(ledger, "0.2", policies=both).beyond
    assert (sums(ledger, "a#1"), sums(ledger, "b#1")) == ((0, 4 * TENTH),) * 2
    ledger.seal(RUN, outcome="failed")
    assert sums(ledger, "a#1") == (0, 3 * TENTH)
    assert sums(ledger, "b#1") == (0, 2 * TENTH)


FLOWS = make_policy(
    budget="{epsilon: 3, delta: 1e-6}",
    filter="gdp",
    odometer="{theorem: rdp, delta: 1e-6}",
    flows="{weekly: {halt_at_epsilon: 2}}",
)
STEP = Gaussian(sensitivity=1, sigma=20)
SEQUENCE = """
  theorem: sequence
  accountant: basic
  steps: [{cost: {mechanism: PureDP, epsilon: 0.1}, times: 3}]
"""


def test_an_odometer_holds_the_whole_run_too(ledger: Any) -> None:
    """Its halt is asked with all of the run; draws pass it, and the seal frees it."""
    steps: dict[str, Any] = {"policies": (FLOWS,), "flow": "weekly"}
    fits = 0
    while True:
        run = f"probe/{fits}"
        try:
            held_run(ledger, [STEP] * (fits + 1), run=run, flow_run=run, **steps)
        except BudgetRefused as refusal:
            gate = refusal.gate
            break
        ledger.seal(run, outcome="completed")
        fits += 1
    assert (gate, fits > 5) == ("odometer", True)
    here = {**steps, "flow_run": RUN}
    held_run(ledger, [STEP] * fits, **here)
    for _ in range(fits):
        ledger.settle(drawn(ledger, STEP, **here).reservation)
    with pytest.raises(BudgetRefused):
        drawn(ledger, STEP, **here)
    ledger.seal(RUN, outcome="failed")
    assert sums(ledger, "a#1/odometer/weekly")[1] == 0


def test_a_halted_run_draws_nothing_more(ledger: Any) -> None:
    """An odometer that refused a step of the run refuses what is held, too."""
    here: dict[str, Any] = {"policies": (FLOWS,), "flow": "weekly", "flow_run": RUN}
    held_run(ledger, [STEP] * 2, **here)
    with pytest.raises(BudgetRefused):
        drawn(ledger, Gaussian(sensitivity=1, sigma=1), **here)
    with pytest.raises(BudgetRefused, match="halted this flow run"):
        drawn(ledger, STEP, **here)
    assert sums(ledger, "a#1/odometer/weekly")[1] > 0
    assert kinds(ledger)[-2:] == ["refuse", "refuse"]


def test_a_frozen_dataset_gives_nothing_to_draw(ledger: Any) -> None:
    """Frozen means that no step runs; the run's end still returns its rest."""
    held_run(ledger, ["0.1"] * 2)
    ledger.ask(Freeze(book="a", reason="test"))
    with pytest.raises(BudgetRefused, match="frozen"):
        drawn(ledger)
    ledger.seal(RUN, outcome="failed")
    assert sums(ledger) == (0, 0)


def test_a_budget_that_was_tightened_below_what_is_held_gives_nothing(
    ledger: Any,
) -> None:
    """What is held was promised under another budget; nothing more is read for it."""
    held_run(ledger, ["0.1"] * 6)
    ledger.settle(drawn(ledger).reservation)
    tighter = make_policy(budget="{epsilon: 0.5}")
    apply_policy(ledger, tighter, reason="less")
    with pytest.raises(BudgetRefused):
        drawn(ledger, policies=(tighter,))
    ledger.seal(RUN, outcome="failed")
    drawn(ledger, policies=(tighter,), preflights=())


def test_what_cannot_be_held_as_a_sum_is_refused(ledger: Any) -> None:
    """A budget per person is reserved in full, once."""
    text = "{theorem: individual, measure: gdp}"
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter=text)
    cost = IndividualBound(measure="gdp", bound="0.01")
    with pytest.raises(UnsupportedCost, match="once and in full"):
        held_run(ledger, [cost], policies=(policy,))
    assert "reserve" not in kinds(ledger)


def test_a_sequence_is_held(ledger: Any) -> None:
    """Its executions are counts, which add up; what did not run can run later."""
    policy = make_policy(filter=SEQUENCE)
    held_run(ledger, ["0.1"] * 3, policies=(policy,))
    ledger.settle(drawn(ledger, policies=(policy,)).reservation)
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1", policies=(policy,))
    ledger.seal(RUN, outcome="failed")
    granted(ledger, "0.1", policies=(policy,))
    granted(ledger, "0.1", policies=(policy,))
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1", policies=(policy,))


def test_spending_and_usage_tell_a_run_once(ledger: Any) -> None:
    """What was drawn belongs to the step, the rest to the run reservation."""

    def told() -> dict[Any, str]:
        found = spending(ledger, "a", ("step",), term=1)
        return {each.group[0]: each.amount["epsilon"] for each in found}

    held_run(ledger, ["0.1"] * 3)
    ledger.settle(drawn(ledger).reservation)
    assert told() == {"preflight": "0.2", "count": "0.1"}
    used = [point.used_fraction for point in usage(ledger, "a", most=99)["a#1"]]
    assert used == pytest.approx([0.3] * 3)
    ledger.seal(RUN, outcome="completed")
    assert told() == {"count": "0.1"}
