"""A frozen dataset refuses everything, says who and why, and unfreezes as it was."""

from __future__ import annotations

import pytest

from dpflow.exceptions import BudgetExhausted, BudgetRefused, PolicyNotApplied
from dpflow.ledger import views
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.provenance import system_user
from dpflow.ledger.records import Replayed
from tests.ledger.journals import audit, kinds
from tests.ledger.support import freeze_of, granted, make_policy, request

pytestmark = pytest.mark.quick

ME = system_user()
FREEZE = Freeze(book="a", reason="wrong sigma")
THAW = Freeze(book="a", reason="it was right", unfreeze=True)
WIDE = {"budget": "{epsilon: 1, delta: 1e-6}", "odometer": "basic"}
HALTING = make_policy(flows="{weekly: {epsilon: 0.8, halt_at_epsilon: 0.9}}", **WIDE)


def test_a_frozen_dataset_refuses_with_who_and_why(ledger: Ledger) -> None:
    """Not as an exhausted budget; steps that run already settle and void."""
    first, second = granted(ledger), granted(ledger)
    assert ledger.ask(FREEZE)
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


def test_not_even_a_replay_is_answered(ledger: Ledger) -> None:
    """It costs nothing, and frozen still means that nothing goes out."""
    ledger.settle(granted(ledger, key="week/1"), value="1")
    assert isinstance(ledger.reserve(request(ledger, key="week/1")), Replayed)
    ledger.ask(FREEZE)
    with pytest.raises(BudgetRefused, match="frozen"):
        ledger.reserve(request(ledger, key="week/1"))
    ledger.ask(THAW)
    assert isinstance(ledger.reserve(request(ledger, key="week/1")), Replayed)


def test_a_second_freeze_or_unfreeze_changes_nothing(ledger: Ledger) -> None:
    """A flow that may not use the dataset hears of the freeze first."""
    granted(ledger, policies=[HALTING], flow="weekly")
    assert ledger.ask(FREEZE)
    assert not ledger.ask(Freeze(book="a", reason="me too"))
    (term,) = views.terms(ledger, "a")
    assert (term.frozen or {})["who"] == ME
    with pytest.raises(BudgetRefused, match="frozen by"):
        granted(ledger, policies=[HALTING], flow="daily")
    assert ledger.ask(THAW)
    assert not ledger.ask(Freeze(book="a", reason="again", unfreeze=True))
    assert freeze_of(ledger, "a") is None
    granted(ledger, policies=[HALTING], flow="weekly")
    audit(ledger)


def test_a_run_that_met_a_freeze_is_not_halted_for_good(ledger: Ledger) -> None:
    """Its odometer was frozen like all else, but did not refuse by its reading."""
    step = {"policies": [HALTING], "flow": "weekly", "flow_run": "run1"}
    granted(ledger, **step)
    ledger.ask(FREEZE)
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(ledger, **step)
    ledger.ask(THAW)
    granted(ledger, **step)


def test_another_dataset_goes_on(ledger: Ledger) -> None:
    """A step that reads both is refused as a whole."""
    other = make_policy("b")
    granted(ledger)
    ledger.ask(FREEZE)
    granted(ledger, policies=[other])
    with pytest.raises(BudgetRefused, match="Dataset 'a' is frozen"):
        granted(ledger, policies=[other, make_policy()])


def test_what_was_never_applied_cannot_be_frozen(ledger: Ledger) -> None:
    """The error says how to make a term first."""
    for command in (FREEZE, THAW):
        with pytest.raises(PolicyNotApplied, match="dpflow policy apply a"):
            ledger.ask(command)
