"""A restored backup forgets decisions, too: freezes, tightenings, access and terms."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.exceptions import (
    BudgetRefused,
    DpflowError,
    LedgerError,
    LedgerRolledBack,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger import views
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.rounding import UNITS
from tests.ledger.support import (
    BASIC,
    charged,
    copied,
    freeze_of,
    granted,
    kinds,
    make,
    make_policy,
    put_back,
    reopen,
    sums,
)

LOWER = make_policy(budget="{epsilon: 0.5}")
FLOWS = make_policy(flows="{f: {epsilon: 0.5}}", other_flows="allow")
#: What only a new term can hold.
OTHER_UNIT = make_policy(unit="account", lifetime="{epsilon: 9}")


def freezes(ledger: Ledger) -> None:
    """Someone freezes the dataset."""
    ledger.freeze("a", reason="wrong sigma")


def unfreezes(ledger: Ledger) -> None:
    """Someone freezes it, and unfreezes it again."""
    freezes(ledger)
    ledger.freeze("a", reason="it was right", unfreeze=True)


def tightens(ledger: Ledger) -> None:
    """Someone lowers the budget."""
    ledger.apply(LOWER, reason="less")


def opens(ledger: Ledger) -> None:
    """Someone opens a new term, under which nothing is charged yet."""
    ledger.apply(OTHER_UNIT, new_term=True, reason="accounts are the unit now")


def charges(ledger: Ledger) -> None:
    """A step is charged, and its value released."""
    ledger.settle(granted(ledger, "0.2", key="week/1"), value="1")


DECISIONS = [freezes, unfreezes, tightens, opens]


def forget(
    folder: Path,
    decide: Callable[[Ledger], object],
    before: Callable[[Ledger], object] = charged,
) -> Ledger:
    """Decide, and put a backup from before the decision in the ledger's place."""
    path, witness = folder / "ledger.db", str(folder / "w")
    with closing(make(path, witness)) as ledger:
        before(ledger)
    older = copied(path, folder / "older.db")
    with closing(reopen(path, witness)) as ledger:
        decide(ledger)
    put_back(path, older)
    return reopen(path, witness)


@pytest.mark.promise("lost-decision", "lost-term")
@pytest.mark.parametrize("decide", DECISIONS)
def test_a_forgotten_decision_is_noticed(tmp_path, decide):
    """Whatever policy file a worker has, it hears of the restored backup."""
    ledger = forget(tmp_path, decide)
    for policy in (BASIC, LOWER, OTHER_UNIT):
        with pytest.raises(LedgerRolledBack, match=r"lacks entry \d of dataset 'a'"):
            granted(ledger, policies=[policy])
    # The control: without a witness nothing else would notice.
    granted(reopen(tmp_path / "ledger.db", "none"))


@pytest.mark.promise("lost-releases", "lost-decision", "lost-term")
@pytest.mark.parametrize("decide", [*DECISIONS, charges])
def test_a_lost_gate_is_frozen_again(tmp_path, decide):
    """No line says what was decided, so the repair guesses nothing; usage stays."""
    ledger = forget(tmp_path, decide)
    before, is_decision = sums(ledger), decide is not charges
    (loss,) = compare(ledger)
    assert loss.dataset == "a"
    (repaired,) = reconcile(ledger, reason="restored")
    assert repaired.frozen == is_decision
    assert [key for _, key in repaired.keys] == ["week/1"] * (not is_decision)
    assert kinds(ledger)[3:] == ["repair", "freeze"][: 1 + is_decision]
    assert sum(sums(ledger)) * 10 == sum(before) * 10 + (0 if is_decision else 2)
    assert compare(ledger) == []
    if is_decision:
        with pytest.raises(BudgetRefused, match="frozen"):
            granted(ledger)
        ledger.freeze("a", reason="x", unfreeze=True)
        granted(ledger)
    assert verify(ledger).bad == []


@pytest.mark.promise("lost-term")
@pytest.mark.parametrize("decide", [freezes, opens])
def test_a_decision_that_is_back_is_not_repeated(tmp_path, decide):
    """Who decided again before the repair stays the one who did."""
    ledger = forget(tmp_path, decide)
    with pytest.raises(LedgerRolledBack):
        decide(ledger)
    reconcile(ledger, reason="restored")
    frozen = freeze_of(ledger, "a")
    assert kinds(ledger).count("freeze") == 1
    assert frozen["reason"] == "wrong sigma" or decide is opens
    if decide is opens:
        ledger.freeze("a", reason="it is back", unfreeze=True)
        assert [view.charged for view in views.terms(ledger, "a")] == [True, False]
        granted(ledger, policies=[OTHER_UNIT])


@pytest.mark.promise("lost-decision")
def test_a_lost_freeze_of_a_term_that_is_lost_is_frozen_again(tmp_path):
    """The policy's file opens the term, and a step would find it open."""

    def decide(ledger: Ledger) -> None:
        ledger.apply(BASIC)
        freezes(ledger)

    ledger = forget(tmp_path, decide, before=lambda _: None)
    reconcile(ledger, reason="restored")
    with pytest.raises(DpflowError, match="frozen"):
        granted(ledger)
    assert compare(ledger) == []


@pytest.mark.promise("lost-first-charge")
def test_a_term_whose_charges_were_forgotten_is_not_replaced(tmp_path):
    """The witness knows that a step ran under it, so that the lifetime decides."""
    ledger = forget(
        tmp_path,
        lambda ledger: charged(ledger, "1"),
        lambda ledger: ledger.apply(BASIC),
    )
    file = make_policy(budget="{epsilon: 2}", lifetime="{epsilon: 2}")
    with pytest.raises(PolicyChanged):
        ledger.apply(file, reason="more")
    with pytest.raises(PolicyNotApplied, match=r"would add up to .* = 3"):
        ledger.apply(file, reason="more", new_term=True)
    reconcile(ledger, reason="restored")
    assert sums(ledger) == (1, 0)


@pytest.mark.promise("lost-first-charge")
def test_a_lost_share_and_its_flow_are_charged_again(tmp_path):
    """A later policy finds that they were charged."""

    def shares(ledger: Ledger) -> None:
        ledger.apply(FLOWS, reason="x")
        charged(ledger, "0.4", policies=[FLOWS], flow="f")

    ledger = forget(tmp_path, shares)
    reconcile(ledger, reason="restored")
    assert sum(sums(ledger, "a#1/flow/f")) * 10 == 4
    assert sum(sums(ledger)) * 10 == 5
    assert verify(ledger).bad == []
    ledger.freeze("a", reason="x", unfreeze=True)
    ledger.apply(FLOWS, reason="x")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.2", policies=[FLOWS], flow="f")
    assert verify(ledger).bad == []


@pytest.mark.promise("lost-term")
def test_a_lost_term_is_kept_frozen(tmp_path):
    """Its accounts have no gate until a person opens a term behind it."""
    wider = make_policy("a", budget="{epsilon: 2}", lifetime="{epsilon: 5}")

    def decide(ledger: Ledger) -> None:
        ledger.apply(wider, reason="x", new_term=True)
        charged(ledger, "0.5", policies=[wider])

    restored = forget(tmp_path, decide)
    reconcile(restored, reason="x")
    assert state_of_ledger(restored.database).uses["a#2"].used[0] >= UNITS // 2
    for attempt in (
        lambda: restored.freeze("a", reason="x", unfreeze=True),
        lambda: restored.apply(wider, reason="x", new_term=True),
        lambda: granted(restored, "0.01"),
    ):
        with pytest.raises(DpflowError) as error:
            attempt()
        assert not isinstance(error.value, LedgerError)
    applied = restored.apply(wider, reason="x", new_term=True, raise_lifetime=True)
    assert applied.term == 3
    assert restored.freeze("a", reason="x", unfreeze=True)
    assert granted(restored, "0.5", policies=[wider])
    assert verify(restored).bad == []
