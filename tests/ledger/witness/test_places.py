"""Where a witness is: the user's state folder, elsewhere, or nowhere by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dpflow.exceptions import ConfigurationError, LedgerRolledBack
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.witness.rollback_check import witness_at
from tests.ledger.support import granted, url

ID = "0" * 31 + "1"


# Where it is


def file_at(setting: str | None, url: str = "sqlite:///ledger.db") -> str:
    """Return the place of a witness."""
    made = witness_at(setting, url)
    assert made is not None
    return made(ID).place


def test_the_default_is_the_users_state_folder(monkeypatch):
    """As the specification of such folders says."""
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert file_at(None) == f"/var/state/dpflow/{ID}.witness"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert file_at(None) == f"/home/me/.local/state/dpflow/{ID}.witness"


def test_it_can_be_elsewhere_or_waived_by_name():
    """A folder, or the word."""
    assert file_at("/mnt/w") == f"/mnt/w/{ID}.witness"
    assert witness_at("none", "postgresql://db/x") is None


def test_a_database_for_many_machines_has_no_default():
    """A file of one user would see nothing of what others charge."""
    with pytest.raises(ConfigurationError, match="is not set"):
        witness_at(None, "postgresql://db/x")
    assert file_at("/mnt/w", "postgresql://db/x") == f"/mnt/w/{ID}.witness"


def test_the_original_is_told_that_a_copy_is_in_use(tmp_path: Path) -> None:
    """Whoever ran second is refused, and it may be the original."""
    place, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    create_ledger(url(place), witness=witness).close()
    copy = tmp_path / "copy.db"
    shutil.copy(place, copy)
    ledger = open_ledger(url(copy), witness=witness)
    granted(ledger)
    ledger.close()
    with pytest.raises(LedgerRolledBack, match="a copy of it is in use"):
        granted(open_ledger(url(place), witness=witness))
