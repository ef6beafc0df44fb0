"""Copies of a ledger: whole ones, the way back from one, and exports of the journal.

A file that is copied by hand lacks its log. A restored copy lacks later
charges: they are charged again, as far as the witness and the replaced file
tell. The witness refuses every step until then; where there is no witness, it is
charged before the copy takes the ledger's place.

An export is the journal as lines of JSON, for auditors and other programs. It can be
verified without the ledger.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dpflow.durable import make_private_folder, sync_path
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerError,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.interrupts import contextmanager, suppress, without_interrupts
from dpflow.ledger.audit.reconcile import (
    Comparison,
    LostRelease,
    charge_again,
    kept_releases,
)
from dpflow.ledger.audit.verify import Verification, verified
from dpflow.ledger.entry import Columns, draft_of
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Conditions
from dpflow.ledger.storage.base import UNREADABLE, VERSION, Identity, busy
from dpflow.ledger.storage.sqlite import SqliteStorage
from dpflow.ledger.storage.sqlite_files import check_left, real_path, translated
from dpflow.ledger.witness.base import Line, WitnessAt, compacted
from dpflow.ledger.witness.rollback_check import lines_of, missing
from dpflow.locks import LOCK_SECONDS as _LOCK_SECONDS
from dpflow.locks import FileLock
from dpflow.policy import Policy

# Exports


def journal_rows(ledger: Ledger) -> Iterator[dict[str, Any]]:
    """Yield the identity of a ledger, then every entry in order, with raw texts.

    Each page is read in a transaction of its own. It omits entries that
    are written meanwhile.
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


def verify_export(path: Path) -> tuple[str, Verification]:
    """Check the hash chain of an export; no ledger is needed.

    Args:
        path: File that `dpflow ledger export` wrote in the format jsonl.

    Returns:
        Id of the exported ledger, and the findings.

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
            report.head = 0, identity.first
            rows = (Columns(**json.loads(line)) for line in file if line.strip())
            report.read(rows, draft_of)
    except without_interrupts(OSError, *UNREADABLE) as error:
        msg = (
            f"{path} is no export of a ledger, or it is damaged ({error!r:.80}). Write "
            "one with `dpflow ledger export --out FILE`."
        )
        raise ConfigurationError(msg) from error
    return identity.ledger, report


# Backup and restore


_PARTS = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore.

    Attributes:
        aside: Path of the replaced file; None if there was no file.
        charged_again: Charges that the copy lacked.
        lost: Outputs that the copy does not keep.
        all_lost_told: Whether these are all, as far as file and witness tell.
    """

    aside: Path | None
    charged_again: Comparison
    lost: tuple[LostRelease, ...]
    all_lost_told: bool


def backup(ledger: Ledger, target: Path) -> Verification:
    """Copy a ledger file, verify the copy and make it durable.

    Args:
        ledger: A ledger in a SQLite file; others may go on using it.
        target: A path without a file; only its owner may read the copy.

    Raises:
        ConfigurationError: If there is a file, or the ledger is in no file.
        LedgerCorrupt: If the copy is not a whole ledger; it is removed.
        LedgerUnavailable: If it cannot be written.
    """
    target, storage = target.absolute(), ledger.storage
    if not isinstance(storage, SqliteStorage) or target.exists():
        msg = (
            f"cannot back up the ledger {ledger.place} to {target}. A backup copies a "
            "SQLite file and never overwrites one. Name a new file; for a ledger in a "
            "database use the database's own tools."
        )
        raise ConfigurationError(msg)
    with _folder_beside(target) as folder:
        copy = folder / target.name
        with storage.read() as reading:
            _copy(reading.connection, copy)
        report = _verified(copy, ledger.id)
        _fold(copy)
        os.link(copy, target)
        sync_path(target.parent)
    return report


def restore(
    source: Path,
    path: Path,
    *,
    ledger_id: str,
    witness: WitnessAt | None,
    policies: Mapping[str, Policy],
    reason: str,
    accept_loss: bool = False,
    conditions: Conditions | None = None,
) -> Restored:
    """Put a backup in a ledger's place and charge again what it lacks.

    The replaced file stays next to it. No process may use the ledger meanwhile; those
    that do are refused.

    Args:
        source: A backup.
        path: The ledger's file.
        ledger_id: The id that the project pins.
        witness: Makes the witness; None if it is waived.
        policies: To open accounts again that the backup lacks.
        reason: Why, for the journal.
        accept_loss: Go on where the witness is waived and no readable file tells what
            was charged after the backup.
        conditions: Who restores it, for the journal.

    Raises:
        LedgerCorrupt: If the backup is damaged or another ledger's.
        LedgerUnwitnessed: If nothing shows what was charged since.
        LedgerUnavailable: If the ledger is in use, or cannot be written.
    """
    path = path.absolute()
    with suppress(OSError):
        make_private_folder(path.parent)
    lock = FileLock(real_path(path, ".lock"))
    with _folder_beside(path) as folder, closing(lock):
        if lock.take(time.monotonic() + _LOCK_SECONDS) is None:
            raise busy(str(path), "process", _LOCK_SECONDS)
        copy = folder / path.name
        _copy_file(source, copy)
        _verified(copy, ledger_id)
        lines = [] if witness is None else witness(ledger_id).all_lines()
        replaced = _read_replaced(path, folder / "replaced", ledger_id, lines)
        if witness is None and replaced is None and not accept_loss:
            msg = (
                "the witness is waived and there is no readable ledger at "
                f"{path}: nothing shows what was charged after the backup, and a "
                "restore would forget it. Bring the witness or the file back, or say "
                "--accept-loss."
            )
            raise LedgerUnwitnessed(msg, ledger=str(path))
        before = replaced or _Replaced()

        def charged_again(place: Path) -> tuple[Comparison, set[LostRelease]]:
            with closing(_opened(place, witness, conditions)) as ledger:
                lines = before.lines
                gaps = charge_again(ledger, policies, reason=reason, others=lines)
                with ledger.storage.read() as reading:
                    return gaps, {*kept_releases(reading)}

        if witness is None:
            gaps, kept = charged_again(copy)
        _fold(copy)
        aside = _put_in_place(copy, path)
        lock.close()
        if witness is not None:
            # It refuses every step until this is done.
            gaps, kept = charged_again(path)
    lost = [each for each in before.kept if each not in kept]
    lost += [each for each in gaps.releases if each.reservation not in before.charges]
    is_complete = replaced is not None or (witness is not None and gaps.tells_all)
    return Restored(aside, gaps, tuple(lost), all_lost_told=is_complete)


@contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """Make a folder for copies that only their owner may read."""
    try:
        with TemporaryDirectory(prefix=f"{target.name}-", dir=target.parent) as folder:
            yield Path(folder)
    except without_interrupts(OSError, sqlite3.Error) as error:
        raise translated(error, target, 0.0) from error


def _copy_file(source: Path, target: Path, *, mode: str = "ro") -> None:
    """Copy a ledger file.

    A file that is opened for writing has its log folded in, if no process has it open.
    """
    if not source.is_file():
        msg = f"there is no backup at {source}"
        raise ConfigurationError(msg)
    uri = f"{source.absolute().as_uri()}?mode={mode}"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as opened:
            _copy(opened, target)
    except sqlite3.Error as error:
        raise translated(error, source, 0.0) from error


def _copy(source: sqlite3.Connection, target: Path) -> None:
    """Copy a ledger through SQLite, so that its log is not lost."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
        (answer,) = copy.execute("PRAGMA integrity_check").fetchone()
    if answer != "ok":
        msg = f"the copy of the ledger is damaged: {answer}"
        raise LedgerCorrupt(msg, ledger=str(target))


def _verified(path: Path, ledger_id: str) -> Verification:
    """Verify a copy of a ledger."""
    with closing(_opened(path)) as ledger:
        if ledger.id != ledger_id:
            msg = f"{path} is a copy of ledger {ledger.id}, not of {ledger_id}"
            raise LedgerCorrupt(msg, ledger=str(path))
        return verified(ledger)


def _fold(path: Path) -> None:
    """Make a copy one durable file, without a log."""
    with closing(sqlite3.connect(path)) as copy:
        (mode,) = copy.execute("PRAGMA journal_mode = DELETE").fetchone()
    if mode != "delete":
        msg = f"the log of {path} cannot be folded in; it is in use"
        raise LedgerUnavailable(msg, ledger=str(path))
    sync_path(path)


class _Replaced(NamedTuple):
    """What the replaced file says of charges and releases that a backup lacks.

    Attributes:
        lines: Its accounts and decisions.
        kept: Its releases.
        charges: Its charges, as far as these lines and the witness tell.
    """

    lines: Sequence[Line] = ()
    kept: Sequence[LostRelease] = ()
    charges: Collection[str | None] = ()


def _read_replaced(
    path: Path, copy: Path, ledger_id: str, witnessed: Sequence[Line]
) -> _Replaced | None:
    """Read a copy of the file that is replaced; None if it is not a whole ledger."""
    with suppress(LedgerError):
        if path.exists():
            check_left(path)
            _copy_file(path, copy, mode="rw")
            _verified(copy, ledger_id)
            with closing(_opened(copy)) as ledger:
                lines = compacted(lines_of(ledger.storage))
                with ledger.storage.read() as reading:
                    away = {line[:2] for line in missing(reading, witnessed)}
                    kept = kept_releases(reading)
            held = [e for e in (*witnessed, *lines) if e[:2] not in away]
            return _Replaced(lines, kept, {line.charge for line in held})
    return None


def _opened(
    path: Path, witness: WitnessAt | None = None, conditions: Conditions | None = None
) -> Ledger:
    storage = SqliteStorage(path)
    return Ledger(storage, storage.owners(), witness, conditions=conditions)


def _put_in_place(part: Path, path: Path) -> Path | None:
    """Put a file in the ledger's place; return the new path of the replaced one.

    At every moment there is the old ledger, the new one, or none, which refuses every
    step. SQLite would play an old log into the new file, so no log stays.
    """
    number, aside = 0, path
    while any(Path(f"{aside}{end}").exists() for end in _PARTS):
        number += 1
        aside = Path(f"{path}.before-restore-{number}")
    was_there = path.exists()
    logs = [end for end in _PARTS[1:] if Path(f"{path}{end}").exists()]
    if was_there and logs:
        # The file first: without its log it would lack the newest charges.
        path.rename(aside)
    elif was_there:
        # A restore that dies here can be made again: the ledger is still there.
        os.link(path, aside)
    for end in logs:
        Path(f"{path}{end}").rename(f"{aside}{end}")
    sync_path(path.parent)
    part.replace(path)
    sync_path(path.parent)
    return aside if was_there else None
