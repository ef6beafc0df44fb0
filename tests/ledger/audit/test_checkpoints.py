"""Signed checkpoints: what they find, and who takes them off."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from dpflow.exceptions import LedgerRolledBack
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.entry import canonical
from dpflow.ledger.ledger import Ledger
from tests.ledger.audit.books import KEY, cheaper, fill, rewrite, signed_thrice
from tests.ledger.support import Place, edit, granted, make_ledger, read, url
from tests.ledger.witness.accidents import copy_database
from tests.signing import key_file, key_of

pytestmark = pytest.mark.storages("sqlite")


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Make a ledger with two datasets and a bit of everything."""
    found = make_ledger(path)
    fill(found)
    yield found
    found.close()


def test_a_full_rewrite_is_fine_without_a_key_and_caught_with_one(path):
    """Whoever can write the database can fit everything but the signatures."""
    ledger = create_ledger(url(path), witness="none")
    for _ in range(5):
        ledger.settle(granted(ledger, "0.1"))
    assert verify(ledger, key=KEY, sign=True).fine
    ledger.settle(granted(ledger, "0.1"))
    rewrite(path, cheaper, "a")
    first = verify(ledger, key=KEY).bad[0]
    assert (first.book, first.entry) == ("a", 11), first
    assert "the history was rewritten" in first.problem
    ledger.close()


def test_a_check_signs_nothing_and_an_idle_ledger_is_not_signed_again(ledger, path):
    """Another key is not taken for the right one, and a check leaves no entry."""
    signed = "SELECT book, number FROM entry WHERE kind = 'checkpoint'"
    for _ in range(2):
        assert verify(ledger, key=KEY, sign=True).fine
    before = read(path, signed)
    assert len(before) == 2
    granted(ledger)
    assert verify(ledger, key=KEY).fine
    assert "another key" in verify(ledger, key=key_of("x")).bad[0].problem
    assert read(path, signed) == before
    assert verify(ledger, key=KEY, sign=True).fine
    assert read(path, signed) != before


def test_removed_checkpoints_are_noticed(ledger, path):
    """A dataset without one is not signed by itself."""
    before = read(path, "SELECT hash FROM book WHERE name = 'a'")[0][0]
    number = read(path, "SELECT number FROM book WHERE name = 'a'")[0][0]
    assert verify(ledger, key=KEY, sign=True).fine
    edit(
        path,
        "DELETE FROM entry WHERE book = 'a' AND kind = 'checkpoint'",
        f"UPDATE book SET number = {number}, hash = '{before}' WHERE name = 'a'",
    )
    report = verify(open_ledger(url(path), witness="none"), key=KEY)
    assert {finding.book for finding in report.bad} == {"a"}
    assert "dpflow ledger sign" in report.bad[0].problem
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


def without(path, count, *, recount=False):
    """Turn one checkpoint into nothing, and fit the chain."""

    def change(row):
        if row["kind"] != "checkpoint":
            return
        body = json.loads(row["body"])
        if body["signed"]["count"] == count:
            row["kind"] = "unfreeze"
        elif recount and body["signed"]["count"] > count:
            body["signed"]["count"] -= 1
        row["body"] = canonical(body)

    rewrite(path, change, "a")


@pytest.mark.parametrize("recount", [False, True])
def test_a_checkpoint_that_was_taken_out_of_the_middle_is_noticed(
    ledger, path, recount
):
    """Counting the rest anew does not help; the control: all are fine as they were."""
    signed_thrice(ledger, path)
    assert verify(ledger, key=KEY).bad == []
    without(path, 2, recount=recount)
    assert "forged" in verify(ledger, key=KEY).bad[0].problem


def test_the_newest_checkpoint_cannot_be_taken_off_under_a_witness(tmp_path):
    """Verify and the next decision notice; without a witness nothing does."""
    path = tmp_path / "ledger.db"
    ledger = create_ledger(url(path), witness=str(tmp_path / "w"))
    for _ in range(2):
        ledger.settle(granted(ledger))
        assert verify(ledger, key=KEY, sign=True).bad == []
    ledger.settle(granted(ledger))
    copy_database(path, tmp_path / "unsigned")
    assert verify(ledger, key=KEY, sign=True).bad == []
    copy_database(tmp_path / "unsigned", path)
    opened = open_ledger(url(path), witness=str(tmp_path / "w"))
    (bad,) = verify(opened, key=KEY).bad
    assert "signed checkpoints" in bad.problem
    with pytest.raises(LedgerRolledBack, match="signed checkpoint"):
        granted(opened)
    assert compare(opened).unsigned == 1
    copy_database(path, tmp_path / "copy")
    reconcile(opened, {}, reason="the newest was lost")
    # Every witnessed entry is in a copy from before; only the count of repairs tells.
    copy_database(path, tmp_path / "after")
    copy_database(tmp_path / "copy", path)
    with pytest.raises(LedgerRolledBack):
        granted(open_ledger(url(path), witness=str(tmp_path / "w")))
    copy_database(tmp_path / "after", path)
    granted(open_ledger(url(path), witness=str(tmp_path / "w")))
    blind = open_ledger(url(path), witness="none")
    assert verify(blind, key=KEY).bad == []
