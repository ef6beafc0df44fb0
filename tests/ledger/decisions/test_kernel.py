"""Reserve, settle, void, forfeit: exact sums, one decision each, nothing unsaid."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dpflow import EarlyStopping, Laplace, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import ConfigurationError, ReservationConflict
from dpflow.ledger import views
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from tests.ledger.processes import killed
from tests.ledger.support import (
    BASIC,
    UNIT,
    Place,
    audit,
    error_of,
    everything,
    granted,
    kinds,
    make_policy,
    refused,
    request,
    state_of,
    sums,
    url,
)

pytestmark = pytest.mark.quick

TENTH = Fraction(1, 10)


# The life of a charge


@pytest.mark.storages("sqlite", "postgres")
def test_a_forfeit_posts_in_full(ledger, path):
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
def test_a_dead_charge_stays(ledger, path):
    """Only an operator ends the charge of a dead process."""
    killed(path, "0.6")
    error = refused(ledger, "0.5")
    assert error.left == {"epsilon": "0.4", "delta": "0"}
    assert sums(path) == (0, Fraction(6, 10))


@pytest.mark.storages("sqlite", "postgres")
def test_only_the_owner_voids(ledger, path):
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


def test_the_same_id_for_another_request_is_an_error(ledger, path):
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
def test_an_ended_id_is_not_granted_again(ledger, path, how):
    """Each charge ends once and pays for one execution; so does a settlement."""
    reservation = end(ledger, path, how)
    step = replace(request(ledger), reservation=reservation)
    before = everything(path)
    if how == "settled":
        ledger.settle(reservation)
    for call in (
        lambda: ledger.settle(reservation, value="1"),
        lambda: ledger.void(reservation, reason="again"),
        lambda: ledger.forfeit(reservation, reason="again"),
    ):
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


def test_a_request_that_cannot_be_kept_is_refused(ledger, path):
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


def test_facts_of_the_ledger_come_from_no_request(ledger, path):
    """Facts of a caller neither claim a release key nor name another owner."""
    before = everything(path)
    for name in ("key", "owner", "alerts", "units", "accounts"):
        with pytest.raises(ConfigurationError, match=f"says '{name}'"):
            ledger.reserve(request(ledger, body={name: "x"}))
    with pytest.raises(ConfigurationError, match="reads no dataset"):
        request(ledger, policies=())
    assert everything(path) == before


LOOP = EarlyStopping(PureDP(epsilon="0.05"), stops=(2, 4))


def test_a_report_charges_at_most_what_was_reserved(ledger, path, monkeypatch):
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
