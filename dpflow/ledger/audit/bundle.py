"""A bundle of evidence that others verify offline, without dpflow and without data.

It holds the journal, the signed checkpoints in it, and the very files that say what an
entry means, with a verifier that reads the bundle. Values of releases are not read; the
journal has their digests.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import zipfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from dpflow.exceptions import ConfigurationError, LedgerUnavailable
from dpflow.ledger.audit import verifier as format_of
from dpflow.ledger.audit.export import entry_columns
from dpflow.ledger.ed25519 import Sign
from dpflow.ledger.entry import canonical, parsed
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.storage.base import SCHEMA_VERSION

VERIFIER = "verify.py"
README = "README.txt"
#: The files that the verifier imports, beside itself in one folder.
SHIPPED = (
    "rows.py",
    "entry.py",
    "journal.py",
    "checkpoint.py",
    "ed25519.py",
    "audit/fold.py",
    "audit/pinned.py",
)
_TEXT = """\
Evidence of a dpflow ledger: its journal, with the policies that were applied and the
checkpoints that were signed. Verify it with Python 3.11 or later, and nothing else:

    python -I verify.py --key-file KEY.pub

KEY.pub is the ledger's public key in PEM; get it from elsewhere than this bundle.

manifest.json     what is here, with the sha256 of each file and each journal's head
manifest.sig      the signature of manifest.json, if it was signed
journal.jsonl     every entry, dataset by dataset; `hash` chains each to the one before
accounts.json     the sums of each account, as the ledger kept them
verify.py         follows all of it again; take it from elsewhere if you trust nobody
dpflow/           what the verifier is made of: the files that the ledger itself runs

An entry's `hash` is the sha256 of the hash before it and of its other columns, as
`entry_hash` in dpflow/ledger/entry.py writes them. What each kind of entry does is said
in dpflow/ledger/journal.py, and nowhere else.

Signatures are Ed25519 (RFC 8032). OpenSSL 3 checks the manifest's, too:

    openssl pkeyutl -verify -rawin -pubin -inkey KEY.pub -in manifest.json \
        -sigfile manifest.sig

A checkpoint is an entry; its `signature`, in hex digits, is over the JSON list

    [ledger, dataset, number, hash, count, previous, sums]

without spaces: `number` and `hash` are of the newest entry that was signed, `count`
counts the dataset's checkpoints, `previous` is the signature of the one before, or "",
and `sums` is the sha256 of what the checkpoint tells that everything came to.

Costs are in the journal as they were declared. That each was priced right, and that the
body of a step did what it declared, is not in here.
"""


def write_evidence(ledger: Ledger, place: Path, *, sign: Sign | None = None) -> Path:
    """Write a bundle as a new zip file.

    Args:
        ledger: The ledger, which is only read; others may go on using it.
        place: The new file, for its owner's eyes only.
        sign: Signs the manifest with the ledger's private key.

    Raises:
        ConfigurationError: If there is such a file already.
        LedgerUnavailable: If it cannot be written.
    """
    try:
        descriptor = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor is no path)
            _write_whole(file, place, ledger, sign)
    except FileExistsError:
        msg = f"there is a file {place} already; name a new one"
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"cannot write {place}: {error.strerror}"
        raise LedgerUnavailable(msg, ledger=ledger.place) from error
    return place


def _write_whole(
    file: BinaryIO, place: Path, ledger: Ledger, sign: Sign | None
) -> None:
    """Write the bundle, or leave no part of it."""
    try:
        with zipfile.ZipFile(file, "w") as archive:
            _fill(archive, ledger, sign)
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def _account(fields: list[Any]) -> dict[str, Any]:
    """Return a row of an account as a bundle has it: its sums are texts."""
    name, book, entry, settled, held, overdrawn, _ = fields
    values = (name, book, entry, canonical(settled), canonical(held), int(overdrawn))
    return dict(zip(format_of.ACCOUNT, values, strict=True))


def _fill(archive: zipfile.ZipFile, ledger: Ledger, sign: Sign | None) -> None:
    with ledger.storage.read() as reading:
        books = [parsed(row[1]) for row in reading.kept("book", limit=2**31)]
        accounts = [
            _account(parsed(row[1])) for row in reading.kept("account", limit=2**31)
        ]
    contents: dict[str, Iterable[bytes]] = {
        format_of.JOURNAL: _journal(ledger, {row[0]: row[1] for row in books}),
        format_of.ACCOUNTS: [_json(accounts, indent=1)],
        README: [_TEXT.encode()],
        **{name: [text.encode()] for name, text in verifier_files().items()},
    }
    sums = {
        name: _write(archive, name, lines) for name, lines in sorted(contents.items())
    }
    manifest = {
        "format": format_of.FORMAT,
        "ledger": ledger.id,
        "environment": ledger.environment,
        "created_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "created_by": ledger.conditions.facts.get("who"),
        "versions": {
            "dpflow": str(getattr(sys.modules["dpflow"], "__version__", "unknown")),
            "schema": SCHEMA_VERSION,
            "python": platform.python_version(),
        },
        "files": sums,
        "heads": {row[0]: [row[1], row[2]] for row in books},
    }
    text = _json(manifest, indent=2)
    _write(archive, format_of.MANIFEST, [text])
    if sign is not None:
        _write(archive, format_of.SIGNATURE, [sign(text)])


def _json(value: Any, *, indent: int) -> bytes:
    return (json.dumps(value, indent=indent, sort_keys=True) + "\n").encode()


def verifier_files() -> dict[str, str]:
    """Return the verifier with all that it imports, by name: it needs nothing else."""
    found = {VERIFIER: _source("audit/verifier.py")}
    found |= {f"{folder}/__init__.py": '"""Part of dpflow."""\n' for folder in _FOLDERS}
    found |= {f"dpflow/ledger/{name}": _source(name) for name in SHIPPED}
    return found


_FOLDERS = ("dpflow", "dpflow/ledger", "dpflow/ledger/audit")


def _journal(ledger: Ledger, newest: dict[str, int]) -> Iterator[bytes]:
    for columns in entry_columns(ledger, newest):
        row = dict(zip(format_of.ENTRY, columns, strict=True))
        yield f"{canonical(row)}\n".encode()


def _source(name: str) -> str:
    return files("dpflow.ledger").joinpath(name).read_text("utf-8")


def _write(
    archive: zipfile.ZipFile, name: str, lines: Iterable[bytes]
) -> dict[str, Any]:
    """Write a file as its lines come, and return its digest and length."""
    found, length = hashlib.sha256(), 0
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    with archive.open(info, "w", force_zip64=True) as file:
        for line in lines:
            found.update(line)
            length += len(line)
            file.write(line)
    return {"sha256": found.hexdigest(), "bytes": length}
