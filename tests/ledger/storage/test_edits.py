"""Edits of the database by hand are noticed at the next decision, and nothing moves."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from dpflow.exceptions import LedgerError
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from tests.ledger.support import (
    Place,
    audit,
    edit,
    everything,
    granted,
    request,
    url,
)

pytestmark = pytest.mark.storages("sqlite")

# The journal


LATER = "WHERE key = 'account/a#1' AND number = 4"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET rows = replace(rows, '0,0', '1,0') WHERE number = 4",
        "UPDATE entry SET rows = '{}' WHERE number = 4",
        "UPDATE entry SET body = '{}' WHERE number = 4",
        "UPDATE entry SET at = 'then' WHERE number = 4",
        "UPDATE entry SET writer = 'me' WHERE number = 4",
        "UPDATE entry SET kind = 'settle' WHERE number = 4",
        f"UPDATE entry SET hash = '{'0' * 64}' WHERE number = 3",
        "DELETE FROM entry WHERE number = 4",
        "DELETE FROM entry WHERE number = 3",
        "UPDATE entry SET body = replace(body, 'epsilon', 'delta') WHERE number = 1",
        f"DELETE FROM tag {LATER}",
        f"UPDATE tag SET number = 5 {LATER}",
        f"UPDATE tag SET key = 'account/b#1' {LATER}",
        "INSERT INTO tag VALUES ('account/a#1', 5)",
        "DELETE FROM tag",
    ],
)
def test_an_edit_by_hand_is_noticed_at_the_next_decision(
    ledger: Ledger, path: Place, statement: str
) -> None:
    """The step does not run, and the damage is left as it is for whoever looks."""
    ledger.settle(granted(ledger, "0.8"))
    granted(ledger, "0.1")
    edit(path, statement)
    before = everything(path)
    for asking in (ledger, open_ledger(url(path))):
        with pytest.raises(LedgerError):
            asking.reserve(request(asking, "0.05"))
    assert before == everything(path)


def test_an_unedited_ledger_goes_on(ledger: Ledger, path: Place) -> None:
    """The control of the tests above: dropping the triggers alone changes nothing."""
    ledger.settle(granted(ledger, "0.8"))
    edit(path)
    granted(ledger, "0.05")
    audit(path)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET rows = '{}'",
        "UPDATE entry SET at = at",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE number = 2",
        "DELETE FROM tag",
        "UPDATE tag SET number = 9",
    ],
)
def test_the_journal_is_append_only(
    ledger: Ledger, path: Place, statement: str
) -> None:
    """The database itself refuses, whoever asks."""
    granted(ledger)
    before = everything(path)
    errors = (sqlite3.IntegrityError, psycopg.IntegrityError)
    with pytest.raises(errors, match="append-only"):
        edit(path, statement, locked=True)
    assert before == everything(path)
