"""Verification finds each edit of a row, in a ledger and in its export."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dpflow import Gaussian, PureDP, exceptions
from dpflow.exceptions import BudgetRefused, LedgerCorrupt
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
from tests.ledger.histories import in_memory, in_postgres, play
from tests.ledger.support import BASIC, charged, granted, make_policy
from tests.tables import read_tables


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


CASES = read_tables(__file__)


@pytest.mark.promise("forged-entry", "edited-row")
@pytest.mark.parametrize(("edit", "finding"), CASES["edits"])
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
    change = "SET body = replace(body, 'add-or-remove', 'replace-one')"
    for table in ("term", "journal"):
        connection.execute(f"UPDATE {table} {change}")
    head = hashed(ledger.id, "a")
    sql = f"SELECT {COLUMNS}, postings, body FROM journal"
    for row in connection.execute(sql).fetchall():
        head = hashed(head, *row)
        sql = "UPDATE journal SET hash = ? WHERE number = ?"
        connection.execute(sql, (head, row[1]))
    connection.execute("UPDATE dataset SET hash = ?", (head,))
    mark_anew(ledger)
    assert [str(bad) for bad in verify(ledger).bad if finding not in str(bad)] == []
    assert verify(ledger).bad


@pytest.mark.parametrize("edit", CASES["marks"])
def test_a_row_without_its_mark_is_found(ledger, edit):
    """An edit of a marked row is found by its mark."""
    drop_triggers(ledger).execute(edit)
    assert any("mark says" in str(bad) for bad in verify(ledger).bad)


Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Give the lines of an export with everything in it."""
    return [json.loads(line) for line in export_lines(play(2).ledger)]


def write(path: Path, rows: Rows) -> Path:
    """Write an export."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("database", [in_memory, in_postgres])
def test_a_whole_export_has_no_finding(tmp_path, database):
    """Its heads are the ledger's; neither a key nor the ledger is asked."""
    workers = play(4, database)
    lines = [json.loads(line) for line in export_lines(workers.ledger)]
    result = verify_export(write(tmp_path / "e", lines))[1]
    expected = verify(workers.ledger)
    assert result.bad == expected.bad == []
    assert (result.heads, result.entries) == (expected.heads, expected.entries)
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
    row, missed = of(rows, table)[-1], []
    for column in row.keys() - {"table", "mark", *LABELS.get(table, ())}:
        value = row[column]
        edited = {
            **row,
            column: value + 1 if isinstance(value, int) else changed(value),
        }
        if "mark" in row:
            columns = [edited[name] for name in row if name not in ("table", "mark")]
            edited["mark"] = hash_columns(*columns)
        lines = [edited if line is row else line for line in rows]
        with suppress(LedgerCorrupt):
            if not verify_export(write(tmp_path / "e", lines))[1].bad:
                missed.append(column)
    assert missed == []


@pytest.mark.promise("edited-row")
@pytest.mark.parametrize("edit", CASES["runs"])
def test_a_run_that_lost_a_refusal_is_found(ledger, edit):
    """Without it a halted run would go on."""
    halting = make_policy("b", **CASES["halting"])
    step: dict[str, Any] = {"flow": "weekly", "flow_run": "r", "policies": [halting]}
    with pytest.raises(BudgetRefused):
        granted(ledger, Gaussian(sensitivity=1, sigma="1.5"), **step)
    assert verify(ledger).bad == []
    drop_triggers(ledger).execute(edit)
    assert "run 'r' lacks a refusal" in str(verify(ledger).bad)


def changed(value: str | None) -> str:
    """Return another text: a JSON value with one number changed, where it has one."""
    digit = re.search(r"\d", value or "")
    if value and digit and value[0] in "[{":
        other = (int(digit[0]) + 1) % 10
        return f"{value[: digit.start()]}{other}{value[digit.end() :]}"
    return f"{value or ''}x"


@pytest.mark.promise("edited-row")
@pytest.mark.parametrize("table", COMPARED)
def test_a_removed_row_is_found(tmp_path, rows, table):
    """The first, and the last, of each table."""
    for number in (0, -1):
        removed = of(rows, table)[number]
        lines = [row for row in rows if row is not removed]
        assert verify_export(write(tmp_path / "e", lines))[1].bad, (table, removed)


def test_a_shorter_journal_reaches_other_heads(tmp_path, rows):
    """A dataset that is left out, or cut with its rows, shows in the heads."""
    heads = verify_export(write(tmp_path / "e", rows))[1].heads
    *_, before, last = (row for row in of(rows, "journal") if row["dataset"] == "a")
    draft = {k: v for k, v in last.items() if k != "table"} | {"body": "{}"}
    entry = Entry(**draft).with_hash(before["hash"])
    edited = {**last, "body": entry.body, "hash": entry.hash}
    lines = [edited if row is last else row for row in rows]
    assert verify_export(write(tmp_path / "e", lines))[1].heads != heads


@pytest.mark.parametrize(("lines", "error", "match"), CASES["no exports"])
def test_what_is_no_export_is_refused(tmp_path, rows, lines, error, match):
    """In words that say which line."""
    account = next(row for row in rows if row["table"] == "account")
    named = {
        "first": rows[0],
        "second": rows[1],
        "version 4": {**rows[0], "version": 4},
        "a list": {**account, "settled": [0, 0]},
    }
    path = tmp_path / "e"
    texts = [json.dumps(named[line]) if line in named else line for line in lines]
    path.write_text("\n".join(texts))
    with pytest.raises(getattr(exceptions, error), match=match):
        verify_export(path)
