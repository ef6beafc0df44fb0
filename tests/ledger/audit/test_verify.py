"""Verification finds every edit, names the first bad entry, and takes no other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow import Gaussian
from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision.by_hand import Prior
from dpflow.ledger.entry import canonical
from dpflow.ledger.newest_entries import TAIL
from tests.ledger.audit.books import SHOP, fill, quoted, rewrite
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

pytestmark = [pytest.mark.quick, pytest.mark.storages("sqlite")]


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


def test_progress_tells_of_every_entry(ledger: Ledger) -> None:
    """A bar that is driven by it ends where it should."""
    told = []
    report = verify(ledger, progress=lambda done, total: told.append((done, total)))
    assert sum(done for done, _ in told) == report.entries
    assert {total for _, total in told} == {report.entries}


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
    edit(path, f"{edited} WHERE book = 'a' AND number = 4")
    first = verify(ledger).bad[0]
    assert (first.book, first.entry) == ("a", 4)


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
    "unmade": "INSERT INTO charge SELECT 'made up', state, owner, places, held, added, "
    "covers, key, epoch FROM charge WHERE state = 'open'",
    "another's": "UPDATE release SET charge = 'x' WHERE value = '2'",
    "no journal": "DELETE FROM book WHERE name = 'shop'",
}
#: What is said of some of them.
SAID = {
    "charge": "its row says state void, its journal open",
    "term": "term 1 of dataset 'a': its row says entry",
    "frozen": "the journal of a: its row says frozen",
    "no run": "run refused: the journal tells of it, and it has no row",
    "unmade": "reservation made up: it has a row, and no entry",
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_the_journal_implies_is_covered(ledger, path, name):
    """Accounts, terms, reservations and releases agree with it."""
    if name == "overdrawn":
        ledger.ask(Prior(policy=SHOP, cost=Gaussian(sensitivity=1, sigma=1), **PRIOR))
    assert verify(ledger).fine
    edit(path, OUTSIDE[name])
    bad = verify(ledger).bad
    assert bad
    assert SAID.get(name, "") in str(bad[0])


PRIOR = {"reason": "much", "evidence": "f" * 64}


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


def test_a_grant_above_its_gate_is_named(ledger, path):
    """Whoever fits hashes and sums cannot make a step admitted."""

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
            row["body"] = canonical({"frozen": {"who": "ann", "reason": "x"}})

    rewrite(path, frozen, "a")
    (first, *_) = verify(ledger).bad
    assert first.book == "a"
    assert "frozen" in first.problem


# The tail at open


def test_an_edited_tail_refuses_the_first_decision(ledger, path):
    """A process does not decide on sums that do not follow."""
    edit(path, "UPDATE entry SET at = '' WHERE book = 'a' AND number = 6")
    opened = open_ledger(url(path))
    with pytest.raises(LedgerCorrupt, match="entry 6"):
        granted(opened, "0.001")


def test_the_tail_is_short(path):
    """What is older is for `verify`: opening stays fast."""
    ledger = create_ledger(url(path), witness="none")
    policy = make_policy(budget="{epsilon: 100}")
    requests = [request(ledger, "0.01", policies=[policy]) for _ in range(TAIL + 20)]
    ledger.reserve_many(requests)
    edit(path, "UPDATE entry SET at = '' WHERE book = 'a' AND number = 5")
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
