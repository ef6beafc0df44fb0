"""Applying a policy: the first time, in place, or as a new term."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from dpflow import Gaussian, OutputDP
from dpflow.exceptions import (
    BudgetRefused,
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger import views
from dpflow.ledger.provenance import system_user
from dpflow.policy import Policy
from dpflow.policy.fields import Budget
from tests.ledger.support import (
    BASIC,
    audit,
    body,
    everything,
    granted,
    kinds,
    make_policy,
    sums,
    terms_of,
)

pytestmark = pytest.mark.quick

NEW = {"new_term": True, "reason": "a new year"}
FLOWS = "{weekly: {epsilon: 0.8, halt_at_epsilon: 0.9}}"


def budget(epsilon: str, **fields: str) -> Policy:
    """Make a policy of basic composition with this epsilon."""
    return make_policy(budget=f"{{epsilon: {epsilon}}}", **fields)


def capped(epsilon: str, lifetime: str, **fields: str) -> Policy:
    """Make such a policy with a lifetime."""
    return budget(epsilon, lifetime=f"{{epsilon: {lifetime}}}", **fields)


# The first term, and terms that nothing was charged under


def test_an_uncharged_term_is_replaced_and_does_not_count(ledger):
    """Whatever it promised, nothing rests on it."""
    ledger.apply(budget("9"))
    with pytest.raises(BudgetRefused):
        granted(ledger, "10", policies=[budget("9")])
    result = ledger.apply(BASIC)
    assert (result.action, result.term) == ("replace", 2)
    assert [view.charged for view in result.terms] == [False, False]
    granted(ledger)
    assert ledger.apply(capped("2", "3"), **NEW).term == 3


def test_a_step_that_cost_nothing_in_the_end_did_read_the_data(ledger):
    """Tallies of zero are no proof; a charge is one."""
    policy = make_policy(filter="output-dp")
    cost = OutputDP({"none": 0, "some": "0.1"})
    ledger.settle(granted(ledger, cost, policies=[policy]), reported="none")
    assert sums(ledger) == (0, 0)
    assert [view.charged for view in views.terms(ledger, "a")] == [True]


# In place


def test_a_lower_budget_is_applied_in_place(ledger):
    """The tally is kept, the limit falls, the chain goes on."""
    ledger.settle(granted(ledger, "0.3"))
    held = granted(ledger, "0.1")
    proposal = ledger.propose(budget("0.5"))
    assert (proposal.action, proposal.verdict) == ("tighten", "tighter")
    result = ledger.apply(budget("0.5"), reason="less is enough")
    assert (result.action, result.term, result.closed) == ("tighten", 1, ())
    entry = body(ledger, "tighten")
    assert (entry["who"], entry["reason"]) == (system_user(), "less is enough")
    assert entry["changes"] == ["budget.epsilon: ledger 1, file 0.5"]
    assert entry["policy"] == terms_of(ledger)[0]["policy_hash"]
    assert sums(ledger) == (Fraction(3, 10), Fraction(1, 10))
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.11", policies=[budget("0.5")])
    granted(ledger, "0.1", policies=[budget("0.5")])
    ledger.settle(held)
    audit(ledger)


def test_usage_above_the_new_limit_closes_the_account_without_alarm(ledger):
    """It was admitted, so that nothing is overdrawn; only nothing more fits."""
    held = granted(ledger, "0.8")
    result = ledger.apply(budget("0.5"))
    assert result.closed == ("a#1",)
    with pytest.raises(BudgetRefused, match="Remaining: epsilon 0 of"):
        granted(ledger, "1e-9", policies=[budget("0.5")])
    ledger.settle(held)
    (view,) = views.accounts(ledger, "a")
    assert view.state != "overdrawn"
    assert (view.left, view.used_fraction) == ({"epsilon": "0", "delta": "0"}, 1.6)
    audit(ledger)


def about(text: str, **fields: str) -> Policy:
    """Make the policy with a free text."""
    return make_policy(about=f"{{data_curators: {text}}}", **fields)


@pytest.mark.parametrize("charged", [True, False])
def test_a_free_text_alone_tightens_nothing(ledger, charged):
    """The entry has equal limits, and steps run before and after it."""
    ledger.apply(about("one"))
    if charged:
        ledger.settle(granted(ledger, policies=[about("two")]))
    (before,) = terms_of(ledger)
    result = ledger.apply(about("two"))
    assert (result.action, result.verdict, result.term) == ("tighten", "neutral", 1)
    entry = body(ledger, "tighten")
    assert entry["changes"] == ["about.data_curators: ledger one, file two"]
    (after,) = terms_of(ledger)
    assert after == {**before, "about": {"data_curators": "two"}}
    assert before["about"] == {"data_curators": "one"}
    granted(ledger, policies=[about("one")])
    assert ledger.propose(about("two")).action == "nothing"
    assert ledger.apply(BASIC).action == "tighten"
    assert terms_of(ledger)[0]["about"] == {}
    audit(ledger)


def test_shares_and_halts_fall_on_every_account(ledger):
    """Each account with a changed gate has an entry; the dataset's has all changes."""
    odometer = "basic"
    wide = {"budget": "{epsilon: 1, delta: 1e-6}", "odometer": odometer}
    before = make_policy(flows=FLOWS, **wide)
    granted(ledger, "0.1", policies=[before], flow="weekly")
    lower = make_policy(flows=FLOWS.replace("0.8", "0.7"), **wide)
    assert ledger.apply(lower, reason="less is enough").action == "access"
    after = make_policy(flows="{weekly: {epsilon: 0.7, halt_at_epsilon: 0.35}}", **wide)
    ledger.apply(after)
    gates = body(ledger, "tighten")["term"]["gates"]
    assert gates["odometer/weekly"]["halt"] == "0.35"
    assert kinds(ledger)[-1] == "tighten"
    granted(ledger, "0.2", policies=[after], flow="weekly")
    with pytest.raises(BudgetRefused, match="halt_at_epsilon"):
        granted(ledger, "0.2", policies=[after], flow="weekly", flow_run="r")
    audit(ledger)


def test_a_flow_that_is_not_named_any_more_keeps_its_gates(ledger):
    """They are out of reach, and no halt is taken off them on the way."""
    wide = {"budget": "{epsilon: 1, delta: 1e-6}", "odometer": "basic"}
    flows = FLOWS.replace("}}", "}, daily: {epsilon: 0.5}}")
    before = make_policy(flows=flows, **wide)
    granted(ledger, policies=[before], flow="weekly")
    name = granted(ledger, policies=[before], flow="weekly")
    (term,) = terms_of(ledger)
    gates = {at: term["gates"][at] for at in ("flow/weekly", "odometer/weekly")}
    after = make_policy(flows="{daily: {epsilon: 0.5}}", **wide)
    assert ledger.apply(after, reason="it ended").action == "access"
    (term,) = terms_of(ledger)
    assert {at: term["gates"][at] for at in gates} == gates
    ledger.settle(name)
    for flow in ("weekly", None):
        with pytest.raises(BudgetRefused, match="the list of flows in the") as no:
            granted(ledger, policies=[after], flow=flow)
        assert type(no.value) is BudgetRefused
        assert f"`dpflow policy diff {after.dataset}`" in no.value.message
    audit(ledger)


def test_derived_numbers_stay_fixed_under_a_tally(ledger):
    """Another order would have kept another tally; what it cannot defend is refused."""
    step = Gaussian(sensitivity=1, sigma=50)
    wide, lower, tiny = (
        make_policy(budget=f"{{epsilon: {epsilon}, delta: 1e-6}}", filter="rdp")
        for epsilon in ("3", "2", "0.1")
    )
    order = wide.to_pinned()["filter"]["order"]
    assert lower.to_pinned()["filter"]["order"] != order
    granted(ledger, step, policies=[wide])
    assert ledger.propose(tiny).verdict == "tighter"
    with pytest.raises(PolicyChanged, match="order 9 allows nothing"):
        ledger.apply(tiny)
    ledger.apply(lower)
    (term,) = terms_of(ledger)
    assert json.loads(term["gates"]["dataset"]["rule"])["order"] == order
    granted(ledger, step, policies=[lower])
    audit(ledger)


def test_a_loosening_that_was_misjudged_is_stopped(ledger, monkeypatch):
    """The rules are compared once more, in one currency, before anything is written."""
    granted(ledger)
    module = "dpflow.ledger.decisions.policy_changes"
    monkeypatch.setattr(f"{module}.overall", lambda _: "tighter")
    monkeypatch.setattr(f"{module}.tighten_pins", lambda _, policy: policy.to_pinned())
    before = everything(ledger)
    other = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="gdp")
    for file in (other, budget("2")):
        with pytest.raises(LedgerCorrupt, match=r"not the one|loosened in place"):
            ledger.apply(file)
    assert everything(ledger) == before


# New terms


def test_anything_else_needs_an_explicit_new_term(ledger):
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
            ledger.apply(edited)
        roomy = edited.model_copy(update={"lifetime": Budget(epsilon=9, delta="1e-5")})
        with pytest.raises(PolicyChanged, match=command):
            ledger.apply(roomy)
    for reason in ("", "  "):
        with pytest.raises(PolicyNotApplied, match="needs a reason"):
            ledger.apply(capped("2", "9"), new_term=True, reason=reason)
    assert len(terms_of(ledger)) == 1
    granted(ledger)


def test_a_new_term_has_tallies_of_its_own(ledger):
    """What is open stays with its term, and can be settled or forfeited later."""
    settled, forfeited = granted(ledger, "0.7"), granted(ledger, "0.2", owner="0" * 32)
    result = ledger.apply(capped("2", "3"), **NEW)
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


def test_an_uncharged_second_term_may_be_replaced_within_the_lifetime(ledger):
    """By someone who applies it, never by a step, and never above the cap."""
    granted(ledger)
    ledger.apply(capped("2", "3"), **NEW)
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[capped("1", "3")])
    with pytest.raises(PolicyNotApplied, match="above its lifetime"):
        ledger.apply(capped("2.5", "3"))
    assert ledger.apply(capped("1", "3")).action == "replace"
    granted(ledger, "1", policies=[capped("1", "3")])


def test_a_frozen_dataset_gets_no_new_term(ledger):
    """A new account would not be frozen; tightening is fine."""
    granted(ledger)
    ledger.freeze("a", reason="a bug")
    with pytest.raises(PolicyNotApplied, match="dpflow unfreeze a"):
        ledger.apply(capped("2", "3"), **NEW)
    assert ledger.apply(budget("0.5")).action == "tighten"
    with pytest.raises(BudgetRefused, match="'a bug'"):
        granted(ledger, policies=[budget("0.5")])


def test_a_frozen_uncharged_term_is_not_left_by_editing_the_file(ledger):
    """Else the next step would unfreeze the dataset."""
    with pytest.raises(BudgetRefused):
        granted(ledger, "5")
    ledger.freeze("a", reason="a bug")
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[budget("2")])
