"""Edits of the database by hand are noticed at the next decision, and nothing moves."""

from __future__ import annotations

import sqlite3
from fractions import Fraction

import psycopg
import pytest

from dpflow.exceptions import LedgerCorrupt
from dpflow.ledger.ledger import Ledger
from tests.ledger.processes import killed
from tests.ledger.support import (
    UNIT,
    Place,
    audit,
    chain,
    edit,
    everything,
    granted,
    kinds,
    refused,
    request,
)

pytestmark = pytest.mark.storages("sqlite")

TENTH = Fraction(1, 10)
DATASET = "a#1"

# The journal


@pytest.mark.storages("sqlite", "postgres")
def test_the_hash_chain_is_what_it_says(ledger: Ledger, path: Place) -> None:
    """Recomputed from the columns by other code, over every kind of entry."""
    ledger.settle(granted(ledger, "0.1", key="k"), value="1")
    ledger.void(granted(ledger, "0.1", flow="f", flow_run="r"), reason="test")
    ledger.forfeit(killed(path), reason="test")
    refused(ledger, "0.95", flow="f", flow_run="r")
    assert set(kinds(path)) == {
        "open",
        "reserve",
        "settle",
        "void",
        "forfeit",
        "refuse",
    }
    hashes = chain(path, "a")
    assert len(hashes) == len(kinds(path)) == len({stored for stored, _ in hashes})
    assert [stored for stored, _ in hashes] == [computed for _, computed in hashes]
    audit(path)


NOUGHT = "replace(postings, '0,0', '1,0')"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE account SET settled = '[0,0]'",
        "UPDATE account SET held = '[0,0]'",
        f"UPDATE book SET hash = '{'0' * 64}'",
        "UPDATE book SET number = number - 1",
        "UPDATE book SET number = number + 1",
        "UPDATE account SET entry = entry - 1",
        f"UPDATE entry SET postings = {NOUGHT} WHERE number = 4",
        "UPDATE entry SET postings = '{}' WHERE number = 4",
        "UPDATE entry SET body = '{}' WHERE number = 4",
        "UPDATE entry SET at = 'then' WHERE number = 4",
        "UPDATE entry SET writer = 'me' WHERE number = 4",
        "UPDATE entry SET kind = 'settle' WHERE number = 4",
        f"UPDATE entry SET hash = '{'0' * 64}' WHERE number = 3",
        "DELETE FROM entry WHERE number = 4",
        "DELETE FROM entry WHERE number = 3",
        "UPDATE entry SET body = replace(body, 'epsilon', 'delta') WHERE number = 1",
        "UPDATE account SET entry = 3, settled = '[{0},0]', held = '[0,0]'",
        "DELETE FROM account",
    ],
)
def test_an_edit_by_hand_is_noticed_at_the_next_decision(
    ledger: Ledger, path: Place, statement: str
) -> None:
    """The step does not run, and the damage is left as it is for whoever looks."""
    ledger.settle(granted(ledger, "0.8"))
    running = granted(ledger, "0.1")
    edit(path, statement.replace("{0}", str(8 * UNIT // 10)))
    before = everything(path)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt):
            ledger.reserve(request(ledger, "0.05"))
    assert before == everything(path)
    if "number = 1" not in statement:
        # A settlement in full needs no term.
        with pytest.raises(LedgerCorrupt):
            ledger.settle(running)
        assert before == everything(path)


@pytest.mark.parametrize("column", ["held", "key", "covers", "state", "places"])
def test_a_charge_that_was_edited_by_hand_is_not_ended(
    ledger: Ledger, path: Place, column: str
) -> None:
    """Its entries say what it holds, and for which release."""
    running = granted(ledger, "0.1", key="k")
    value = {
        "held": f"""'{{"{DATASET}":[0,0]}}'""",
        "state": "'void'",
        "places": """'{"a":[1,0]}'""",
    }.get(column, "'other'")
    edit(path, f"UPDATE charge SET {column} = {value}")
    before = everything(path)
    with pytest.raises(LedgerCorrupt, match="Someone edited the ledger"):
        ledger.settle(running)
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
        "UPDATE entry SET postings = '{}'",
        "UPDATE entry SET at = at",
        "DELETE FROM entry",
        "DELETE FROM entry WHERE number = 2",
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
