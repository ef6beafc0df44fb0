"""Copies of a whole ledger, of either database into either: backup, restore, export.

A copy reads one snapshot, while steps run. It is written into tables without triggers,
and no step uses it before it is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from dpflow.exceptions import require
from dpflow.interrupts import contextmanager
from dpflow.ledger.audit.journals import Verification
from dpflow.ledger.audit.verify import check_whole, open_snapshot
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.columns import SECRETS, TABLES, TableColumns, tables
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.sqlite_files import real_path
from dpflow.ledger.tables.transaction import VERSION, Transaction
from dpflow.ledger.witness.base import Witness
from dpflow.ledger.witness.comparison import Watch

#: Rows that are read and written together.
PAGE = 500


def read_rows(
    transaction: Transaction, table: TableColumns
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in the order of its key, page by page."""
    keys, columns = ", ".join(table.key), ", ".join(table.columns)
    values: dict[str, Any] = {"limit": PAGE}
    where = ""
    while True:
        text = f"SELECT {columns} FROM {table.name} {where}"  # noqa: S608
        page = transaction.ask(f"{text} ORDER BY {keys} LIMIT :limit", **values)
        rows = [dict(zip(table.columns, row, strict=True)) for row in page]
        yield from rows
        if len(rows) < PAGE:
            return
        where = f"WHERE ({keys}) > ({', '.join(f':{name}' for name in table.key)})"
        values |= {name: rows[-1][name] for name in table.key}


def copy_ledger(ledger: Ledger, target: Any) -> None:
    """Copy all tables, in one snapshot.

    Args:
        ledger: The ledger that is read.
        target: A database that has empty tables without triggers.
    """
    with open_snapshot(ledger, is_of_copy=True) as source:
        for table in list_tables(source):
            write_rows(target, table, read_rows(source, table))


@contextmanager
def fill_copy(
    ledger: Ledger, kind: Any, address: Path | str, witness: Witness | None = None
) -> Iterator[Ledger]:
    """Give a copy of a ledger to a block; it is complete afterwards, or removed.

    Args:
        ledger: The ledger.
        kind: The class of the copy's database.
        address: Place of the copy.
        witness: Witness of the copy.
    """
    with open_snapshot(ledger) as source:
        identity, secret = source.identity, source.secret()
        older = list_tables(source)
    target = kind.create(address, identity, secret, complete=0)
    try:
        target.is_copy = True
        target.version = ledger.database.version
        if target.version != VERSION:
            drop_newer(target, older)
        copy_ledger(ledger, target)
        yield Ledger(target, Liveness(), Watch(target, witness))
        target.complete()
    except BaseException:
        target.remove()
        raise
    target.close()


def list_tables(transaction: Transaction) -> list[TableColumns]:
    """Return the tables of a ledger, which may be of an older version."""
    columns = {tuple(row) for row in transaction.ask("read_columns")}
    result = list[TableColumns]()
    for name in TABLES:
        table = tables()[name]
        present = tuple(c for c in table.columns if (name, c) in columns)
        result += [table._replace(columns=present)] if present else []
    return result


def drop_newer(target: SqliteDatabase, older: list[TableColumns]) -> None:
    """Remove from empty tables what the version of a copy lacks."""
    columns = {table.name: table.columns for table in older}
    texts = [f"DROP TABLE {name}" for name in TABLES if name not in columns]
    for name, present in columns.items():
        newer = {*tables()[name].columns} - {*present}
        texts += [f"ALTER TABLE {name} DROP COLUMN {column}" for column in newer]
    with target.transaction() as transaction:
        transaction.send([(text, {}) for text in texts])
        transaction.send([("set_version", {"version": target.version})])


def write_rows(
    target: Any, table: TableColumns, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Write rows, page by page, each page in one transaction of the target."""
    names, values = ", ".join(table.columns), ", :".join(table.columns)
    text = f"INSERT INTO {table.name} ({names}) VALUES (:{values})"  # noqa: S608
    remaining = iter(rows)
    while page := [*islice(remaining, PAGE)]:
        with target.transaction() as transaction:
            transaction.send((text, row) for row in page)


def backup(ledger: Ledger, path: Path) -> Verification:
    """Copy a ledger into a SQLite file while steps run, and verify the copy.

    Raises:
        ConfigurationError: If something is at that place.
        LedgerCorrupt: If the ledger is damaged, and so would be its copy.
    """
    msg = f"{path} is there already, and a backup never replaces a file."
    require(not path.exists(), msg)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    advice = "No backup was made. `dpflow ledger verify` shows all of it."
    result = Verification()
    with fill_copy(ledger, SqliteDatabase, fresh) as copy:
        # An upgrade verifies what an older version has.
        if ledger.database.version == VERSION:
            result = check_whole(copy, advice, label=ledger.address)
    fresh.replace(path)
    real_path(fresh, ".lock").unlink(missing_ok=True)
    return result


def journal_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the entries of all journals, in one snapshot."""
    with open_snapshot(ledger) as transaction:
        yield from read_rows(transaction, tables()["journal"])


def export_lines(ledger: Ledger) -> Iterator[str]:
    """Yield all tables as JSON lines, but the secret, values and arguments.

    The first line says which ledger it is; each other line has a table and its row.
    """
    with open_snapshot(ledger) as transaction:
        identity = transaction.identity._asdict()
        yield json.dumps({"table": "ledger", "version": VERSION, **identity})
        for name in TABLES:
            # A reader may ask for no other columns.
            table, hidden = tables()[name], SECRETS.get(name, set())
            shown = tuple(key for key in table.columns if key not in hidden)
            for row in read_rows(transaction, table._replace(columns=shown)):
                yield json.dumps({"table": name, **row})
