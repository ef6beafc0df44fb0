"""Verification finds every edit, names the first bad entry, and takes no other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpflow import Gaussian
from dpflow.exceptions import BudgetRefused, LedgerCorrupt, LedgerRolledBack
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.audit import admissions
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.entry import Columns, canonical, entry_hash
from dpflow.ledger.newest_entries import TAIL
from dpflow.ledger.office import amend, import_prior
from tests.ledger.support import (
    COLUMNS,
    Place,
    edit,
    granted,
    make_ledger,
    make_policy,
    read,
    request,
    url,
)
from tests.ledger.witness.test_rollback import copy_database
from tests.signing import key_file, key_of

KEY = key_of("k")
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
        ledger.reserve(request(ledger, "5", flow_run="refused"))
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
    counts = [read(path, f"SELECT count(*) FROM {t}") for t in ("entry", "charge")]
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


# Edits that leave the hashes as they were


def sql(*statements: str) -> Callable[[Place], None]:
    """Return an edit of a ledger."""
    return lambda path: edit(path, *statements)


@pytest.mark.parametrize("column", [*COLUMNS.split()[2:], "hash"])
def test_each_column_of_an_entry_is_covered(ledger, path, column):
    """The entry that was edited is named, not a later one."""
    edited = {"hash": f"'{'0' * 64}'", "kind": "'refuse'", "postings": "'{}'"}
    value = edited.get(column, "'[1]'")
    where = "book = 'a' AND number = 4"
    sql(f"UPDATE entry SET {column} = {value} WHERE {where}")(path)
    first = verify(ledger).bad[0]
    assert (first.book, first.entry) == ("a", 4)


def test_a_removed_entry_is_named(ledger: Ledger, path: Place) -> None:
    """The gap is what is bad, not what follows it."""
    edit(path, "DELETE FROM entry WHERE book = 'a' AND number = 4")
    first = verify(ledger).bad[0]
    assert "entry 4 is missing" in first.problem


OUTSIDE = {
    "settled": "UPDATE account SET settled = '[0]' WHERE id = 'a#1'",
    "held": "UPDATE account SET held = '[0]' WHERE id = 'a#1'",
    "moved by": "UPDATE account SET entry = entry - 1 WHERE id = 'a#1'",
    "told": "UPDATE account SET told = '{\"0.5\":2}' WHERE id = 'a#1'",
    "overdrawn": "UPDATE account SET overdrawn = 0 WHERE overdrawn = 1",
    "head": f"UPDATE book SET hash = '{'0' * 64}' WHERE name = 'a'",
    "number": "UPDATE book SET number = number - 1 WHERE name = 'a'",
    "ran": "UPDATE book SET ran = '{}' WHERE name = 'a'",
    "frozen": "UPDATE book SET frozen = '{}' WHERE name = 'a'",
    "term": "UPDATE term SET entry = entry + 1 WHERE book = 'a'",
    "charge": "UPDATE charge SET state = 'void' WHERE state = 'open'",
    "settlement": "UPDATE charge SET state = 'void' WHERE id = "
    "(SELECT id FROM charge WHERE state = 'settled' LIMIT 1)",
    "opened": "UPDATE charge SET state = 'open' WHERE state = 'settled'",
    "holds": "UPDATE charge SET held = '{}' WHERE state = 'open'",
    "owner": "UPDATE charge SET owner = 'x' WHERE state = 'open'",
    "places": "UPDATE charge SET places = '{\"a\":[2,0]}' WHERE state = 'open'",
    "epoch": "UPDATE charge SET epoch = 1 WHERE state = 'open'",
    "release": "UPDATE release SET value = '99' WHERE value = '2'",
    "digest": f"UPDATE release SET digest = '{'0' * 64}' WHERE value = '2'",
    "claimed": "UPDATE release SET state = 'claimed', value = NULL WHERE value = '2'",
    "no release": "DELETE FROM release WHERE value = '2'",
    "run": "UPDATE run SET refused = '[]'",
    "no run": "DELETE FROM run",
    "granted": "UPDATE granted SET most = '{}' WHERE book = 'a'",
    "claim": "DELETE FROM claim",
    "no account": "DELETE FROM account WHERE id = 'shop#1'",
    "no charge": "DELETE FROM charge WHERE state = 'settled'",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_the_journal_implies_is_covered(ledger, path, name):
    """Accounts, terms, reservations and releases agree with it."""
    if name == "overdrawn":
        import_prior(ledger, SHOP, Gaussian(sensitivity=1, sigma=1), **PRIOR)
    assert verify(ledger).fine
    before = read(path, "SELECT * FROM account")
    edit(path, OUTSIDE[name])
    assert verify(ledger).bad, before


PRIOR = {"because": "much", "evidence": "f" * 64}


def test_a_reservation_that_no_table_knows_is_named(
    ledger: Ledger, path: Place
) -> None:
    """Its id, and that the journal tells of it."""
    (name,) = read(path, "SELECT id FROM charge WHERE state = 'open'")[0]
    edit(path, f"DELETE FROM charge WHERE id = '{name}'")
    first = verify(ledger).bad[0]
    assert f"reservation {name}: the journal tells of it" in first.problem


def test_a_reservation_that_no_entry_made_is_named(ledger: Ledger, path: Place) -> None:
    """A row beside the journal is no charge."""
    edit(
        path,
        "INSERT INTO charge SELECT 'made up', state, owner, places, held, added, "
        "covers, key, epoch FROM charge WHERE state = 'open'",
    )
    (first,) = verify(ledger).bad
    assert "reservation made up: it has a row, and no entry" in first.problem


def test_a_state_that_no_entry_made_is_named(ledger: Ledger, path: Place) -> None:
    """The reservation, its state and what the journal says."""
    (name,) = read(path, "SELECT id FROM charge WHERE state = 'open'")[0]
    edit(path, f"UPDATE charge SET state = 'settled' WHERE id = '{name}'")
    first = verify(ledger).bad[0]
    said = f"reservation {name}: its row says state settled, its journal open"
    assert said in first.problem


# Edits by someone who fits the hashes


def quoted(value: object) -> str:
    """Write a value into a statement."""
    if value is None or isinstance(value, int):
        return "NULL" if value is None else str(value)
    return "'" + str(value).replace("'", "''") + "'"


def rewrite(path: Place, change: Callable[[dict], None], book: str) -> None:
    """Change entries and fit the whole chain and the rows' sums to them."""
    names = COLUMNS.split()
    where = f"FROM entry WHERE book = '{book}' ORDER BY number"
    statements, previous, sums = [], "", {}
    for values in read(path, f"SELECT {', '.join(names)} {where}"):
        row = dict(zip(names, values, strict=True))
        key = f"book = '{book}' AND number = {row['number']}"
        row["postings"] = json.loads(row["postings"])
        change(row)
        sums |= row["postings"]
        if not isinstance(row["postings"], str):
            row["postings"] = canonical(row["postings"])
        previous = entry_hash(previous, Columns(**row))
        told = ", ".join(f"{name} = {quoted(row[name])}" for name in names)
        statements.append(f"UPDATE entry SET {told}, hash = '{previous}' WHERE {key}")
    statements.append(f"UPDATE book SET hash = '{previous}' WHERE name = '{book}'")
    for account, (_, settled, held) in sums.items():
        told = f"settled = '{canonical(settled)}', held = '{canonical(held)}'"
        statements.append(f"UPDATE account SET {told} WHERE id = '{account}'")
    edit(path, *statements)


def cheaper(row: dict) -> None:
    """Make every amount a tenth of what it was."""
    row["postings"] = {
        account: [[amount // 10 for amount in amounts] for amounts in three]
        for account, three in row["postings"].items()
    }


def wrong_sum(row: dict) -> None:
    """Forget half of what was settled in the sums."""
    if row["number"] > 4:
        for three in row["postings"].values():
            three[1] = [amount // 2 for amount in three[1]]


def test_sums_are_checked_even_where_all_hashes_fit(ledger, path):
    """The first entry whose sums do not follow is named."""
    rewrite(path, wrong_sum, "a")
    first = verify(ledger).bad[0]
    assert (first.book, first.entry) == ("a", 5)
    assert "it says settled" in first.problem


ALIEN = {
    "kind": {"kind": "unheard"},
    "another charge": {"charge": "another"},
    "no charge": {"charge": None},
    "opened again": {"kind": "open"},
    "drawn": {"kind": "seal"},
}
AMOUNTS = {
    "negative": "[[-1],[0],[0]]",
    "no numbers": '["nothing",[0],[0]]',
    "another length": "[[1],[1],[0]]",
    "too few": "[[1,0],[1,0]]",
    "a space": "[[1, 0],[1,0],[0,0]]",
}


@pytest.mark.parametrize("name", [*ALIEN, *AMOUNTS])
def test_entries_that_cannot_be_are_named(ledger, path, name):
    """Also where a hash says that they are what was written."""

    def alien(row):
        if row["number"] == 3:
            row.update(ALIEN.get(name, {}))
            if name in AMOUNTS:
                row["postings"] = Text(f'{{"a#1":{AMOUNTS[name]}}}')

    rewrite(path, alien, "a")
    first = verify(ledger).bad[0]
    assert (first.book, first.entry) == ("a", 3)


class Text(str):
    """Postings as they are written, in whatever form."""

    def keys(self):
        """Tell of no account."""
        return ()

    __slots__ = ()


@pytest.mark.parametrize("together", [1, 1000])
def test_a_grant_above_its_gate_is_named(ledger, path, together, monkeypatch):
    """Whoever fits hashes and sums cannot make a step admitted."""
    monkeypatch.setattr(admissions, "_TOGETHER", together)

    def dearer(row):
        if row["kind"] in {"open", "refuse"}:
            return
        for three in row["postings"].values():
            three[:] = [[amount * 5 for amount in amounts] for amounts in three]

    rewrite(path, dearer, "a")
    found = verify(ledger).bad
    (beyond,) = [each for each in found if "does not admit" in each.problem]
    assert (beyond.account, beyond.book) == ("a#1", "a")
    row = read(path, "SELECT kind FROM entry WHERE number = ?", beyond.entry)
    assert ("reserve",) in row


def test_a_grant_while_frozen_is_named(ledger, path):
    """The order of entries says what was allowed at that time."""

    def frozen(row):
        if row["number"] == 3:
            row.update(kind="freeze", charge=None, postings={})
            row["body"] = canonical({"frozen": {"who": "ann", "because": "x"}})

    rewrite(path, frozen, "a")
    (first, *_) = verify(ledger).bad
    assert first.book == "a"
    assert "frozen" in first.problem


# Signed checkpoints


def test_a_full_rewrite_is_fine_without_a_key_and_caught_with_one(path):
    """Whoever can write the database can fit everything but the signatures."""
    ledger = create_ledger(url(path), witness="none")
    for _ in range(5):
        ledger.settle(granted(ledger, "0.1"))
    assert verify(ledger, key=KEY, sign_new=True).fine
    ledger.settle(granted(ledger, "0.1"))
    rewrite(path, cheaper, "a")
    for full in (True, False):
        first = verify(ledger, key=KEY, full=full).bad[0]
        assert (first.book, first.entry) == ("a", 11), first
        assert "the history was rewritten" in first.problem
    ledger.close()


def test_a_checkpoint_that_was_fitted_too_is_forged(path):
    """Its signature is not one of the key's."""
    ledger = create_ledger(url(path), witness="none")
    for _ in range(5):
        ledger.settle(granted(ledger, "0.1"))
    assert verify(ledger, key=KEY, sign_new=True).fine
    hashes: dict[int, str] = {}

    def fitted(row):
        cheaper(row)
        if row["kind"] == "checkpoint":
            body = json.loads(row["body"])
            body["signed"]["hash"] = hashes[body["signed"]["number"]]
            row["body"] = canonical(body)

    for _ in range(2):
        rewrite(path, fitted if hashes else cheaper, "a")
        stored = read(path, "SELECT number, hash FROM entry WHERE book = 'a'")
        hashes.update(stored)
    unsigned = verify(ledger)
    assert (unsigned.checkpoints, unsigned.signed) == (1, False)
    for full in (True, False):
        first = verify(ledger, key=KEY, full=full).bad[0]
        assert first.book == "a"
        assert "forged" in first.problem


def test_another_key_is_not_taken_for_the_right_one(path):
    """Nor is it said that everything is fine."""
    ledger = create_ledger(url(path), witness="none")
    granted(ledger, "0.1")
    assert verify(ledger, key=KEY, sign_new=True).fine
    assert "another key" in verify(ledger, key=key_of("x")).bad[0].problem


def test_removed_checkpoints_are_noticed(ledger, path):
    """A dataset without one is not signed by itself."""
    before = read(path, "SELECT hash FROM book WHERE name = 'a'")[0][0]
    number = read(path, "SELECT number FROM book WHERE name = 'a'")[0][0]
    assert verify(ledger, key=KEY, sign_new=True).fine
    edit(
        path,
        "DELETE FROM entry WHERE book = 'a' AND kind = 'checkpoint'",
        f"UPDATE book SET number = {number}, hash = '{before}' WHERE name = 'a'",
    )
    report = verify(open_ledger(url(path), witness="none"), key=KEY)
    assert {finding.book for finding in report.bad} == {"a"}
    assert "dpflow ledger checkpoint" in report.bad[0].problem
    kinds = "SELECT * FROM entry WHERE book = 'a' AND kind = 'checkpoint'"
    assert read(path, kinds) == []


def test_a_dataset_that_opens_under_the_key_is_signed_at_once(
    path, tmp_path, monkeypatch
):
    """So that nothing has to be signed unseen later."""
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(tmp_path, "k"))
    ledger = make_ledger(path)
    granted(ledger, "0.1")
    report = verify(ledger, key=KEY)
    assert (report.bad, report.checkpoints) == ([], 1)


def test_later_runs_read_only_what_came_after(ledger, path):
    """The tail is replayed from the newest checkpoint; --full reads all again."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    name = granted(ledger, "0.001")
    (held,) = read(path, "SELECT id FROM charge WHERE state = 'open' LIMIT 1")[0]
    ledger.settle(name)
    ledger.settle(held)
    tail = verify(ledger, key=KEY, full=False)
    assert (tail.bad, tail.trusted > 20, tail.entries < 10) == ([], True, True)
    edit(path, "UPDATE entry SET at = '' WHERE book = 'shop' AND number = 2")
    assert verify(ledger, key=KEY, full=False).fine
    assert not verify(ledger, key=KEY, full=True).fine


def test_an_edit_in_the_tail_is_named(ledger, path):
    """As it is in a full run."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    for _ in range(3):
        ledger.settle(granted(ledger, "0.001"))
    (last,) = read(path, "SELECT number - 1 FROM book WHERE name = 'a'")[0]
    sql(f"UPDATE entry SET at = 'x' WHERE book = 'a' AND number = {last}")(path)
    first = verify(ledger, key=KEY, full=False).bad[0]
    assert (first.book, first.entry) == ("a", last)


# The tail at open


def test_an_edited_tail_refuses_the_first_decision(ledger, path):
    """A process does not decide on sums that do not follow."""
    sql("UPDATE entry SET at = '' WHERE book = 'a' AND number = 6")(path)
    opened = open_ledger(url(path))
    with pytest.raises(LedgerCorrupt, match="entry 6"):
        granted(opened, "0.001")


def test_the_tail_is_short(path):
    """What is older is for `verify`: opening stays fast."""
    ledger = create_ledger(url(path), witness="none")
    policy = make_policy(budget="{epsilon: 100}")
    requests = [request(ledger, "0.01", policies=[policy]) for _ in range(TAIL + 20)]
    ledger.reserve_many(requests)
    sql("UPDATE entry SET at = '' WHERE book = 'a' AND number = 5")(path)
    opened = open_ledger(url(path), witness="none")
    assert granted(opened, "0.01", policies=[policy])
    assert [finding.entry for finding in verify(opened).bad] == [5]


def test_random_flips_of_the_journal_are_found(ledger, path):
    """A bit in any text of any entry."""
    chance = random.Random(5)
    rows = read(path, f"SELECT {COLUMNS.replace(' ', ', ')} FROM entry")
    names = [name for name in COLUMNS.split() if name not in {"book", "number", "kind"}]
    for _ in range(40):
        row = dict(zip(COLUMNS.split(), chance.choice(rows), strict=True))
        name = chance.choice([n for n in names if row[n]])
        text = row[name]
        at = chance.randrange(len(text))
        flipped = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        key = [row["book"], row["number"]]
        where = f"WHERE book = '{key[0]}' AND number = {key[1]}"
        edit(path, f"UPDATE entry SET {name} = {quoted(flipped)} {where}")
        first = verify(ledger).bad[0]
        assert [first.book, first.entry] == key
        edit(path, f"UPDATE entry SET {name} = {quoted(text)} {where}")
    assert verify(ledger).fine


def test_a_check_signs_nothing(ledger, path):
    """Not even where all is fine; signatures are checked all the same."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    granted(ledger)
    signed = "SELECT book, number FROM entry WHERE kind = 'checkpoint'"
    before = read(path, signed)
    assert verify(ledger, key=KEY, sign=False).fine
    assert read(path, signed) == before
    assert not verify(ledger, key=key_of("x"), sign=False).fine
    # The same without that wish does sign.
    assert verify(ledger, key=KEY).fine
    assert read(path, signed) != before


def test_nothing_new_is_not_signed_again(ledger, path):
    """A nightly run of an idle ledger does not grow it."""
    signed = "SELECT count(*) FROM entry WHERE kind = 'checkpoint'"
    assert verify(ledger, key=KEY, sign_new=True).fine
    before = read(path, signed)
    for _ in range(2):
        assert verify(ledger, key=KEY).fine
    assert read(path, signed) == before


# Checkpoints that are taken off


def signed_thrice(ledger, path):
    """Sign a ledger after each of three charges; return the journal's length then."""
    for _ in range(3):
        ledger.settle(granted(ledger))
        assert verify(ledger, key=KEY, sign_new=True).bad == []
    counts = [each["count"] for each in points(path)]
    assert counts == [1, 2, 3]


def points(path):
    """Return what the checkpoints of a dataset say."""
    sql = "SELECT body FROM entry WHERE book = 'a' AND kind = 'checkpoint'"
    found = read(path, f"{sql} ORDER BY number")
    return [json.loads(body)["signed"] for (body,) in found]


def without(path, count, *, recount=False):
    """Turn one checkpoint into nothing, and fit the chain."""

    def change(row):
        if row["kind"] != "checkpoint":
            return
        body = json.loads(row["body"])
        if body["signed"]["count"] == count:
            row["kind"] = "thaw"
        elif recount and body["signed"]["count"] > count:
            body["signed"]["count"] -= 1
        row["body"] = canonical(body)

    rewrite(path, change, "a")


def test_a_checkpoint_that_was_taken_out_of_the_middle_is_noticed(ledger, path):
    """Each names the one before it; the control: all are fine as they were."""
    signed_thrice(ledger, path)
    assert verify(ledger, key=KEY).bad == []
    without(path, 2)
    assert "forged" in verify(ledger, key=KEY).bad[0].problem


def test_a_checkpoint_that_was_counted_anew_is_noticed(ledger, path):
    """Closing the gap does not help without the key."""
    signed_thrice(ledger, path)
    without(path, 2, recount=True)
    assert "forged" in verify(ledger, key=KEY).bad[0].problem


def test_the_newest_checkpoint_cannot_be_taken_off_under_a_witness(tmp_path):
    """Verify and the next decision notice; without a witness nothing does."""
    path = tmp_path / "ledger.db"
    ledger = create_ledger(url(path), witness=str(tmp_path / "w"))
    for _ in range(2):
        ledger.settle(granted(ledger))
        assert verify(ledger, key=KEY, sign_new=True).bad == []
    ledger.settle(granted(ledger))
    copy_database(path, tmp_path / "unsigned")
    assert verify(ledger, key=KEY).bad == []
    copy_database(tmp_path / "unsigned", path)
    opened = open_ledger(url(path), witness=str(tmp_path / "w"))
    (bad,) = verify(opened, key=KEY, sign=False).bad
    assert "signed checkpoints" in bad.problem
    with pytest.raises(LedgerRolledBack, match="signed checkpoints"):
        granted(opened)
    assert compare(opened).unsigned == 1
    copy_database(path, tmp_path / "copy")
    reconcile(opened, {}, because="the newest was lost")
    # Every witnessed entry is in a copy from before; only the count of repairs tells.
    copy_database(path, tmp_path / "after")
    copy_database(tmp_path / "copy", path)
    with pytest.raises(LedgerRolledBack):
        granted(open_ledger(url(path), witness=str(tmp_path / "w")))
    copy_database(tmp_path / "after", path)
    granted(open_ledger(url(path), witness=str(tmp_path / "w")))
    blind = open_ledger(url(path), witness="none")
    assert verify(blind, key=KEY).bad == []
