"""Damaged rows, one by one: what is read is checked before it moves anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger import Ledger
from dpflow.ledger.storage import statements
from tests.ledger.support import (
    UNIT,
    edit,
    granted,
    kinds,
    new_ledger,
    sums,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Give a new, open ledger."""
    opened = new_ledger(tmp_path)
    yield opened
    opened.close()


def test_a_charge_whose_entry_was_damaged_is_not_given_back(
    ledger: Ledger, tmp_path: Path
) -> None:
    """Voiding it would give back what others hold."""
    path = tmp_path / "ledger.db"
    mine = granted(ledger, "0.1")
    granted(ledger, "0.5")
    edit(
        path,
        "DROP TRIGGER entry_no_update",
        f"UPDATE entry SET amount = '[{UNIT // 2},0]' WHERE reservation = '{mine}'",
    )
    calls: tuple[Callable[[], object], ...] = (
        lambda: ledger.void(mine, reason="test"),
        lambda: ledger.settle(mine),
    )
    for call in calls:
        with pytest.raises(LedgerCorrupt, match="not what was written"):
            call()
    assert sums(path) == (0, Fraction(6, 10))


def test_a_secret_that_cannot_be_read_is_damage(ledger: Ledger, tmp_path: Path) -> None:
    """No key is made of it, and so no step is asked for."""
    edit(tmp_path / "ledger.db", "UPDATE ledger SET release_secret = 'no number'")
    with pytest.raises(LedgerCorrupt, match="cannot be read"):
        ledger.release_key("week/1")


@pytest.mark.parametrize(
    "column", ["accounts = '[\"a#1\"'", "accounts = '5'", "body = '{'", "body = '[]'"]
)
def test_what_cannot_be_read_is_damage(
    ledger: Ledger, tmp_path: Path, column: str
) -> None:
    """In dpflow's words, so that a step's value survives its settlement."""
    path = tmp_path / "ledger.db"
    mine = granted(ledger)
    edit(path, f"UPDATE reservation SET {column}")
    with pytest.raises(LedgerCorrupt, match="cannot be read"):
        ledger.settle(mine)
    assert kinds(path) == ["open", "reserve"]


@pytest.mark.parametrize(
    ("statement", "asked"),
    [
        ("read_reservation", {"id": "x"}),
        ("read_release", {"release_key": "x"}),
        ("read_account", {"id": "b#1"}),
        ("newest_term", {"dataset": "b"}),
        ("reserved_amount", {"account": "a#1", "reservation": "x"}),
    ],
)
def test_another_row_than_was_asked_for_is_damage(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, statement: str, asked: Any
) -> None:
    """In swapped pages, SQLite's search ends at some other row and returns that."""
    from dpflow.ledger import sqlite_session as module

    mine = granted(ledger, key="week/1")
    ledger.settle(mine, value='"the value"')
    any_row = re.sub(r"\bWHERE [^()]*$", "LIMIT 1;", statements()[statement])
    monkeypatch.setattr(module, "statements", lambda: {statement: any_row})
    with (
        ledger.storage.read() as session,
        pytest.raises(LedgerCorrupt, match=f"{statement} with another row"),
    ):
        session.rows(statement, **asked)
