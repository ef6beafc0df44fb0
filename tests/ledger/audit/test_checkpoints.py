"""Signed checkpoints: what they find, and who takes them off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpflow.exceptions import LedgerRolledBack
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from tests.ledger.audit.books import KEY, cheaper, fill, rewrite, signed_thrice
from tests.ledger.support import Place, granted, make_ledger, read, url
from tests.ledger.witness.accidents import copy_database
from tests.signing import key_of

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
    rewrite(path, cheaper)
    assert "the history was rewritten" in verify(ledger).bad[0].problem
    hashes = dict(read(path, "SELECT number, hash FROM entry"))

    def fitted(row):
        if row["kind"] == "checkpoint":
            signed = row["body"]["signed"]
            signed["hash"] = hashes[signed["number"]]

    rewrite(path, fitted)
    assert verify(ledger).fine
    first = verify(ledger, key=KEY).bad[0]
    assert "its checkpoint was forged" in first.problem
    ledger.close()


def test_a_check_signs_nothing_and_an_idle_ledger_is_not_signed_again(ledger, path):
    """Another key is not taken for the right one, and a check leaves no entry."""
    signed = "SELECT number FROM entry WHERE kind = 'checkpoint'"
    for _ in range(2):
        assert verify(ledger, key=KEY, sign=True).fine
    before = read(path, signed)
    assert len(before) == 1
    granted(ledger)
    assert verify(ledger, key=KEY).fine
    assert "another key" in verify(ledger, key=key_of("x")).bad[0].problem
    assert read(path, signed) == before
    assert verify(ledger, key=KEY, sign=True).fine
    assert read(path, signed) != before


def without(path, count, *, recount=False):
    """Turn one checkpoint into nothing, and fit the chain."""

    def change(row):
        if row["kind"] != "checkpoint":
            return
        signed = row["body"]["signed"]
        if signed["count"] == count:
            row |= {"kind": "refuse", "body": {"accounts": []}}
        elif recount and signed["count"] > count:
            signed["count"] -= 1

    rewrite(path, change)


@pytest.mark.parametrize("recount", [False, True])
def test_a_checkpoint_that_was_taken_out_of_the_middle_is_noticed(
    ledger, path, recount
):
    """Counting the rest anew does not help; the control: all are fine as they were."""
    signed_thrice(ledger, path)
    assert verify(ledger, key=KEY).bad == []
    without(path, 2, recount=recount)
    assert "forged" in str(verify(ledger, key=KEY).bad)


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
    with pytest.raises(LedgerRolledBack, match=r"\(checkpoint\)"):
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
