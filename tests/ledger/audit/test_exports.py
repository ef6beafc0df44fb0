"""An export is verified without the project, and each edit of it is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.ledger.audit.copies import export_lines
from dpflow.ledger.audit.exports import verify_export
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.tables.columns import TABLES
from dpflow.ledger.tables.rows import Entry, hash_columns
from tests.ledger.histories import LENGTH, People, Play, Workers, in_memory, in_postgres

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


#: Columns that `verify` does not compare with an entry, by table: labels, or claims of
#: flows and steps that only list what was charged.
LABELS = {
    "charge": {"owner"},
    "charge_dataset": {"flow", "step"},
    "release": {"key_text", "step", "shape"},
}
COMPARED = [name for name in TABLES if name not in ("run", "people_store")]


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
        mark_anew(row)
        try:
            found = verify_export(write(tmp_path / "e", edited))[1].bad
        except LedgerCorrupt as error:
            found = [error]  # type: ignore[list-item]
        if not found:
            missed.append(column)
    assert missed == []


def changed(value: str | None) -> str:
    """Return another text: a JSON value with one number changed, where it has one."""
    if value and value[0] in "[{" and re.search(r"\d", value):
        return re.sub(
            r"\d", lambda digit: str((int(digit[0]) + 1) % 10), value, count=1
        )
    return f"{value or ''}x"


def mark_anew(row: dict[str, Any]) -> None:
    """Compute the mark of a row anew, as one who edits it may."""
    if "mark" in row:
        row["mark"] = hash_columns(
            *(v for k, v in row.items() if k not in ("table", "mark"))
        )


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
    entry = Entry(**draft).chained(entries[-2]["hash"])
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
    elif error is LedgerCorrupt:
        lines = [json.dumps(first), text]
    path = tmp_path / "e"
    path.write_text("\n".join(lines))
    with pytest.raises(error, match=match):
        verify_export(path)
