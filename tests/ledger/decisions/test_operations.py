"""Commands of operators: charges, which only ever raise usage, and freezes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpflow import EarlyStopping, Gaussian, PoissonSampledGaussian, PureDP
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    LedgerRolledBack,
    LedgerUnavailable,
    PolicyChanged,
    PolicyNotApplied,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger import views
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.provenance import system_user
from tests.ledger.support import (
    BASIC,
    audit,
    body,
    everything,
    freeze_of,
    granted,
    kinds,
    make_ledger,
    make_policy,
    sums,
    url,
)

WHY = "sigma was 10, not 20"
DEAD = "0" * 32


@pytest.mark.parametrize("end", ["open", "settled", "forfeited", "void"])
def test_an_amendment_charges_the_difference(ledger, end):
    """Whatever became of the step; a voided one was charged nothing."""
    mine = ledger.owners.mine()
    name = granted(ledger, "0.1", owner=DEAD if end == "forfeited" else mine)
    if end == "settled":
        ledger.settle(name)
    elif end == "forfeited":
        ledger.forfeit(name, reason="gone")
    elif end == "void":
        ledger.void(name, reason="test")
    (charge,) = ledger.amend(name, PureDP(epsilon="0.25"), reason=WHY)
    wanted = Fraction(1, 4) if end == "void" else Fraction(15, 100)
    assert Fraction(charge.amount["epsilon"]) == wanted
    assert sum(sums(ledger)) == Fraction(1, 4)
    audit(ledger)


def test_an_amended_step_cannot_report_its_cost_down(ledger):
    """What it reports is a part of a cost that was declared too small."""
    policy = make_policy(budget="{epsilon: 10}")

    def steps(epsilon):
        return EarlyStopping(step=PureDP(epsilon=epsilon), stops=range(1, 11))

    names = [granted(ledger, steps("0.1"), policies=[policy]) for _ in range(3)]
    ledger.amend(names[0], steps("0.2"), reason=WHY)
    ledger.settle(names[0], reported=1)
    assert sums(ledger) == (2, 2)
    ledger.settle(names[1], reported=1)
    ledger.amend(names[1], steps("0.2"), reason=WHY)
    assert sums(ledger) == (4, 1)
    ledger.settle(names[2], reported=1)
    assert sums(ledger) == (Fraction("4.1"), 0)
    audit(ledger)


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


def prior(ledger, epsilon="0.4", policy=BASIC, evidence="e" * 64):
    """Charge what was spent before."""
    cost = PureDP(epsilon=epsilon)
    return ledger.charge_prior(policy, cost, reason="2025", evidence=evidence)


def test_prior_spending_is_charged_before_the_first_step(ledger):
    """It opens the dataset's term, and the budget is smaller from the start."""
    (charge,) = prior(ledger)
    assert (charge.account, charge.overdrawn) == ("a#1", False)
    assert sums(ledger) == (Fraction(2, 5), 0)
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.7")
    facts = body(ledger, "adjust")
    assert (facts["evidence"], facts["reason"]) == ("e" * 64, "2025")
    audit(ledger)


def test_what_was_charged_by_hand_is_witnessed(tmp_path):
    """A backup from before it is refused; in a file, which is simple to put back."""
    path = tmp_path / "ledger.db"
    ledger = make_ledger(path)
    granted(ledger, "0.1")
    ledger.close()
    before = path.read_bytes()
    prior(open_ledger(url(path)), "0.2")
    open_ledger(url(path)).close()
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    other = tmp_path / "other.db"
    other.write_bytes(before)
    with pytest.raises(LedgerRolledBack):
        granted(open_ledger(url(other)), "0.1")


def test_prior_spending_notes_its_flow(ledger):
    """What a flow used without a share cannot be set against one afterwards."""
    before, cost = make_policy(flows="{f: {}, g: {}}"), PureDP(epsilon="0.5")
    granted(ledger, "0.01", policies=[before], flow="g")
    ledger.charge_prior(before, cost, flow="f", reason=WHY)
    with pytest.raises(PolicyChanged, match=r"flows\.f: ledger"):
        ledger.apply(make_policy(flows="{f: {epsilon: 0.3}, g: {}}"))


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
    """Not as an exhausted budget; steps that run already settle and void."""
    first, second = granted(ledger), granted(ledger)
    assert ledger.freeze(**FREEZE)
    with pytest.raises(BudgetRefused, match=f"frozen by {ME}: 'wrong sigma'") as caught:
        granted(ledger)
    assert not isinstance(caught.value, BudgetExhausted)
    assert "filter" not in str(caught.value)
    assert "dpflow unfreeze a" in caught.value.fits
    assert kinds(ledger) == ["open", "reserve", "reserve", "freeze", "refuse"]
    ledger.settle(first)
    ledger.void(second, reason="never started")
    assert (freeze_of(ledger, "a") or {})["reason"] == "wrong sigma"
    audit(ledger)


def test_a_second_freeze_or_unfreeze_changes_nothing(ledger):
    """A flow that may not use the dataset hears of the freeze first."""
    granted(ledger, policies=[HALTING], flow="weekly")
    assert ledger.freeze(**FREEZE)
    assert not ledger.freeze("a", reason="me too")
    (term,) = views.terms(ledger, "a")
    assert (term.frozen or {})["who"] == ME
    with pytest.raises(BudgetRefused, match="frozen by"):
        granted(ledger, policies=[HALTING], flow="daily")
    assert ledger.freeze(**THAW)
    assert not ledger.freeze("a", reason="again", unfreeze=True)
    assert freeze_of(ledger, "a") is None
    granted(ledger, policies=[HALTING], flow="weekly")
    audit(ledger)


def test_a_run_that_met_a_freeze_is_not_halted_for_good(ledger):
    """Its odometer was frozen like all else, but did not refuse by its reading."""
    step = {"policies": [HALTING], "flow": "weekly", "flow_run": "run1"}
    granted(ledger, **step)
    ledger.freeze(**FREEZE)
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(ledger, **step)
    ledger.freeze(**THAW)
    granted(ledger, **step)


def test_another_dataset_goes_on(ledger):
    """A step that reads both is refused as a whole."""
    other = make_policy("b")
    granted(ledger)
    ledger.freeze(**FREEZE)
    granted(ledger, policies=[other])
    with pytest.raises(BudgetRefused, match="Dataset 'a' is frozen"):
        granted(ledger, policies=[other, make_policy()])


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
