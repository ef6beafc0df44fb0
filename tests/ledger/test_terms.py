"""The ledger's applied copy governs: workers agree with it or do not run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow import Gaussian, PureDP
from dpflow.exceptions import LedgerCorrupt, PolicyChanged, PolicyNotApplied
from dpflow.ledger import Ledger, open_ledger
from dpflow.ledger.apply import Wish, apply_policy
from dpflow.ledger.approval import Approval
from dpflow.ledger.freeze import freeze, thaw
from dpflow.ledger.operations import amend, import_prior
from dpflow.ledger.reconcile import newest_lines, reconcile
from dpflow.ledger.records import Conditions
from dpflow.ledger.terms import newest_term
from tests.ledger.support import (
    BASIC,
    Place,
    audit,
    edit,
    granted,
    make_ledger,
    make_policy,
    new_ledger,
    read,
    sums,
    url,
)

ANN = Approval(principal="ann")
HALF = make_policy(budget="{epsilon: 0.5}")


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Make a ledger."""
    made = make_ledger(path)
    yield made
    made.close()


def body(path: Place, account: str, kind: str) -> dict:
    """Return the body of an account's newest entry of a kind."""
    sql = "SELECT body FROM entry WHERE account = ? AND kind = ? ORDER BY seq DESC"
    found: dict = json.loads(read(path, sql, account, kind)[0][0])
    return found


# What is kept and compared


def test_a_term_keeps_what_was_declared_beside_what_was_derived(
    ledger: Ledger, path: Place
) -> None:
    """The one is compared, the other makes the rules."""
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="renyi")
    granted(ledger, Gaussian(sensitivity=1, sigma=50), policies=[policy])
    ((declared, pinned),) = read(path, "SELECT declared, pinned FROM term")
    assert json.loads(declared) == policy.declared()
    assert json.loads(pinned) == policy.pinned()
    assert "order" not in json.loads(declared)["filter"]


def test_rules_come_from_the_ledger_not_from_the_file(
    ledger: Ledger, path: Place
) -> None:
    """A worker whose defaults are tuned otherwise charges the pinned order."""
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="renyi")
    other = make_policy(
        budget="{epsilon: 1, delta: 1e-6}", filter="{theorem: renyi, order: 30}"
    )
    cost = Gaussian(sensitivity=1, sigma=50)
    granted(ledger, cost, policies=[other])
    # As if an earlier version had derived 30 where this one derives another order.
    (term,) = read(path, "SELECT declared FROM term")
    derived = policy.pinned()["filter"]["order"]
    assert (derived == "30", term[0] == json.dumps(policy.declared())) == (False, False)
    declared = json.dumps(policy.declared(), sort_keys=True, separators=(",", ":"))
    edit(path, f"UPDATE term SET declared = '{declared}'")
    granted(ledger, cost, policies=[policy])
    _, held = sums(path)
    assert held == 2 * Fraction(30, 2 * 50**2)


def test_a_worker_with_another_version_is_refused_with_the_difference(
    ledger: Ledger, path: Place
) -> None:
    """Whichever came first governs; nothing of the other is kept."""
    granted(ledger)
    before = read(path, "SELECT count(*) FROM entry")
    with pytest.raises(PolicyChanged) as caught:
        granted(ledger, policies=[HALF])
    assert caught.value.differences == ["budget.epsilon: ledger 1, file 0.5"]
    assert "(term 1)" in caught.value.message
    assert "dpflow policy diff a" in caught.value.message
    assert read(path, "SELECT count(*) FROM entry") == before
    granted(ledger)


def test_an_old_term_is_compared_by_its_pinned_copy(
    ledger: Ledger, path: Place
) -> None:
    """It has no declaration; equal pins agree and others are told."""
    granted(ledger)
    edit(path, "UPDATE term SET declared = NULL")
    granted(ledger)
    with pytest.raises(PolicyChanged) as caught:
        granted(ledger, policies=[HALF])
    assert caught.value.differences == ["budget.epsilon: ledger 1, file 0.5"]


@pytest.mark.parametrize("column", ["pinned", "policy_hash"])
def test_a_copy_that_was_edited_by_hand_is_noticed(
    ledger: Ledger, path: Place, column: str
) -> None:
    """The rules come from it, so it must be what was applied."""
    granted(ledger)
    edit(path, f"UPDATE term SET {column} = replace({column}, '1', '2')")
    with pytest.raises(LedgerCorrupt, match="does not hold the policy"):
        granted(ledger)


def test_a_copy_and_its_hash_edited_together_do_not_fit_the_journal(
    ledger: Ledger, path: Place, tmp_path: Path
) -> None:
    """The account's gate is what its entries say."""
    granted(ledger)
    looser = make_policy(budget="{epsilon: 9}")
    other = new_ledger(tmp_path / "other")
    granted(other, policies=[looser])
    other.close()
    names = ("pinned", "declared", "policy_hash")
    values = read(
        tmp_path / "other" / "ledger.db", f"SELECT {','.join(names)} FROM term"
    )
    texts = ", ".join(f"{n} = '{v}'" for n, v in zip(names, values[0], strict=True))
    edit(path, f"UPDATE term SET {texts}")
    with pytest.raises(LedgerCorrupt, match="is not the one that its term pinned"):
        granted(ledger, policies=[looser])


# Who applies


def test_the_first_charge_applies_the_policy_and_says_so(
    ledger: Ledger, path: Place
) -> None:
    """On one machine; the entry that opens the account tells who and why."""
    granted(ledger)
    told = body(path, "a#1", "open")
    assert told["because"] == "first decision"
    assert told["who"] == ledger.conditions.facts["who"]
    assert [told["policy"]] == [
        h for (h,) in read(path, "SELECT policy_hash FROM term")
    ]


def test_a_ledger_that_applies_nothing_by_itself(ledger: Ledger, path: Place) -> None:
    """As where many machines share one; then nothing runs until someone applied."""
    shared = open_ledger(url(path), conditions=Conditions(applies_policies=False))
    with pytest.raises(PolicyNotApplied, match="dpflow policy apply a"):
        granted(shared)
    assert read(path, "SELECT count(*) FROM term") == [(0,)]
    apply_policy(shared, BASIC, Wish(), ANN)
    granted(shared)
    with pytest.raises(PolicyChanged):
        granted(shared, policies=[HALF])
    shared.close()


def test_an_uncharged_term_is_not_replaced_where_nothing_applies_itself(
    ledger: Ledger, path: Place
) -> None:
    """The first of two workers does not win by chance."""
    shared = open_ledger(url(path), conditions=Conditions(applies_policies=False))
    apply_policy(shared, BASIC, Wish(), ANN)
    with pytest.raises(PolicyChanged):
        granted(shared, policies=[HALF])
    shared.close()


def test_what_someone_applied_is_not_replaced_by_a_step(ledger: Ledger) -> None:
    """Also before anything was charged: it was meant."""
    apply_policy(ledger, BASIC, Wish(), ANN)
    with pytest.raises(PolicyChanged):
        granted(ledger, policies=[HALF])
    granted(ledger)


def test_a_policy_with_officers_is_never_applied_by_a_step(ledger: Ledger) -> None:
    """Its author would have applied it alone."""
    guarded = make_policy(officers="[ann, bob]")
    with pytest.raises(PolicyNotApplied, match="an officer \\(ann, bob\\) has to run"):
        granted(ledger, policies=[guarded])
    approval = Approval(principal="bob", authors=("ann",))
    apply_policy(ledger, guarded, Wish(), approval)
    granted(ledger, policies=[guarded])


def test_a_term_with_officers_is_not_replaced_by_a_file_without(
    ledger: Ledger,
) -> None:
    """Taking the officers out of a file does not send them home."""
    guarded = make_policy(officers="[ann, bob]")
    approval = Approval(principal="bob", authors=("ann",))
    apply_policy(ledger, guarded, Wish(because="first decision"), approval)
    with pytest.raises(PolicyChanged, match="officers"):
        granted(ledger)


# What each decision tells


def test_each_charge_and_decision_tells_who_and_with_which_code(path: Place) -> None:
    """In the hashed body, so that it cannot be changed later."""
    make_ledger(path).close()
    facts = {"who": "ann", "code": {"commit": "c0ffee", "dirty": True}, "dpflow": "9"}
    ledger = open_ledger(url(path), conditions=Conditions(facts=facts))
    reservation = granted(ledger)
    ledger.settle(reservation)
    with pytest.raises(Exception, match="refused"):
        granted(ledger, "5")
    ledger.close()
    ((policy_hash,),) = read(path, "SELECT policy_hash FROM term")
    for kind in ("open", "reserve", "settle", "refuse"):
        told = body(path, "a#1", kind)
        assert {name: told[name] for name in facts} == facts
        expected = policy_hash if kind == "open" else {"a": policy_hash}
        assert told["policy"] == expected
    audit(path)


def test_whoever_forfeits_a_charge_is_told_apart_from_whoever_made_it(
    path: Place,
) -> None:
    """The entry that ends it names who ended it."""
    make_ledger(path).close()
    worker = open_ledger(url(path), conditions=Conditions(facts={"who": "worker"}))
    reservation = granted(worker, owner="0" * 32)
    worker.close()
    officer = open_ledger(url(path), conditions=Conditions(facts={"who": "ann"}))
    officer.forfeit(reservation, because="the host is gone")
    officer.close()
    assert body(path, "a#1", "reserve")["who"] == "worker"
    assert body(path, "a#1", "forfeit")["who"] == "ann"


def test_decisions_by_hand_tell_who_with_which_code_and_under_which_policy(
    path: Place,
) -> None:
    """Who amends a charge is told apart from whoever made it, as in all of them."""
    make_ledger(path).close()
    worker = open_ledger(url(path), conditions=Conditions(facts={"who": "worker"}))
    reservation = granted(worker)
    facts = {"who": "ann", "code": {"commit": "c0ffee", "dirty": False}, "dpflow": "9"}
    officer = open_ledger(url(path), conditions=Conditions(facts=facts))
    amend(officer, reservation, PureDP(epsilon="0.2"), because="it cost more")
    spent = PureDP(epsilon="0.1")
    import_prior(officer, BASIC, spent, because="2024", evidence="0" * 64)
    freeze(officer, "a", who="ann", because="wrong sigma")
    thaw(officer, "a", who="ann", because="it was right")
    (line,) = newest_lines(worker)
    lost = replace(line, seq=line.seq + 1, hash="f" * 64)
    reconcile(officer, {"a": BASIC}, because="restored", others=[lost])
    ((policy_hash,),) = read(path, "SELECT policy_hash FROM term")
    for kind in ("amend", "prior", "freeze", "thaw", "repair"):
        told = body(path, "a#1", kind)
        assert {name: told.get(name) for name in facts} == facts, kind
        assert told["policy"] == {"a": policy_hash}, kind
    worker.close()
    officer.close()
    audit(path)


def test_a_dataset_that_nobody_used_has_no_term(ledger: Ledger) -> None:
    """Reading makes none."""
    with ledger.database.read() as session:
        assert newest_term(session, "a") is None
