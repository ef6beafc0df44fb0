"""The journal as a file for other programs, and the verification of such a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.audit.findings import Verification
from dpflow.ledger.audit.fold import chained
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Columns, parsed
from dpflow.ledger.keys import LedgerKey
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.rows import JournalError

_MANY = 2**31
#: Columns of an exported entry, as the ledger keeps them.
COLUMNS = (*Columns._fields, "hash")
_FORMAT = 1


def export_head(ledger: Ledger) -> dict[str, Any]:
    """Return the first line of an export in JSON."""
    return {
        "dpflow_export": _FORMAT,
        "ledger": ledger.id,
        "environment": ledger.environment,
    }


def journal_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield every entry, dataset by dataset, in order, with raw texts.

    Each page is read in a transaction of its own. Entries that are written meanwhile
    are left out.
    """
    with ledger.storage.read() as reading:
        books = [parsed(row[1]) for row in reading.kept("book", limit=_MANY)]
    for book, last, *_ in books:
        number = 0
        while number < last:
            with ledger.storage.read() as reading:
                page = reading.page(book, number)
            for columns in page[: last - number]:
                yield dict(zip(COLUMNS, columns, strict=True))
            if not page:
                return
            number = page[-1][1]


def verify_export(path: Path, key: LedgerKey | None = None) -> tuple[str, Verification]:
    """Check the hash chains and the checkpoints of an export; no ledger is needed.

    Args:
        path: File that `dpflow ledger export` wrote in the format jsonl.
        key: Checks the signatures of the checkpoints.

    Returns:
        Id of the exported ledger, and what was found.

    Raises:
        ConfigurationError: If the file cannot be read or is no export.
    """
    report = Verification(signed=key is not None)
    try:
        with path.open(encoding="utf-8") as file:
            head = json.loads(next(file, "null"))
            if head["dpflow_export"] != _FORMAT:
                raise ValueError
            ledger = str(head["ledger"])
            for book, rows in groupby(map(json.loads, file), itemgetter("book")):
                columns = ([row[name] for name in COLUMNS] for row in rows)
                points = _follow(report, str(book), columns)
                report.check_points(ledger, str(book), points, key)
    except (OSError, *UNREADABLE) as error:
        msg = (
            f"{path} is no export of a ledger, or it is damaged ({error!r:.80}). Write "
            "one with `dpflow ledger export --out FILE`."
        )
        raise ConfigurationError(msg) from error
    return ledger, report


def _follow(
    report: Verification, book: str, rows: Iterable[Sequence[Any]]
) -> list[Mapping[str, Any]]:
    """Check each hash of a journal, and return its checkpoints."""
    hashes: list[str] = []
    points: list[Mapping[str, Any]] = []
    try:
        # A journal that comes twice begins with an entry that is not its first.
        for entry in chained(book, report.heads.get(book, (0, "")), rows):
            hashes.append(entry.hash)
            if entry.kind == "checkpoint":
                points.append(entry.body["signed"])
                number = points[-1]["number"]
                if (
                    not 0 < number < len(hashes)
                    or points[-1]["hash"] != hashes[number - 1]
                ):
                    what = "the entry is not the one that was signed"
                    report.add(what, book, number)
            report.heads[book] = entry.number, entry.hash
    except JournalError as error:
        report.add(str(error), book, len(hashes) + 1)
    report.entries += len(hashes)
    return points
