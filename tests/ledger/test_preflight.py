"""Preflights: a run held whole, drawn from by its steps, and sealed at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest

from dpflow import Gaussian, PureDP
from dpflow.accounting.individual import IndividualBound
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    LedgerCorrupt,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger import decide, open_ledger
from dpflow.ledger import preflight as module
from dpflow.ledger.freeze import freeze
from dpflow.ledger.operations import amend
from dpflow.ledger.postgres_owner import SessionOwners
from dpflow.ledger.postgres_server import Server
from dpflow.ledger.postgres_session import PostgresSession
from dpflow.ledger.records import Granted, Replayed
from dpflow.ledger.seals import last_costs, seal
from dpflow.ledger.views.spending import spending
from dpflow.ledger.verify import verify
from dpflow.ledger.views import (
    accounts,
    open_reservations,
    refusal_of_run,
    usage,
)
from tests.ledger.preflights import RUN, drawn, held_run, whole
from tests.ledger.support import (
    BASIC,
    Child,
    Place,
    audit,
    await_death,
    die,
    edit,
    faulty,
    granted,
    kinds,
    ledger_on,
    make_ledger,
    make_policy,
    read,
    request,
    state_of,
    sums,
    url,
)

TENTH = Fraction(1, 10)


@pytest.fixture
def ledger(path: Place) -> Any:
    """Give a ledger; what a test leaves in it must verify and audit."""
    found = make_ledger(path)
    yield found
    if read(path, "SELECT 1 FROM entry LIMIT 1"):
        assert verify(found).bad == []
    found.close()
    audit(path)


def test_a_run_is_held_whole_and_drawn_step_by_step(ledger: Any, path: Place) -> None:
    """What is held moves to the step; the sum of held and settled never changes."""
    held_run(ledger, ["0.1", "0.2"])
    assert sums(path) == (0, 3 * TENTH)
    first = drawn(ledger, "0.1").reservation
    assert sums(path) == (0, 3 * TENTH)
    ledger.settle(first)
    assert sums(path) == (TENTH, 2 * TENTH)
    ledger.settle(drawn(ledger, "0.2").reservation)
    assert sums(path) == (3 * TENTH, 0)
    assert seal(ledger, RUN, outcome="completed")
    assert sums(path) == (3 * TENTH, 0)
    assert kinds(path) == [
        *("open", "reserve"),
        *("draw", "reserve", "settle", "draw", "reserve", "settle"),
        "seal",
    ]


def test_what_a_run_holds_nobody_else_gets(ledger: Any, path: Place) -> None:
    """Others spend the rest of the budget; the run's steps pass no gate again."""
    held_run(ledger, ["0.1"] * 4)
    granted(ledger, "0.6")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1")
    for _ in range(4):
        ledger.settle(drawn(ledger).reservation)
    assert sums(path) == (4 * TENTH, 6 * TENTH)


def test_the_rest_returns_with_the_seal_and_once(ledger: Any, path: Place) -> None:
    """Exactly what no step drew; a second seal changes nothing."""
    held_run(ledger, ["0.1"] * 4)
    ledger.settle(drawn(ledger).reservation)
    running = drawn(ledger).reservation
    assert seal(ledger, RUN, outcome="failed")
    assert sums(path) == (TENTH, TENTH)
    assert not seal(ledger, RUN, outcome="completed")
    ledger.settle(running)
    assert sums(path) == (2 * TENTH, 0)
    assert kinds(path).count("seal") == 1
    granted(ledger, "0.8")


def test_a_late_step_is_refused_in_so_many_words(ledger: Any, path: Place) -> None:
    """After the seal there is nothing to draw, and nothing else is reserved for it."""
    held_run(ledger, ["0.1"] * 2)
    seal(ledger, RUN, outcome="completed")
    with pytest.raises(BudgetRefused, match="its preflight is sealed") as caught:
        drawn(ledger)
    assert type(caught.value) is BudgetRefused
    assert "run the flow again" in caught.value.fits
    assert sums(path) == (0, 0)
    assert kinds(path) == ["open", "reserve", "seal", "refuse"]


def test_a_step_beyond_what_is_left_is_reserved_by_itself(
    ledger: Any, path: Place
) -> None:
    """It passes the ordinary gates, and the answer and the journal say so."""
    held_run(ledger, ["0.1"] * 2)
    assert drawn(ledger, "0.3").beyond
    assert sums(path) == (0, 5 * TENTH)
    assert not drawn(ledger, "0.2").beyond
    assert sums(path) == (0, 5 * TENTH)
    assert drawn(ledger).beyond
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.5")
    told = [
        json.loads(body).get("drawn")
        for (body,) in read(path, "SELECT body FROM entry WHERE kind = 'reserve'")
    ]
    assert sorted(told, key=str) == [False, False, None, True]


def test_a_step_of_no_run_draws_nothing(ledger: Any, path: Place) -> None:
    """Only steps of the run do."""
    held_run(ledger, ["0.1"])
    answer = drawn(ledger, preflights=("another",))
    assert not answer.beyond
    assert sums(path) == (0, 2 * TENTH)


def test_a_replayed_step_draws_nothing(ledger: Any, path: Place) -> None:
    """Its release is in the ledger already."""
    first = request(ledger, "0.1", key="week")
    ledger.reserve(first)
    ledger.settle(first.reservation, value="1")
    held_run(ledger, ["0.1"])
    again = request(ledger, "0.1", key="week", preflights=(RUN,))
    assert isinstance(ledger.reserve(again), Replayed)
    assert sums(path) == (TENTH, TENTH)
    seal(ledger, RUN, outcome="completed")
    assert sums(path) == (TENTH, 0)
    late = request(ledger, "0.1", key="week", preflights=(RUN,))
    assert isinstance(ledger.reserve(late), Replayed)


def test_a_run_that_does_not_fit_is_refused_and_charges_nothing(
    ledger: Any, path: Place
) -> None:
    """Exhausted once it was granted before; asked, left and what fits are told."""
    with pytest.raises(BudgetRefused) as caught:
        held_run(ledger, ["0.6", "0.6"])
    assert type(caught.value) is BudgetRefused
    assert (caught.value.asked, caught.value.left) == (
        {"epsilon": "1.2", "delta": "0"},
        {"epsilon": "1", "delta": "0"},
    )
    assert "1.21 times its noise" in caught.value.fits
    assert sums(path) == (0, 0)
    held_run(ledger, ["0.3", "0.3"])
    with pytest.raises(BudgetExhausted):
        held_run(ledger, ["0.3", "0.3"], run="run/2")
    assert sums(path) == (0, 6 * TENTH)
    assert not seal(ledger, "run/2", outcome="failed")


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
    told = refused(ledger, ["0.9", "0.1"])
    assert isinstance(ledger.reserve(request(ledger, "0.9", **kept)), Replayed)
    with pytest.raises(BudgetRefused, match="preflight of its run was refused") as step:
        drawn(ledger, "0.01")
    assert type(step.value) is type(told)
    names = ("asked", "left", "fits", "gate", "theorem", "dataset")
    for name in names:
        assert getattr(step.value, name) == getattr(told, name)
    assert told.message in step.value.message
    assert "refuse" in kinds(path)
    assert sums(path) == (9 * TENTH, 0)
    granted(ledger, "0.1")


def test_whoever_executes_a_step_of_a_refused_run_is_refused(
    ledger: Any, path: Place
) -> None:
    """Another process, too: the ledger knows, and no flag in memory."""
    refused(ledger, ["0.9", "0.9"])
    with pytest.raises(BudgetRefused, match="preflight of its run was refused"):
        drawn(open_ledger(url(path)), "0.01")
    assert sums(path) == (0, 0)


def test_a_refused_run_that_fits_later_draws(ledger: Any, path: Place) -> None:
    """Its next execution holds it; what was refused before is over."""
    refused(ledger, ["0.9", "0.9"])
    held_run(ledger, ["0.3", "0.3"])
    drawn(ledger, "0.3")
    seal(ledger, RUN, outcome="completed")
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger, "0.1")
    granted(ledger, "0.6")
    refused(ledger, ["0.3", "0.3"])
    with pytest.raises(BudgetRefused, match="preflight of its run was refused"):
        drawn(ledger, "0.01")


def test_a_run_within_a_refused_run_draws_nothing_either(
    ledger: Any, path: Place
) -> None:
    """Its own preflight is refused with that of the run around it."""
    refused(ledger, ["0.9", "0.9"])
    told = refused(ledger, ["0.1"], run="run/2", preflights=(RUN,))
    assert "preflight of its run was refused" in told.message
    with pytest.raises(BudgetRefused):
        drawn(ledger, "0.01", preflights=("run/2", RUN))
    drawn(ledger, "0.01", preflights=("run/3",))


def test_a_refused_run_of_an_exhausted_budget_is_exhausted(
    ledger: Any, path: Place
) -> None:
    """A flow that ran before ends `BudgetExhausted` at its first draw."""
    held_run(ledger, ["0.3", "0.3"])
    seal(ledger, RUN, outcome="completed")
    granted(ledger, "0.9")
    assert type(refused(ledger, ["0.3", "0.3"], run="run/2")) is BudgetExhausted
    with pytest.raises(BudgetExhausted):
        drawn(ledger, "0.05", preflights=("run/2",))


def test_the_preflight_itself_ends_no_run(ledger: Any, path: Place) -> None:
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


def test_the_same_id_is_answered_the_same(ledger: Any, path: Place) -> None:
    """A preflight and a draw that are sent twice are made once."""
    asked = whole(ledger, ["0.1", "0.1"])
    assert ledger.reserve(asked) == ledger.reserve(asked)
    step = request(ledger, "0.1", preflights=(RUN,))
    assert ledger.reserve(step) == ledger.reserve(step)
    assert sums(path) == (0, 2 * TENTH)


def test_a_retry_goes_on_with_what_is_left(ledger: Any, path: Place) -> None:
    """The run's own preflight is found again; after a seal a new one is made."""
    first = held_run(ledger, ["0.1"] * 2)
    ledger.settle(drawn(ledger).reservation)
    assert held_run(ledger, ["0.1"] * 2) == first
    assert sums(path) == (TENTH, TENTH)
    seal(ledger, RUN, outcome="failed")
    second = held_run(ledger, ["0.1"] * 2)
    assert second != first
    assert sums(path) == (TENTH, 2 * TENTH)
    assert not drawn(ledger).beyond


def test_a_retry_may_declare_anew(ledger: Any, path: Place) -> None:
    """The rest of the old preflight is returned before the new one is decided."""
    first = held_run(ledger, ["0.1"] * 6)
    ledger.settle(drawn(ledger).reservation)
    second = held_run(ledger, ["0.3"] * 3)
    assert (state_of(path, first), state_of(path, second)) == ("sealed", "open")
    assert sums(path) == (TENTH, 9 * TENTH)


def test_no_step_runs_under_a_preflight_itself(ledger: Any, path: Place) -> None:
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
    assert sums(path) == (0, TENTH)
    other = held_run(ledger, ["0.1"], run="run/2")
    ledger.void(other, reason="not witnessed")
    assert sums(path) == (0, TENTH)


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
    await_death(path, lines[0])
    return lines[0]


def test_a_crash_before_the_seal_leaves_the_rest_held(ledger: Any, path: Place) -> None:
    """It is shown as the rest of a flow run, and counts as forfeited."""
    name = killed_run(path)
    assert sums(path) == (TENTH, 3 * TENTH)
    (shown,) = open_reservations(ledger)
    assert (shown.reservation, shown.covers, shown.alive) == (name, RUN, False)
    assert shown.undrawn == {"a#1": {"epsilon": "0.3", "delta": "0"}}
    (view,) = accounts(ledger)
    shares = (view.spent, view.reserved, view.forfeited)
    assert [share["epsilon"] for share in shares] == ["0.1", "0", "0.3"]
    with pytest.raises(ReservationConflict, match="another process"):
        seal(ledger, RUN, outcome="failed")


def test_an_operator_closes_it_in_full(ledger: Any, path: Place) -> None:
    """The rest is posted, never returned; a late step is refused."""
    name = killed_run(path)
    ledger.forfeit(name, because="given up")
    assert sums(path) == (4 * TENTH, 0)
    assert state_of(path, name) == "forfeited"
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger)
    assert not seal(ledger, RUN, outcome="completed")


def test_whoever_runs_a_killed_run_again_takes_it_over(
    ledger: Any, path: Place
) -> None:
    """It draws from what is held, and its seal returns the rest."""
    name = killed_run(path)
    assert held_run(ledger, ["0.1"] * 4) == name
    assert not drawn(ledger).beyond
    assert seal(ledger, RUN, outcome="completed")
    assert sums(path) == (TENTH, TENTH)


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
            lambda: seal(other, RUN, outcome="completed"),
            lambda: held_run(other, ["0.2"] * 2),
        ):
            with pytest.raises(ReservationConflict, match="another process runs"):
                call()

    assert Child(work).end() == (0, [name])
    assert sums(path) == (TENTH, TENTH)


def test_a_repaired_ledger_returns_nothing_of_an_old_run(
    ledger: Any, path: Place
) -> None:
    """It may have lost draws: the rest stays held, and the run is held anew."""
    first = held_run(ledger, ["0.1"] * 3)
    with ledger.writing(()) as session:
        session.change("set_epoch", epoch=1)
    with pytest.raises(BudgetRefused, match="sealed"):
        drawn(ledger)
    with pytest.raises(ReservationConflict, match="repaired since"):
        seal(ledger, RUN, outcome="completed")
    assert sums(path) == (0, 3 * TENTH)
    assert held_run(ledger, ["0.1"] * 3) != first
    assert not drawn(ledger).beyond
    assert seal(ledger, RUN, outcome="completed")
    assert sums(path) == (0, 4 * TENTH)


def test_a_repair_while_a_seal_waits_for_its_lock_is_seen(postgres_url: str) -> None:
    """Whether it was repaired is asked with the datasets locked, not before."""
    ledger = make_ledger(postgres_url)
    held_run(ledger, ["0.1"] * 3)
    locked_row = ledger.locked_row

    def after_a_repair(session: Any, reservation: str) -> Any:
        edit(postgres_url, "UPDATE ledger SET epoch = 1", checked=True)
        return locked_row(session, reservation)

    ledger.locked_row = after_a_repair
    with pytest.raises(ReservationConflict, match="repaired since"):
        seal(ledger, RUN, outcome="completed")
    assert sums(postgres_url) == (0, 3 * TENTH)
    ledger.close()


def declared_anew(
    monkeypatch: pytest.MonkeyPatch, ledger: Any, meanwhile: Callable[[], object]
) -> None:
    """Declare a run of dataset a for b, while it waits for the lock of a."""
    lock = PostgresSession.lock

    def wait(session: PostgresSession, datasets: Sequence[str]) -> None:
        if list(datasets) == ["a", "b"]:
            meanwhile()
        lock(session, datasets)

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSession, "lock", wait)
        held_run(ledger, ["0.1"], policies=[make_policy("b")])


def test_a_repair_while_a_new_declaration_waits_is_seen(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may have been drawn is not returned, though the run is held anew."""
    ledger = make_ledger(postgres_url)
    held_run(ledger, ["0.1"] * 3)
    repair = "UPDATE ledger SET epoch = 1"
    declared_anew(monkeypatch, ledger, lambda: edit(postgres_url, repair, checked=True))
    assert sums(postgres_url) == (0, 3 * TENTH)
    assert sums(postgres_url, "b#1") == (0, TENTH)
    ledger.close()


def test_a_run_taken_over_while_a_new_declaration_waits_is_let_alone(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs it now is asked with its datasets locked, not before."""
    ledger = make_ledger(postgres_url)
    name = held_run(ledger, ["0.1"] * 3)
    owner = "UPDATE preflight SET owner = '{}'"
    edit(postgres_url, owner.format("0" * 32), checked=True)
    other = SessionOwners(Server(postgres_url, lock_seconds=5))
    taken = ("SET lock_timeout = '2s'", owner.format(other.mine()))
    with pytest.raises(ReservationConflict, match="another process runs"):
        declared_anew(
            monkeypatch, ledger, lambda: edit(postgres_url, *taken, checked=True)
        )
    assert state_of(postgres_url, name) == "open"
    assert sums(postgres_url) == (0, 3 * TENTH)
    other.close()
    ledger.close()


@pytest.mark.parametrize("when", ["after it looked", "after it counted"])
def test_two_who_declare_one_run_at_once_hold_it_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """On other datasets no lock is in the way; the second asks again and is told."""
    ledger, second = make_ledger(postgres_url), open_ledger(postgres_url)
    b = [make_policy("b")]
    once = iter([lambda: held_run(second, ["0.1"], policies=b)])
    reopened, post = decide.reopened, PostgresSession.post

    def look(*arguments: Any) -> Any:
        found = reopened(*arguments)
        if when == "after it looked":
            next(once, lambda: "")()
        return found

    def write(session: PostgresSession, statement: str, **values: object) -> None:
        if (statement, when) == ("open_preflight", "after it counted"):
            next(once, lambda: "")()
        post(session, statement, **values)

    monkeypatch.setattr(decide, "reopened", look)
    monkeypatch.setattr(PostgresSession, "post", write)
    with pytest.raises(ReservationConflict, match="another process runs"):
        held_run(ledger, ["0.1"])
    assert kinds(postgres_url) == []
    assert sums(postgres_url, "b#1") == (0, TENTH)
    assert seal(second, RUN, outcome="completed")
    ledger.close()
    second.close()


def test_all_accounts_or_none(ledger: Any, path: Place) -> None:
    """A step of two datasets draws from both, or is reserved on both by itself."""
    both = (make_policy("a"), make_policy("b"))
    held_run(ledger, ["0.2"], policies=both)
    drawn(ledger, "0.1", policies=both[:1])
    assert (sums(path, "a#1"), sums(path, "b#1")) == ((0, 2 * TENTH),) * 2
    assert drawn(ledger, "0.2", policies=both).beyond
    assert (sums(path, "a#1"), sums(path, "b#1")) == ((0, 4 * TENTH),) * 2
    seal(ledger, RUN, outcome="failed")
    assert sums(path, "a#1") == (0, 3 * TENTH)
    assert sums(path, "b#1") == (0, 2 * TENTH)


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


def test_an_odometer_holds_the_whole_run_too(ledger: Any, path: Place) -> None:
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
        seal(ledger, run, outcome="completed")
        fits += 1
    assert (gate, fits > 5) == ("odometer", True)
    here = {**steps, "flow_run": RUN}
    held_run(ledger, [STEP] * fits, **here)
    for _ in range(fits):
        ledger.settle(drawn(ledger, STEP, **here).reservation)
    with pytest.raises(BudgetRefused):
        drawn(ledger, STEP, **here)
    seal(ledger, RUN, outcome="failed")
    assert sums(path, "a#1/odometer/weekly")[1] == 0


def test_a_halted_run_draws_nothing_more(ledger: Any, path: Place) -> None:
    """An odometer that refused a step of the run refuses what is held, too."""
    here: dict[str, Any] = {"policies": (FLOWS,), "flow": "weekly", "flow_run": RUN}
    held_run(ledger, [STEP] * 2, **here)
    with pytest.raises(BudgetRefused):
        drawn(ledger, Gaussian(sensitivity=1, sigma=1), **here)
    with pytest.raises(BudgetRefused, match="halted this flow run"):
        drawn(ledger, STEP, **here)
    assert kinds(path).count("draw") == 0


def test_a_frozen_dataset_gives_nothing_to_draw(ledger: Any, path: Place) -> None:
    """Frozen means that no step runs; the run's end still returns its rest."""
    held_run(ledger, ["0.1"] * 2)
    freeze(ledger, "a", who="ann", because="test")
    with pytest.raises(BudgetRefused, match="frozen"):
        drawn(ledger)
    seal(ledger, RUN, outcome="failed")
    assert sums(path) == (0, 0)


def test_a_budget_that_was_tightened_below_what_is_held_gives_nothing(
    ledger: Any,
) -> None:
    """What is held was promised under another budget; nothing more is read for it."""
    from dpflow.ledger.apply import Wish, apply_policy
    from dpflow.ledger.approval import Approval

    held_run(ledger, ["0.1"] * 6)
    ledger.settle(drawn(ledger).reservation)
    tighter = make_policy(budget="{epsilon: 0.5}")
    apply_policy(ledger, tighter, Wish(because="less"), Approval(principal="ann"))
    with pytest.raises(BudgetRefused):
        drawn(ledger, policies=(tighter,))
    seal(ledger, RUN, outcome="failed")
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
    ledger: Any, path: Place, text: str, costs: list[Any], why: str
) -> None:
    """Budgets per person, and plans that ask for their order."""
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter=text)
    with pytest.raises(UnsupportedCost, match=why):
        held_run(ledger, costs, policies=(policy,))
    assert read(path, "SELECT 1 FROM reservation") == []


def test_a_plan_in_free_order_is_held(ledger: Any, path: Place) -> None:
    """Its executions are counts, which add up; what did not run can run later."""
    policy = make_policy(filter=PLAN)
    held_run(ledger, ["0.1"] * 3, policies=(policy,))
    ledger.settle(drawn(ledger, policies=(policy,)).reservation)
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1", policies=(policy,))
    seal(ledger, RUN, outcome="failed")
    granted(ledger, "0.1", policies=(policy,))
    granted(ledger, "0.1", policies=(policy,))
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1", policies=(policy,))


def test_partitions_are_held_by_name(ledger: Any, path: Place) -> None:
    """Each part that the run will read holds its own; another part is beyond."""
    policy = make_policy(partition="{by: key}")
    here: dict[str, Any] = {"policies": (policy,), "partitions": ("w1",)}
    held_run(ledger, ["0.4"] * 2, **here)
    assert sums(path, "a#1/partition/w1") == (0, 8 * TENTH)
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
    used = [point.used_fraction for point in usage(ledger, "a")]
    assert used == pytest.approx([0.3] * 3)
    seal(ledger, RUN, outcome="completed")
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


# Verification, and what must be caught


def test_verification_goes_on_from_a_signed_head(ledger: Any, path: Place) -> None:
    """A preflight that was made and drawn from before it is known by its rest."""
    held_run(ledger, ["0.1"] * 4)
    ledger.settle(drawn(ledger).reservation)
    assert verify(ledger, key=b"k", sign_new=True).bad == []
    ledger.settle(drawn(ledger).reservation)
    seal(ledger, RUN, outcome="completed")
    report = verify(ledger, key=b"k", full=False)
    assert (report.bad, report.trusted > 0) == ([], True)


def too_much(session: Any, account: Any, reserved: Any) -> Any:
    """Return all that was reserved, as if nothing had been drawn."""
    return account.rule.price(PureDP(epsilon="0.4"))


@pytest.fixture
def broken(path: Place) -> Any:
    """Give a ledger that a test breaks, and so is not audited."""
    found = make_ledger(path)
    yield found
    found.close()


def test_a_seal_that_returns_more_than_undrawn_is_caught(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: by the seal itself where nothing else is held, else by verify."""
    held_run(broken, ["0.1"] * 4)
    broken.settle(drawn(broken).reservation)
    monkeypatch.setattr(module, "_rest", too_much)
    with pytest.raises(LedgerCorrupt, match="does not hold"):
        seal(broken, RUN, outcome="completed")
    granted(broken, "0.2", preflights=())
    seal(broken, RUN, outcome="completed")
    monkeypatch.undo()
    (bad,) = verify(broken).bad
    assert "ends a reservation of" in bad.problem


def test_a_draw_after_the_seal_is_caught(
    broken: Any, path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a ledger whose steps do not ask whether the run has ended."""
    name = held_run(broken, ["0.1"] * 4)
    granted(broken, "0.3", preflights=())
    seal(broken, RUN, outcome="completed")
    always = module.Cover(preflight=name, ended=False, drawn=True)
    monkeypatch.setattr("dpflow.ledger.decide.cover_of", lambda *_: always)
    drawn(broken)
    monkeypatch.undo()
    (bad,) = verify(broken).bad
    assert "which is not open" in bad.problem
    with pytest.raises(AssertionError):
        audit(path)


def test_a_draw_that_no_step_holds_is_caught(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a draw that lowers what is held, and the step is not reserved."""
    held_run(broken, ["0.1"] * 4)
    real = module.draw

    def twice(session: Any, charge: Any, *rest: Any) -> Any:
        account = real(session, charge, *rest)
        return real(session, (account, charge[1]), *rest)

    monkeypatch.setattr("dpflow.ledger.decide.draw", twice)
    drawn(broken)
    monkeypatch.undo()
    (bad,) = verify(broken).bad
    assert "held by no step" in bad.problem


def test_an_edited_draw_is_no_longer_believed(broken: Any, path: Place) -> None:
    """Whoever lowers a draw by hand would get the difference from the seal."""
    held_run(broken, ["0.1"] * 4)
    broken.settle(drawn(broken).reservation)
    small = json.dumps([1])
    edit(
        path,
        "DROP TRIGGER entry_no_update",
        f"UPDATE entry SET amount = '{small}' WHERE kind = 'draw'",
    )
    with pytest.raises(LedgerCorrupt, match="not what was written"):
        seal(broken, RUN, outcome="completed")
    with pytest.raises(LedgerCorrupt, match="not what was written"):
        drawn(broken)


# Cut connections


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_seal_whose_answer_is_lost_is_sent_again(path: Place, when: str) -> None:
    """Whether or not the first came through, the rest is returned once."""
    make_ledger(path).close()
    database = faulty(path)
    ledger = ledger_on(database)
    held_run(ledger, ["0.1"] * 4)
    drawn(ledger)
    commits = 0

    def cut(sql: str) -> None:
        nonlocal commits
        if sql.strip() == "COMMIT":
            commits += 1
            if commits == 1:
                raise database.fault("cut")

    setattr(database, when, cut)
    seal(ledger, RUN, outcome="completed")
    assert commits == 2 or when == "after"
    assert sums(path) == (0, TENTH)
    assert kinds(path).count("seal") == 1
    ledger.close()
    audit(path)


def test_granted_answers_name_the_accounts(ledger: Any) -> None:
    """A preflight that is found again answers as it was answered first."""
    first = ledger.reserve(whole(ledger, ["0.1"]))
    second = ledger.reserve(whole(ledger, ["0.1"]))
    assert isinstance(first, Granted)
    assert first == second
    assert BASIC.dataset in first.accounts[0]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_void_whose_answer_is_lost_is_sent_again(path: Place, when: str) -> None:
    """The step's charge is given back once, whether or not the first came through."""
    make_ledger(path).close()
    database = faulty(path)
    ledger = ledger_on(database)
    step = granted(ledger, "0.4")
    cuts = 0

    def cut(sql: str) -> None:
        nonlocal cuts
        if sql.strip() == "COMMIT" and not cuts:
            cuts += 1
            raise database.fault("cut")

    setattr(database, when, cut)
    ledger.void(step, reason="never started")
    assert (cuts, state_of(path, step), sums(path)) == (1, "void", (0, 0))
    with pytest.raises(ReservationConflict, match="void already"):
        ledger.void(step, reason="again")
    ledger.close()
    audit(path)
