"""Edits beside the journal that fit each other: freezes, terms, releases, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dpflow.exceptions import BudgetRefused
from dpflow.ledger import Ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision.by_hand import Prior
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.entry import canonical
from dpflow.ledger.office import apply_policy
from dpflow.ledger.records import digest
from dpflow.rounding import UNITS
from tests.ledger.audit.books import KEY, rewrite
from tests.ledger.support import (
    Place,
    edit,
    granted,
    make_ledger,
    make_policy,
    read,
    request,
)

pytestmark = pytest.mark.storages("sqlite", "postgres")

PLAIN = make_policy("b", flows="{f: {epsilon: 0.5}}", other_flows="allow")


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Return a ledger with releases, a refusal, and a freeze with entries after it."""
    found = make_ledger(path)
    for number in range(2):
        name = granted(found, key=f"week/{number}")
        found.settle(name, value=json.dumps(number))
    ended = granted(found, "0.2")
    found.ask(Freeze(book="a", reason="a look at it"))
    found.settle(ended)
    found.settle(granted(found, "0.1", policies=[PLAIN], flow="f", flow_run="run"))
    with pytest.raises(BudgetRefused):
        found.reserve(request(found, "9", policies=[PLAIN], flow="f", flow_run="run"))
    yield found
    found.close()


def test_an_unfreeze_that_nobody_decided_is_noticed_after_a_checkpoint(ledger, path):
    """Also where the freeze is before what is read again."""
    assert verify(ledger, key=KEY, sign=True).fine
    edit(path, "UPDATE book SET frozen = NULL WHERE name = 'a'")
    (found,) = verify(ledger, key=KEY).bad
    assert "the journal of a: its row says frozen" in found.problem


def test_a_raised_gate_is_noticed_after_a_checkpoint(ledger, path):
    """Also where the term's copy, its hash and all later hashes were edited to fit."""
    assert verify(ledger, key=KEY, sign=True).fine

    def higher(row):
        if row["kind"] == "open":
            body = json.loads(row["body"])
            term = body["term"]
            term["pinned"]["filter"]["epsilon"] = "100"
            term["policy_hash"] = digest(canonical(term["pinned"]))
            gate = term["gates"]["dataset"]
            gate["rule"] = gate["rule"].replace('"epsilon":"1"', '"epsilon":"100"')
            row["body"] = canonical(body)

    rewrite(path, higher, "b")
    assert "b" in {each.book for each in verify(ledger, key=KEY).bad}


def test_a_term_that_another_entry_tells_of_is_noticed(ledger, path):
    """Only the entry that opened or tightened it last says what it is."""
    assert verify(ledger, key=KEY, sign=True).fine
    edit(path, "UPDATE term SET entry = 2 WHERE book = 'b'")
    (found,) = verify(ledger, key=KEY).bad
    assert "term 1 of dataset 'b': its row says entry 2" in found.problem


def test_an_overdraft_that_was_hidden_is_noticed_after_a_checkpoint(path):
    """The sums tell of it; the state is only the account's."""
    ledger = make_ledger(path)
    granted(ledger, "0.5", policies=[PLAIN])
    ledger.ask(
        Prior(
            policy=PLAIN, cost=request(ledger, "3").cost, reason="x", evidence="e" * 64
        )
    )
    overdrawn = "SELECT overdrawn FROM account WHERE id = 'b#1'"
    edited = "UPDATE account SET overdrawn = 0 WHERE id = 'b#1'"
    assert verify(ledger, key=KEY, sign=True).fine
    edit(path, edited)
    assert read(path, overdrawn) in ([(0,)], [(False,)])
    assert verify(ledger, key=KEY).bad
    ledger.close()


def test_an_overdraft_that_no_entry_tells_of_is_noticed(path):
    """Nor one that was taken out of the entry that told of it."""
    ledger = make_ledger(path)
    granted(ledger, "0.5", policies=[PLAIN])
    ledger.ask(
        Prior(
            policy=PLAIN, cost=request(ledger, "3").cost, reason="x", evidence="e" * 64
        )
    )

    def hidden(row):
        body = json.loads(row["body"])
        body.pop("overdrawn", None)
        row["body"] = canonical(body)

    rewrite(path, hidden, "b")
    edit(path, "UPDATE account SET overdrawn = 0 WHERE id = 'b#1'")
    (found, *_) = verify(ledger).bad
    assert "it is not overdrawn" in found.problem
    ledger.close()


def test_a_pinned_copy_that_was_edited_is_not_the_one_that_was_applied(ledger, path):
    """Its hash tells, and with a hash that fits its gates."""

    def raised(row, *, hashed):
        if row["kind"] == "open":
            body = json.loads(row["body"])
            term = body["term"]
            term["pinned"]["filter"]["epsilon"] = "100"
            if hashed:
                term["policy_hash"] = digest(canonical(term["pinned"]))
            row["body"] = canonical(body)

    rewrite(path, lambda row: raised(row, hashed=False), "b")
    (found, *_) = verify(ledger).bad
    assert "the pinned policy of term 1 was edited" in found.problem
    rewrite(path, lambda row: raised(row, hashed=True), "b")
    (found, *_) = verify(ledger).bad
    assert "a gate is not the one that term 1 pinned" in found.problem


def test_a_gate_that_was_loosened_in_place_is_noticed(path):
    """Tightening is all that an entry does to a term that was charged."""
    ledger = make_ledger(path)
    granted(ledger, "0.1", policies=[PLAIN])
    low = make_policy(
        "b", flows="{f: {epsilon: 0.5}}", other_flows="allow", budget="{epsilon: 0.5}"
    )
    found = apply_policy(ledger, low)
    assert found.action == "tighten"
    assert verify(ledger).fine
    ((opened,),) = read(path, "SELECT body FROM entry WHERE book = 'b' AND number = 1")

    def swapped(row):
        bodies = {"open": json.loads(row["body"]), "tighten": json.loads(opened)}
        if row["kind"] == "tighten":
            body = json.loads(row["body"])
            term = bodies["tighten"]["term"]
            high = term["pinned"] | {"filter": {**term["pinned"]["filter"]}}
            high["filter"]["epsilon"] = "2"
            gates = json.loads(canonical(term["gates"]))
            for place in ("dataset", "partition", "population"):
                rule = json.loads(gates[place]["rule"])
                rule["epsilon"], rule["thresholds"] = "2", [2 * UNITS, 0]
                gates[place]["rule"] = canonical(rule)
            told = {"pinned": high, "policy_hash": digest(canonical(high))}
            body["term"] = {**body["term"], **told, "gates": gates}
            row["body"] = canonical(body)

    rewrite(path, swapped, "b")
    (bad, *_) = verify(ledger).bad
    assert "was loosened in place" in bad.problem
    ledger.close()


def test_a_release_with_a_digest_that_fits_is_not_what_was_settled(ledger, path):
    """The journal tells the digest of each value."""
    assert verify(ledger, key=KEY, sign=True).fine
    edit(
        path,
        f"UPDATE release SET value = '99', digest = '{digest('99')}' WHERE value = '1'",
    )
    found = verify(ledger, key=KEY).bad
    assert any("release" in each.problem for each in found)


def test_releases_that_were_swapped_are_noticed(ledger, path):
    """Each has the key that its charge was made for."""
    assert verify(ledger, key=KEY, sign=True).fine
    one, other = [key for (key,) in read(path, "SELECT key FROM release")]
    aside = "0" * 64
    moves = [(one, aside), (other, one), (aside, other)]
    rename = "UPDATE release SET key = '{1}' WHERE key = '{0}'"
    edit(path, *(rename.format(*move) for move in moves))
    assert verify(ledger, key=KEY).bad


def test_a_refusal_that_the_run_forgot_is_noticed(ledger, path):
    """It is what halts the run."""
    assert read(path, "SELECT count(*) FROM run") != [(0,)]
    assert verify(ledger).fine
    edit(path, "DELETE FROM run")
    (found,) = verify(ledger).bad
    assert "run run: the journal tells of it" in found.problem


def test_a_journal_that_no_book_tells_of_is_noticed(ledger, path):
    """Its entries are what they were, and nobody would read them."""
    edit(path, "DELETE FROM book WHERE name = 'b'")
    assert verify(ledger).bad
