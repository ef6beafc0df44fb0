"""A bundle of evidence that others verify offline, without dpflow and without data.

It holds the journal, the policies that were applied, the signed checkpoints and a
verifier. Values of releases are not read; the journal has their digests.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from dpflow.exceptions import ConfigurationError, LedgerUnavailable
from dpflow.ledger import evidence_verifier as format_of
from dpflow.ledger.account import now
from dpflow.ledger.database import SCHEMA_VERSION, Row
from dpflow.ledger.export import journal_rows
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.records import canonical

VERIFIER = "verify.py"
README = "README.txt"
_TEXT = """\
Evidence of a dpflow ledger: its journal, the policies that were applied, and the
checkpoints that were signed. Verify it with Python 3.11 or later, and nothing else:

    python -I verify.py

manifest.json     what is here, with the sha256 of each file and the head of each chain
manifest.hmac     HMAC-SHA256 of manifest.json with the ledger's key, if it was there
journal.jsonl     every entry, account by account; `hash` chains each to the one before
accounts.json     the sums and the gate of each account
policies.json     the copies that govern: `pinned`, and `policy_hash`, its sha256
checkpoints.json  signed entries, see below
verify.py         recomputes all of it; take it from elsewhere if you trust nobody

A checkpoint's `signature` is the HMAC-SHA256, with the ledger's key, of the JSON list

    [ledger, account, seq, hash, number, previous]

without spaces: `seq` and `hash` are of the entry that was signed, `number` counts the
checkpoints of the account, and `previous` is the signature of the one before, or "".
Those whose `number` is null are older and are over the first four alone.

Costs are in the journal as they were declared. That each was priced right, and that the
body of a step did what it declared, is not in here.
"""


def write_evidence(ledger: Ledger, place: Path, *, key: bytes | None = None) -> Path:
    """Write a bundle as a new zip file.

    Args:
        ledger: The ledger, which is only read; others may go on using it.
        place: The new file, for its owner's eyes only.
        key: Signs the manifest.

    Raises:
        ConfigurationError: If there is such a file already.
        LedgerUnavailable: If it cannot be written.
    """
    try:
        descriptor = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor is no path)
            _write_whole(file, place, ledger, key)
    except FileExistsError:
        msg = f"there is a file {place} already; name a new one"
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"cannot write {place}: {error.strerror}"
        raise LedgerUnavailable(msg, ledger=ledger.place) from error
    return place


def _write_whole(
    file: BinaryIO, place: Path, ledger: Ledger, key: bytes | None
) -> None:
    """Write the bundle, or leave no part of it."""
    try:
        with zipfile.ZipFile(file, "w") as archive:
            _fill(archive, ledger, key)
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def _fill(archive: zipfile.ZipFile, ledger: Ledger, key: bytes | None) -> None:
    with ledger.database.read() as session:
        accounts = session.rows("list_accounts", dataset=None)
        datasets = sorted({row["dataset"] for row in accounts})
        terms = [
            term
            for dataset in datasets
            for term in session.rows("list_terms", dataset=dataset)
        ]
        checkpoints = [
            {"account": row["id"], **_plain(point)}
            for row in accounts
            for point in session.rows("checkpoints_of_account", account=row["id"])
        ]
    contents: dict[str, Iterable[str]] = {
        format_of.JOURNAL: _journal(ledger, accounts),
        format_of.ACCOUNTS: _listed(map(_plain, accounts)),
        format_of.POLICIES: _listed(map(_plain, terms)),
        format_of.CHECKPOINTS: _listed(checkpoints),
        VERIFIER: [verifier_text()],
        README: [_TEXT],
    }
    sums = {
        name: _write(archive, name, lines) for name, lines in sorted(contents.items())
    }
    manifest = {
        "format": format_of.FORMAT,
        "ledger": ledger.id,
        "environment": ledger.environment,
        "created_at": now(),
        "created_by": ledger.conditions.facts.get("who"),
        "versions": {
            "dpflow": str(getattr(sys.modules["dpflow"], "__version__", "unknown")),
            "schema": SCHEMA_VERSION,
            "python": platform.python_version(),
        },
        "files": sums,
        "heads": {row["id"]: [row["seq"], row["head"]] for row in accounts},
    }
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    _write(archive, format_of.MANIFEST, [text])
    if key is not None:
        signature = hmac.new(key, text.encode(), "sha256").hexdigest()
        _write(archive, format_of.SIGNATURE, [f"{signature}\n"])


def _journal(ledger: Ledger, accounts: list[Row]) -> Iterator[str]:
    for row in journal_rows(ledger, accounts):
        yield f"{canonical(row)}\n"


def _listed(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [json.dumps(list(rows), indent=1, sort_keys=True) + "\n"]


def _plain(row: Row) -> dict[str, Any]:
    return dict(row)


def verifier_text() -> str:
    """Return the verifier as one file that imports nothing of dpflow."""
    head, _, rest = _source("evidence_verifier").partition(_IMPORT)
    _, _, rest = rest.partition(")\n")
    # Of the journal's file, all below the line that may only stand at the top.
    _, _, journal = _source("evidence_journal").partition(_FUTURE)
    return f"{head}{journal.strip()}\n\n\n{rest.strip()}\n"


_FUTURE = "from __future__ import annotations\n"
_IMPORT = "from dpflow.ledger.evidence_journal import ("


def _source(module: str) -> str:
    return files("dpflow.ledger").joinpath(f"{module}.py").read_text("utf-8")


def _write(archive: zipfile.ZipFile, name: str, lines: Iterable[str]) -> dict[str, Any]:
    """Write a file as its lines come, and return its digest and length."""
    found, length = hashlib.sha256(), 0
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    with archive.open(info, "w", force_zip64=True) as file:
        for line in lines:
            data = line.encode()
            found.update(data)
            length += len(data)
            file.write(data)
    return {"sha256": found.hexdigest(), "bytes": length}
