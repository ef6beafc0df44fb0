"""Damaged rows, one by one: what is read is checked before it moves anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger
from tests.ledger.support import edit, granted, kinds, new_ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Give a new, open ledger."""
    opened = new_ledger(tmp_path)
    yield opened
    opened.close()


def test_a_secret_that_cannot_be_read_is_damage(ledger: Ledger, tmp_path: Path) -> None:
    """No key is made of it, and so no step is asked for."""
    edit(tmp_path / "ledger.db", "UPDATE ledger SET release_secret = 'no number'")
    with pytest.raises(LedgerCorrupt, match="cannot be read"):
        ledger.digests.of("week/1")


@pytest.mark.parametrize(
    "column", ["places = '[\"a#1\"'", "places = '5'", "held = '{'", "held = '[]'"]
)
def test_what_cannot_be_read_is_damage(
    ledger: Ledger, tmp_path: Path, column: str
) -> None:
    """In dpflow's words, so that a step's value survives its settlement."""
    path = tmp_path / "ledger.db"
    mine = granted(ledger)
    edit(path, f"UPDATE charge SET {column}")
    with pytest.raises(LedgerCorrupt, match="damaged"):
        ledger.settle(mine)
    assert kinds(path) == ["open", "reserve"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [("account", "is not as entry 3 left it"), ("book", "is as it was before account")],
)
def test_a_row_as_it_was_before_is_damage(
    ledger: Ledger, tmp_path: Path, kind: str, told: str
) -> None:
    """A page of before a charge, beside pages of after it, moves nothing."""
    path = tmp_path / "ledger.db"
    granted(ledger, "0.5")
    with closing(sqlite3.connect(path)) as database:
        before = database.execute(
            "SELECT value, key FROM row WHERE key LIKE ?", [f"{kind}:%"]
        ).fetchall()
    granted(ledger, "0.25")
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("UPDATE row SET value = ? WHERE key = ?", before)
    with pytest.raises(LedgerCorrupt, match=told):
        granted(ledger, "0.25")
