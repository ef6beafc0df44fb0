"""A restored backup is repaired before a step may use it, from what is known."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    LedgerCorrupt,
    LedgerRolledBack,
    LedgerUnavailable,
)
from dpflow.ledger.audit import copies, restores
from dpflow.ledger.audit.copies import backup
from dpflow.ledger.audit.reconcile import trust
from dpflow.ledger.audit.restores import restore
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Replayed
from dpflow.ledger.tables.database import Database
from dpflow.ledger.witness.file import FileWitness
from tests.ledger.processes import holding
from tests.ledger.support import charged, edit, granted, make, request, sums, url
from tests.postgres import server


def save(folder: Path, witness: str = "none") -> tuple[Ledger, Path, Path]:
    """Make a ledger with a charge and its backup; return it, its place and that."""
    path, saved = folder / "ledger.db", folder / "backup.db"
    ledger = make(path, witness)
    charged(ledger, "0.1")
    backup(ledger, saved)
    return ledger, path, saved


@pytest.fixture
def witness(tmp_path: Path) -> str:
    """Give the place of a witness."""
    return str(tmp_path / "witness")


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_backup_stays_as_it_is(tmp_path, mode):
    """Byte for byte and without a companion, whether it was restored or refused."""
    ledger, _, saved = save(tmp_path)
    ledger.close()
    with closing(sqlite3.connect(saved)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
    before = saved.read_bytes()
    for loss in (False, True):
        with suppress(ConfigurationError):
            target = url(tmp_path / f"{loss}.db")
            restore(saved, target, reason="x", witness="none", accept_loss=loss)
            assert loss
        assert saved.read_bytes() == before
        assert [*tmp_path.glob("backup*")] == [saved]


@pytest.mark.parametrize("target", ["sqlite", "postgres"])
@pytest.mark.parametrize("known", ["witness", "replaced", "nothing"])
def test_a_restore_never_forgets_what_is_known(tmp_path, witness, target, known):
    """The witness knows the lost charges, or the replaced ledger, or nobody does."""
    path = tmp_path / "ledger.db"
    with closing(make(path, witness)) as ledger:
        ledger.settle(granted(ledger, "0.1", key="k"), value="1")
        open_charge, owners = granted(ledger, "0.1"), ledger.owners
        saved = tmp_path / "backup.db"
        backup(ledger, saved)
        charged(ledger, "0.2")
    place = witness if known == "witness" else str(tmp_path / "new")
    at = url(path) if target == "sqlite" else server().new_database()
    if known == "nothing" and target == "sqlite":
        path.write_bytes(b"x")
    accept = known == "nothing" or (known == "replaced" and target == "postgres")
    if accept:
        with pytest.raises(ConfigurationError, match="neither a witness"):
            restore(saved, at, reason="x", witness=place)
    restore(saved, at, reason="x", witness=place, accept_loss=accept)
    restored = open_ledger(at, witness=place)
    used = sum(sums(restored))
    assert used * 10 == (2 if accept else 4)
    answer = restored.reserve(request(restored, "0.1", key="k"))
    assert isinstance(answer, Replayed)
    if target == "sqlite":
        # Its process may still run, and what it reports returns nothing.
        restored.owners = owners
        restored.settle(open_charge, outcome="failed")
    else:
        restored.forfeit(open_charge, reason="x")
    assert sum(sums(restored)) == used
    granted(restored, "0.1")
    assert verify(restored).bad == []
    assert verify(restored).witness == "agrees"


def test_a_replaced_ledger_stays_aside(tmp_path, witness):
    """It is refused where it is opened again; another ledger is not replaced at all."""
    ledger, path, saved = save(tmp_path, witness)
    charged(ledger, "0.1")
    ledger.close()
    restore(saved, url(path), reason="x", witness=witness)
    old = open_ledger(url(tmp_path / "ledger.db.replaced-1"), witness=witness)
    with pytest.raises(LedgerRolledBack):
        granted(old, "0.1")
    other = tmp_path / "other.db"
    make(other).close()
    with pytest.raises(ConfigurationError, match="another one"):
        restore(saved, url(other), reason="x", witness=witness)


def test_a_damaged_backup_replaces_nothing(tmp_path, witness):
    """The ledger stays, and so does its witness."""
    ledger, path, saved = save(tmp_path, witness)
    ledger.close()
    edit(saved, "DELETE FROM release", "UPDATE account SET settled = '[0,0]'")
    with pytest.raises(LedgerCorrupt, match="Nothing was restored"):
        restore(saved, url(path), reason="x", witness=witness)
    assert {file.name for file in tmp_path.glob("ledger.db.*new*")} == set()
    granted(open_ledger(url(path), witness=witness), "0.1")


def test_a_witness_that_was_begun_after_a_loss_is_marked(tmp_path, place):
    """It knows nothing of before, so an older backup asks; a newer one does not."""
    ledger, path, older = save(tmp_path)
    charged(ledger, "0.2")
    ledger.close()
    restore(older, url(path), reason="x", witness="none", accept_loss=True)
    with closing(open_ledger(url(path), witness=place)) as ledger:
        trust(ledger, reason="x")
        charged(ledger, "0.1")
        newer = tmp_path / "newer.db"
        backup(ledger, newer)
        charged(ledger, "0.1")
    with pytest.raises(ConfigurationError, match="began the witness of dataset 'a'"):
        restore(older, url(path), reason="x", witness=place)
    # Nor is it forgotten by a repair, or by a file that is compacted.
    restore(newer, url(path), reason="x", witness=place)
    kept: Any = open_ledger(url(path), witness=place).watch.witness
    if isinstance(kept, FileWitness):
        kept._rewrite(None)
    with pytest.raises(ConfigurationError, match="after a loss"):
        restore(older, url(path), reason="x", witness=place)
    restore(older, url(path), reason="x", witness=place, accept_loss=True)
    with closing(open_ledger(url(path), witness=place)) as restored:
        assert sum(sums(restored)) * 10 >= 3
        assert verify(restored).bad == []
        granted(restored, "0.1")
        # The loss is accepted once: a backup of after asks no more.
        saved = tmp_path / "saved.db"
        backup(restored, saved)
        granted(restored, "0.1")
    restore(saved, url(path), reason="x", witness=place)


def test_a_restore_without_a_witness_marks_the_next_one(tmp_path, witness):
    """What it begins holds nothing of the accepted loss."""
    ledger, path, saved = save(tmp_path)
    ledger.close()
    path.unlink()
    restore(saved, url(path), reason="x", witness=witness, accept_loss=True)
    charged(open_ledger(url(path), witness=witness), "0.1")
    with pytest.raises(ConfigurationError, match="after a loss"):
        restore(saved, url(path), reason="x", witness=witness)


def test_a_dataset_that_nothing_witnessed_is_named(tmp_path):
    """A replaced ledger that lacks a dataset does not say what it was charged."""
    path, empty, saved = (tmp_path / f"{name}.db" for name in ("ledger", "empty", "b"))
    with closing(make(path)) as ledger:
        backup(ledger, empty)
        charged(ledger, "0.1")
        backup(ledger, saved)
    path.unlink()
    restore(empty, url(path), reason="x", witness="none", accept_loss=True)
    with pytest.raises(ConfigurationError, match="nothing of dataset 'a'"):
        restore(saved, url(path), reason="x", witness="none")


@pytest.mark.promise("lost-decision")
@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_a_freeze_that_a_backup_lacks_is_written(tmp_path, witness, target):
    """Also into a database whose functions come last."""
    ledger, path, saved = save(tmp_path, witness)
    ledger.freeze("a", reason="x")
    ledger.close()
    at = url(path) if target == "sqlite" else server().new_database()
    restore(saved, at, reason="x", witness=witness)
    restored = open_ledger(at, witness=witness)
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(restored, "0.1")
    assert verify(restored).bad == []


@pytest.mark.promise("removed-file")
@pytest.mark.parametrize("busy", [False, True])
def test_a_ledger_in_use_is_not_replaced(tmp_path, monkeypatch, busy):
    """A charge that comes while its backup is restored is not lost."""
    ledger, path, saved = save(tmp_path)
    real = copies.copy_ledger

    def late(*values: Any) -> None:
        real(*values)
        if not busy:
            charged(ledger, "0.1")

    monkeypatch.setattr(copies, "copy_ledger", late)
    monkeypatch.setattr(restores, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(Database, "lock_seconds", 0.1)
    with (
        holding(path) if busy else nullcontext(),
        pytest.raises(LedgerUnavailable, match=r"another process|charged while"),
    ):
        restore(saved, url(path), reason="x", witness="none", accept_loss=busy)
    granted(ledger, "0.1")
    assert [p.name for p in tmp_path.iterdir() if "replaced" in p.name] == []


def test_a_damaged_ledger_says_nothing_of_what_was_charged(tmp_path):
    """A row that is not what its mark says counts as no knowledge, in words."""
    ledger, path, saved = save(tmp_path)
    ledger.close()
    edit(path, "UPDATE account SET mark = 'x'")
    with pytest.raises(ConfigurationError, match="neither a witness"):
        restore(saved, url(path), reason="x", witness="none")
