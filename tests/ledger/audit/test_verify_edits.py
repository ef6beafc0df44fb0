"""Edits beside the journal that fit each other: freezes, terms, releases, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dpflow.ledger import Ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision.office import Prior
from dpflow.ledger.entry import canonical
from dpflow.ledger.office import apply_policy
from dpflow.ledger.records import digest
from dpflow.rounding import UNITS
from tests.ledger.audit.books import KEY, postings, rewrite
from tests.ledger.support import Place, granted, make_ledger, make_policy, read, request

pytestmark = pytest.mark.storages("sqlite", "postgres")

PLAIN = make_policy("b", flows="{f: {epsilon: 0.5}}", other_flows="allow")


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Return a ledger with a charge on dataset b."""
    found = make_ledger(path)
    found.settle(granted(found, "0.1", policies=[PLAIN], flow="f"))
    yield found
    found.close()


def raised(path, *, hashed=True, gates=False):
    """Raise a term's budget in its pinned copy, with a hash or gates that fit."""

    def change(row):
        if row["kind"] == "open":
            term = row["body"]["term"]
            term["pinned"]["filter"]["epsilon"] = "100"
            if hashed:
                term["policy_hash"] = digest(canonical(term["pinned"]))
            if gates:
                gate = term["gates"]["dataset"]
                gate["rule"] = gate["rule"].replace('"epsilon":"1"', '"epsilon":"100"')

    rewrite(path, change)


def test_a_raised_gate_is_noticed_after_a_checkpoint(ledger, path):
    """Also where the term's copy, its hash and all later hashes were edited to fit."""
    assert verify(ledger, key=KEY, sign=True).fine
    raised(path, gates=True)
    assert verify(ledger, key=KEY).bad[0].entry == 1


def test_an_overdraft_that_no_entry_tells_of_is_noticed(ledger, path):
    """One that was taken out of the entry that told of it."""
    cost = request(ledger, "3").cost
    ledger.ask(Prior(policy=PLAIN, cost=cost, reason="x", evidence="e" * 64))

    def hidden(row):
        row["body"].pop("overdrawn", None)
        for posting in postings(row):
            del posting[3:]

    rewrite(path, hidden)
    (found, *_) = verify(ledger).bad
    assert "is overdrawn, and the entry does not say so" in found.problem


def test_a_pinned_copy_that_was_edited_is_not_the_one_that_was_applied(ledger, path):
    """Its hash tells, and with a hash that fits its gates."""
    raised(path, hashed=False)
    (found, *_) = verify(ledger).bad
    assert "the pinned policy of term 1 was edited" in found.problem
    raised(path)
    (found, *_) = verify(ledger).bad
    assert "a gate is not the one that term 1 pinned" in found.problem


def test_a_gate_that_was_loosened_in_place_is_noticed(ledger, path):
    """Tightening is all that an entry does to a term that was charged."""
    low = make_policy(
        "b", flows="{f: {epsilon: 0.5}}", other_flows="allow", budget="{epsilon: 0.5}"
    )
    found = apply_policy(ledger, low)
    assert found.action == "tighten"
    assert verify(ledger).fine
    ((opened,),) = read(path, "SELECT body FROM entry WHERE number = 1")

    def swapped(row):
        if row["kind"] == "tighten":
            body, term = row["body"], json.loads(opened)["term"]
            high = term["pinned"] | {"filter": {**term["pinned"]["filter"]}}
            high["filter"]["epsilon"] = "2"
            gates = json.loads(canonical(term["gates"]))
            for place in ("dataset", "partition", "population"):
                rule = json.loads(gates[place]["rule"])
                rule["epsilon"], rule["thresholds"] = "2", [2 * UNITS, 0]
                gates[place]["rule"] = canonical(rule)
            told = {"pinned": high, "policy_hash": digest(canonical(high))}
            body["term"] = {**body["term"], **told, "gates": gates}

    rewrite(path, swapped)
    (bad, *_) = verify(ledger).bad
    assert "was loosened in place" in bad.problem
