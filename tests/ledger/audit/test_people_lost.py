"""After a loss, no file of people's budgets is used that lacks a charge."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.exceptions import ReservationConflict
from dpflow.ledger.audit.reconcile import compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import UNKNOWN
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.ledger.witness.file import FileWitness
from tests.ledger.support import copied, granted, make, put_back, reopen

STORE = "a#1"


def newest(ledger: Ledger) -> str | None:
    """Return the newest step of the store."""
    with ledger.reading() as transaction:
        transaction.begin(lock=False)
        rows = transaction.ask("read_people_store", account=STORE)
    return rows[0][2] if rows else None


def pay(ledger: Ledger) -> str:
    """Charge people for a step, and return its charge."""
    charge = granted(ledger, "0.01")
    ledger.pay(STORE, charge, before=newest(ledger))
    return charge


@pytest.mark.parametrize(
    ("before", "lost", "own"),
    [(0, 1, 0), (1, 1, 0), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 0, 0), (0, 2, 2)],
)
def test_the_newest_step_of_a_store(tmp_path, place, before, lost, own):
    """The witnessed one where it is lost, none where a copy that went on paid, too."""
    path = tmp_path / "ledger.db"
    ledger = make(path, place)
    granted(ledger, "0.01")
    steps: list[str | None] = [None, *(pay(ledger) for _ in range(before))]
    ledger.close()
    older = copied(path, tmp_path / "older.db")
    ledger = reopen(path, place)
    granted(ledger, "0.01")
    steps += [pay(ledger) for _ in range(lost)]
    ledger.close()
    put_back(path, older)
    copy = reopen(path, "none")
    granted(copy, "0.01")
    paid = [pay(copy) for _ in range(own)]
    copy.close()
    repaired = reopen(path, place)
    reconcile(repaired, reason="x")
    right = UNKNOWN if lost and own else (paid or steps)[-1]
    assert newest(repaired) == right
    assert verify(repaired).bad == []
    assert compare(repaired) == []
    wrong = {*steps, *paid} - {right}
    for each in wrong:
        with pytest.raises(ReservationConflict, match="another copy"):
            repaired.pay(STORE, granted(repaired, "0.01"), before=each)
    witness: Any = repaired.watch.witness
    # The next step of the store is known in the next epoch, whatever its number.
    if right not in (UNKNOWN, None):
        right = pay(repaired)
    if isinstance(witness, FileWitness):
        witness._rewrite(None)
    assert witness.read_all().people.get(STORE, (0, None))[1] == right
    kept, now = witness.read_all(), state_of_ledger(repaired.database)
    assert kept.heads["a"][:5] == now.heads["a"][:5]
    assert kept.uses == now.uses
    granted(repaired, "0.01")


@pytest.mark.parametrize("goes_on", [0, 9])
def test_a_lost_freeze_is_frozen_once(tmp_path, place, goes_on):
    """A dataset whose freeze is lost is frozen; a person's decision ends that."""
    path = tmp_path / "ledger.db"
    ledger = make(path, place)
    granted(ledger, "0.01")
    ledger.close()
    older = copied(path, tmp_path / "older.db")
    ledger = reopen(path, place)
    for _ in range(4):
        granted(ledger, "0.01")
    ledger.freeze("a", reason="x")
    ledger.close()
    for again in (True, False):
        put_back(path, older)
        copy = reopen(path, "none")
        for _ in range(goes_on):
            granted(copy, "0.01")
        copy.close()
        repaired = reopen(path, place)
        reconcile(repaired, reason="x")
        assert repaired.freeze("a", reason="x", unfreeze=True)
        granted(repaired, "0.01")
        repaired.close()
        if again:
            older = copied(path, tmp_path / "newer.db")
            repaired = reopen(path, place)
            granted(repaired, "0.01")
            repaired.close()
            put_back(path, older)
            repaired = reopen(path, place)
            reconcile(repaired, reason="x")
            assert not repaired.freeze("a", reason="x", unfreeze=True)
            repaired.close()
            older = tmp_path / "older.db"
