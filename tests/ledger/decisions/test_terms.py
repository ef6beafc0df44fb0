"""The ledger's applied copy governs: workers agree with it or do not run."""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction

import pytest

from dpflow import Gaussian, PureDP
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Conditions
from dpflow.policy import Policy
from tests.ledger.support import (
    BASIC,
    UNIT,
    audit,
    body,
    error_of,
    everything,
    granted,
    kinds,
    make_ledger,
    make_policy,
    refused,
    repair,
    sums,
    terms_of,
    url,
)

pytestmark = pytest.mark.quick

TENTH = Fraction(1, 10)
HALF = make_policy(budget="{epsilon: 0.5}")


# What is kept and compared


def test_rules_come_from_the_ledger_not_from_the_file(ledger, monkeypatch):
    """A worker whose defaults are tuned otherwise charges the pinned order."""
    policy = make_policy(budget=WIDE, filter="rdp")
    other = make_policy(budget=WIDE, filter="{theorem: rdp, order: 30}")
    cost = Gaussian(sensitivity=1, sigma=50)
    assert policy.to_pinned()["filter"]["order"] != "30"
    # As if an earlier version had derived 30 where this one derives another order.
    derived = other.to_pinned()
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "to_pinned", lambda _: derived)
        granted(ledger, cost, policies=[policy])
    granted(ledger, cost, policies=[policy])
    (term,) = terms_of(ledger)
    assert (term["declared"], term["pinned"]) == (policy.to_declared(), derived)
    assert "order" not in term["declared"]["filter"]
    _, held = sums(ledger)
    assert held == 2 * Fraction(30, 2 * 50**2)


# Who applies


def test_a_ledger_that_applies_no_policy_of_a_step(ledger, path):
    """As where many machines share one; the first of two workers wins not by chance."""
    with closing(
        open_ledger(url(path), conditions=Conditions(applies_policies=False))
    ) as shared:
        with pytest.raises(PolicyNotApplied, match="dpflow policy apply a"):
            granted(shared)
        assert terms_of(ledger) == []
        shared.apply(BASIC)
        for _ in range(2):
            with pytest.raises(PolicyChanged):
                granted(shared, policies=[HALF])
            granted(shared)


@pytest.mark.parametrize(
    "fields",
    [
        {"budget": "{epsilon: 1, delta: 1e-6}", "filter": "gdp"},
        {"budget": "{epsilon: 2}"},
    ],
)
def test_a_loosening_that_was_misjudged_is_stopped(ledger, monkeypatch, fields):
    """The rules are compared once more, in one currency, before anything is written."""
    granted(ledger)
    module = "dpflow.ledger.decisions.policy_changes"
    monkeypatch.setattr(f"{module}.overall", lambda _: "tighter")
    monkeypatch.setattr(f"{module}.tighten_pins", lambda _, policy: policy.to_pinned())
    before = everything(ledger)
    with pytest.raises(LedgerCorrupt, match=r"not the one|loosened in place"):
        ledger.apply(make_policy(**fields))
    assert everything(ledger) == before


# What each decision tells


def test_each_decision_names_its_author_code_and_policy(path):
    """In the hashed body; the user who ends or amends a charge did not make it."""
    make_ledger(path).close()
    dirty = {"commit": "c0ffee", "dirty": True}
    bob = {"who": "bob", "code": dirty, "dpflow": "9"}
    worker = open_ledger(url(path), conditions=Conditions(provenance=bob))
    reservation = granted(worker)
    worker.settle(reservation)
    with pytest.raises(Exception, match="refused"):
        granted(worker, "5")
    dead, ann = granted(worker, owner="0" * 32), {"who": "ann"}
    officer = open_ledger(url(path), conditions=Conditions(provenance=ann))
    more, spent = PureDP(epsilon="0.2"), PureDP(epsilon="0.1")
    officer.amend(reservation, more, reason="it cost more")
    officer.charge_prior(BASIC, spent, reason="2024", evidence="0" * 64)
    officer.freeze("a", reason="wrong sigma")
    officer.freeze("a", reason="it was right", unfreeze=True)
    officer.forfeit(dead, reason="the host is gone")
    repair(officer, {"a#1": (UNIT, 0)})
    (term,) = terms_of(officer)
    hashed = term["policy_hash"]
    by_bob = dict.fromkeys(("open", "reserve", "refuse"), bob)
    kinds_of_ann = ("adjust", "freeze", "unfreeze", "repair", "forfeit")
    for kind, facts in {**by_bob, **dict.fromkeys(kinds_of_ann, ann)}.items():
        said = body(officer, kind)
        assert {name: said[name] for name in bob if name in said} == facts, kind
        if kind in by_bob:
            assert said["policy"] == (hashed if kind == "open" else {"a": hashed})
    audit(officer)
    worker.close()
    officer.close()


# Files that were edited


WIDE = "{epsilon: 1, delta: 1e-6}"
ODOMETER = "{theorem: rdp, delta: 1e-6, order: 8}"
EDITS: list[tuple[dict[str, str], str]] = [
    ({"budget": "{epsilon: 2}"}, "budget.epsilon: ledger 1, file 2"),
    ({"budget": "{epsilon: 0.5}"}, "budget.epsilon: ledger 1, file 0.5"),
    ({"unit": "household"}, "unit: ledger customer, file household"),
    ({"relation": "replace-one"}, "relation"),
    ({"budget": WIDE, "filter": "gdp"}, "filter.theorem: ledger basic, file gdp"),
    ({"flows": "{weekly: {epsilon: 1}}"}, "flows.weekly"),
    ({"other_flows": "refuse"}, "other_flows: ledger allow, file refuse"),
    ({"budget": WIDE, "odometer": ODOMETER}, "odometer"),
]


def test_a_policy_edited_after_the_first_charge_is_refused(ledger, path):
    """The ledger's copy governs; the difference is shown, and nothing changes."""
    reservation = granted(ledger)
    for _ in range(2):
        before = everything(path)
        for fields, difference in EDITS:
            with pytest.raises(PolicyChanged) as caught:
                granted(ledger, policies=[make_policy(**fields)])
            assert caught.value.dataset == "a"
            assert difference in str(caught.value.differences)
            assert difference in caught.value.message
            assert "(term 1)" in caught.value.message
        assert before == everything(path)
        ledger.settle(reservation)
        reservation = granted(ledger)


@pytest.mark.parametrize(("epsilon", "above"), [("2", "1.6"), ("0.5", "0.1")])
def test_a_policy_edited_before_any_charge_is_fine(ledger, epsilon, above):
    """Also after a refusal; the account is a new one under the new rule."""
    edited = make_policy(budget=f"{{epsilon: {epsilon}}}")
    refused(ledger, "5")
    granted(ledger, "0.5", policies=[edited])
    assert sums(ledger, "a#2") == (0, Fraction(1, 2))
    assert sums(ledger, "a#1") == (0, 0)
    assert error_of(lambda: granted(ledger)) is PolicyChanged
    refused(ledger, above, policies=[edited])
    audit(ledger)


def test_an_edit_that_touches_no_guarantee_is_fine(ledger):
    """It is charged to the same account."""
    granted(ledger)
    edits = (
        {"budget": "{epsilon: 1.0}"},
        {"alerts": "[0.1]"},
        {"errors": "keep"},
        {"data_version": '"2"'},
        {"on_exhausted": "{schedule: pause}"},
    )
    for fields in edits:
        granted(ledger, policies=[make_policy(**fields)])
    assert sums(ledger) == (0, 6 * TENTH)


SOURCE = "warehouse.sales.customers"
POLICY = make_policy(source=SOURCE, budget="{epsilon: 3}")


def apply(ledger: Ledger, policy: Policy) -> None:
    """Apply a policy, as a new term where the dataset was charged."""
    ledger.apply(policy, reason="test", new_term=True)


@pytest.mark.promise("renamed-dataset")
def test_another_name_for_a_charged_source_has_no_budget_of_its_own(ledger):
    """A renamed dataset would start anew; a step, `apply` and a first source say no."""
    granted(ledger, policies=[POLICY])
    renamed = make_policy("b", source=SOURCE, budget="{epsilon: 3}")
    with pytest.raises(ConfigurationError, match=r"'b' names the source .* of 'a'"):
        granted(ledger, policies=[renamed])
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, renamed)
    unnamed = make_policy("b", budget="{epsilon: 3}")
    granted(ledger, policies=[unnamed])
    with pytest.raises(ConfigurationError, match="of 'a'"):
        ledger.apply(renamed)
    assert kinds(ledger, "b#1") == ["open", "reserve"]
    # The same name goes on, and a source that nobody named is free.
    granted(ledger, policies=[POLICY])
    granted(ledger, policies=[make_policy("c", source="warehouse.visits")])


def test_a_source_stays_with_the_dataset_that_named_it_first(ledger):
    """Two policies that are applied before any charge would both be charged later."""
    apply(ledger, POLICY)
    renamed = make_policy("b", source=SOURCE)
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, renamed)
    apply(ledger, make_policy("a", budget="{epsilon: 3}"))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, renamed)


@pytest.mark.promise("renamed-dataset")
def test_datasets_of_one_population_may_share_a_source(ledger):
    """The population caps what they lose together."""
    for name in ("a", "b"):
        apply(ledger, make_policy(name, source=SOURCE, population="people"))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, make_policy("c", source=SOURCE))
    with pytest.raises(ConfigurationError, match="of 'a'"):
        apply(ledger, make_policy("c", source=SOURCE, population="others"))


def test_naming_the_source_of_a_charged_dataset_applies_in_place(ledger):
    """Taking it off again needs a new term."""
    plain, named = make_policy("p"), make_policy("p", source="p")
    granted(ledger, policies=[plain])
    assert ledger.apply(named).action == "tighten"
    granted(ledger, policies=[named])
    with pytest.raises(Exception, match="new term"):
        ledger.apply(plain)
