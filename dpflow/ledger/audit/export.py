"""The journal as a file for other programs, and the verification of such a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.audit.findings import Verification
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.entry import Columns, Entry, draft_of
from dpflow.ledger.keys import LedgerKey
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.storage.base import VERSION, Identity


def journal_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the identity of a ledger, then every entry in order, with raw texts.

    Each page is read in a transaction of its own. Entries that are written meanwhile
    are left out.
    """
    with ledger.storage.read() as reading:
        last, number = reading.head()[0], 0
    yield {"dpflow_export": VERSION, **ledger.storage.identity._asdict()}
    while number < last:
        with ledger.storage.read() as reading:
            page = reading.page(number)
        if not page:
            return
        for columns in page[: last - number]:
            yield dict(zip(Columns._fields, columns, strict=True))
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
    report = Verification()
    try:
        with path.open(encoding="utf-8") as file:
            head = json.loads(next(file, "null"))
            if head.pop("dpflow_export") != VERSION:
                raise ValueError
            identity = Identity(**head)
            report.head, hashes = (0, identity.first), [identity.first]

            def reader(columns: tuple[Any, ...]) -> Entry:
                entry = draft_of(columns)
                hashes.append(entry.hash)
                return entry

            rows = (Columns(**json.loads(line)) for line in file)
            report.read(rows, reader, hashes.__getitem__)
    except (OSError, *UNREADABLE) as error:
        msg = (
            f"{path} is no export of a ledger, or it is damaged ({error!r:.80}). Write "
            "one with `dpflow ledger export --out FILE`."
        )
        raise ConfigurationError(msg) from error
    report.check_points(identity.ledger, key)
    return identity.ledger, report
