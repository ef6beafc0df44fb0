"""An export, verified without the project: no key, no database, no witness."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError, LedgerCorrupt
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.audit.copies import write_rows
from dpflow.ledger.audit.journals import Verification
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.columns import SECRETS, TABLES, tables
from dpflow.ledger.tables.owners import Liveness
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.transaction import VERSION, Identity


def verify_export(path: Path) -> tuple[str, Verification]:
    """Compute an export's journals again, and compare them with its rows.

    The heads that it reaches are for the reader to compare with `dpflow ledger info`.

    Returns:
        The id of the ledger, and the result.

    Raises:
        ConfigurationError: If it is no export, or one of another version.
        LedgerCorrupt: If a line is damaged, or there twice.
    """
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            path.open(encoding="utf-8", errors="replace") as file,
        ):
            identity = read_identity(next(file, ""), path)
            position = Path(folder) / "ledger.db"
            database: Any = SqliteDatabase.create(position, identity, b"", complete=0)
            database.is_copy = True
            with closing(database):
                load_lines(file, database, path)
                result = verify(Ledger(database, Liveness()))
    except without_interrupts(OverflowError, UnicodeError, RecursionError):
        # No row of a ledger has such numbers, characters and depths.
        msg = f"{path} has a value that no ledger holds: the export was edited, or cut."
        raise LedgerCorrupt(msg) from None
    result.values = False
    return identity.ledger, result


def read_identity(line: str, path: Path) -> Identity:
    """Read an export's first line.

    Raises:
        ConfigurationError: If it is not that of an export, or of another version.
    """
    what = "no export of a ledger"
    with suppress(ValueError, TypeError, LookupError):
        fields = json.loads(line)
        identity = Identity(*(fields[name] for name in Identity._fields))
        if fields["table"] == "ledger":
            what = f"of version {fields['version']}"
            if fields["version"] == VERSION:
                return identity
    msg = (
        f"{path} is {what}; `dpflow ledger export` of the dpflow that reads it "
        f"writes version {VERSION}."
    )
    raise ConfigurationError(msg)


def load_lines(lines: Iterable[str], database: Any, path: Path) -> None:
    """Write the rows of an export into empty tables.

    Raises:
        LedgerCorrupt: If a line is damaged, or there twice.
    """
    rows = (
        read_row(line, f"{path}, line {number},")
        for number, line in enumerate(lines, 2)
    )
    for name, own in groupby(rows, key=itemgetter(0)):
        write_rows(database, tables()[name], (row for _, row in own))


def read_row(line: str, position: str) -> tuple[str, dict[str, Any]]:
    """Return the table and the row of a line; a column that is hidden is null."""
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        row = json.loads(line)
        name = row.pop("table")
        hidden = dict.fromkeys(SECRETS.get(name, ()))
        if name in TABLES and {*row, *hidden} == {*tables()[name].columns}:
            return name, {**row, **hidden}
    msg = f"{position} is no row of a ledger: the export was edited, or cut."
    raise LedgerCorrupt(msg)
