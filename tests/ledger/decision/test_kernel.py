"""Reserve, settle, void, forfeit: exact sums, one decision each, nothing unsaid."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import psycopg
import pytest

from dpflow import ApproxDP, Gaussian, Laplace, PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.accounting.rules.rule import Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    DpflowError,
    LedgerCorrupt,
    PolicyChanged,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger import views
from dpflow.ledger.decision.gates import gate_at
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.records import Granted
from dpflow.policy import Policy
from tests.ledger.support import (
    BASIC,
    UNIT,
    Child,
    Place,
    audit,
    await_death,
    chain,
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
from tests.sizes import scaled

TENTH = Fraction(1, 10)
DATASET, ODOMETER = "a#1", "a#1/odometer/weekly"


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Give a new, open ledger, and audit it at the end."""
    opened = make_ledger(path)
    yield opened
    opened.close()


@pytest.fixture
def other(ledger: Ledger, path: Place) -> Iterator[Ledger]:
    """Give the same ledger as another owner sees it."""
    opened = open_ledger(url(path))
    yield opened
    opened.close()


def everything(path: Place) -> list[Any]:
    """Return all that is in a ledger."""
    tables = (
        "book",
        "term",
        "account",
        "entry",
        "charge",
        "run",
        "granted",
        "release",
        "claim",
    )
    found = [read(path, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]
    # A book that was only locked has a row, and no entry.
    found[0] = [row for row in found[0] if row[1] > 0]
    return found


def error_of(call: Callable[[], object]) -> type[DpflowError]:
    """Return the type of the error that a call raises."""
    with pytest.raises(DpflowError) as caught:
        call()
    return caught.type


def refused(ledger: Ledger, cost: Cost | str, **fields: Any) -> BudgetRefused:
    """Reserve what will be refused and return the refusal."""
    with pytest.raises(BudgetRefused) as caught:
        ledger.reserve(request(ledger, cost, **fields))
    return caught.value


def killed(path: Place, cost: str = "0.1") -> str:
    """Reserve in a process that then dies."""

    def work(say: Callable[[str], None]) -> None:
        say(granted(open_ledger(url(path)), cost))
        die()

    child = Child(work)
    reservation = child.line()
    child.end()
    await_death(path, reservation)
    return reservation


# The life of a charge


def test_a_charge_is_held_then_spent(ledger: Ledger, path: Place) -> None:
    """In full, on the account, with an entry for each move."""
    reservation = granted(ledger, "0.3")
    assert sums(path) == (0, Fraction(3, 10))
    assert state_of(path, reservation) == "open"
    ledger.settle(reservation)
    assert sums(path) == (Fraction(3, 10), 0)
    assert state_of(path, reservation) == "settled"
    assert kinds(path) == ["open", "reserve", "settle"]
    audit(path)


def test_a_void_gives_all_of_it_back(ledger: Ledger, path: Place) -> None:
    """Reserve and void are exact inverses."""
    kept = granted(ledger, "0.7")
    for _ in range(3):
        ledger.void(granted(ledger, "0.3"), reason="cancelled")
    assert sums(path) == (0, Fraction(7, 10))
    ledger.settle(kept)
    ledger.settle(granted(ledger, "0.3"))
    assert sums(path) == (1, 0)
    audit(path)


def test_ten_tenths_fit_one_exactly(ledger: Ledger, path: Place) -> None:
    """And the eleventh, however small, does not."""
    for _ in range(10):
        ledger.settle(granted(ledger, "0.1"))
    assert sums(path) == (1, 0)
    refused(ledger, "1e-12")
    assert sums(path) == (1, 0)


def test_the_boundary_is_exact(ledger: Ledger, path: Place) -> None:
    """What is left fits; the smallest cost more does not."""
    granted(ledger, "0.999999999998")
    refused(ledger, "0.000000000003")
    granted(ledger, "0.000000000002")
    assert sums(path) == (0, 1)


def test_every_move_is_exact_in_units(ledger: Ledger, path: Place) -> None:
    """A third is no decimal: it is charged rounded up, and given back the same."""
    cost = PureDP(epsilon=Fraction(1, 3))
    unit = -(-UNIT // 3)
    reservation = granted(ledger, cost)
    assert read(path, "SELECT held FROM account") == [(f"[{unit},0]",)]
    other = granted(ledger, cost)
    assert read(path, "SELECT held FROM account") == [(f"[{2 * unit},0]",)]
    refused(ledger, cost)
    ledger.void(reservation, reason="test")
    ledger.void(other, reason="test")
    assert read(path, "SELECT held, settled FROM account") == [("[0,0]", "[0,0]")]


def test_a_forfeit_posts_in_full(ledger: Ledger, path: Place) -> None:
    """It moves from held to settled and never back."""
    reservation = killed(path, "0.4")
    assert sums(path) == (0, Fraction(4, 10))
    ledger.forfeit(reservation, because="the machine is gone")
    assert sums(path) == (Fraction(4, 10), 0)
    assert state_of(path, reservation) == "forfeited"
    assert kinds(path) == ["open", "reserve", "forfeit"]
    (entry,) = views.history(ledger, limit=1)
    assert entry.body["because"] == "the machine is gone"
    audit(path)


def test_a_dead_charge_stays_for_ever(ledger: Ledger, path: Place) -> None:
    """Whoever died holding it: nothing but an operator touches it."""
    killed(path, "0.6")
    error = refused(ledger, "0.5")
    assert error.left == {"epsilon": "0.4", "delta": "0"}
    assert sums(path) == (0, Fraction(6, 10))


def test_a_live_charge_is_not_forfeited(
    ledger: Ledger, other: Ledger, path: Place
) -> None:
    """Neither one's own nor another's."""
    reservation = granted(ledger)
    for asking in (ledger, other):
        with pytest.raises(ReservationConflict, match="still runs"):
            asking.forfeit(reservation, because="impatience")
    assert sums(path) == (0, TENTH)


def test_only_the_owner_voids(ledger: Ledger, other: Ledger, path: Place) -> None:
    """Nobody else knows that the body has not started; a death says nothing."""
    dead, live = killed(path), granted(ledger)
    for reservation in (dead, live):
        with pytest.raises(ReservationConflict, match="another process"):
            other.void(reservation, reason="guess")
    assert sums(path) == (0, 2 * TENTH)
    ledger.void(live, reason="cancelled")
    assert sums(path) == (0, TENTH)


def test_anyone_may_settle(ledger: Ledger, other: Ledger, path: Place) -> None:
    """It gives nothing back."""
    other.settle(granted(ledger))
    assert sums(path) == (TENTH, 0)


def end(ledger: Ledger, path: Place, how: str) -> str:
    """Bring a charge to an end of a kind."""
    if how == "forfeited":
        reservation = killed(path)
        ledger.forfeit(reservation, because="test")
        return reservation
    reservation = granted(ledger)
    if how == "settled":
        ledger.settle(reservation)
    else:
        ledger.void(reservation, reason="test")
    return reservation


@pytest.mark.parametrize("how", ["settled", "void", "forfeited"])
def test_an_ended_charge_has_ended(ledger: Ledger, path: Place, how: str) -> None:
    """Each charge ends once; only settling again what is settled is no error."""
    reservation = end(ledger, path, how)
    before = everything(path)
    calls: dict[str, Callable[[], None]] = {
        "settle": lambda: ledger.settle(reservation, value="1"),
        "void": lambda: ledger.void(reservation, reason="again"),
        "forfeit": lambda: ledger.forfeit(reservation, because="again"),
    }
    if how == "settled":
        calls.pop("settle")()
    for call in calls.values():
        assert error_of(call) is ReservationConflict
    assert before == everything(path)
    audit(path)


def test_an_unknown_charge_has_no_end(ledger: Ledger, path: Place) -> None:
    """Nothing is guessed about it."""
    before = everything(path)
    calls: tuple[Callable[[], None], ...] = (
        lambda: ledger.settle("unknown"),
        lambda: ledger.void("unknown", reason="test"),
        lambda: ledger.forfeit("unknown", because="test"),
    )
    for call in calls:
        with pytest.raises(ReservationConflict, match="knows no reservation"):
            call()
    assert before == everything(path)


# One id, one execution


def test_the_same_id_is_charged_once(ledger: Ledger, path: Place) -> None:
    """Asking again after a lost answer gives the same answer."""
    asked = request(ledger, "0.6")
    answers = [ledger.reserve(asked) for _ in range(3)]
    assert [Granted(reservation=asked.reservation, accounts=("a#1",))] * 3 == answers
    assert sums(path) == (0, Fraction(6, 10))
    assert kinds(path) == ["open", "reserve"]


@pytest.mark.parametrize(
    "changes",
    [
        {"cost": PureDP(epsilon="0.2")},
        {"cost": Laplace(sensitivity=1, epsilon="0.1")},
        {"step": "another"},
        {"flow": "another"},
        {"flow_run": "another"},
        {"release_key": "0" * 64},
        {"policies": (make_policy("b"),)},
        {"policies": (BASIC, make_policy("b"))},
        {"owner": "0" * 32},
    ],
    ids=str,
)
def test_the_same_id_for_another_request_is_an_error(
    ledger: Ledger, path: Place, changes: dict[str, Any]
) -> None:
    """Also from another process: an id belongs to one execution of a body."""
    asked = request(ledger, flow="f", flow_run="r")
    ledger.reserve(asked)
    before = everything(path)
    with pytest.raises(ReservationConflict, match="id of its own"):
        ledger.reserve(replace(asked, **changes))
    assert before == everything(path)


@pytest.mark.parametrize("how", ["settled", "void", "forfeited"])
def test_an_ended_id_is_not_granted_again(
    ledger: Ledger, path: Place, how: str
) -> None:
    """Prefect repeats its ids; the charge of an earlier execution pays for nothing."""
    asked = request(ledger)
    if how == "forfeited":
        asked = replace(asked, reservation=end(ledger, path, how))
    else:
        ledger.reserve(asked)
        call = ledger.settle if how == "settled" else ledger.void
        call(asked.reservation, **({"reason": "x"} if how == "void" else {}))
    before = everything(path)
    with pytest.raises(ReservationConflict, match="id of its own"):
        ledger.reserve(asked)
    assert before == everything(path)


def test_a_refused_id_may_ask_again(ledger: Ledger, path: Place) -> None:
    """A refusal holds nothing; the same request is decided anew."""
    blocking, asked = granted(ledger, "0.6"), request(ledger, "0.5", step="other")
    assert error_of(lambda: ledger.reserve(asked)) is BudgetRefused
    ledger.void(blocking, reason="test")
    ledger.reserve(asked)
    assert sums(path) == (0, Fraction(5, 10))


BAD: list[dict[str, Any]] = [
    {"reservation": ""},
    {"reservation": "x" * 201},
    {"reservation": "a b"},
    {"reservation": "a\0b"},
    {"reservation": "\ud800"},
    {"reservation": 7},
    {"reservation": None},
    {"owner": ""},
    {"owner": None},
    {"policies": ()},
    {"policies": (BASIC, BASIC)},
    {"step": ""},
    {"step": None},
    {"step": "\ud800"},
    {"flow": "x" * 401},
    {"flow": "a\0b"},
    {"flow_run": 7},
    {"enclosing_runs": ("r", "\ud800")},
    {"release_key": "0" * 63},
    {"release_key": "G" * 64},
    {"key_text": "\udfff"},
]


@pytest.mark.parametrize("fields", BAD, ids=lambda fields: f"{fields!r:.40}")
def test_a_request_that_cannot_be_kept_is_refused(
    ledger: Ledger, path: Place, fields: dict[str, Any]
) -> None:
    """A database that keeps other text than was hashed would look edited for ever."""
    before = everything(path)
    with pytest.raises(ConfigurationError):
        ledger.reserve(request(ledger, **fields))
    assert before == everything(path)
    granted(ledger)
    audit(path)


def test_long_names_are_kept(ledger: Ledger, path: Place) -> None:
    """The longest that a request may have fit every column."""
    policy = make_policy("d" * 200, odometer="{theorem: renyi, delta: 1e-6, order: 8}")
    longest = "\N{PILE OF POO}" * 400
    granted(
        ledger,
        policies=[policy],
        reservation="r" * 200,
        step=longest,
        flow=longest,
        flow_run=longest,
    )
    audit(path)
    refused(ledger, "5", policies=[policy], flow=longest, flow_run=longest)
    assert views.refusal_of_run(ledger, longest) is not None


# Several accounts


def test_several_datasets_all_or_none(ledger: Ledger, path: Place) -> None:
    """One that refuses keeps all of them as they were."""
    pair = (BASIC, make_policy("b", budget="{epsilon: 0.3}"))
    first = granted(ledger, "0.2", policies=pair)
    assert (sums(path, "a#1"), sums(path, "b#1")) == ((0, 2 * TENTH),) * 2
    error = refused(ledger, "0.2", policies=pair)
    assert error.dataset == "b"
    assert (sums(path, "a#1"), sums(path, "b#1")) == ((0, 2 * TENTH),) * 2
    assert (kinds(path, "a#1"), kinds(path, "b#1")) == (
        ["open", "reserve"],
        ["open", "reserve", "refuse"],
    )
    ledger.settle(first)
    assert (sums(path, "a#1"), sums(path, "b#1")) == ((2 * TENTH, 0),) * 2
    audit(path)


def test_every_gate_of_a_flow_is_charged(ledger: Ledger, path: Place) -> None:
    """Dataset, share and odometer; a void gives all of them back."""
    policy = make_policy(
        budget="{epsilon: 1, delta: 1e-6}",
        odometer="{theorem: renyi, delta: 1e-6, order: 8}",
        flows="{weekly: {epsilon: 0.5}}",
    )
    answer = ledger.reserve(request(ledger, "0.2", policies=[policy], flow="weekly"))
    assert isinstance(answer, Granted)
    names = ("a#1", "a#1/flow/weekly", "a#1/odometer/weekly")
    assert names == answer.accounts
    held = [sums(path, name)[1] for name in names]
    assert held[:2] == [2 * TENTH] * 2
    assert 0 < held[2] < 2 * TENTH
    ledger.void(answer.reservation, reason="test")
    assert [sums(path, name) for name in names] == [(0, 0)] * 3
    audit(path)


def test_a_flows_share_is_a_gate(ledger: Ledger, path: Place) -> None:
    """What the dataset has left does not help a flow that has used its share."""
    policy = make_policy(flows="{weekly: {epsilon: 0.3}, daily: {epsilon: 0.5}}")
    granted(ledger, "0.2", policies=[policy], flow="weekly")
    error = refused(ledger, "0.2", policies=[policy], flow="weekly")
    assert (error.gate, error.left) == ("flow", {"epsilon": "0.1", "delta": "0"})
    assert "'weekly'" in error.message
    granted(ledger, "0.2", policies=[policy], flow="daily")
    assert sums(path) == (0, 4 * TENTH)
    assert sums(path, "a#1/flow/weekly") == (0, 2 * TENTH)


@pytest.mark.parametrize("flow", ["daily", None])
def test_other_flows_are_refused(ledger: Ledger, path: Place, flow: str | None) -> None:
    """A policy that names flows means these; the refusal is journaled."""
    policy = make_policy(flows="{weekly: {epsilon: 0.5}}")
    error = refused(ledger, "0.1", policies=[policy], flow=flow, flow_run="r")
    assert type(error) is BudgetRefused
    listed = "was refused by the list of flows in the policy of dataset 'a': "
    assert listed in error.message
    assert "filter" not in error.message
    assert "in a flow that stands under `flows:`" in error.fits
    assert (kinds(path), sums(path)) == (["open", "refuse"], (0, 0))
    allowing = make_policy("b", flows="{weekly: {epsilon: 0.5}}", other_flows="allow")
    granted(ledger, "0.1", policies=[allowing], flow=flow)


# Refusals


def test_a_refusal_is_journaled_and_costs_nothing(ledger: Ledger, path: Place) -> None:
    """With what was asked, what is left and what would fit."""
    granted(ledger, "0.75")
    before = sums(path)
    error = refused(ledger, "0.5", step="big", flow="f", flow_run="r")
    assert (error.asked["epsilon"], error.left["epsilon"]) == ("0.5", "0.25")
    assert (error.dataset, error.gate, error.theorem) == ("a", "dataset", "basic")
    assert (error.step, error.flow, error.flow_run) == ("big", "f", "r")
    assert error.cost == {"mechanism": "PureDP", "epsilon": "0.5"}
    assert before == sums(path)
    ((text, postings),) = read(
        path, "SELECT body, postings FROM entry WHERE kind = 'refuse'"
    )
    body = json.loads(text)
    told = (body["asked"], body["left"], body["fits"], body["message"])
    assert (error.asked, error.left, error.fits, error.message) == told
    found = body["refusal"], body["step"], body["flow_run"]
    assert found == ("BudgetRefused", "big", "r")
    expected = [UNIT // 2, 0], [0, 0], [3 * UNIT // 4, 0]
    assert json.loads(postings) == {DATASET: list(expected)}
    audit(path)


def test_what_would_fit_fits(ledger: Ledger) -> None:
    """The factor of noise that a refusal names is admitted, and not far too much."""
    granted(ledger, "0.75")
    error = refused(ledger, "0.5")
    factor = Fraction(error.fits.split()[1])
    assert 2 <= factor <= Fraction(203, 100)
    granted(ledger, PureDP(epsilon=Fraction(1, 2) / factor))


def test_nothing_fits_an_empty_budget(ledger: Ledger) -> None:
    """Then no factor is named."""
    granted(ledger, "1")
    error = refused(ledger, "0.5")
    assert error.left == {"epsilon": "0", "delta": "0"}
    assert "No amount of noise" in error.fits


def test_what_would_fit_may_be_said(ledger: Ledger, path: Place) -> None:
    """A factor rounded up to readable digits must not leave what a cost may say.

    2,050 times the noise would be an epsilon below 1e-12, which no cost may have.
    """
    granted(ledger, PureDP(epsilon=1 - Fraction("1.0012e-12")))
    error = refused(ledger, "2048.5e-12")
    assert "2048 times" in error.fits
    assert kinds(path) == ["open", "reserve", "refuse"]


def test_exhausted_means_granted_before(ledger: Ledger) -> None:
    """By this step, at this cost or more; a mistyped sigma exhausts nothing."""
    granted(ledger, "0.4", step="weekly")
    granted(ledger, "0.3", step="weekly")
    cases = {
        ("weekly", "0.4"): BudgetExhausted,
        ("weekly", "0.31"): BudgetExhausted,
        ("weekly", "0.5"): BudgetRefused,
        ("other", "0.4"): BudgetRefused,
    }
    for (step, cost), kind in cases.items():
        assert kind is type(refused(ledger, cost, step=step))


FROZEN = """UPDATE book SET frozen = '{"because":"test","who":"ann"}'"""


@pytest.mark.parametrize(
    ("state", "edited"),
    [("frozen", FROZEN), ("overdrawn", "UPDATE account SET overdrawn = 1")],
)
def test_an_account_that_is_not_open_admits_nothing(
    ledger: Ledger, path: Place, state: str, edited: str
) -> None:
    """However much is left; what runs already may end."""
    running = granted(ledger)
    edit(path, edited)
    error = refused(ledger, "1e-12")
    assert f"is {state}" in error.message
    assert "No amount of noise" not in error.fits
    ledger.settle(running)
    assert sums(path) == (TENTH, 0)
    audit(path)


def test_a_request_that_errs_leaves_no_trace(ledger: Ledger, path: Place) -> None:
    """No term, no account, no entry: as if it had never been asked."""
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="gaussian")
    before = everything(path)
    with pytest.raises(UnsupportedCost):
        granted(ledger, ApproxDP(epsilon=1, delta="1e-9"), policies=[policy])
    assert before == everything(path)


def test_a_pair_that_errs_on_one_leaves_no_trace_on_the_other(
    ledger: Ledger, path: Place
) -> None:
    """The dataset that could price the step forgets that it was asked."""
    strict = make_policy("b", budget="{epsilon: 1, delta: 1e-6}", filter="gaussian")
    pair = [make_policy(budget="{epsilon: 1, delta: 1e-6}"), strict]
    before = everything(path)
    with pytest.raises(UnsupportedCost):
        granted(ledger, ApproxDP(epsilon="0.1", delta="1e-9"), policies=pair)
    assert before == everything(path)


# Batches


def test_a_batch_is_decided_one_after_another(ledger: Ledger, path: Place) -> None:
    """Each may be refused or err alone; the order counts."""
    gaussian = make_policy("b", budget="{epsilon: 1, delta: 1e-6}", filter="gaussian")
    delta = ApproxDP(epsilon="0.1", delta="1e-9")
    answers = ledger.reserve_many(
        [
            request(ledger, "0.6"),
            request(ledger, "0.6", step="second"),
            request(ledger, delta, policies=[gaussian]),
            request(ledger, "0.4"),
            request(ledger, "1e-12", step="late"),
        ]
    )
    names = [type(answer).__name__ for answer in answers]
    errors = ("BudgetRefused", "UnsupportedCost")
    assert ["Granted", *errors, "Granted", errors[0]] == names
    assert sums(path) == (0, 1)
    assert kinds(path) == ["open", "reserve", "refuse", "reserve", "refuse"]
    assert read(path, "SELECT book FROM term") == [("a",)]
    audit(path)


def statements(path: Place) -> tuple[Ledger, list[str]]:
    """Open a ledger that writes down the statements that it runs."""
    storage, log = faulty(path), list[str]()
    storage.after = log.append
    return ledger_on(storage), log


def test_a_batch_is_one_commit(ledger: Ledger, path: Place) -> None:
    """However many requests it has."""
    counting, log = statements(path)
    requests = [request(counting, "0.01") for _ in range(10)]
    log.clear()
    counting.reserve_many(requests)
    begun = [sql for sql in log if sql.startswith("BEGIN")]
    assert (len(begun), log.count("COMMIT")) == (1, 1)
    assert sums(path) == (0, TENTH)
    counting.close()


def test_an_empty_batch_is_nothing(ledger: Ledger, path: Place) -> None:
    """It has no answers and leaves nothing."""
    before = everything(path)
    assert ledger.reserve_many([]) == []
    assert before == everything(path)


def test_a_decision_costs_the_same_after_many_charges(
    ledger: Ledger, path: Place
) -> None:
    """The number of statements does not depend on the history."""
    counting, log = statements(path)

    def cost_of_one_charge() -> list[int]:
        found = []
        asked = request(counting, "1e-5", key=f"key/{len(kinds(path))}")
        for call in (
            lambda: counting.reserve(asked),
            lambda: counting.settle(asked.reservation, value="1"),
            lambda: counting.void(granted(counting, "1e-5"), reason="test"),
            lambda: refused(counting, "2"),
        ):
            log.clear()
            call()
            found.append(len(log))
        return found

    def charge(count: int) -> None:
        for _ in range(count // 10):
            many = [request(counting, "1e-5") for _ in range(10)]
            assert {Granted} == {type(a) for a in counting.reserve_many(many)}

    # The first of two may find nothing remembered.
    charge(10)
    _, early = cost_of_one_charge(), cost_of_one_charge()
    charge(scaled(1990, 390))
    _, late = cost_of_one_charge(), cost_of_one_charge()
    assert early == late
    assert max(early) < 40
    counting.close()


# Odometers

HALTING = make_policy(
    budget="{epsilon: 20, delta: 1e-6}",
    filter="gaussian",
    odometer="{theorem: renyi, delta: 1e-6, order: 8}",
    flows="{weekly: {halt_at_epsilon: 3}, free: {}}",
)
STEP, SMALL = Gaussian(sensitivity=1, sigma=5), Gaussian(sensitivity=1, sigma=500)


def weekly(ledger: Ledger, cost: Cost, run: str | None = "run 1", **more: Any) -> str:
    """Reserve in a run of the weekly flow."""
    fields = {"policies": [HALTING], "flow": "weekly", "flow_run": run, **more}
    return granted(ledger, cost, **fields)


def test_an_odometer_halts_its_flow_run(ledger: Ledger, path: Place) -> None:
    """At log(1e6)/7 + n * 0.16 <= 3 there are six steps; then none of the run."""
    for _ in range(6):
        ledger.settle(weekly(ledger, STEP))
    with pytest.raises(BudgetExhausted) as caught:
        weekly(ledger, STEP)
    error = caught.value
    assert (error.gate, error.theorem) == ("odometer", "renyi")
    assert "above halt_at_epsilon 3" in error.message
    reading = Fraction(6 * 16, 100) + Fraction("1.973644")
    assert 3 - reading - Fraction(1, 10**5) < Fraction(error.left["epsilon"])
    assert Fraction(error.left["epsilon"]) < 3 - reading
    for cost in (SMALL, STEP):
        with pytest.raises(BudgetRefused, match="halted this flow run") as caught:
            weekly(ledger, cost)
        assert "No further DP step" in caught.value.fits
    assert sums(path, ODOMETER) == (Fraction(96, 100), 0)
    assert sums(path) == (Fraction(24, 100), 0)
    audit(path)


def test_a_reading_at_the_halt_is_admitted(ledger: Ledger) -> None:
    """Exactly at it, and not a hair above; an undefined reading is above any."""
    weekly(ledger, STEP)
    with ledger.storage.read() as reading:
        state = reading.load(Keys(whole=("a",)))
    gate = gate_at(state, ODOMETER)
    assert gate is not None
    assert isinstance(gate.rule, Odometer)
    asked = gate.price(STEP)
    reading_at = Fraction(gate.rule.read(gate.held + asked))
    assert gate._replace(halt=reading_at).admits(asked)
    assert not gate._replace(halt=reading_at - Fraction(1, 10**40)).admits(asked)
    assert not gate._replace(used=Tally((0, 1))).admits(asked)


def test_another_run_is_not_halted(ledger: Ledger) -> None:
    """Its cheaper step fits, its dear one does not; nor is another flow halted."""
    for _ in range(6):
        weekly(ledger, STEP)
    with pytest.raises(BudgetRefused):
        weekly(ledger, STEP)
    weekly(ledger, SMALL, "run 2")
    weekly(ledger, SMALL, None)
    weekly(ledger, STEP, flow="free")
    with pytest.raises(BudgetRefused, match="would rise"):
        weekly(ledger, STEP, "run 2")
    with pytest.raises(BudgetRefused, match="halted this flow run"):
        weekly(ledger, SMALL, "run 2")


def test_a_run_around_the_flow_is_not_halted(ledger: Ledger) -> None:
    """Its refusals are known there, but its own steps are its own."""
    for _ in range(6):
        weekly(ledger, STEP, "inner", enclosing_runs=("inner", "outer"))
    with pytest.raises(BudgetRefused):
        weekly(ledger, STEP, "inner", enclosing_runs=("inner", "outer"))
    weekly(ledger, SMALL, "outer", enclosing_runs=("outer",))
    assert views.refusal_of_run(ledger, "outer") is not None


def test_a_step_that_two_gates_refuse_halts_too(ledger: Ledger, path: Place) -> None:
    """The filter is named first, but the odometer would have passed its halt."""
    with pytest.raises(BudgetRefused) as caught:
        weekly(ledger, Gaussian(sensitivity=1, sigma="0.05"))
    assert caught.value.gate == "dataset"
    with pytest.raises(BudgetRefused, match="halted this flow run"):
        weekly(ledger, SMALL)
    assert kinds(path, ODOMETER) == ["refuse", "refuse"]
    with pytest.raises(BudgetRefused, match="No further DP step") as caught:
        weekly(ledger, Gaussian(sensitivity=1, sigma="0.05"))
    assert caught.value.gate == "dataset"
    found = views.refusal_of_run(ledger, "run 1")
    assert found is not None
    assert found.gate == "dataset"
    audit(path)


def test_a_filter_that_refuses_does_not_halt(ledger: Ledger) -> None:
    """Only odometers do: a cheaper step of the same run may follow."""
    policy = make_policy(
        budget="{epsilon: 1, delta: 1e-6}",
        filter="gaussian",
        odometer="{theorem: renyi, delta: 1e-6, order: 8}",
        flows="{weekly: {halt_at_epsilon: 50}}",
    )
    with pytest.raises(BudgetRefused):
        weekly(ledger, Gaussian(sensitivity=1, sigma=1), policies=[policy])
    weekly(ledger, SMALL, policies=[policy])


def test_a_halt_on_one_dataset_does_not_spoil_advice_on_another(
    ledger: Ledger,
) -> None:
    """What would fit there is still worked out."""
    for _ in range(6):
        weekly(ledger, STEP)
    with pytest.raises(BudgetRefused):
        weekly(ledger, STEP)
    error = refused(
        ledger, "2", policies=[make_policy("b")], flow="weekly", flow_run="run 1"
    )
    assert "it would still fit" in error.fits


BASIC_WITH_DELTA = "{epsilon: 20, delta: 1e-6}"


def test_an_uncovered_step_is_refused_where_the_odometer_halts(
    ledger: Ledger, path: Place
) -> None:
    """Its reading would be undefined, so it could not halt any more."""
    policy = make_policy(
        budget=BASIC_WITH_DELTA,
        odometer="{theorem: renyi, delta: 1e-6, order: 8}",
        flows="{weekly: {halt_at_epsilon: 3}}",
    )
    before = everything(path)
    with pytest.raises(UnsupportedCost):
        weekly(ledger, ApproxDP(epsilon="0.1", delta="1e-9"), policies=[policy])
    assert before == everything(path)
    weekly(ledger, SMALL_PURE, policies=[policy])


SMALL_PURE = PureDP(epsilon="0.01")


def test_an_uncovered_step_makes_the_reading_undefined_elsewhere(
    ledger: Ledger, path: Place
) -> None:
    """It is admitted, counted, and a void takes the count back."""
    policy = make_policy(
        budget=BASIC_WITH_DELTA,
        odometer="{theorem: renyi, delta: 1e-6, order: 8}",
        flows="{weekly: {}}",
    )
    cost = ApproxDP(epsilon="0.1", delta="1e-9")
    reservation = weekly(ledger, cost, policies=[policy])
    assert read(path, f"SELECT held FROM account WHERE id = '{ODOMETER}'") == [
        ("[0,1]",)
    ]
    (view,) = (v for v in views.accounts(ledger) if v.kind == "odometer")
    assert view.reading == float("inf")
    weekly(ledger, SMALL_PURE, policies=[policy])
    ledger.void(reservation, reason="test")
    (view,) = (v for v in views.accounts(ledger) if v.kind == "odometer")
    assert view.reading is not None
    assert view.reading < 3


# The journal


def test_the_hash_chain_is_what_it_says(ledger: Ledger, path: Place) -> None:
    """Recomputed from the columns by other code, over every kind of entry."""
    ledger.settle(granted(ledger, "0.1", key="k"), value="1")
    ledger.void(granted(ledger, "0.1", flow="f", flow_run="r"), reason="test")
    ledger.forfeit(killed(path), because="test")
    refused(ledger, "0.95", flow="f", flow_run="r")
    assert set(kinds(path)) == {
        "open",
        "reserve",
        "settle",
        "void",
        "forfeit",
        "refuse",
    }
    hashes = chain(path, "a")
    assert len(hashes) == len(kinds(path)) == len({stored for stored, _ in hashes})
    assert [stored for stored, _ in hashes] == [computed for _, computed in hashes]
    audit(path)


@pytest.mark.parametrize(
    "column", ["kind", "charge", "postings", "body", "at", "writer", "hash"]
)
def test_an_edited_old_entry_breaks_the_chain(
    ledger: Ledger, path: Place, column: str
) -> None:
    """Any column, however long ago: this is what `verify` will look for."""
    for _ in range(3):
        ledger.settle(granted(ledger))
    values = {"kind": "'refuse'", "postings": "'{}'", "body": "'{}'"}
    value = values.get(column, "substr(hash, 1, 63) || 'x'")
    edit(path, f"UPDATE entry SET {column} = {value} WHERE number = 3")
    assert [n for n, pair in enumerate(chain(path, "a"), 1) if len({*pair}) == 2]
    with pytest.raises((AssertionError, KeyError, ValueError)):
        audit(path)


NOUGHT = "replace(postings, '0,0', '1,0')"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE account SET settled = '[0,0]'",
        "UPDATE account SET held = '[0,0]'",
        f"UPDATE book SET hash = '{'0' * 64}'",
        "UPDATE book SET number = number - 1",
        "UPDATE book SET number = number + 1",
        "UPDATE account SET entry = entry - 1",
        f"UPDATE entry SET postings = {NOUGHT} WHERE number = 4",
        "UPDATE entry SET postings = '{}' WHERE number = 4",
        "UPDATE entry SET body = '{}' WHERE number = 4",
        "UPDATE entry SET at = 'then' WHERE number = 4",
        "UPDATE entry SET writer = 'me' WHERE number = 4",
        "UPDATE entry SET kind = 'settle' WHERE number = 4",
        f"UPDATE entry SET hash = '{'0' * 64}' WHERE number = 3",
        "DELETE FROM entry WHERE number = 4",
        "DELETE FROM entry WHERE number = 3",
        "UPDATE entry SET body = replace(body, 'epsilon', 'delta') WHERE number = 1",
        "UPDATE account SET entry = 3, settled = '[{0},0]', held = '[0,0]'",
        "DELETE FROM account",
    ],
)
def test_an_edit_by_hand_is_noticed_at_the_next_decision(
    ledger: Ledger, path: Place, statement: str
) -> None:
    """The step does not run, and the damage is left as it is for whoever looks."""
    ledger.settle(granted(ledger, "0.8"))
    running = granted(ledger, "0.1")
    edit(path, statement.replace("{0}", str(8 * UNIT // 10)))
    before = everything(path)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt):
            ledger.reserve(request(ledger, "0.05"))
    assert before == everything(path)
    if "number = 1" not in statement:
        # A settlement in full needs no term.
        with pytest.raises(LedgerCorrupt):
            ledger.settle(running)
        assert before == everything(path)


@pytest.mark.parametrize("column", ["held", "key", "covers", "state", "places"])
def test_a_charge_that_was_edited_by_hand_is_not_ended(
    ledger: Ledger, path: Place, column: str
) -> None:
    """Its entries say what it holds, and for which release."""
    running = granted(ledger, "0.1", key="k")
    value = {
        "held": f"""'{{"{DATASET}":[0,0]}}'""",
        "state": "'void'",
        "places": """'{"a":[1,0]}'""",
    }.get(column, "'other'")
    edit(path, f"UPDATE charge SET {column} = {value}")
    before = everything(path)
    with pytest.raises(LedgerCorrupt, match="Someone edited the ledger"):
        ledger.settle(running)
    assert before == everything(path)


def test_sums_edited_on_both_sides_are_noticed(ledger: Ledger, path: Place) -> None:
    """Row and newest entry may agree, but the entry is not what was hashed."""
    ledger.settle(granted(ledger, "0.8"))
    edit(
        path,
        "UPDATE account SET settled = '[0,0]'",
        "UPDATE entry SET postings = replace(postings, '],[', '],[0,0],[') "
        "WHERE number = 3",
    )
    with pytest.raises(LedgerCorrupt):
        ledger.reserve(request(ledger, "0.8"))


def test_an_account_that_is_gone_is_missed_where_a_whole_book_is_read(
    ledger: Ledger, path: Place
) -> None:
    """Nobody asks for it by its name there; the newest entry moved it."""
    granted(ledger, "0.8")
    edit(path, "DELETE FROM account")
    gone = pytest.raises(LedgerCorrupt, match="account 'a#1' is not there")
    with ledger.storage.read() as reading, gone:
        reading.load(Keys(whole=("a",)))


def test_an_unedited_ledger_goes_on(ledger: Ledger, path: Place) -> None:
    """The control of the tests above: dropping the triggers alone changes nothing."""
    ledger.settle(granted(ledger, "0.8"))
    edit(path)
    granted(ledger, "0.05")
    audit(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET postings = '{}'",
        "UPDATE entry SET at = at",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE number = 2",
    ],
)
def test_the_journal_is_append_only(
    ledger: Ledger, path: Place, statement: str
) -> None:
    """The database itself refuses, whoever asks."""
    granted(ledger)
    before = everything(path)
    errors = (sqlite3.IntegrityError, psycopg.IntegrityError)
    with pytest.raises(errors, match="append-only"):
        edit(path, statement, locked=True)
    assert before == everything(path)


# Terms


def changed(**fields: str) -> Policy:
    """Return the policy after an edit."""
    return make_policy(**fields)


EDITS: list[tuple[Policy, str]] = [
    (changed(budget="{epsilon: 2}"), "budget.epsilon: ledger 1, file 2"),
    (changed(budget="{epsilon: 0.5}"), "budget.epsilon: ledger 1, file 0.5"),
    (changed(unit="household"), "unit: ledger customer, file household"),
    (changed(relation="replace-one"), "relation"),
    (
        changed(budget="{epsilon: 1, delta: 1e-6}", filter="gaussian"),
        "filter.theorem: ledger basic, file gaussian",
    ),
    (changed(flows="{weekly: {epsilon: 1}}"), "flows.weekly"),
    (changed(other_flows="refuse"), "other_flows: ledger allow, file refuse"),
    (
        changed(
            budget="{epsilon: 1, delta: 1e-6}",
            odometer="{theorem: renyi, delta: 1e-6, order: 8}",
        ),
        "odometer",
    ),
]


@pytest.mark.parametrize(("edited", "difference"), EDITS)
@pytest.mark.parametrize("settled", [True, False])
def test_a_policy_edited_after_the_first_charge_is_refused(
    ledger: Ledger, path: Place, edited: Policy, difference: str, settled: bool
) -> None:
    """The ledger's copy governs; the difference is shown, and nothing changes."""
    reservation = granted(ledger)
    if settled:
        ledger.settle(reservation)
    before = everything(path)
    with pytest.raises(PolicyChanged) as caught:
        granted(ledger, policies=[edited])
    assert caught.value.dataset == "a"
    assert list({difference in str(caught.value.differences)}) == [True]
    assert difference in caught.value.message
    assert before == everything(path)
    granted(ledger)


@pytest.mark.parametrize(("edited", "difference"), EDITS[:2])
def test_a_policy_edited_before_any_charge_is_fine(
    ledger: Ledger, path: Place, edited: Policy, difference: str
) -> None:
    """Also after a refusal or a void; the account is a new one under the new rule."""
    refused(ledger, "5")
    ledger.void(granted(ledger), reason="test")
    granted(ledger, "0.5", policies=[edited])
    assert sums(path, "a#2") == (0, Fraction(1, 2))
    assert sums(path, "a#1") == (0, 0)
    assert error_of(lambda: granted(ledger)) is PolicyChanged
    limit = {"budget.epsilon: ledger 1, file 2": "1.6"}.get(difference, "0.1")
    refused(ledger, limit, policies=[edited])
    audit(path)


@pytest.mark.parametrize(
    "edited",
    [
        changed(budget="{epsilon: 1.0}"),
        changed(alerts="[0.1]"),
        changed(errors="keep"),
        changed(version='"2"'),
        changed(on_exhausted="{schedule: pause}"),
    ],
)
def test_an_edit_that_touches_no_guarantee_is_fine(
    ledger: Ledger, path: Place, edited: Policy
) -> None:
    """It is charged to the same account."""
    granted(ledger)
    granted(ledger, policies=[edited])
    assert sums(path) == (0, 2 * TENTH)


def test_a_charge_that_was_opened_again_by_hand_ends_once(
    ledger: Ledger, path: Place
) -> None:
    """Whether its account holds nothing any more, or another charge of that size."""
    name = granted(ledger)
    ledger.settle(name)
    edit(path, f"UPDATE charge SET state = 'open' WHERE id = '{name}'")
    before = kinds(path), sums(path)
    with pytest.raises(LedgerCorrupt, match="not what its entries say"):
        ledger.settle(name)
    granted(ledger)
    with pytest.raises(LedgerCorrupt):
        ledger.settle(name)
    assert kinds(path) == [*before[0], "reserve"]
    assert sums(path) == (TENTH, TENTH)
