"""The journal as a file for other programs, and the verification of such a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.checkpoint import forged, miscounted
from dpflow.ledger.entry import Columns, entry_of, parsed
from dpflow.ledger.keys import LedgerKey
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.rows import JournalError

_MANY = 2**31
#: Columns of an exported entry, as the ledger keeps them.
COLUMNS = (*Columns._fields, "hash")
_FORMAT = 1
#: Errors of a file that is no export, or was damaged.
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)


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


@dataclass(slots=True)
class ExportReport:
    """Result of the verification of an export.

    Attributes:
        ledger: Id of the exported ledger.
        entries: Number of entries.
        checkpoints: Number of signed checkpoints.
        signed: Whether the signatures were checked.
        bad: Problems; empty if there are none.
    """

    ledger: str
    entries: int = 0
    checkpoints: int = 0
    signed: bool = False
    bad: list[str] = field(default_factory=list)


def verify_export(path: Path, key: LedgerKey | None = None) -> ExportReport:
    """Check the hash chains and the checkpoints of an export; no ledger is needed.

    Args:
        path: File that `dpflow ledger export` wrote in the format jsonl.
        key: Checks the signatures of the checkpoints.

    Raises:
        ConfigurationError: If the file cannot be read or is no export.
    """
    try:
        with path.open(encoding="utf-8") as file:
            head = json.loads(next(file, "null"))
            if head["dpflow_export"] != _FORMAT:
                raise ValueError
            report = ExportReport(str(head["ledger"]), signed=key is not None)
            points = _follow(file, report)
        for book, found in points.items():
            _check_points(report, book, found, key)
        with path.open(encoding="utf-8") as file:
            next(file)
            _check_signed(file, report, points)
    except (OSError, *_UNREADABLE) as error:
        msg = (
            f"{path} is no export of a ledger, or it is damaged ({error!r:.80}). Write "
            "one with `dpflow ledger export --out FILE`."
        )
        raise ConfigurationError(msg) from error
    return report


_Points = dict[str, list[Mapping[str, Any]]]


def _follow(file: Iterator[str], report: ExportReport) -> _Points:
    """Check each hash, and return the checkpoints of each dataset."""
    heads: dict[str, tuple[int, str]] = {}
    points: _Points = {}
    for line in file:
        row = json.loads(line)
        columns = [row[name] for name in COLUMNS]
        book = str(row["book"])
        number, previous = heads.get(book, (0, ""))
        if number < 0:
            continue  # An entry before this one in the dataset is bad.
        report.entries += 1
        try:
            entry = entry_of(previous, columns[:-1], columns[-1])
            problem = "" if entry.number == number + 1 else "an entry is missing"
        except JournalError as error:
            problem = str(error)
        if problem:
            report.bad.append(f"dataset {book!r}, entry {number + 1}: {problem}")
            heads[book] = (-1, "")
            continue
        heads[book] = (entry.number, entry.hash)
        if entry.kind == "checkpoint":
            report.checkpoints += 1
            points.setdefault(book, []).append(entry.body["signed"])
    if report.signed:
        report.bad += [
            f"dataset {book!r} has no signed checkpoint"
            for book in heads
            if book not in points
        ]
    return points


def _check_points(
    report: ExportReport,
    book: str,
    points: list[Mapping[str, Any]],
    key: LedgerKey | None,
) -> None:
    wrong = miscounted(points)
    if wrong is None and key is not None:
        wrong = forged(key.verifies, report.ledger, book, points)
    if wrong is not None:
        what = "its checkpoint was forged, or signed with another key"
        report.bad.append(f"dataset {book!r}, entry {wrong}: {what}")


def _check_signed(file: Iterator[str], report: ExportReport, points: _Points) -> None:
    """Compare the hash that each checkpoint signed with that of its entry."""
    signed = {
        (book, point["number"]): point["hash"]
        for book, found in points.items()
        for point in found
    }
    for line in file:
        row = json.loads(line)
        if signed.pop((row["book"], row["number"]), row["hash"]) != row["hash"]:
            what = "the entry is not the one that was signed"
            report.bad.append(f"dataset {row['book']!r}, entry {row['number']}: {what}")
    report.bad += [
        f"dataset {book!r}: the signed entry {number} is missing"
        for book, number in signed
    ]
