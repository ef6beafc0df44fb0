"""A restored backup is repaired before a step may use it, from what is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpflow.exceptions import ConfigurationError, LedgerCorrupt, LedgerRolledBack
from dpflow.ledger.audit.copies import backup
from dpflow.ledger.audit.restores import restore
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Replayed
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.rounding import UNITS
from tests.plain.support import charged, granted, make, request, url
from tests.postgres import server


@pytest.mark.parametrize("target", ["sqlite", "postgres"])
@pytest.mark.parametrize("known", ["witness", "replaced", "nothing"])
def test_a_restore_never_forgets_what_is_known(
    tmp_path: Path, target: str, known: str
) -> None:
    """The witness knows the lost charges, or the replaced ledger, or nobody does."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    ledger = make(path, witness)
    released = request(ledger, "0.1", key="k")
    ledger.reserve(released)
    ledger.settle(released.reservation, value="1")
    open_charge, owners = granted(ledger, "0.1"), ledger.owners
    saved = backup(ledger, tmp_path / "backup.db")
    charged(ledger, "0.2")
    ledger.close()
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
    used = state_of_ledger(restored.database).uses["a#1"].used[0]
    assert used == UNITS * (2 if accept else 4) // 10
    answer = restored.reserve(request(restored, "0.1", key="k"))
    assert isinstance(answer, Replayed)
    if target == "sqlite":
        # Its process may still run, and what it reports returns nothing.
        restored.owners = owners
        restored.settle(open_charge, outcome="failed")
    else:
        restored.forfeit(open_charge, reason="x")
    assert state_of_ledger(restored.database).uses["a#1"].used[0] == used
    granted(restored, "0.1")
    assert verify(restored).bad == []
    assert verify(restored).witness == "agrees"


def test_a_replaced_ledger_stays_aside(tmp_path: Path) -> None:
    """It is refused where it is opened again; another ledger is not replaced at all."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    ledger = make(path, witness)
    charged(ledger, "0.1")
    saved = backup(ledger, tmp_path / "backup.db")
    charged(ledger, "0.1")
    ledger.close()
    restore(saved, url(path), reason="x", witness=witness)
    old = open_ledger(url(tmp_path / "ledger.db.replaced-1"), witness=witness)
    with pytest.raises(LedgerRolledBack):
        granted(old, "0.1")
    other = create_ledger(url(tmp_path / "other.db"), witness="none")
    other.close()
    with pytest.raises(ConfigurationError, match="another one"):
        restore(saved, url(tmp_path / "other.db"), reason="x", witness=witness)


def test_a_damaged_backup_replaces_nothing(tmp_path: Path) -> None:
    """The ledger stays, and so does its witness."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    ledger = make(path, witness)
    charged(ledger, "0.1")
    saved = backup(ledger, tmp_path / "backup.db")
    ledger.close()
    copy = open_ledger(url(saved), witness="none")
    with copy.database.transaction() as transaction:
        transaction.begin(lock=False)
        transaction.connection.execute("DELETE FROM release")  # type: ignore[attr-defined]
        transaction.connection.execute(  # type: ignore[attr-defined]
            "UPDATE account SET settled = '[0,0]'"
        )
    copy.close()
    with pytest.raises(LedgerCorrupt, match="Nothing was restored"):
        restore(saved, url(path), reason="x", witness=witness)
    assert {file.name for file in tmp_path.glob("ledger.db.*new*")} == set()
    granted(open_ledger(url(path), witness=witness), "0.1")
