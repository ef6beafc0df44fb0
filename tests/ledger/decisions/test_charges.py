"""Charges of dead processes, ids of charges, reports, and a decision sent again.

Random histories foretell the sums and the answers (`test_histories`); `answers/` has
the words of freezes and charges by hand.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dpflow import EarlyStopping, Laplace, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    LedgerUnavailable,
    ReservationConflict,
)
from dpflow.ledger import views
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from tests.ledger.processes import killed
from tests.ledger.support import (
    BASIC,
    UNIT,
    audit,
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


@pytest.mark.promise("dead-owner")
@pytest.mark.storages("sqlite", "postgres")
def test_a_dead_charge_stays_until_it_is_forfeited_in_full(ledger, path):
    """Only an operator ends the charge of a dead process, and nobody returns it."""
    reservation = killed(path, "0.6")
    error = refused(ledger, "0.5")
    assert error.left == {"epsilon": "0.4", "delta": "0"}
    with pytest.raises(ReservationConflict, match="another process"):
        ledger.void(reservation, reason="guess")
    assert sums(path) == (0, Fraction(6, 10))
    ledger.forfeit(reservation, reason="the machine is gone")
    assert sums(path) == (Fraction(6, 10), 0)
    assert state_of(path, reservation) == "forfeited"
    assert kinds(path) == ["open", "reserve", "refuse", "forfeit"]
    (entry,) = views.history(ledger, limit=1)
    assert entry.body["reason"] == "the machine is gone"
    audit(path)


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


def test_a_decision_that_is_sent_again_is_witnessed_as_one(tmp_path, monkeypatch):
    """A repair freezes a dataset that lost it; the first COMMIT had no answer."""
    witness = str(tmp_path / "witness")
    ledger = create_ledger(url(tmp_path / "ledger.db"), witness=witness)
    granted(ledger)
    transact = Ledger._transact_once

    def once(self: Ledger, *how: Any, again: bool) -> Any:
        answer = transact(self, *how, again=again)
        if not again:
            raise LedgerUnavailable("lost", ledger="here")
        return answer

    monkeypatch.setattr(Ledger, "_transact_once", once)
    assert ledger.freeze("a", reason="wrong sigma")
    assert ledger.watch.witness is not None
    head = ledger.watch.witness.read_all().heads["a"]
    assert (head.number, head.decided_number) == (3, 3)
