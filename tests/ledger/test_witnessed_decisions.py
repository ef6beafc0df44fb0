"""A restored backup forgets decisions, too: who froze a dataset, who tightened it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.exceptions import LedgerRolledBack, LedgerUnwitnessed
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.apply import Wish, apply_policy
from dpflow.ledger.approval import Approval
from dpflow.ledger.freeze import freeze, freeze_of, thaw
from dpflow.ledger.reconcile import compare, reconcile
from tests.ledger.support import BASIC, audit, granted, make_policy, sums, url

LOWER = make_policy(budget="{epsilon: 0.5}")


def freezes(ledger: Ledger) -> None:
    """Someone freezes the dataset."""
    freeze(ledger, "a", who="ann", because="wrong sigma")


def thaws(ledger: Ledger) -> None:
    """Someone freezes it, and thaws it again."""
    freezes(ledger)
    thaw(ledger, "a", who="ann", because="it was right")


def tightens(ledger: Ledger) -> None:
    """Someone lowers the budget."""
    apply_policy(ledger, LOWER, Wish(), Approval(principal="ann"))


DECISIONS = [freezes, thaws, tightens]


def forget(folder: Path, witness: str, decide: Callable[[Ledger], None]) -> Ledger:
    """Decide, and put a backup from before the decision in the ledger's place."""
    path = folder / "ledger.db"
    ledger = create_ledger(url(path), witness=witness)
    granted(ledger)
    copy = folder / "copy"
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(copy)) as new:
        old.backup(new)
    decide(ledger)
    ledger.close()
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    copy.replace(path)
    return open_ledger(url(path), witness=witness)


@pytest.mark.parametrize("decide", DECISIONS)
def test_a_forgotten_decision_is_noticed(
    tmp_path: Path, decide: Callable[[Ledger], None]
) -> None:
    """A frozen dataset does not thaw, nor a budget grow back, by a restored backup."""
    ledger = forget(tmp_path, str(tmp_path / "witness"), decide)
    with pytest.raises(LedgerRolledBack):
        granted(ledger)
    ledger.close()


@pytest.mark.parametrize("decide", DECISIONS)
def test_without_a_witness_it_is_silent(
    tmp_path: Path, decide: Callable[[Ledger], None]
) -> None:
    """Nothing else would notice: what the test above sees is the witness."""
    ledger = forget(tmp_path, "none", decide)
    granted(ledger)
    ledger.close()


@pytest.mark.parametrize("decide", DECISIONS)
def test_reconcile_charges_nothing_for_a_decision(
    tmp_path: Path, decide: Callable[[Ledger], None]
) -> None:
    """It says which entry is gone; usage stays what it was, and steps run again."""
    ledger = forget(tmp_path, str(tmp_path / "witness"), decide)
    before = sums(tmp_path / "ledger.db")
    (loss,) = compare(ledger).losses
    assert all(line.charges_nothing for line in loss.missing)
    reconcile(ledger, {"a": BASIC}, because="restored")
    assert sums(tmp_path / "ledger.db") == before
    granted(ledger)
    ledger.close()
    audit(tmp_path / "ledger.db")


def test_a_freeze_needs_no_witness(tmp_path: Path) -> None:
    """It is for emergencies; without a witness no step runs anyway."""
    ledger = create_ledger(url(tmp_path / "ledger.db"), witness=str(tmp_path / "w"))
    granted(ledger)
    for file in (tmp_path / "w").iterdir():
        file.unlink()
    freezes(ledger)
    assert (freeze_of(ledger, "a") or {})["who"] == "ann"
    with pytest.raises(LedgerUnwitnessed):
        granted(ledger)
    ledger.close()
