"""Verification finds each edit of a row, in a ledger and in its export."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpflow import Gaussian, PureDP
from dpflow.exceptions import BudgetRefused, ConfigurationError, LedgerCorrupt
from dpflow.ledger.audit.copies import export_lines
from dpflow.ledger.audit.exports import verify_export
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.tables.columns import TABLES
from dpflow.ledger.tables.errors import MEMORY
from dpflow.ledger.tables.rows import Entry, hash_columns
from dpflow.ledger.tables.sqlite import forget_memory
from tests.faults.auditor import COLUMNS, hashed
from tests.ledger.histories import LENGTH, People, Play, Workers, in_memory, in_postgres
from tests.ledger.support import BASIC, charged, granted, make_policy


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Give a ledger with charges, a release, a freeze and a charge by hand."""
    url = f"{MEMORY}{uuid.uuid4().hex}"
    made = create_ledger(url)
    charged(made, "0.05")
    made.settle(granted(made, "0.05", key="k"), value="1")
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


@pytest.mark.promise("forged-entry", "edited-row")
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


@pytest.mark.promise("forged-entry", "edited-row")
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


Rows = list[dict[str, Any]]


def play(seed: int, database: Callable[[], Any] = in_memory) -> Workers:
    """Play a random history."""
    owners = People()
    workers = Workers(owners, database())
    Play(seed, owners, [workers]).play(2 * LENGTH)
    return workers


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Give the lines of an export with everything in it."""
    return [json.loads(line) for line in export_lines(play(3).ledger)]


def write(path: Path, rows: Rows) -> Path:
    """Write an export."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("database", [in_memory, in_postgres])
def test_a_whole_export_has_no_finding(tmp_path, database):
    """Its heads are the ledger's; neither a key nor the ledger is asked."""
    workers = play(4, database)
    lines = [json.loads(line) for line in export_lines(workers.ledger)]
    result, whole = (
        verify_export(write(tmp_path / "e", lines))[1],
        verify(workers.ledger),
    )
    assert result.bad == whole.bad == []
    assert result.heads == whole.heads
    assert result.entries == whole.entries
    assert not result.values


def of(rows: Rows, table: str) -> Rows:
    """Return the rows of a table."""
    return [row for row in rows if row["table"] == table]


#: Columns that `verify` does not compare with an entry, by table.
LABELS = {"charge": {"owner"}, "release": {"shape"}}
COMPARED = [name for name in TABLES if name not in ("run", "people_store")]


@pytest.mark.promise("damaged-bytes")
@pytest.mark.parametrize("table", COMPARED)
def test_an_edit_of_any_column_is_found(tmp_path, rows, table):
    """Also with the marks and the hash of the row computed anew."""
    missed = []
    columns = [name for name in of(rows, table)[0] if name not in ("table", "mark")]
    for column in columns:
        if column in LABELS.get(table, ()):
            continue
        edited = json.loads(json.dumps(rows))
        row = of(edited, table)[-1]
        value = row[column]
        row[column] = value + 1 if isinstance(value, int) else changed(value)
        mark_line_anew(row)
        try:
            found = verify_export(write(tmp_path / "e", edited))[1].bad
        except LedgerCorrupt as error:
            found = [error]  # type: ignore[list-item]
        if not found:
            missed.append(column)
    assert missed == []


@pytest.mark.promise("edited-row")
@pytest.mark.parametrize(
    "edit",
    ["DELETE FROM run", "UPDATE run SET refusals = 0", "UPDATE run SET halted = NULL"],
)
def test_a_run_that_lost_a_refusal_is_found(ledger, edit):
    """Without it a halted run would go on."""
    halting = make_policy(
        "b",
        budget="{epsilon: 20, delta: 1e-6}",
        filter="gdp",
        odometer="{theorem: rdp, delta: 1e-6, order: 8}",
        flows="{weekly: {halt_at_epsilon: 3}}",
    )
    step: dict[str, Any] = {"flow": "weekly", "flow_run": "r", "policies": [halting]}
    with pytest.raises(BudgetRefused):
        granted(ledger, Gaussian(sensitivity=1, sigma="1.5"), **step)
    assert verify(ledger).bad == []
    drop_triggers(ledger).execute(edit)
    assert "run 'r' lacks a refusal" in str(verify(ledger).bad)


def changed(value: str | None) -> str:
    """Return another text: a JSON value with one number changed, where it has one."""
    if value and value[0] in "[{" and re.search(r"\d", value):
        return re.sub(
            r"\d", lambda digit: str((int(digit[0]) + 1) % 10), value, count=1
        )
    return f"{value or ''}x"


def mark_line_anew(row: dict[str, Any]) -> None:
    """Compute the mark of a row anew, as one who edits it may."""
    if "mark" in row:
        row["mark"] = hash_columns(
            *(v for k, v in row.items() if k not in ("table", "mark"))
        )


@pytest.mark.promise("edited-row")
@pytest.mark.parametrize("table", COMPARED)
def test_a_removed_row_is_found(tmp_path, rows, table):
    """The first, and the last, of each table."""
    for place in (0, -1):
        gone = of(rows, table)[place]
        left = [row for row in rows if row is not gone]
        assert verify_export(write(tmp_path / "e", left))[1].bad, (table, gone)


def test_a_shorter_journal_reaches_other_heads(tmp_path, rows):
    """A dataset that is left out, or cut with its rows, shows in the heads."""
    whole = verify_export(write(tmp_path / "e", rows))[1].heads
    edited = json.loads(json.dumps(rows))
    entries = [row for row in of(edited, "journal") if row["dataset"] == "a"]
    last = entries[-1]
    draft = {k: v for k, v in last.items() if k != "table"} | {"body": "{}"}
    entry = Entry(**draft).with_hash(entries[-2]["hash"])
    last.update(body=entry.body, hash=entry.hash)
    assert verify_export(write(tmp_path / "e", edited))[1].heads != whole


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("", ConfigurationError, "no export"),
        ("[1]", ConfigurationError, "no export"),
        ('{"table": "charge"}', ConfigurationError, "no export"),
        ("version", ConfigurationError, "of version 4"),
        ('{"table": "ledger"}', LedgerCorrupt, "line 2"),
        ('{"table": "secret", "x": 1}', LedgerCorrupt, "line 2"),
        ('{"table": "account", "id": "a"}', LedgerCorrupt, "line 2"),
        ("null", LedgerCorrupt, "line 2"),
        ("{", LedgerCorrupt, "line 2"),
        ("twice", LedgerCorrupt, "damaged|UNIQUE"),
        ("a list", LedgerCorrupt, "damaged|line"),
    ],
)
def test_what_is_no_export_is_refused(tmp_path, rows, text, error, match):
    """In words that say which line."""
    first = rows[0]
    lines = [text]
    if text == "version":
        lines = [json.dumps({**first, "version": 4})]
    elif text == "twice":
        lines = [json.dumps(row) for row in (first, rows[1], rows[1])]
    elif text == "a list":
        account = next(row for row in rows if row["table"] == "account")
        lines = [json.dumps(first), json.dumps({**account, "settled": [0, 0]})]
    elif error is LedgerCorrupt:
        lines = [json.dumps(first), text]
    path = tmp_path / "e"
    path.write_text("\n".join(lines))
    with pytest.raises(error, match=match):
        verify_export(path)
