"""Verification finds every edit, names the first bad entry, and takes no other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from dpflow.ledger.decision.office import Prior
from dpflow.ledger.office import apply_policy

from dpflow import Gaussian
from dpflow.exceptions import BudgetRefused, LedgerCorrupt
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.canonical import canonical, digest
from dpflow.rounding import UNITS
from tests.ledger.audit.books import (
    NAMES,
    fill,
    postings,
    quoted,
    rewrite,
)
from tests.ledger.support import (
    Place,
    edit,
    granted,
    make_ledger,
    make_policy,
    read,
    request,
    url,
)

pytestmark = [pytest.mark.quick, pytest.mark.storages("sqlite")]


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Return a ledger to which everything has happened."""
    result = make_ledger(path)
    fill(result)
    yield result
    result.close()


def test_a_whole_ledger_is_fine(ledger: Ledger, path: Place) -> None:
    """And the report says how much was read."""
    report = verify(ledger)
    assert report.bad == []
    counts = [read(path, f"SELECT count(*) FROM {t}") for t in ("entry", "charge")]
    assert [[(report.entries,)], [(report.reservations,)]] == counts
    assert (report.accounts, report.releases, report.witness) == (5, 4, "agrees")


def test_a_ledger_in_which_nothing_went_beyond_is_fine(tmp_path: Path) -> None:
    """The largest sums of several times add up to more than any of them was."""
    ledger = create_ledger(url(tmp_path / "ledger.db"))
    policy = make_policy(budget="{epsilon: 1, delta: 1e-6}", filter="auto")
    ledger.void(granted(ledger, "0.99", policies=[policy]), reason="x")
    with suppress(BudgetRefused):
        while True:
            granted(ledger, Gaussian(sensitivity=1, sigma=20), policies=[policy])
    assert verify(ledger).bad == []
    ledger.close()


def test_progress_counts_every_entry(ledger: Ledger) -> None:
    """A bar that is driven by it ends where it should."""
    counts = []
    report = verify(ledger, progress=lambda done, total: counts.append((done, total)))
    assert sum(done for done, _ in counts) == report.entries
    assert {total for _, total in counts} == {report.entries}


@pytest.mark.parametrize(
    "edited",
    [
        "UPDATE entry SET kind = 'refuse'",
        f"UPDATE entry SET hash = '{'0' * 64}'",
        "DELETE FROM entry",
    ],
)
def test_an_edited_or_removed_entry_is_named(ledger, path, edited):
    """That entry, and not a later one."""
    edit(path, f"{edited} WHERE number = 4")
    assert verify(ledger).bad[0].entry == 4


#: What stands beside the journal, and what is said of it.
BESIDE = {
    "DELETE FROM tag WHERE key = 'account/a#1' AND number = 3": "a tag was removed",
    "INSERT INTO tag VALUES ('account/a#1', 99)": "a tag was removed",
    "INSERT INTO tag VALUES ('account/a#2', 3)": "a tag was removed",
    "UPDATE tag SET key = 'account/b#1' WHERE key = 'account/a#1'": "a tag was removed",
    "UPDATE kept SET value = '99' WHERE value = '2'": "not the one that was settled",
    "INSERT INTO kept VALUES ('x', '1')": "not the one that was settled",
}


@pytest.mark.parametrize("edited", BESIDE)
def test_tags_and_values_are_compared_with_the_journal(ledger, path, edited):
    """One that was taken away, added or changed; the control: a deleted value."""
    edit(path, "DELETE FROM kept WHERE value = '1'")
    assert verify(ledger).fine
    edit(path, edited)
    assert BESIDE[edited] in str(verify(ledger).bad[0])


def wrong_sum(row):
    """Forget half of what was settled in the sums."""
    for posting in postings(row) if row["number"] > 4 else ():
        posting[1] = [amount // 2 for amount in posting[1]]


def test_sums_are_checked_even_where_all_hashes_fit(ledger, path):
    """The first entry whose sums do not follow is named."""
    rewrite(path, wrong_sum)
    first = verify(ledger).bad[0]
    assert first.entry == 5
    assert "it says" in first.problem


ALIEN = {
    "kind": {"kind": "unheard"},
    "another charge": {"charge": "another"},
    "no charge": {"charge": None},
    "opened again": {"kind": "open"},
}
POSTINGS = {
    "negative": '{"account/a#1":[[-1],[0],[0]]}',
    "no numbers": '{"account/a#1":["nothing",[0],[0]]}',
    "another length": '{"account/a#1":[[1],[1],[0]]}',
    "too few": '{"account/a#1":[[1,0],[1,0]]}',
    "no object": "[]",
}


@pytest.mark.parametrize("name", [*ALIEN, *POSTINGS, "another form"])
def test_entries_that_cannot_be_are_named(ledger, path, name):
    """Also where a hash says that they are what was written."""

    def alien(row):
        if row["number"] == 3:
            spaced = canonical(row["rows"]).replace(",", ", ", 1)
            row |= ALIEN.get(name, {"text of rows": POSTINGS.get(name, spaced)})

    rewrite(path, alien)
    assert verify(ledger).bad[0].entry == 3
    with pytest.raises(LedgerCorrupt):
        granted(open_ledger(url(path)), "0.001")


def test_a_grant_above_its_gate_is_named(ledger, path):
    """A forger who fits hashes and sums cannot make a step admitted."""
    rewrite(path, lambda row: times(row, 5))
    problems = [finding.problem for finding in verify(ledger).bad]
    assert "account 'a#1' is above its gate" in problems


def times(row, factor):
    """Multiply all that an entry says of amounts."""
    for posting in postings(row):
        posting[:3] = [[n * factor for n in amounts] for amounts in posting[:3]]
    for key, value in row["rows"].items():
        if key.startswith("granted/"):
            row["rows"][key] = [n * factor for n in value]
        for amounts in value.get("added", {}).values() if "owner" in value else ():
            amounts[:] = [n * factor for n in amounts]


def test_a_charge_that_was_made_twice_is_named(ledger, path):
    """Also where the database's own check was removed."""
    (first,), (second,) = read(path, "SELECT charge FROM entry WHERE number IN (2, 4)")
    edit(path, "DROP INDEX entry_made", "DROP INDEX entry_ended")

    def again(row):
        row["rows"] = json.loads(json.dumps(row["rows"]).replace(second, first))
        row["charge"] = row["charge"] and row["charge"].replace(second, first)

    rewrite(path, again)
    assert "was made before" in verify(ledger).bad[0].problem


def test_random_flips_of_the_journal_are_found(ledger, path):
    """A bit in any text of any entry."""
    chance = random.Random(5)
    rows = read(path, f"SELECT {', '.join(NAMES)} FROM entry")
    for _ in range(40):
        row = dict(zip(NAMES, chance.choice(rows), strict=True))
        name = chance.choice([n for n in NAMES[2:] if row[n]])
        text = row[name]
        at = chance.randrange(len(text))
        flipped = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        where = f"WHERE number = {row['number']}"
        edit(path, f"UPDATE entry SET {name} = {quoted(flipped)} {where}")
        assert verify(ledger).bad[0].entry == row["number"]
        edit(path, f"UPDATE entry SET {name} = {quoted(text)} {where}")
    assert verify(ledger).fine


PLAIN = make_policy("b", flows="{f: {epsilon: 0.5}}", other_flows="allow")


@pytest.fixture
def plain(path: Place) -> Iterator[Ledger]:
    """Give a ledger with a charge on dataset b."""
    made = make_ledger(path)
    made.settle(granted(made, "0.1", policies=[PLAIN], flow="f"))
    yield made
    made.close()


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


def test_an_overdraft_that_no_entry_names_is_noticed(plain, path):
    """The overdraft was removed from the entry that named it."""
    cost = request(plain, "3").cost
    plain.ask(Prior(policy=PLAIN, cost=cost, reason="x", evidence="e" * 64))

    def hidden(row):
        row["body"].pop("overdrawn", None)
        row["body"].pop("alerts", None)
        for posting in postings(row):
            del posting[3:]

    rewrite(path, hidden)
    (problem, *_) = verify(plain).bad
    assert "account 'b#1' is above its gate" in problem.problem


def test_a_pinned_copy_that_was_edited_is_not_the_one_that_was_applied(plain, path):
    """The policy's hash differs."""
    raised(path, hashed=False)
    (problem, *_) = verify(plain).bad
    assert "the pinned policy of term 1 was edited" in problem.problem


def test_usage_above_the_first_gate_of_its_term_is_noticed(plain, path):
    """A gate that was loosened in place admits it, and the first one does not."""
    low = make_policy(
        "b", flows="{f: {epsilon: 0.5}}", other_flows="allow", budget="{epsilon: 0.5}"
    )
    applied = apply_policy(plain, low)
    assert applied.action == "tighten"
    assert verify(plain).fine
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
            facts = {"pinned": high, "policy_hash": digest(canonical(high))}
            body["term"] = {**body["term"], **facts, "gates": gates}

    rewrite(path, swapped)
    assert verify(plain, witness=False).fine
    rewrite(path, lambda row: times(row, 15))
    assert "account 'b#1' is above its gate" in str(verify(plain).bad)
