"""Verification finds every edit, names the first bad entry, and takes no other."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow import Gaussian
from dpflow.exceptions import BudgetRefused, LedgerCorrupt, LedgerRolledBack
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.audit.checkpoints import signature
from dpflow.ledger.operations import amend, import_prior
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.records import canonical
from dpflow.ledger.replay import TAIL, Replay
from dpflow.ledger.audit.verify import verify
from tests.ledger.support import (
    COLUMNS,
    Place,
    edit,
    granted,
    in_memory,
    make_ledger,
    make_policy,
    read,
    request,
    url,
)
from tests.ledger.test_rollback import copy_database

KEY = b"k" * 32
SHOP = make_policy(
    "shop",
    budget="{epsilon: 3, delta: 1e-6}",
    filter="gaussian",
    odometer="{theorem: renyi, delta: 1e-6}",
    flows="{report: {epsilon: 1, delta: 5e-7, halt_at_epsilon: 3}}",
    other_flows="allow",
)
STEP = Gaussian(sensitivity=1, sigma=100)


def fill(ledger: Ledger) -> None:
    """Let everything happen to a ledger that can."""
    for number in range(4):
        name = granted(ledger, key=f"week/{number}")
        ledger.settle(name, value=json.dumps(number))
    ledger.void(granted(ledger, "0.01"), reason="test")
    with pytest.raises(BudgetRefused):
        ledger.reserve(request(ledger, "5"))
    for flow in ("report", "other", None):
        name = granted(ledger, STEP, policies=[SHOP], flow=flow, flow_run="run")
        ledger.settle(name, outcome="failed")
    lost = granted(ledger, "0.01", owner="0" * 32)
    ledger.forfeit(lost, because="its process is gone")
    amend(ledger, name, Gaussian(sensitivity=1, sigma=50), because="a wrong sigma")
    import_prior(ledger, SHOP, STEP, because="before", evidence="e" * 64)
    granted(ledger, "0.02")


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Return a ledger to which everything has happened."""
    found = make_ledger(path)
    fill(found)
    yield found
    found.close()


def test_a_whole_ledger_is_fine(ledger: Ledger, path: Place) -> None:
    """And the report says how much was read."""
    report = verify(ledger)
    assert report.bad == []
    counts = [read(path, f"SELECT count(*) FROM {t}") for t in ("entry", "reservation")]
    assert [[(report.entries,)], [(report.reservations,)]] == counts
    witness = "agrees" if isinstance(path, Path) else "waived"
    assert (report.accounts, report.releases, report.witness) == (5, 4, witness)


def test_an_empty_ledger_is_fine(path: Place) -> None:
    """There is nothing that could be wrong."""
    ledger = make_ledger(path)
    report = verify(ledger)
    assert (report.fine, report.entries) == (True, 0)
    ledger.close()


def test_progress_tells_of_every_entry(ledger: Ledger) -> None:
    """A bar that is driven by it ends where it should."""
    told = []
    report = verify(ledger, progress=lambda done, total: told.append((done, total)))
    assert sum(done for done, _ in told) == report.entries
    assert {total for _, total in told} == {report.entries}


# What the hash covers


ROWS = st.fixed_dictionaries(
    {
        **{name: st.text(max_size=20) for name in ("account", "at", "body", "writer")},
        "reservation": st.none() | st.text(max_size=20),
        "run": st.none() | st.text(max_size=20),
    }
)


@given(ROWS)
def test_the_fast_text_of_an_entry_is_the_canonical_one(row):
    """Whatever is in the columns, the hash is the one that was written."""
    opening = dict.fromkeys(("amount", "settled_after", "held_after"), "[0,0]")
    entry = {**row, **opening, "seq": 1, "kind": "open", "body": "{}"}
    first = hashlib.sha256(canonical(entry).encode()).hexdigest()
    replay = Replay(row["account"])
    assert replay.feed([{**entry, "hash": first}]) is None
    later = {**entry, **row, "seq": 2, "kind": "refuse"}
    second = hashlib.sha256((first + canonical(later)).encode()).hexdigest()
    assert replay.feed([{**later, "hash": second}]) is None
    assert replay.hash == second


# Edits that leave the hashes as they were


def sql(*statements: str) -> Callable[[Place], None]:
    """Return an edit of a ledger."""
    return lambda path: edit(path, "DROP TRIGGER entry_no_update", *statements)


@pytest.mark.parametrize("column", [*COLUMNS.split()[2:], "hash"])
def test_each_column_of_an_entry_is_covered(ledger, path, column):
    """The entry that was edited is named, not a later one."""
    value = {"hash": f"'{'0' * 64}'", "kind": "'refuse'"}.get(column, "'[1]'")
    where = "account = 'a#1' AND seq = 4"
    sql(f"UPDATE entry SET {column} = {value} WHERE {where}")(path)
    first = verify(ledger).bad[0]
    assert (first.account, first.entry) == ("a#1", 4)


def test_a_removed_entry_is_named(ledger: Ledger, path: Place) -> None:
    """The gap is what is bad, not what follows it."""
    edit(
        path,
        "DROP TRIGGER entry_no_delete",
        "DELETE FROM entry WHERE account = 'a#1' AND seq = 4",
    )
    first = verify(ledger).bad[0]
    assert "entry 4 is missing" in first.problem


OUTSIDE = {
    "settled": "UPDATE account SET settled = '[0]' WHERE id = 'a#1'",
    "held": "UPDATE account SET held = '[0]' WHERE id = 'a#1'",
    "head": f"UPDATE account SET head = '{'0' * 64}' WHERE id = 'a#1'",
    "seq": "UPDATE account SET seq = seq - 1 WHERE id = 'a#1'",
    "state": "UPDATE account SET state = 'open' WHERE state = 'overdrawn'",
    "rule": "UPDATE account SET rule = replace(rule, '\"1\"', '\"100\"') "
    "WHERE id = 'a#1'",
    "halt": "UPDATE account SET halt = '300' WHERE halt = '3'",
    "kind": "UPDATE account SET kind = 'flow' WHERE id = 'a#1'",
    "pin": "UPDATE term SET pinned = replace(pinned, '\"1\"', '\"100\"')",
    "reservation": "UPDATE reservation SET state = 'void' WHERE state = 'open'",
    "settlement": "UPDATE reservation SET state = 'void' WHERE id = "
    "(SELECT id FROM reservation WHERE state = 'settled' LIMIT 1)",
    "opened": "UPDATE reservation SET state = 'open' WHERE state = 'settled'",
    "accounts": "UPDATE reservation SET accounts = '[]' WHERE state = 'open'",
    "release": "UPDATE release SET value = '99' WHERE value = '2'",
    "digest": f"UPDATE release SET digest = '{'0' * 64}' WHERE value = '2'",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_the_journal_implies_is_covered(ledger, path, name):
    """Accounts, terms, reservations and releases agree with it."""
    if name == "state":
        import_prior(ledger, SHOP, Gaussian(sensitivity=1, sigma=1), **PRIOR)
    assert verify(ledger).fine
    before = read(path, "SELECT * FROM account")
    edit(path, "DROP TRIGGER IF EXISTS entry_no_update", OUTSIDE[name])
    assert verify(ledger).bad, before


PRIOR = {"because": "much", "evidence": "f" * 64}


def test_a_reservation_that_no_table_knows_is_named(
    ledger: Ledger, path: Place
) -> None:
    """Its entry, and what it reserves for."""
    (name,) = read(path, "SELECT id FROM reservation WHERE state = 'open'")[0]
    edit(path, f"DELETE FROM reservation WHERE id = '{name}'")
    first = verify(ledger).bad[0]
    assert (first.account, name in first.problem) == ("a#1", True)


def test_a_state_that_no_entry_made_is_named(ledger: Ledger, path: Place) -> None:
    """The reservation, its state and what the journal says."""
    (name,) = read(path, "SELECT id FROM reservation WHERE state = 'open'")[0]
    edit(path, f"UPDATE reservation SET state = 'settled' WHERE id = '{name}'")
    first = verify(ledger).bad[0]
    assert f"reservation {name} is settled on 1 accounts" in first.problem


# Edits by someone who fits the hashes


def quoted(value: object) -> str:
    """Write a value into a statement."""
    if value is None or isinstance(value, int):
        return "NULL" if value is None else str(value)
    return "'" + str(value).replace("'", "''") + "'"


def rewrite(path: Place, change: Callable[[dict], None], account: str) -> None:
    """Change entries and fit the whole chain and the account's row to them."""
    names = COLUMNS.split()
    where = f"FROM entry WHERE account = '{account}' ORDER BY seq"
    statements, previous = ["DROP TRIGGER IF EXISTS entry_no_update"], ""
    for values in read(path, f"SELECT {', '.join(names)} {where}"):
        row = dict(zip(names, values, strict=True))
        key = f"account = '{account}' AND seq = {row['seq']}"
        change(row)
        previous = hashlib.sha256((previous + canonical(row)).encode()).hexdigest()
        told = ", ".join(f"{name} = {quoted(row[name])}" for name in names)
        statements.append(f"UPDATE entry SET {told}, hash = '{previous}' WHERE {key}")
    statements.append(
        f"UPDATE account SET head = '{previous}', settled = '{row['settled_after']}', "
        f"held = '{row['held_after']}' WHERE id = '{account}'"
    )
    edit(path, *statements)


def allow_any_kind(path: Place) -> None:
    """Take away what keeps entries of unheard kinds out of the journal."""
    if in_memory(path):
        edit(
            path, "DROP TRIGGER entry_no_replace", "PRAGMA ignore_check_constraints = 1"
        )
    elif isinstance(path, str):
        sql = (
            "SELECT conname FROM pg_constraint WHERE contype = 'c' AND "
            "conrelid = 'dpflow.entry'::regclass"
        )
        names = [name for (name,) in read(path, sql)]
        drop = "ALTER TABLE entry DROP CONSTRAINT IF EXISTS"
        edit(path, *(f"{drop} {name}" for name in names))
    else:
        edit(
            path,
            "DROP TRIGGER entry_no_replace",
            "PRAGMA writable_schema = ON",
            "UPDATE sqlite_schema SET sql = replace(sql, '''open'', ''reserve''', "
            "'''open'', ''unheard'', ''reserve''') WHERE name = 'entry'",
        )


def cheaper(row: dict) -> None:
    """Make every amount of the account a tenth of what it was."""
    for name in ("amount", "settled_after", "held_after"):
        row[name] = canonical([amount // 10 for amount in json.loads(row[name])])


def wrong_sum(row: dict) -> None:
    """Forget one settlement in the sums."""
    if row["seq"] > 4:
        less = [amount // 2 for amount in json.loads(row["settled_after"])]
        row["settled_after"] = canonical(less)


def test_sums_are_checked_even_where_all_hashes_fit(ledger, path):
    """The first entry whose sums do not follow is named."""
    rewrite(path, wrong_sum, "a#1")
    first = verify(ledger).bad[0]
    assert (first.account, first.entry) == ("a#1", 5)
    assert "it says settled" in first.problem


def alien(row: dict, **fields: object) -> None:
    """Change one entry of a chain that fits."""
    if row["seq"] == 3:
        row.update(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "unheard"},
        {"reservation": "another"},
        {"amount": "[1, 2]"},
        {"amount": "[-1]"},
        {"amount": "nothing"},
        {"amount": "[1,2]"},
        {"kind": "forfeit", "amount": "[1]"},
        {"kind": "open"},
        {"kind": "draw", "amount": f"[{10**40}]"},
    ],
)
def test_entries_that_cannot_be_are_named(ledger, path, fields):
    """Also where a hash says that they are what was written."""
    allow_any_kind(path)
    rewrite(path, lambda row: alien(row, **fields), "a#1")
    first = verify(ledger).bad[0]
    assert (first.account, first.entry) == ("a#1", 3)


# Signed checkpoints


def test_a_full_rewrite_is_fine_without_a_key_and_caught_with_one(path):
    """Whoever can write the database can fit everything but the signatures."""
    ledger = create_ledger(url(path), witness="none")
    for _ in range(5):
        ledger.settle(granted(ledger, "0.1"))
    assert verify(ledger, key=KEY, sign_new=True).fine
    ledger.settle(granted(ledger, "0.1"))
    rewrite(path, cheaper, "a#1")
    for full in (True, False):
        first = verify(ledger, key=KEY, full=full).bad[0]
        assert (first.account, first.entry) == ("a#1", 11)
        assert "the history was rewritten" in first.problem
    edit(
        path,
        "UPDATE checkpoint SET hash = (SELECT hash FROM entry "
        "WHERE entry.account = checkpoint.account AND entry.seq = checkpoint.seq)",
    )
    unsigned = verify(ledger)
    assert (unsigned.bad, unsigned.checkpoints, unsigned.signed) == ([], 1, False)
    for full in (True, False):
        first = verify(ledger, key=KEY, full=full).bad[0]
        assert (first.account, first.entry) == ("a#1", 11)
        assert "forged" in first.problem


def test_another_key_is_not_taken_for_the_right_one(path):
    """Nor is it said that everything is fine."""
    ledger = create_ledger(url(path), witness="none")
    granted(ledger, "0.1")
    assert verify(ledger, key=KEY, sign_new=True).fine
    assert "another key" in verify(ledger, key=b"x" * 32).bad[0].problem


def test_removed_checkpoints_are_noticed(ledger, path):
    """An account without one is not signed by itself."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    edit(path, "DELETE FROM checkpoint WHERE account = 'a#1'")
    report = verify(ledger, key=KEY)
    assert {finding.account for finding in report.bad} == {"a#1"}
    assert "dpflow ledger checkpoint" in report.bad[0].problem
    assert read(path, "SELECT * FROM checkpoint WHERE account = 'a#1'") == []


def test_an_account_that_opens_under_the_key_is_signed_at_once(path, monkeypatch):
    """So that nothing has to be signed unseen later."""
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", KEY.decode())
    ledger = make_ledger(path)
    granted(ledger, "0.1")
    report = verify(ledger, key=KEY)
    assert (report.bad, report.checkpoints) == ([], 1)


def test_later_runs_read_only_what_came_after(ledger, path):
    """The tail is replayed from the newest checkpoint; --full reads all again."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    name = granted(ledger, "0.001")
    (held,) = read(path, "SELECT id FROM reservation WHERE state = 'open' LIMIT 1")[0]
    ledger.settle(name)
    ledger.settle(held)
    tail = verify(ledger, key=KEY, full=False)
    assert (tail.bad, tail.trusted > 20, tail.entries < 10) == ([], True, True)
    edit(path, "DROP TRIGGER entry_no_update", "UPDATE entry SET at = '' WHERE seq = 2")
    assert verify(ledger, key=KEY, full=False).fine
    assert not verify(ledger, key=KEY, full=True).fine


def test_an_edit_in_the_tail_is_named(ledger, path):
    """As it is in a full run."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    for _ in range(3):
        ledger.settle(granted(ledger, "0.001"))
    (last,) = read(path, "SELECT seq - 1 FROM account WHERE id = 'a#1'")[0]
    sql(f"UPDATE entry SET run = 'x' WHERE account = 'a#1' AND seq = {last}")(path)
    first = verify(ledger, key=KEY, full=False).bad[0]
    assert (first.account, first.entry) == ("a#1", last)


# The tail at open


def test_an_edited_tail_refuses_the_first_decision(ledger, path):
    """A process does not decide on sums that do not follow."""
    sql("UPDATE entry SET at = '' WHERE account = 'a#1' AND seq = 6")(path)
    opened = open_ledger(url(path))
    with pytest.raises(LedgerCorrupt, match="entry 6"):
        granted(opened, "0.001")


def test_the_tail_is_short(path):
    """What is older is for `verify`: opening stays fast."""
    ledger = make_ledger(path)
    policy = make_policy(budget="{epsilon: 100}")
    requests = [request(ledger, "0.01", policies=[policy]) for _ in range(TAIL + 20)]
    ledger.reserve_many(requests)
    sql("UPDATE entry SET at = '' WHERE account = 'a#1' AND seq = 5")(path)
    opened = open_ledger(url(path))
    assert granted(opened, "0.01", policies=[policy])
    assert [finding.entry for finding in verify(opened).bad] == [5]


def test_random_flips_of_the_journal_are_found(ledger, path):
    """A bit in any text of any entry."""
    chance = random.Random(5)
    rows = read(path, f"SELECT {COLUMNS.replace(' ', ', ')} FROM entry")
    names = [name for name in COLUMNS.split() if name not in {"account", "seq", "kind"}]
    edit(path, "DROP TRIGGER entry_no_update")
    for _ in range(40):
        row = dict(zip(COLUMNS.split(), chance.choice(rows), strict=True))
        name = chance.choice([n for n in names if row[n]])
        text = row[name]
        at = chance.randrange(len(text))
        flipped = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        key = [row["account"], row["seq"]]
        where = f"WHERE account = '{key[0]}' AND seq = {key[1]}"
        edit(path, f"UPDATE entry SET {name} = {quoted(flipped)} {where}")
        first = verify(ledger).bad[0]
        assert [first.account, first.entry] == key
        edit(path, f"UPDATE entry SET {name} = {quoted(text)} {where}")
    assert verify(ledger).fine


def test_a_check_signs_nothing(ledger, path):
    """Not even where all is fine; signatures are checked all the same."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    granted(ledger)
    before = read(path, "SELECT account, seq FROM checkpoint")
    assert verify(ledger, key=KEY, sign=False).fine
    assert read(path, "SELECT account, seq FROM checkpoint") == before
    assert not verify(ledger, key=bytes(32), sign=False).fine
    # The same without that wish does sign.
    assert verify(ledger, key=KEY).fine
    assert read(path, "SELECT account, seq FROM checkpoint") != before


# Checkpoints that are taken off


def signed_thrice(ledger, path):
    """Sign a ledger after each of three charges; return the journal's length then."""
    for _ in range(3):
        ledger.settle(granted(ledger))
        assert verify(ledger, key=KEY, sign_new=True).bad == []
    sql = "SELECT number FROM checkpoint WHERE account = 'a#1' ORDER BY seq"
    assert [number for (number,) in read(path, sql)] == [1, 2, 3]


def test_a_checkpoint_that_was_taken_out_of_the_middle_is_noticed(ledger, path):
    """Each names the one before it; the control: all are fine as they were."""
    signed_thrice(ledger, path)
    assert verify(ledger, key=KEY).bad == []
    edit(path, "DELETE FROM checkpoint WHERE account = 'a#1' AND number = 2")
    assert "forged" in verify(ledger, key=KEY).bad[0].problem


def test_a_checkpoint_that_was_counted_anew_is_noticed(ledger, path):
    """Closing the gap does not help without the key."""
    signed_thrice(ledger, path)
    edit(
        path,
        "DELETE FROM checkpoint WHERE account = 'a#1' AND number = 2",
        "UPDATE checkpoint SET number = 2 WHERE account = 'a#1' AND number = 3",
    )
    assert "forged" in verify(ledger, key=KEY).bad[0].problem


def test_the_newest_checkpoint_cannot_be_taken_off_under_a_witness(tmp_path):
    """Verify and the next decision notice; without a witness nothing does."""
    path = tmp_path / "ledger.db"
    ledger = create_ledger(url(path), witness=str(tmp_path / "w"))
    signed_thrice(ledger, path)
    edit(path, "DELETE FROM checkpoint WHERE account = 'a#1' AND number = 3")
    (bad,) = verify(ledger, key=KEY).bad
    assert "signed checkpoints" in bad.problem
    opened = open_ledger(url(path), witness=str(tmp_path / "w"))
    with pytest.raises(LedgerRolledBack, match="signed checkpoints"):
        granted(opened)
    assert (compare(opened).unsigned, compare(opened).losses) == (1, ())
    copy_database(path, tmp_path / "copy")
    reconcile(opened, {}, because="the newest was lost")
    # Every witnessed entry is in a copy from before; only the count of repairs tells.
    copy_database(path, tmp_path / "after")
    copy_database(tmp_path / "copy", path)
    with pytest.raises(LedgerRolledBack, match="a copy from before one"):
        granted(open_ledger(url(path), witness=str(tmp_path / "w")))
    copy_database(tmp_path / "after", path)
    granted(opened)
    blind = open_ledger(url(path), witness="none")
    assert verify(blind, key=KEY).bad == []


def test_a_ledger_signed_before_checkpoints_were_counted_goes_on(ledger, path):
    """Old signatures stay good, and new ones are chained to them."""
    ledger.settle(granted(ledger))
    ((seq, digest),) = read(path, "SELECT seq, head FROM account WHERE id = 'a#1'")
    old = signature(KEY, ledger.id, "a#1", seq, digest)
    edit(
        path,
        "INSERT INTO checkpoint (account, seq, hash, signature, at, writer) "
        f"VALUES ('a#1', {seq}, '{digest}', '{old}', '', '')",
    )
    ledger.settle(granted(ledger))
    assert verify(ledger, key=KEY, sign_new=True).bad == []
    sql = "SELECT number FROM checkpoint WHERE account = 'a#1' ORDER BY seq"
    assert read(path, sql) == [(None,), (2,)]
    assert verify(ledger, key=KEY).bad == []
    edit(path, f"DELETE FROM checkpoint WHERE seq = {seq}")
    assert "forged" in verify(ledger, key=KEY).bad[0].problem
