"""Preflights: a run held whole, drawn from by its steps, and sealed at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from fractions import Fraction
from typing import Any

import pytest

from dpflow import Gaussian, PureDP
from dpflow.accounting import make_filter
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    LedgerCorrupt,
    LedgerUnavailable,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger import ledger as shell
from dpflow.ledger.approval import Approval
from dpflow.ledger.decision.gates import charges_of
from dpflow.ledger.decision.preflight import Cover
from dpflow.ledger.model import Command, Decision, Keys, Pen, Seal, State
from dpflow.ledger.office import amend, apply_policy, freeze
from dpflow.ledger.office_records import BookLoss, Repair, Wish
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.records import Granted, Replayed
from dpflow.ledger.rows import JournalError
from dpflow.ledger.views import accounts, open_reservations, refusal_of_run, usage
from dpflow.ledger.views.runs import last_costs
from dpflow.ledger.views.spending import spending
from tests.ledger.journals import audit, await_death, entries, kinds, state_of, sums
from tests.ledger.preflights import RUN, drawn, held_run, whole
from tests.ledger.processes import Child, die
from tests.ledger.support import (
    BASIC,
    Place,
    granted,
    make_ledger,
    make_policy,
    request,
    url,
)

TENTH = Fraction(1, 10)


@pytest.fixture
def ledger(path: Place) -> Any:
    """Give a ledger; what a test leaves in it must verify and audit."""
    found = make_ledger(path)
    yield found
    audit(found)
    found.close()


def test_a_run_is_held_whole_and_drawn_step_by_step(ledger: Any) -> None:
    """What is held moves to the step; the sum of held and settled never changes."""
    held_run(ledger, ["0.1", "0.2"])
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
        *("open", "reserve"),
        *("reserve", "settle", "reserve", "settle"),
        "seal",
    ]


def test_what_a_run_holds_nobody_else_gets(ledger: Any) -> None:
    """Others spend the rest of the budget; the run's steps pass no gate again."""
    held_run(ledger, ["0.1"] * 4)
    granted(ledger, "0.6")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1")
    for _ in range(4):
        ledger.settle(drawn(ledger).reservation)
    assert sums(ledger) == (4 * TENTH, 6 * TENTH)


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


def test_a_late_step_is_refused_in_so_many_words(ledger: Any) -> None:
    """After the seal there is nothing to draw, and nothing else is reserved for it."""
    held_run(ledger, ["0.1"] * 2)
    ledger.seal(RUN, outcome="completed")
    with pytest.raises(BudgetRefused, match="its preflight is sealed") as caught:
        drawn(ledger)
    assert type(caught.value) is BudgetRefused
    assert "run the flow again" in caught.value.fits
    assert sums(ledger) == (0, 0)
    assert kinds(ledger) == ["open", "reserve", "seal", "refuse"]


def test_a_step_beyond_what_is_left_is_reserved_by_itself(ledger: Any) -> None:
    """It passes the ordinary gates, and the answer and the journal say so."""
    held_run(ledger, ["0.1"] * 2)
    assert drawn(ledger, "0.3").beyond
    assert sums(ledger) == (0, 5 * TENTH)
    assert not drawn(ledger, "0.2").beyond
    assert sums(ledger) == (0, 5 * TENTH)
    assert drawn(ledger).beyond
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.5")
    told = [
        each.body.get("cover", {}).get("drawn")
        for each in entries(ledger)
        if each.kind == "reserve"
    ]
    assert told == [None, False, True, False]


def test_a_step_of_no_run_draws_nothing(ledger: Any) -> None:
    """Only steps of the run do."""
    held_run(ledger, ["0.1"])
    answer = drawn(ledger, preflights=("another",))
    assert not answer.beyond
    assert sums(ledger) == (0, 2 * TENTH)


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
    """Exhausted once it was granted before; asked, left and what fits are told."""
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
    assert sums(ledger) == (0, 6 * TENTH)
    assert not ledger.seal("run/2", outcome="failed")


def refused(ledger: Any, costs: Sequence[str], **fields: Any) -> BudgetRefused:
    """Ask to hold a run that does not fit, and return the refusal."""
    with pytest.raises(BudgetRefused) as caught:
        held_run(ledger, costs, **fields)
    return caught.value


def test_a_run_that_was_refused_replays_and_draws_nothing(ledger: Any) -> None:
    """What is kept costs nothing; a step that would draw is refused, if cheap, too."""
    kept = {"key": "week", "preflights": (RUN,)}
    ledger.settle(granted(ledger, "0.9", key="week"), value="7")
    told = refused(ledger, ["0.9", "0.1"])
    assert isinstance(ledger.reserve(request(ledger, "0.9", **kept)), Replayed)
    with pytest.raises(BudgetRefused, match="preflight of its run was refused") as step:
        drawn(ledger, "0.01")
    assert type(step.value) is type(told)
    names = ("asked", "left", "fits", "gate", "theorem", "dataset")
    for name in names:
        assert getattr(step.value, name) == getattr(told, name)
    assert told.message in step.value.message
    assert "refuse" in kinds(ledger)
    assert sums(ledger) == (9 * TENTH, 0)
    granted(ledger, "0.1")


def test_whoever_executes_a_step_of_a_refused_run_is_refused(
    ledger: Any, path: Place
) -> None:
    """Another process, too: the ledger knows, and no flag in memory."""
    refused(ledger, ["0.9", "0.9"])
    with pytest.raises(BudgetRefused, match="preflight of its run was refused"):
        drawn(open_ledger(url(path)), "0.01")
    assert sums(ledger) == (0, 0)


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
    with pytest.raises(BudgetRefused, match="preflight of its run was refused"):
        drawn(ledger, "0.01")


def test_a_run_within_a_refused_run_draws_nothing_either(ledger: Any) -> None:
    """Its own preflight is refused with that of the run around it."""
    refused(ledger, ["0.9", "0.9"])
    told = refused(ledger, ["0.1"], run="run/2", preflights=(RUN,))
    assert "preflight of its run was refused" in told.message
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.01", preflights=("run/2", RUN))
    drawn(ledger, "0.01", preflights=("run/3",))


def test_a_refused_run_of_an_exhausted_budget_is_exhausted(ledger: Any) -> None:
    """A flow that ran before ends `BudgetExhausted` at its first draw."""
    held_run(ledger, ["0.3", "0.3"])
    ledger.seal(RUN, outcome="completed")
    granted(ledger, "0.9")
    assert type(refused(ledger, ["0.3", "0.3"], run="run/2")) is BudgetExhausted
    with pytest.raises(BudgetExhausted):
        drawn(ledger, "0.05", preflights=("run/2",))


def test_the_preflight_itself_ends_no_run(ledger: Any) -> None:
    """Only a draw that was refused counts for the end of a flow run."""
    flow = {"flow": "report", "flow_run": RUN, "enclosing_runs": (RUN,)}
    ledger.settle(granted(ledger, "0.9", key="week"), value="7")
    refused(ledger, ["0.9", "0.9"], **flow)
    replay = request(ledger, "0.9", key="week", preflights=(RUN,), **flow)
    assert isinstance(ledger.reserve(replay), Replayed)
    assert refusal_of_run(ledger, RUN) is None
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.01", **flow)
    found = refusal_of_run(ledger, RUN)
    assert found is not None
    assert "draws nothing" in found.message


def test_the_same_id_is_answered_the_same(ledger: Any) -> None:
    """A preflight and a draw that are sent twice are made once."""
    asked = whole(ledger, ["0.1", "0.1"])
    assert ledger.reserve(asked) == ledger.reserve(asked)
    step = request(ledger, "0.1", preflights=(RUN,))
    assert ledger.reserve(step) == ledger.reserve(step)
    assert sums(ledger) == (0, 2 * TENTH)


def test_a_retry_goes_on_with_what_is_left(ledger: Any) -> None:
    """The run's own preflight is found again; after a seal a new one is made."""
    first = held_run(ledger, ["0.1"] * 2)
    ledger.settle(drawn(ledger).reservation)
    assert held_run(ledger, ["0.1"] * 2) == first
    assert sums(ledger) == (TENTH, TENTH)
    ledger.seal(RUN, outcome="failed")
    second = held_run(ledger, ["0.1"] * 2)
    assert second != first
    assert sums(ledger) == (TENTH, 2 * TENTH)
    assert not drawn(ledger).beyond


def test_a_retry_may_declare_anew(ledger: Any) -> None:
    """The rest of the old preflight is returned before the new one is decided."""
    first = held_run(ledger, ["0.1"] * 6)
    ledger.settle(drawn(ledger).reservation)
    second = held_run(ledger, ["0.3"] * 3)
    assert (state_of(ledger, first), state_of(ledger, second)) == ("sealed", "open")
    assert sums(ledger) == (TENTH, 9 * TENTH)


def test_no_step_runs_under_a_preflight_itself(ledger: Any) -> None:
    """It is not settled, not amended, and not voided once a step drew from it."""
    name = held_run(ledger, ["0.1"] * 2)
    with pytest.raises(ReservationConflict, match="its end is a seal"):
        ledger.settle(name)
    with pytest.raises(ReservationConflict, match="no body runs"):
        amend(ledger, name, PureDP(epsilon=1), because="test")
    step = drawn(ledger).reservation
    with pytest.raises(ReservationConflict, match="its end is a seal"):
        ledger.void(name, reason="test")
    ledger.void(step, reason="never started")
    assert sums(ledger) == (0, TENTH)
    other = held_run(ledger, ["0.1"], run="run/2")
    ledger.void(other, reason="not witnessed")
    assert sums(ledger) == (0, TENTH)


def killed_run(path: Place, *, draws: int = 1) -> str:
    """Kill a process that holds four tenths and has drawn some; return its id."""

    def work(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        say(held_run(ledger, ["0.1"] * 4))
        for _ in range(draws):
            ledger.settle(drawn(ledger).reservation)
        die()

    code, lines = Child(work).end()
    assert code == -9
    with closing(open_ledger(url(path))) as ledger:
        await_death(ledger, lines[0])
    return lines[0]


def test_a_crash_before_the_seal_leaves_the_rest_held(ledger: Any, path: Place) -> None:
    """It is shown as the rest of a flow run, and counts as forfeited."""
    name = killed_run(path)
    assert sums(ledger) == (TENTH, 3 * TENTH)
    (shown,) = open_reservations(ledger)
    assert (shown.reservation, shown.covers, shown.alive) == (name, RUN, False)
    assert shown.undrawn == {"a#1": {"epsilon": "0.3", "delta": "0"}}
    (view,) = accounts(ledger)
    shares = (view.spent, view.reserved, view.forfeited)
    assert [share["epsilon"] for share in shares] == ["0.1", "0", "0.3"]
    with pytest.raises(ReservationConflict, match="another process"):
        ledger.seal(RUN, outcome="failed")


def test_an_operator_closes_it_in_full(ledger: Any, path: Place) -> None:
    """The rest is posted, never returned; a late step is refused."""
    name = killed_run(path)
    ledger.forfeit(name, because="given up")
    assert sums(ledger) == (4 * TENTH, 0)
    assert state_of(ledger, name) == "forfeited"
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger)
    assert not ledger.seal(RUN, outcome="completed")


def test_whoever_runs_a_killed_run_again_takes_it_over(
    ledger: Any, path: Place
) -> None:
    """It draws from what is held, and its seal returns the rest."""
    name = killed_run(path)
    assert held_run(ledger, ["0.1"] * 4) == name
    assert not drawn(ledger).beyond
    assert ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (TENTH, TENTH)


def test_a_living_run_is_sealed_by_its_own_process_only(
    ledger: Any, path: Place
) -> None:
    """A second execution of the same run draws from it, and cannot end it."""
    name = held_run(ledger, ["0.1"] * 2)

    def work(say: Callable[[str], None]) -> None:
        other = open_ledger(url(path))
        say(held_run(other, ["0.1"] * 2))
        other.settle(drawn(other).reservation)
        for call in (
            lambda: other.seal(RUN, outcome="completed"),
            lambda: held_run(other, ["0.2"] * 2),
        ):
            with pytest.raises(ReservationConflict, match="another process runs"):
                call()

    assert Child(work).end() == (0, [name])
    assert sums(ledger) == (TENTH, TENTH)


def test_a_repaired_ledger_returns_nothing_of_an_old_run(ledger: Any) -> None:
    """It may have lost draws: the rest stays held, and the run is held anew."""
    first = held_run(ledger, ["0.1"] * 3)
    lost = {"b": BookLoss(number=0)}
    words = {"because": "restored", "before": 0, "epoch": 1, **ledger.label()}
    ledger.ask(Repair(losses=lost, **words))
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger)
    with pytest.raises(ReservationConflict, match="repaired since"):
        ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (0, 3 * TENTH)
    assert held_run(ledger, ["0.1"] * 3) != first
    assert not drawn(ledger).beyond
    assert ledger.seal(RUN, outcome="completed")
    assert sums(ledger) == (0, 4 * TENTH)


def met(
    monkeypatch: pytest.MonkeyPatch, ledger: Any, meanwhile: Callable[[], object]
) -> None:
    """Let something happen once, after a ledger has loaded what it decides on."""
    once, decide = iter([meanwhile]), shell.decide

    def slowly(state: State, command: Command) -> Decision:
        if threading.current_thread() is threading.main_thread():
            next(once, lambda: None)()
        return decide(state, command)

    monkeypatch.setattr(shell, "decide", slowly)


def beside(call: Callable[[], object]) -> None:
    """Call it in another thread, which nothing here is to wait for."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result(timeout=20)


def test_a_run_taken_over_while_a_new_declaration_waits_is_let_alone(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs it is asked of what is locked, whatever its new declaration names."""
    ledger, other = make_ledger(postgres_url), open_ledger(url(postgres_url))
    dead = {"owner": "0" * 32}
    name = held_run(ledger, ["0.1"] * 3, **dead)
    taken = held_run(other, ["0.1"] * 3)
    assert taken == name
    with pytest.raises(ReservationConflict, match="another process runs"):
        held_run(ledger, ["0.1"], policies=[make_policy("b")])
    assert state_of(ledger, name) == "open"
    assert sums(ledger) == (0, 3 * TENTH)
    other.close()
    ledger.close()


def test_two_who_declare_one_run_at_once_hold_it_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other datasets no lock is in the way; the second asks again and is told."""
    ledger, second = make_ledger(postgres_url), open_ledger(url(postgres_url))
    b = [make_policy("b")]
    first = whole(second, ["0.1"], policies=b)
    met(monkeypatch, ledger, lambda: beside(lambda: second.reserve(first)))
    with pytest.raises(ReservationConflict, match="another process runs"):
        held_run(ledger, ["0.1"])
    assert kinds(ledger) == []
    assert sums(ledger, "b#1") == (0, TENTH)
    assert second.seal(RUN, outcome="completed")
    ledger.close()
    second.close()


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
    filter="gaussian",
    odometer="{theorem: renyi, delta: 1e-6}",
    flows="{weekly: {halt_at_epsilon: 2}}",
)
STEP = Gaussian(sensitivity=1, sigma=20)
PLAN = """
  theorem: plan
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
    freeze(ledger, "a", who="ann", because="test")
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
    apply_policy(ledger, tighter, Wish(because="less"), Approval(principal="ann"))
    with pytest.raises(BudgetRefused):
        drawn(ledger, policies=(tighter,))
    ledger.seal(RUN, outcome="failed")
    drawn(ledger, policies=(tighter,), preflights=())


@pytest.mark.parametrize(
    ("text", "costs", "why"),
    [
        (
            PLAN.replace("}]", "}]\n  order: planned"),
            ["0.1"] * 2,
            "whether that is the next one",
        ),
        (
            "{theorem: individual, measure: gaussian}",
            [IndividualBound(measure="gaussian", bound="0.01")],
            "once and in full",
        ),
    ],
)
def test_what_cannot_be_held_as_a_sum_is_refused(
    ledger: Any, text: str, costs: list[Any], why: str
) -> None:
    """Budgets per person, and plans that ask for their order."""
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter=text)
    with pytest.raises(UnsupportedCost, match=why):
        held_run(ledger, costs, policies=(policy,))
    assert "reserve" not in kinds(ledger)


def test_a_plan_in_free_order_is_held(ledger: Any) -> None:
    """Its executions are counts, which add up; what did not run can run later."""
    policy = make_policy(filter=PLAN)
    held_run(ledger, ["0.1"] * 3, policies=(policy,))
    ledger.settle(drawn(ledger, policies=(policy,)).reservation)
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1", policies=(policy,))
    ledger.seal(RUN, outcome="failed")
    granted(ledger, "0.1", policies=(policy,))
    granted(ledger, "0.1", policies=(policy,))
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1", policies=(policy,))


def test_partitions_are_held_by_name(ledger: Any) -> None:
    """Each part that the run will read holds its own; another part is beyond."""
    policy = make_policy(partition="{by: key}")
    here: dict[str, Any] = {"policies": (policy,), "partitions": ("w1",)}
    held_run(ledger, ["0.4"] * 2, **here)
    assert sums(ledger, "a#1/partition/w1") == (0, 8 * TENTH)
    assert not drawn(ledger, "0.4", **here).beyond
    assert drawn(ledger, "0.4", policies=(policy,), partitions=("w2",)).beyond


def test_spending_and_usage_tell_a_run_once(ledger: Any) -> None:
    """What was drawn belongs to the step, the rest to the preflight."""
    held_run(ledger, ["0.1"] * 3)
    ledger.settle(drawn(ledger).reservation)
    told = {
        each.group[0]: each.amount["epsilon"]
        for each in spending(ledger, "a", ("step",))
    }
    assert told == {"preflight": "0.2", "count": "0.1"}
    used = [point.used_fraction for point in usage(ledger, "a")["a#1"]]
    assert used == pytest.approx([0.3] * 3)
    ledger.seal(RUN, outcome="completed")
    told = {
        each.group[0]: each.amount["epsilon"]
        for each in spending(ledger, "a", ("step",))
    }
    assert told == {"count": "0.1"}


def test_the_last_completed_run_tells_what_a_run_costs(ledger: Any) -> None:
    """Failed, refused and unfinished runs do not count, nor does the one that asks."""
    here: dict[str, Any] = {"flow": "weekly", "flow_run": "one"}
    for epsilon in ("0.1", "0.2"):
        ledger.settle(granted(ledger, epsilon, **here), body={"outcome": "completed"})
    ledger.settle(
        granted(ledger, "0.05", flow="weekly", flow_run="two"), outcome="failed"
    )
    granted(ledger, "0.05", flow="weekly", flow_run="three")
    found = last_costs(ledger, "weekly", but="four")
    assert [each.cost for each in found] == [
        PureDP(epsilon="0.1"),
        PureDP(epsilon="0.2"),
    ]
    assert last_costs(ledger, "weekly", but="one") == []
    assert last_costs(ledger, "daily", but="four") == []


def test_a_preflight_says_which_run_it_holds(ledger: Any) -> None:
    """And has at least one step."""
    with pytest.raises(ConfigurationError, match="at least one step"):
        request(ledger, covers=RUN)


# What must be caught


@pytest.fixture
def broken(path: Place) -> Any:
    """Give a ledger that a test breaks, and so is not audited."""
    found = make_ledger(path)
    yield found
    found.close()


def forged(ledger: Any, kind: str, amount: str, charge: str) -> None:
    """Write an entry that no decision makes, by a pen that does not look."""
    with ledger.storage.write() as transaction:
        state = transaction.load(Keys(runs=(RUN,), books=("a",), gates={"a": ("",)}))
        pen = Pen(state, Seal(run=RUN, owner="x", outcome="x", **ledger.label()))
        amounts = {"a#1": PRICE(PureDP(epsilon=amount)).amounts}
        pen.write("a", kind, amounts, {"outcome": "x"}, charge=charge)
        transaction.store(pen.changes, pen.entries, {})


PRICE = make_filter("basic", epsilon=1).price


def test_a_seal_that_returns_more_than_undrawn_is_caught(broken: Any) -> None:
    """The control: the journal's reader refuses the entry, whoever made it."""
    name = held_run(broken, ["0.1"] * 4)
    broken.settle(drawn(broken).reservation)
    granted(broken, "0.2", preflights=())
    with pytest.raises(JournalError, match="ends a charge that holds"):
        forged(broken, "seal", "0.4", charge=name)
    forged(broken, "seal", "0.3", charge=name)


def draw_anything(monkeypatch: pytest.MonkeyPatch, preflight: str) -> None:
    """Let steps draw from a preflight whatever its state is."""

    def always(_: Any, __: Any, asked: Any) -> Cover:
        return Cover(preflight=preflight, ended=False, drawn=charges_of(asked))

    monkeypatch.setattr("dpflow.ledger.decision.admit.cover_of", always)


def test_a_draw_after_the_seal_is_caught(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a ledger whose steps do not ask whether the run has ended."""
    name = held_run(broken, ["0.1"] * 4)
    granted(broken, "0.3", preflights=())
    broken.seal(RUN, outcome="completed")
    draw_anything(monkeypatch, name)
    with pytest.raises((JournalError, LedgerCorrupt), match="no open preflight"):
        drawn(broken)


def test_a_draw_of_more_than_is_left_is_caught(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a ledger whose steps do not ask what the run has left."""
    name = held_run(broken, ["0.1"] * 2)
    draw_anything(monkeypatch, name)
    drawn(broken, "0.2")
    with pytest.raises((JournalError, LedgerCorrupt), match="it draws"):
        drawn(broken, "0.1")


def test_granted_answers_name_the_accounts(ledger: Any) -> None:
    """A preflight that is found again answers as it was answered first."""
    first = ledger.reserve(whole(ledger, ["0.1"]))
    second = ledger.reserve(whole(ledger, ["0.1"]))
    assert isinstance(first, Granted)
    assert first == second
    assert BASIC.dataset in first.accounts[0]


# Cut connections


@pytest.mark.parametrize("committed", [False, True])
def test_a_seal_whose_answer_is_lost_is_sent_again(
    ledger: Any, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """Whether or not the first came through, the rest is returned once."""
    held_run(ledger, ["0.1"] * 4)
    drawn(ledger)
    cuts = cut(monkeypatch, ledger, committed=committed)
    assert ledger.seal(RUN, outcome="completed")
    assert cuts == ["cut"]
    assert sums(ledger) == (0, TENTH)
    assert kinds(ledger).count("seal") == 1


@pytest.mark.parametrize("committed", [False, True])
def test_a_void_whose_answer_is_lost_is_sent_again(
    ledger: Any, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    """The step's charge is given back once, whether or not the first came through."""
    step = granted(ledger, "0.4")
    cuts = cut(monkeypatch, ledger, committed=committed)
    ledger.void(step, reason="never started")
    assert (cuts, state_of(ledger, step), sums(ledger)) == (["cut"], "void", (0, 0))
    with pytest.raises(ReservationConflict, match="void already"):
        ledger.void(step, reason="again")


def cut(monkeypatch: pytest.MonkeyPatch, ledger: Any, *, committed: bool) -> list[str]:
    """Cut the connection at the next commit, before or after it came through."""
    write, cuts = ledger.storage.write, []

    @contextmanager
    def once() -> Iterator[Any]:
        first = not cuts
        with write() as transaction:
            yield transaction
            if first and not committed:
                cuts.append("cut")
                raise LedgerUnavailable("cut", unknown=True)
        if first:
            cuts.append("cut")
            raise LedgerUnavailable("cut", unknown=True)

    monkeypatch.setattr(ledger.storage, "write", once)
    return cuts


@pytest.mark.parametrize("name", ["preflight", "overdrawn", "told", "claims", "epoch"])
def test_a_request_says_nothing_that_moves_rows(ledger: Any, name: str) -> None:
    """What the journal means by a name is decided, and not sent along."""
    before = kinds(ledger)
    with pytest.raises(ConfigurationError, match=f"may not say '{name}'"):
        granted(ledger, "0.1", body={name: {"id": "0" * 32}})
    assert kinds(ledger) == before
