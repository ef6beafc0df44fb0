"""Copies of a whole ledger, of either database into either: backup, restore, export.

A copy reads one snapshot, while steps run. It is written into tables without triggers,
and no step uses it before it is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.ledger.audit.verify import Verification, verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.columns import SECRETS, TABLES, Table, tables
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.transaction import VERSION, Identity, Transaction

#: Rows that are read and written together.
PAGE = 500


def read_rows(transaction: Transaction, table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in the order of its key, page by page."""
    values: dict[str, Any] = {"limit": PAGE}
    statement = table.select_first(transaction.parameter)
    while True:
        page = transaction.run_text(statement, values)
        rows = [dict(zip(table.columns, row, strict=True)) for row in page]
        yield from rows
        if len(rows) < PAGE:
            return
        statement = table.select_page(transaction.parameter)
        values = {"limit": PAGE, **{name: rows[-1][name] for name in table.key}}


def copy_ledger(ledger: Ledger, target: Any) -> Identity:
    """Copy all tables into a database that has empty tables without triggers.

    Args:
        ledger: The ledger that is read, in one snapshot.
        target: The database that is written.

    Returns:
        Which ledger it is.
    """
    with ledger.reading() as source:
        source.is_of_copy = True
        source.begin(lock=False)
        for table in list_tables(source):
            batch = list[Mapping[str, Any]]()
            for row in read_rows(source, table):
                batch.append(row)
                if len(batch) == PAGE:
                    write_rows(target, table, batch)
                    batch = []
            write_rows(target, table, batch)
        return source.identity


def list_tables(transaction: Transaction) -> list[Table]:
    """Return the tables of a ledger, which may be of an older version."""
    columns = {tuple(row) for row in transaction.ask("read_columns")}
    found = [
        table._replace(
            columns=tuple(c for c in table.columns if (table.name, c) in columns)
        )
        for table in map(tables().__getitem__, TABLES)
    ]
    return [table for table in found if table.columns]


def drop_newer(target: SqliteDatabase, older: list[Table], version: int) -> None:
    """Remove from empty tables what a version lacks that is older than this one."""
    columns = {table.name: table.columns for table in older}
    with target.transaction() as transaction:
        for table in map(tables().__getitem__, TABLES):
            if table.name not in columns:
                transaction.send_text(f"DROP TABLE {table.name}", {})
                continue
            for column in {*table.columns} - {*columns[table.name]}:
                text = f"ALTER TABLE {table.name} DROP COLUMN {column}"
                transaction.send_text(text, {})
        transaction.send([("set_version", {"version": version})])


def write_rows(target: Any, table: Table, rows: list[Mapping[str, Any]]) -> None:
    """Write rows in one transaction of the target."""
    if not rows:
        return
    with target.transaction() as transaction:
        statement = table.insert(transaction.parameter)
        for row in rows:
            transaction.send_text(statement, row)


def backup(ledger: Ledger, path: Path) -> Verification:
    """Copy a ledger into a SQLite file while steps run, and verify the copy.

    Raises:
        ConfigurationError: If something is at that place.
        LedgerCorrupt: If the ledger is damaged, and so would be its copy.
    """
    if path.exists():
        msg = f"{path} is there already, and a backup never replaces a file."
        raise ConfigurationError(msg)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with ledger.reading() as transaction:
        transaction.begin(lock=False)
        identity, secret = transaction.identity, transaction.secret()
        older, version = list_tables(transaction), transaction.version
    target = SqliteDatabase.create(fresh, identity, secret, complete=0)
    try:
        drop_newer(target, older, version)
        copy_ledger(ledger, target)
        target.complete()
        # An upgrade verifies what an older version has.
        is_older = version != VERSION
        result = Verification() if is_older else verify(Ledger(target, Liveness()))
        target.close()
        if not result.fine:
            msg = (
                f"the ledger {ledger.place} is damaged: {result.bad[0]}. No backup was "
                "made. `dpflow ledger verify` shows all of it."
            )
            raise LedgerCorrupt(msg, ledger=ledger.place)
        fresh.replace(path)
    finally:
        for end in ("", "-wal", "-shm", ".lock"):
            fresh.with_name(f"{fresh.name}{end}").unlink(missing_ok=True)
    return result


def journal_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the entries of all journals, in one snapshot."""
    with ledger.reading() as transaction:
        transaction.begin(lock=False)
        yield from read_rows(transaction, tables()["journal"])


def export_lines(ledger: Ledger) -> Iterator[str]:
    """Yield all tables as JSON lines, but the secret, values and arguments.

    The first line says which ledger it is; each other line has a table and its row.
    """
    with ledger.reading() as transaction:
        transaction.begin(lock=False)
        identity = transaction.identity
        first = {"table": "ledger", "version": VERSION, **identity._asdict()}
        yield json.dumps(first)
        for name in TABLES:
            table, hidden = tables()[name], SECRETS.get(name, set())
            for row in read_rows(transaction, table):
                shown = {key: row[key] for key in table.columns if key not in hidden}
                yield json.dumps({"table": name, **shown})
