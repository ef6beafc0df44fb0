"""Reserve, settle, void, forfeit: exact sums, one decision each, nothing unsaid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dpflow import EarlyStopping, Gaussian, Laplace, OutputDP, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, ReservationConflict
from dpflow.ledger import views
from dpflow.ledger.decision.admit import Reserve
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.settlement import End
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Command
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.views.accounts import accounts
from tests.ledger.processes import killed
from tests.ledger.support import (
    BASIC,
    RUN,
    UNIT,
    Place,
    audit,
    error_of,
    everything,
    granted,
    kinds,
    make_policy,
    new_ledger,
    refused,
    request,
    state_of,
    sums,
    url,
    whole,
)
from tests.sizes import scaled

pytestmark = pytest.mark.quick

TENTH = Fraction(1, 10)


# The life of a charge


@pytest.mark.storages("sqlite", "postgres")
def test_a_forfeit_posts_in_full(ledger: Ledger, path: Place) -> None:
    """It moves from held to settled and never back."""
    reservation = killed(path, "0.4")
    assert sums(path) == (0, Fraction(4, 10))
    ledger.forfeit(reservation, reason="the machine is gone")
    assert sums(path) == (Fraction(4, 10), 0)
    assert state_of(path, reservation) == "forfeited"
    assert kinds(path) == ["open", "reserve", "forfeit"]
    (entry,) = views.history(ledger, limit=1)
    assert entry.body["reason"] == "the machine is gone"
    audit(path)


@pytest.mark.storages("sqlite", "postgres")
def test_a_dead_charge_stays(ledger: Ledger, path: Place) -> None:
    """Only an operator ends the charge of a dead process."""
    killed(path, "0.6")
    error = refused(ledger, "0.5")
    assert error.left == {"epsilon": "0.4", "delta": "0"}
    assert sums(path) == (0, Fraction(6, 10))


@pytest.mark.storages("sqlite", "postgres")
def test_only_the_owner_voids(ledger: Ledger, path: Place) -> None:
    """No other process knows that the body has not started; a death says nothing."""
    dead, live, other = killed(path), granted(ledger), open_ledger(url(path))
    for reservation in (dead, live):
        with pytest.raises(ReservationConflict, match="another process"):
            other.void(reservation, reason="guess")
    with pytest.raises(ReservationConflict, match="still runs"):
        other.forfeit(live, reason="impatience")
    other.close()
    assert sums(path) == (0, 2 * TENTH)
    ledger.void(live, reason="cancelled")
    assert sums(path) == (0, TENTH)


def end(ledger: Ledger, path: Place, how: str) -> str:
    """Bring a charge to an end of a kind."""
    if how == "forfeited":
        reservation = killed(path)
        ledger.forfeit(reservation, reason="test")
        return reservation
    reservation = granted(ledger)
    if how == "settled":
        ledger.settle(reservation)
    else:
        ledger.void(reservation, reason="test")
    return reservation


# One id, one execution


def test_the_same_id_for_another_request_is_an_error(
    ledger: Ledger, path: Place
) -> None:
    """Also from another process: an id belongs to one execution of a body."""
    step = request(ledger, flow="f", flow_run="r")
    ledger.reserve(step)
    before = everything(path)
    changes: list[dict[str, Any]] = [
        {"cost": PureDP(epsilon="0.2")},
        {"cost": Laplace(sensitivity=1, epsilon="0.1")},
        {"step": "another"},
        {"flow": "another"},
        {"flow_run": "another"},
        {"release_key": "0" * 64},
        {"policies": (make_policy("b"),)},
        {"policies": (BASIC, make_policy("b"))},
        {"owner": "0" * 32},
    ]
    for change in changes:
        with pytest.raises(ReservationConflict, match="id of its own"):
            ledger.reserve(replace(step, **change))
    assert before == everything(path)


@pytest.mark.storages("sqlite", "postgres")
@pytest.mark.parametrize("how", ["settled", "void", "forfeited"])
def test_an_ended_id_is_not_granted_again(
    ledger: Ledger, path: Place, how: str
) -> None:
    """Each charge ends once and pays for one execution; settling again is no error."""
    reservation = end(ledger, path, how)
    step = replace(request(ledger), reservation=reservation)
    before = everything(path)
    calls: dict[str, Callable[[], Any]] = {
        "settle": lambda: ledger.settle(reservation, value="1"),
        "void": lambda: ledger.void(reservation, reason="again"),
        "forfeit": lambda: ledger.forfeit(reservation, reason="again"),
    }
    if how == "settled":
        calls.pop("settle")()
    for call in calls.values():
        assert error_of(call) is ReservationConflict
    with pytest.raises(ReservationConflict, match="id of its own"):
        ledger.reserve(step)
    assert before == everything(path)
    audit(path)


#: What no ledger keeps, by field of a request.
BAD: dict[str, tuple[Any, ...]] = {
    "reservation": ("", "x" * 201, "a b", "a\0b", "\ud800"),
    "owner": ("",),
    "policies": ((BASIC, BASIC),),
    "step": ("", "\ud800"),
    "flow": ("x" * 401, "a\0b"),
    "enclosing_runs": (("r", "\ud800"),),
    "release_key": ("0" * 63, "G" * 64),
    "key_text": ("\udfff",),
}


def test_a_request_that_cannot_be_kept_is_refused(ledger: Ledger, path: Place) -> None:
    """A database that keeps other text than was hashed would always look edited."""
    before = everything(path)
    for field, values in BAD.items():
        for value in values:
            with pytest.raises(ConfigurationError):
                ledger.reserve(request(ledger, **{field: value}))
    assert before == everything(path)
    granted(ledger)
    audit(path)


# Batches


def ending(ledger: Ledger, charge: str, kind: str, value: str | None) -> End:
    """Make the command that ends a charge."""
    kept = value and ledger.digests.of_value(charge, value)
    body = {"outcome": "completed", "digest": kept}
    return End(
        charge=charge,
        kind=kind,
        owner=ledger.owners.mine() if kind != "forfeit" else "",
        body=body if kind == "settle" else {"reason": "test"},
        value=value if kind == "settle" else None,
    )


ALERTS = make_policy(alerts="[0.3, 0.6]")
UNPRICED = Gaussian(sensitivity=1, sigma=20)


def any_command(ledger: Ledger, random: Random, charges: list[str]) -> Command:
    """Make a step, a run reservation, a draw from it, or an end of one of them."""
    deed = random.choice(("step", "step", "draw", "run", "end", "end", "seal"))
    here: dict[str, Any] = {"policies": (ALERTS,)}
    if deed == "end" and charges:
        kind = random.choice(("settle", "settle", "void", "forfeit"))
        value = random.choice((None, "1", "2"))
        return ending(ledger, random.choice(charges), kind, value)
    if deed == "seal":
        body, mine = {"outcome": "completed"}, ledger.owners.mine()
        return End(kind="seal", run=RUN, owner=mine, body=body)
    if deed == "run":
        plans = (["0.1"] * 2, ["0.1"] * 2, ["0.2"], ["0.9"], [UNPRICED])
        step = whole(ledger, random.choice(plans), **here)
        return Reserve(request=step, applies=True)
    if deed == "draw":
        here["preflights"] = (RUN,)
    step = request(
        ledger,
        random.choice(("0.1", "0.1", "0.3")),
        key=random.choice((None, "x", "x", "y")),
        fresh=random.random() < 0.1,
        **here,
    )
    charges.append(step.reservation)
    return Reserve(request=step, applies=True)


def contents(answers: list[Any]) -> list[tuple[Any, ...]]:
    """Return what answers say, whatever ids they name."""
    names = ("value", "beyond", "accounts")
    return [
        (
            str(each) if isinstance(each, bool) else type(each).__name__,
            *(getattr(each, name, None) for name in names),
            [alert.threshold for alert in getattr(each, "alerts", ())],
            len(getattr(each, "opened", ())),
        )
        for each in answers
    ]


def test_no_batch_answers_otherwise_than_its_commands_alone(tmp_path: Path) -> None:
    """Whatever steps and runs share keys and a budget, in any order of ends."""
    for seed in range(scaled(60, push=30)):
        outcomes = []
        for together in (True, False):
            folder = tmp_path / f"{seed}-{together}"
            folder.mkdir()
            with closing(new_ledger(folder)) as ledger:
                random, charges = Random(seed), list[str]()
                count = random.randint(2, 14)
                commands = [any_command(ledger, random, charges) for _ in range(count)]
                if together:
                    answers = ledger.ask_all(commands)
                else:
                    answers = [ledger.ask_all([each])[0] for each in commands]
            place = folder / "ledger.db"
            outcomes.append((contents(answers), kinds(place), sums(place)))
            audit(place)
        assert outcomes[0] == outcomes[1], f"seed {seed}"


def test_a_batch_has_answers_of_each_kind(ledger: Ledger) -> None:
    """The search above asserts nothing about answers that it may not meet."""
    first, again = (request(ledger, key="x") for _ in range(2))
    dear, unpriced = request(ledger, "0.95"), request(ledger, UNPRICED)
    steps = [Reserve(request=each) for each in (first, again, dear, unpriced)]
    end = ending(ledger, first.reservation, "settle", "1")
    replay = Reserve(request=request(ledger, key="x"))
    answers = ledger.ask_all([*steps, end, replay])
    names = [type(answer).__name__ for answer in answers]
    assert names[:3] == ["Granted", "Busy", "BudgetRefused"]
    assert names[3:] == ["UnsupportedCost", "bool", "Replayed"]


def test_facts_of_the_ledger_come_from_no_request(ledger: Ledger, path: Place) -> None:
    """Facts of a caller neither claim a release key nor name another owner."""
    before = everything(path)
    for name in ("covers", "key", "owner", "preflight", "alerts"):
        with pytest.raises(ConfigurationError, match=f"says '{name}'"):
            ledger.reserve(request(ledger, PureDP(epsilon=TENTH), body={name: "x"}))
    for odd in ({"covers": "run"}, {"policies": ()}):
        with pytest.raises(ConfigurationError, match="reads no dataset, or is a run"):
            request(ledger, **odd)
    assert everything(path) == before


LOOP = EarlyStopping(PureDP(epsilon="0.05"), stops=(2, 4))


def test_a_report_charges_at_most_what_was_reserved(
    ledger: Ledger, path: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What did not run returns; a price above what was held posts what was held."""
    ledger.settle(granted(ledger, LOOP), reported=2)
    assert sums(path) == (Fraction(1, 10), 0)
    for held, more in enumerate([Tally((UNIT // 2, 0)), Tally((0, 1))], start=1):
        charge = granted(ledger, LOOP)
        with monkeypatch.context() as patch:
            patch.setattr(Gate, "price", lambda *_, more=more: more)
            ledger.settle(charge, reported=2)
        # No component of another price is mixed into that of the reservation.
        assert sums(path) == (Fraction(1 + 2 * held, 10), 0)


def test_a_group_of_units_gives_nothing_back(ledger: Ledger) -> None:
    """A person in two weeks was reserved for twice; one week's price is too little."""
    capped = make_policy(
        unit="user-week",
        partition="{by: week}",
        lifetime="{epsilon: 2}",
        filter="output-dp",
    )
    weeks = ("2026-W05", "2026-W06")
    cells = OutputDP({"none": "0.1", "answer": "0.2"})
    charge = granted(ledger, cells, policies=(capped,), partitions=weeks)
    ledger.settle(charge, reported="none")
    spent = {view.kind: view.spent["epsilon"] for view in accounts(ledger)}
    assert spent == {"dataset": "0.4", "partition": "0.1"}
