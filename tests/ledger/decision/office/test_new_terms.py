"""New terms, which somebody has to ask for."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpflow.exceptions import BudgetRefused, PolicyChanged, PolicyNotApplied
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.office import apply_policy
from dpflow.ledger.provenance import system_user
from dpflow.policy import Policy
from dpflow.policy.fields import Budget
from tests.ledger.journals import audit, body, sums, terms_of
from tests.ledger.support import granted, make_policy

NEW = {"new_term": True, "reason": "a new year"}


def budget(epsilon: str, **fields: str) -> Policy:
    """Make a policy of basic composition with this epsilon."""
    return make_policy(budget=f"{{epsilon: {epsilon}}}", **fields)


def capped(epsilon: str, lifetime: str, **fields: str) -> Policy:
    """Make such a policy with a lifetime."""
    return budget(epsilon, lifetime=f"{{epsilon: {lifetime}}}", **fields)


# New terms


def test_anything_else_needs_a_term_that_is_asked_for(ledger: Ledger) -> None:
    """With a reason; the refusal names each change, its verdict, and the command."""
    granted(ledger)
    bare = "A new term would be refused as well.*Write `lifetime"
    command = "or open a new term with `dpflow policy apply a --new-term --reason TEXT`"
    for edited in (
        budget("2"),
        make_policy(unit="visit"),
        make_policy(filter="output-dp"),
        make_policy(budget="{epsilon: 0.5, delta: 1e-6}"),
    ):
        with pytest.raises(PolicyChanged, match=bare):
            apply_policy(ledger, edited)
        roomy = edited.model_copy(update={"lifetime": Budget(epsilon=9, delta="1e-5")})
        with pytest.raises(PolicyChanged, match=command):
            apply_policy(ledger, roomy)
    for reason in ("", "  "):
        with pytest.raises(PolicyNotApplied, match="needs a reason"):
            apply_policy(ledger, capped("2", "9"), new_term=True, reason=reason)
    assert len(terms_of(ledger)) == 1
    granted(ledger)


def test_a_new_term_has_tallies_of_its_own(ledger: Ledger) -> None:
    """What is open stays with its term, and can be settled or forfeited later."""
    settled, forfeited = granted(ledger, "0.7"), granted(ledger, "0.2", owner="0" * 32)
    result = apply_policy(ledger, capped("2", "3"), **NEW)
    assert (result.action, result.term) == ("new term", 2)
    assert [view.charged for view in result.terms] == [True, False]
    granted(ledger, "2", policies=[capped("2", "3")])
    ledger.settle(settled)
    ledger.forfeit(forfeited, reason="its host is gone")
    assert sums(ledger) == (Fraction(9, 10), 0)
    assert sums(ledger, "a#2") == (0, 2)
    audit(ledger)
    entry = body(ledger, "open")
    assert (entry["reason"], entry["who"]) == ("a new year", system_user())


def test_an_uncharged_second_term_may_be_replaced_within_the_lifetime(
    ledger: Ledger,
) -> None:
    """By someone who applies it, never by a step, and never above the cap."""
    granted(ledger)
    apply_policy(ledger, capped("2", "3"), **NEW)
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[capped("1", "3")])
    with pytest.raises(PolicyNotApplied, match="above its lifetime"):
        apply_policy(ledger, capped("2.5", "3"))
    assert apply_policy(ledger, capped("1", "3")).action == "replace"
    granted(ledger, "1", policies=[capped("1", "3")])


def test_a_frozen_dataset_gets_no_new_term(ledger: Ledger) -> None:
    """A new account would not be frozen; tightening is fine."""
    granted(ledger)
    ledger.ask(Freeze(book="a", reason="a bug"))
    with pytest.raises(PolicyNotApplied, match="dpflow unfreeze a"):
        apply_policy(ledger, capped("2", "3"), **NEW)
    assert apply_policy(ledger, budget("0.5")).action == "tighten"
    with pytest.raises(BudgetRefused, match="'a bug'"):
        granted(ledger, policies=[budget("0.5")])


def test_a_frozen_uncharged_term_is_not_left_by_editing_the_file(
    ledger: Ledger,
) -> None:
    """Else the next step would unfreeze the dataset."""
    with pytest.raises(BudgetRefused):
        granted(ledger, "5")
    ledger.ask(Freeze(book="a", reason="a bug"))
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[budget("2")])
