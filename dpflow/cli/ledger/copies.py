"""`dpflow ledger`: copies of it, its upgrade and its move, and its rows for others."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dpflow.cli.ledger.losses import repair_parts
from dpflow.cli.output import Answer
from dpflow.cli.source import ledger_facts, project_ledger
from dpflow.config import short_path
from dpflow.exceptions import ConfigurationError

if TYPE_CHECKING:
    from dpflow.ledger import Ledger


class Format(StrEnum):
    """How rows are written."""

    JSONL = "jsonl"
    CSV = "csv"


_LATER = (
    "What is charged from now on is not in it: `dpflow ledger restore` charges that "
    "again, as far as the witness has it."
)


def backup(path: Path) -> Answer:
    """Copy the whole ledger into a SQLite file and verify it; steps may run meanwhile.

    A copy of the file by hand would lack the charges that are still in its log. The
    verified copy contains releases, and only its owner can read it.

    Example: `dpflow ledger backup /backup/ledger.db`
    """
    from dpflow.ledger.audit.copies import backup as copy

    with project_ledger() as (_, ledger):
        count = copy(ledger, path).entries
    there = path.absolute()
    data = {**ledger_facts(ledger), "backup": str(there), "entries": count}
    done = f"Copied the ledger to {short_path(there)} and verified its "
    return data, [f"{done}{count:,} entries.", _LATER]


def restore(path: Path, *, reason: str, accept_loss: bool = False) -> Answer:
    """Install a backup as the ledger and charge again the amounts that it lacks.

    Stop all flows first. An old file stays in the same folder; PostgreSQL needs an
    empty schema. Charges after the backup that the witness or the old file has are
    charged again in full.

    Example: `dpflow ledger restore /backup/ledger.db --reason "the disk died"`
    """
    from dpflow.config import settings
    from dpflow.ledger.audit.restores import restore as put_back
    from dpflow.ledger.opening import place_of, read_pin

    setup = settings()
    url = setup.ledger_url
    position = place_of(url)
    restored = put_back(
        path,
        url,
        reason=reason,
        witness=setup.witness,
        ledger_id=read_pin(setup.policies, position),
        accept_loss=accept_loss,
    )
    aside = restored.aside
    data = {"restored": position, "aside": aside, "losses": restored.repaired}
    first = f"Put the backup {path} at {short_path(position)}."
    return data, [first, *repair_parts(restored.repaired, aside)]


def upgrade(*, backup: Path | None = None) -> Answer:
    """Upgrade the ledger's tables to the version of this dpflow, in one transaction.

    Steps wait, or are refused, until it ends. The ledger is copied first, to --backup;
    the default of a ledger in a file lies next to it.

    Example: `dpflow ledger upgrade`
    """
    from dpflow.config import settings
    from dpflow.ledger import VERSION
    from dpflow.ledger.audit.upgrades import upgrade as migrate
    from dpflow.ledger.opening import place_of

    setup = settings()
    url = setup.ledger_url
    before = migrate(url, saved=backup, witness=setup.witness)
    position = short_path(place_of(url))
    data = {"place": position, "from": before, "to": VERSION}
    if before == VERSION:
        return data, [f"The ledger {position} has version {VERSION} already."]
    return data, [f"Upgraded the ledger {position} from version {before} to {VERSION}."]


def move(url: str, *, anyway: bool = False, back: bool = False) -> Answer:
    """Move the ledger into an empty database of either kind; --back takes it back.

    From its beginning on, steps and ends of steps are refused. A body that runs keeps
    its charge in full; --anyway moves although such steps run. The same command again
    continues a move that was cut short.

    Example: `dpflow ledger move postgresql://operator@db/dpflow`
    """
    from dpflow.config import settings
    from dpflow.ledger.audit.moves import check_setting, move_back
    from dpflow.ledger.audit.moves import move as move_to
    from dpflow.ledger.opening import open_ledger

    setup = settings()
    ledger = open_ledger(
        setup.ledger_url,
        policies=setup.policies,
        witness=setup.witness,
        environment=setup.environment,
        in_move=True,
    )
    if back:
        move_back(ledger, url)
        data = {**ledger_facts(ledger), "moved_to": None}
        return data, [f"Steps use {short_path(ledger.address)} again."]
    check_setting(ledger, url, setup.witness)
    target = move_to(ledger, url, anyway=anyway)
    done = f"Moved the ledger {ledger.id} to {target}, verified."
    lines = [done, "Set DPFLOW_LEDGER_URL, or `ledger` in [tool.dpflow], to it."]
    return {**ledger_facts(ledger), "moved_to": target}, lines


def export(
    *, form: Format = (Format.JSONL), out: Path | None = None, as_json: bool = False
) -> Answer | None:
    """Write all tables as JSON lines, without the secret, values and arguments.

    `dpflow ledger verify FILE` checks it, without project and ledger. --format csv
    writes the journal only. With --json and --out, the output is the number of rows;
    with --json alone, the rows.

    Example: `dpflow ledger export --out ledger.jsonl`
    """
    from dpflow.ledger.audit.copies import export_lines

    form = Format.JSONL if as_json and out is None else form
    with project_ledger() as (_, ledger):
        rows: Any = export_lines(ledger) if form is Format.JSONL else _cells(ledger)
        # It is read before a file is made.
        rows = chain([next(rows)], rows)
        if out is None:
            _write(sys.stdout, form, rows)
            return None
        with _new_file(out) as file:
            count = _write(file, form, rows)
    data = {"path": str(out.absolute()), "rows": count, "format": form.value}
    return data, [f"Wrote {count:,} rows to {out}."]


def _cells(ledger: Ledger) -> Iterator[list[object]]:
    """Yield the rows of the journal for a table, behind the names of its columns."""
    from dpflow.ledger.audit.copies import journal_rows

    for number, row in enumerate(journal_rows(ledger)):
        if not number:
            yield [*row]
        yield [_cell(value) for value in row.values()]


def _write(file: TextIO, form: Format, rows: Iterable[Any]) -> int:
    """Write rows and return their number, without the first line."""
    # All texts are quoted: a carriage return would begin a row.
    table = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    count = -1
    for row in rows:
        count += 1
        if form is Format.JSONL:
            file.write(f"{row}\n")
        else:
            table.writerow(row)
    return count


def _cell(value: object) -> object:
    """Return a cell that no spreadsheet takes for a formula."""
    begins = isinstance(value, str) and value.startswith(tuple("=+-@\t\r\n"))
    return f"'{value}" if begins else value


def _new_file(path: Path) -> TextIO:
    """Open a file that is not there yet, for its owner only."""
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        return os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8")
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}. Name another, new file."
        raise ConfigurationError(msg) from error
