"""Verification finds each edit of a row, and nothing in a history that is whole."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator

import pytest

from dpflow import PureDP
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.tables.errors import MEMORY
from dpflow.ledger.tables.rows import hash_columns
from dpflow.ledger.tables.sqlite import forget_memory
from tests.faults.auditor import COLUMNS, hashed
from tests.ledger.support import BASIC, charged, granted, request


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Give a ledger with charges, a release, a freeze and a charge by hand."""
    url = f"{MEMORY}{uuid.uuid4().hex}"
    made = create_ledger(url)
    charged(made, "0.05")
    released = request(made, "0.05", key="k")
    made.reserve(released)
    made.settle(released.reservation, value="1")
    granted(made, "0.05")
    made.freeze("a", reason="x")
    made.freeze("a", reason="x", unfreeze=True)
    evidence = "e" * 64
    made.charge_prior(BASIC, PureDP(epsilon="0.05"), reason="x", evidence=evidence)
    yield made
    forget_memory(url)


#: Edits that an export does not show, and some of those that it does.
EDITS = [
    ("UPDATE journal SET body = replace(body, '}', ' }') WHERE number = 2", "hashed"),
    ("DELETE FROM journal WHERE number = 3", "entry 3 is missing"),
    ("UPDATE account SET settled = '[0,0]' WHERE id = 'a#1'", "come to: settled"),
    ("DELETE FROM account", "was removed"),
    (
        "UPDATE charge SET state = 'void' WHERE state = 'settled'",
        "and its end a settle",
    ),
    ("UPDATE charge_dataset SET end_number = NULL", "and its end a None"),
    ("UPDATE dataset SET frozen = '{}'", "come to: frozen"),
    ("UPDATE release SET value = '2'", "not the settled one"),
    ("DELETE FROM release", "was removed"),
    ("DELETE FROM evidence", "evidence"),
]


@pytest.mark.parametrize(("edit", "finding"), EDITS)
def test_an_edit_is_found(ledger, edit, finding):
    """Also where the editor computes the marks anew."""
    assert verify(ledger).bad == []
    drop_triggers(ledger).execute(edit)
    mark_anew(ledger)
    assert any(finding in str(bad) for bad in verify(ledger).bad), verify(ledger).bad


def drop_triggers(ledger: Ledger) -> sqlite3.Connection:
    """Return the connection of a ledger in memory, whose triggers are gone."""
    connection: sqlite3.Connection = ledger.database.connection  # type: ignore[attr-defined]
    triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    for (name,) in connection.execute(triggers).fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    return connection


def mark_anew(ledger: Ledger) -> None:
    """Give each row the mark of its columns."""
    connection = drop_triggers(ledger)
    for table in ("dataset", "account", "charge"):
        cursor = connection.execute(f"SELECT * FROM {table}")
        (key, *_) = (column[0] for column in cursor.description)
        for *columns, _ in cursor.fetchall():
            mark = hash_columns(*columns)
            sql = f"UPDATE {table} SET mark = ? WHERE {key} = ?"
            connection.execute(sql, (mark, columns[0]))


@pytest.mark.parametrize("finding", ["is above its gate", "was edited"])
def test_a_forger_who_fits_all_hashes_is_found(ledger, finding):
    """A gate that was passed, and a pinned copy that was edited, in all rows."""
    if finding == "is above its gate":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Gate, "admits", lambda *_: True)
            charged(ledger, "2")
        assert any(finding in str(bad) for bad in verify(ledger).bad)
        return
    connection = drop_triggers(ledger)
    for table in ("term", "journal"):
        edit = (
            f"UPDATE {table} SET body = replace(body, 'add-or-remove', 'replace-one')"
        )
        connection.execute(edit)
    head = hashed(ledger.id, "a")
    columns = f"{COLUMNS}, postings, body"
    for row in connection.execute(f"SELECT {columns} FROM journal").fetchall():
        head = hashed(head, *row)
        place = "WHERE number = ?"
        connection.execute(f"UPDATE journal SET hash = ? {place}", (head, row[1]))
    connection.execute("UPDATE dataset SET hash = ?", (head,))
    mark_anew(ledger)
    assert [str(bad) for bad in verify(ledger).bad if finding not in str(bad)] == []
    assert verify(ledger).bad


@pytest.mark.parametrize("table", ["dataset", "account", "charge"])
def test_a_row_without_its_mark_is_found(ledger, table):
    """An edit of a marked row is found by its mark."""
    drop_triggers(ledger).execute(f"UPDATE {table} SET mark = 'x'")
    assert any("mark says" in str(bad) for bad in verify(ledger).bad)
