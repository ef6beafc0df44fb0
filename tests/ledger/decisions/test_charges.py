"""Charges of processes and of operators, and freezes: nothing unsaid, nothing lowered.

Random histories foretell the sums and the answers (`test_histories`); here are the
words, and what the histories do not meet.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from dpflow import EarlyStopping, Gaussian, Laplace, PoissonSampledGaussian, PureDP
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    LedgerUnavailable,
    PolicyChanged,
    PolicyNotApplied,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger import views
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.provenance import system_user
from tests.ledger.processes import killed
from tests.ledger.support import (
    BASIC,
    UNIT,
    audit,
    body,
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

WHY = "sigma was 10, not 20"


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


# Charges by hand


def test_an_amendment_of_another_relation_is_refused(ledger):
    """Its price would not hold for the people whom the policy protects."""
    policy = make_policy(
        relation="replace-one", filter="rdp", budget="{epsilon: 3, delta: 1e-6}"
    )
    name = granted(ledger, Gaussian(sensitivity=1, sigma=20), policies=[policy])
    sampled = PoissonSampledGaussian(sampling_rate="0.1", noise_multiplier=1)
    before = everything(ledger)
    with pytest.raises(UnsupportedCost, match="policy of dataset 'a' says replace-one"):
        ledger.amend(name, sampled, reason=WHY)
    assert everything(ledger) == before
    ledger.amend(name, Gaussian(sensitivity=1, sigma=10), reason=WHY)


def test_nothing_is_ever_lowered(ledger):
    """An amendment that charges nothing is an error, as is one of another dataset."""
    name = granted(ledger, "0.1")
    for epsilon in ("0.1", "0.05"):
        with pytest.raises(ReservationConflict, match="only ever raised"):
            ledger.amend(name, PureDP(epsilon=epsilon), reason=WHY)
    with pytest.raises(ReservationConflict, match="charged 'a', not dataset 'b'"):
        ledger.amend(name, PureDP(epsilon=1), reason=WHY, dataset="b")
    assert kinds(ledger) == ["open", "reserve"]


def test_prior_spending_opens_the_term_and_notes_its_flow(ledger):
    """What a flow used without a share cannot be set against one afterwards."""
    before, cost = make_policy(flows="{f: {}, g: {}}"), PureDP(epsilon="0.4")
    (charge,) = ledger.charge_prior(before, cost, flow="f", reason="2025")
    assert (charge.account, charge.overdrawn) == ("a#1", False)
    assert body(ledger, "adjust")["reason"] == "2025"
    refused(ledger, "0.7", policies=[before], flow="g")
    with pytest.raises(PolicyChanged, match=r"flows\.f: ledger"):
        ledger.apply(make_policy(flows="{f: {epsilon: 0.3}, g: {}}"))
    audit(ledger)


def test_evidence_proves_one_charge_of_a_term(ledger):
    """A corrected cost and prior spending share the evidence of a term."""
    name = granted(ledger, "0.1")
    proof = {"reason": WHY, "evidence": "e" * 64}
    ledger.amend(name, PureDP(epsilon="0.2"), **proof)
    assert body(ledger, "adjust")["evidence"] == "e" * 64
    more = PureDP(epsilon="0.4")
    for call, what in (ledger.amend, name), (ledger.charge_prior, BASIC):
        with pytest.raises(ConfigurationError, match="by entry 3"):
            call(what, more, **proof)
    assert sum(sums(ledger)) == Fraction(1, 5)
    audit(ledger)


# Freezes

ME = system_user()
FREEZE = {"dataset": "a", "reason": "wrong sigma"}
THAW = {"dataset": "a", "reason": "it was right", "unfreeze": True}
WIDE = {"budget": "{epsilon: 1, delta: 1e-6}", "odometer": "basic"}
HALTING = make_policy(flows="{weekly: {epsilon: 0.8, halt_at_epsilon: 0.9}}", **WIDE)


def test_a_frozen_dataset_refuses_with_who_and_why(ledger):
    """Not as an exhausted budget, and before the list of flows; no run is halted.

    Steps that run already settle and void.
    """
    step = {"policies": [HALTING], "flow": "weekly", "flow_run": "run1"}
    first, second = granted(ledger, **step), granted(ledger, **step)
    assert ledger.freeze(**FREEZE)
    assert not ledger.freeze("a", reason="me too")
    for fields in (step, {**step, "flow": "daily", "flow_run": "run2"}):
        with pytest.raises(BudgetRefused, match=f"frozen by {ME}: 'wrong sigma'") as no:
            granted(ledger, **fields)
        assert type(no.value) is BudgetRefused
        assert "filter" not in str(no.value)
        assert "dpflow unfreeze a" in no.value.fits
    ledger.settle(first)
    ledger.void(second, reason="never started")
    (term,) = views.terms(ledger, "a")
    assert ((term.frozen or {})["who"], kinds(ledger)[-3]) == (ME, "refuse")
    assert ledger.freeze(**THAW)
    granted(ledger, **step)
    audit(ledger)


def test_what_was_never_applied_cannot_be_frozen(ledger):
    """The error says how to make a term first."""
    for command in (FREEZE, THAW):
        with pytest.raises(PolicyNotApplied, match="dpflow policy apply a"):
            ledger.freeze(**command)


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
    assert ledger.freeze(**FREEZE)
    assert ledger.watch.witness is not None
    head = ledger.watch.witness.read_all().heads["a"]
    assert (head.number, head.decided_number) == (3, 3)
