"""Run reservations: a run held whole, drawn by its steps, sealed at its end."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from dpflow import Gaussian, PureDP
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.decision.office import Amend, Freeze
from dpflow.ledger.office import apply_policy
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.records import Replayed
from dpflow.ledger.views import refusal_of_run, usage
from dpflow.ledger.views.spending import spending
from tests.ledger.support import (
    RUN,
    Place,
    drawn,
    entries,
    granted,
    held_run,
    kinds,
    make_policy,
    request,
    state_of,
    sums,
    url,
)

pytestmark = pytest.mark.quick

TENTH = Fraction(1, 10)


def test_a_run_is_held_whole_and_drawn_step_by_step(ledger: Any) -> None:
    """What is held moves to the step alone; the sum never changes."""
    held_run(ledger, ["0.1", "0.2"])
    other = granted(ledger, "0.7")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1")
    ledger.void(other, reason="test")
    assert sums(ledger) == (0, 3 * TENTH)
    first = drawn(ledger, "0.1").reservation
    assert sums(ledger) == (0, 3 * TENTH)
    ledger.settle(first)
    assert sums(ledger) == (TENTH, 2 * TENTH)
    ledger.settle(drawn(ledger, "0.2").reservation)
    assert sums(ledger) == (3 * TENTH, 0)
    assert ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (3 * TENTH, 0)
    assert kinds(ledger) == [
        *("open", "reserve", "reserve", "refuse", "void"),
        *("reserve", "settle", "reserve", "settle"),
        "seal",
    ]


def test_the_rest_returns_with_the_seal_and_once(ledger: Any) -> None:
    """Exactly what no step drew; a second seal changes nothing."""
    held_run(ledger, ["0.1"] * 4)
    ledger.settle(drawn(ledger).reservation)
    running = drawn(ledger).reservation
    assert ledger.seal(RUN, outcome="failed")
    assert sums(ledger) == (TENTH, TENTH)
    assert not ledger.seal(RUN, outcome="completed")
    ledger.settle(running)
    assert sums(ledger) == (2 * TENTH, 0)
    assert kinds(ledger).count("seal") == 1
    granted(ledger, "0.8")


def test_a_step_beyond_the_rest_is_reserved_alone(ledger: Any) -> None:
    """It passes the ordinary gates, and the answer and the journal say so."""
    held_run(ledger, ["0.1"] * 2)
    assert drawn(ledger, "0.3").beyond
    assert sums(ledger) == (0, 5 * TENTH)
    assert not drawn(ledger, "0.2").beyond
    assert sums(ledger) == (0, 5 * TENTH)
    assert drawn(ledger).beyond
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.5")
    draws = ["preflight" in e.body for e in entries(ledger) if e.kind == "reserve"]
    assert draws == [False, False, True, False]


def test_a_replayed_step_draws_nothing(ledger: Any) -> None:
    """Its release is in the ledger already."""
    first = request(ledger, "0.1", key="week")
    ledger.reserve(first)
    ledger.settle(first.reservation, value="1")
    held_run(ledger, ["0.1"])
    again = request(ledger, "0.1", key="week", preflights=(RUN,))
    assert isinstance(ledger.reserve(again), Replayed)
    assert sums(ledger) == (TENTH, TENTH)
    ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (TENTH, 0)
    late = request(ledger, "0.1", key="week", preflights=(RUN,))
    assert isinstance(ledger.reserve(late), Replayed)


def test_a_run_that_does_not_fit_is_refused_and_charges_nothing(ledger: Any) -> None:
    """Exhausted after an earlier grant; the error has the amounts and what fits."""
    with pytest.raises(BudgetRefused) as caught:
        held_run(ledger, ["0.6", "0.6"])
    assert type(caught.value) is BudgetRefused
    assert (caught.value.asked, caught.value.left) == (
        {"epsilon": "1.2", "delta": "0"},
        {"epsilon": "1", "delta": "0"},
    )
    assert "1.21 times its noise" in caught.value.fits
    assert sums(ledger) == (0, 0)
    held_run(ledger, ["0.3", "0.3"])
    with pytest.raises(BudgetExhausted):
        held_run(ledger, ["0.3", "0.3"], run="run/2")
    with pytest.raises(BudgetExhausted):
        drawn(ledger, "0.05", preflights=("run/2",))
    assert sums(ledger) == (0, 6 * TENTH)
    assert not ledger.seal("run/2", outcome="failed")


def refused(ledger: Any, costs: Sequence[str], **fields: Any) -> BudgetRefused:
    """Ask to hold a run that does not fit, and return the refusal."""
    with pytest.raises(BudgetRefused) as caught:
        held_run(ledger, costs, **fields)
    return caught.value


def test_a_run_that_was_refused_replays_and_draws_nothing(
    ledger: Any, path: Place
) -> None:
    """What is kept costs nothing; a step that would draw is refused, if cheap, too."""
    kept = {"key": "week", "preflights": (RUN,)}
    ledger.settle(granted(ledger, "0.9", key="week"), value="7")
    error = refused(ledger, ["0.9", "0.1"])
    assert isinstance(ledger.reserve(request(ledger, "0.9", **kept)), Replayed)
    with pytest.raises(BudgetRefused, match="of its run was refused") as step:
        drawn(ledger, "0.01")
    assert type(step.value) is type(error)
    names = ("asked", "left", "fits", "gate", "theorem", "dataset")
    for name in names:
        assert getattr(step.value, name) == getattr(error, name)
    assert error.message in step.value.message
    # Another process knows it from the ledger.
    with pytest.raises(BudgetRefused, match="of its run was refused"):
        drawn(open_ledger(url(path)), "0.01")
    assert "refuse" in kinds(ledger)
    assert sums(ledger) == (9 * TENTH, 0)
    granted(ledger, "0.1")


def test_a_refused_run_that_fits_later_draws(ledger: Any) -> None:
    """Its next execution holds it; what was refused before is over."""
    refused(ledger, ["0.9", "0.9"])
    held_run(ledger, ["0.3", "0.3"])
    drawn(ledger, "0.3")
    ledger.seal(RUN, outcome="completed")
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger, "0.1")
    granted(ledger, "0.6")
    refused(ledger, ["0.3", "0.3"])
    with pytest.raises(BudgetRefused, match="reservation of its run was refused"):
        drawn(ledger, "0.01")


def test_a_run_within_a_refused_run_draws_nothing_either(ledger: Any) -> None:
    """Its own reservation is refused with that of the run around it."""
    refused(ledger, ["0.9", "0.9"])
    error = refused(ledger, ["0.1"], run="run/2", preflights=(RUN,))
    assert "reservation of its run was refused" in error.message
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.01", preflights=("run/2", RUN))
    drawn(ledger, "0.01", preflights=("run/3",))


def test_the_run_reservation_itself_ends_no_run(ledger: Any) -> None:
    """Only a draw that was refused counts for the end of a flow run."""
    flow = {"flow": "report", "flow_run": RUN, "enclosing_runs": (RUN,)}
    ledger.settle(granted(ledger, "0.9", key="week"), value="7")
    refused(ledger, ["0.9", "0.9"], **flow)
    replay = request(ledger, "0.9", key="week", preflights=(RUN,), **flow)
    assert isinstance(ledger.reserve(replay), Replayed)
    assert refusal_of_run(ledger, RUN) is None
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.01", **flow)
    refusal = refusal_of_run(ledger, RUN)
    assert refusal is not None
    assert refusal.details["refused_with"] == RUN


def test_a_retry_goes_on_with_what_is_left(ledger: Any) -> None:
    """The run's own reservation is found again; after a seal a new one is made.

    What is declared anew is decided after the rest of the old one has returned.
    """
    first = held_run(ledger, ["0.1"] * 2)
    ledger.settle(drawn(ledger).reservation)
    assert held_run(ledger, ["0.1"] * 2) == first
    assert sums(ledger) == (TENTH, TENTH)
    ledger.seal(RUN, outcome="failed")
    second = held_run(ledger, ["0.1"] * 2)
    assert second != first
    assert sums(ledger) == (TENTH, 2 * TENTH)
    assert not drawn(ledger).beyond
    third = held_run(ledger, ["0.4"] * 2)
    assert (state_of(ledger, second), state_of(ledger, third)) == ("sealed", "open")
    assert sums(ledger) == (TENTH, 9 * TENTH)


def test_no_step_runs_under_a_run_reservation_itself(ledger: Any) -> None:
    """It is not settled, not amended, and not voided once a step drew from it."""
    name = held_run(ledger, ["0.1"] * 2)
    with pytest.raises(ReservationConflict, match="its end is a seal"):
        ledger.settle(name)
    with pytest.raises(ReservationConflict, match="no body runs"):
        ledger.ask(Amend(charge=name, cost=PureDP(epsilon=1), reason="test"))
    step = drawn(ledger).reservation
    with pytest.raises(ReservationConflict, match="its end is a seal"):
        ledger.void(name, reason="test")
    ledger.void(step, reason="never started")
    assert sums(ledger) == (0, TENTH)
    other = held_run(ledger, ["0.1"], run="run/2")
    ledger.void(other, reason="not witnessed")
    assert sums(ledger) == (0, TENTH)


# Gates


def test_all_accounts_or_none(ledger: Any) -> None:
    """A step of two datasets draws from both, or reserves its own budget on both."""
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
    """The whole run counts for its halt; draws pass it, and the seal frees the rest."""
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


def test_spending_and_usage_count_a_run_once(ledger: Any) -> None:
    """What was drawn belongs to the step, the rest to the run reservation."""

    def by_step() -> dict[Any, str]:
        spent, _ = spending(ledger, "a", ("step",), term=1)
        return {each.group[0]: each.amount["epsilon"] for each in spent}

    held_run(ledger, ["0.1"] * 3)
    ledger.settle(drawn(ledger).reservation)
    assert by_step() == {"preflight": "0.2", "count": "0.1"}
    used = [
        point.used_fraction for point in usage(ledger, "a", ["a#1"], most=99)["a#1"]
    ]
    assert used == pytest.approx([0.3] * 3)
    ledger.seal(RUN, outcome="completed")
    assert by_step() == {"count": "0.1"}
