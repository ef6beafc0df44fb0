"""The ledger's applied copy governs: workers agree with it or do not run."""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction

import pytest

from dpflow import Gaussian, PureDP
from dpflow.exceptions import (
    LedgerCorrupt,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Conditions
from dpflow.policy import Policy
from tests.ledger.support import (
    BASIC,
    UNIT,
    audit,
    body,
    everything,
    granted,
    make_ledger,
    make_policy,
    repair,
    sums,
    terms_of,
    url,
)

pytestmark = pytest.mark.quick

WIDE = "{epsilon: 1, delta: 1e-6}"
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
    officer.apply(HALF)
    assert body(officer, "tighten")["policy"] == terms_of(officer)[0]["policy_hash"]
    by_bob = dict.fromkeys(("open", "reserve", "refuse"), bob)
    kinds_of_ann = ("adjust", "freeze", "unfreeze", "repair", "forfeit", "tighten")
    for kind, facts in {**by_bob, **dict.fromkeys(kinds_of_ann, ann)}.items():
        said = body(officer, kind)
        assert {name: said[name] for name in bob if name in said} == facts, kind
        if kind in by_bob:
            assert said["policy"] == (hashed if kind == "open" else {"a": hashed})
    audit(officer)
    worker.close()
    officer.close()
