"""The journal as a file for other programs, and the verification of such a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.audit.findings import Verification
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Columns, JournalError, draft_of, first_hash
from dpflow.ledger.keys import LedgerKey
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.storage.base import VERSION

#: Columns of an exported entry, as the ledger keeps them.
COLUMNS = Columns._fields


def export_head(ledger: Ledger) -> dict[str, Any]:
    """Return the first line of an export in JSON."""
    identity = ledger.storage.identity
    return {
        "dpflow_export": VERSION,
        "ledger": ledger.id,
        "environment": ledger.environment,
        "created_at": identity.created_at,
    }


def journal_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield every entry, in order, with raw texts.

    Each page is read in a transaction of its own. Entries that are written meanwhile
    are left out.
    """
    with ledger.storage.read() as reading:
        last, number = reading.head()[0], 0
    while number < last:
        with ledger.storage.read() as reading:
            page = reading.page(number)
        if not page:
            return
        for columns in page[: last - number]:
            yield dict(zip(COLUMNS, columns, strict=True))
        number = page[-1][0]


def verify_export(path: Path, key: LedgerKey | None = None) -> tuple[str, Verification]:
    """Check the hash chain and the checkpoints of an export; no ledger is needed.

    Args:
        path: File that `dpflow ledger export` wrote in the format jsonl.
        key: Checks the signatures of the checkpoints.

    Returns:
        Id of the exported ledger, and what was found.

    Raises:
        ConfigurationError: If the file cannot be read or is no export.
    """
    report, points = Verification(signed=key is not None), []
    try:
        with path.open(encoding="utf-8") as file:
            head = json.loads(next(file, "null"))
            if head["dpflow_export"] != VERSION:
                raise ValueError
            ledger, facts = (
                str(head["ledger"]),
                (head["created_at"], head["environment"]),
            )
            hashes = [first_hash(ledger, VERSION, *facts)]
            for row in map(json.loads, file):
                columns = tuple(row[name] for name in COLUMNS)
                try:
                    if columns[0] != len(hashes):
                        what = "an entry is missing or out of order"
                        raise JournalError(what)
                    entry = draft_of((*columns, hashes[-1]))
                except JournalError as error:
                    report.add(str(error), len(hashes))
                    break
                hashes.append(entry.hash)
                if entry.kind == "checkpoint":
                    points.append(report.checkpoint(entry, hashes.__getitem__))
    except (OSError, *UNREADABLE) as error:
        msg = (
            f"{path} is no export of a ledger, or it is damaged ({error!r:.80}). Write "
            "one with `dpflow ledger export --out FILE`."
        )
        raise ConfigurationError(msg) from error
    report.check_points(ledger, points, key)
    report.entries, report.head = len(hashes) - 1, (len(hashes) - 1, hashes[-1])
    return ledger, report
