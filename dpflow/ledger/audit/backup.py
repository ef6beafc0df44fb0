"""Copies of a ledger file that are whole, and the way back from one.

Copying the file by hand loses what is still in its log. A restored copy lacks what was
charged after it was made: that is charged again, as far as the witness and the file
that it replaces tell of it. Where there is no witness, it is charged before the copy
takes the ledger's place, in one go: a restore that dies must not leave a ledger that
forgot something.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dpflow.durable import sync_path
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerError,
    LedgerUnavailable,
    LedgerUnwitnessed,
)
from dpflow.ledger.audit.findings import Verification
from dpflow.ledger.audit.lost_decisions import LostRelease, kept_releases
from dpflow.ledger.audit.reconcile import Comparison, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Conditions
from dpflow.ledger.storage.base import busy
from dpflow.ledger.storage.owners import Owners
from dpflow.ledger.storage.sqlite import SqliteStorage
from dpflow.ledger.storage.sqlite_files import check_left, real_path
from dpflow.ledger.witness.base import WitnessAt
from dpflow.ledger.witness.lines import Line
from dpflow.ledger.witness.rollback_check import beginning
from dpflow.locks import FileLock
from dpflow.policy import Policy

_LOCK_SECONDS = 30.0
_PARTS = ("", "-wal", "-shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of a restore.

    Attributes:
        aside: Where the file is that was replaced; None if there was none.
        charged_again: What the copy lacked.
        lost: Outputs that the copy does not keep.
        all_lost_told: Whether these are all, as far as file and witness tell.
    """

    aside: Path | None
    charged_again: Comparison
    lost: tuple[LostRelease, ...]
    all_lost_told: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replaced:
    """What the file that is to be replaced knows.

    Attributes:
        lines: Of its accounts, as `reconcile` takes them.
        releases: What it keeps.
        reservations: All that it ever granted.
    """

    lines: tuple[Line, ...]
    releases: tuple[LostRelease, ...]
    reservations: frozenset[str]


def backup(ledger: Ledger, target: Path) -> Verification:
    """Copy a ledger file, verify the copy and make it durable.

    Args:
        ledger: A ledger in a SQLite file; others may go on using it.
        target: A place where nothing is yet; the copy is for its owner's eyes only.

    Raises:
        ConfigurationError: If something is there, or the ledger is in no file.
        LedgerCorrupt: If the copy is not a whole ledger; it is removed.
        LedgerUnavailable: If it cannot be written.
    """
    storage = ledger.storage
    if not isinstance(storage, SqliteStorage):
        msg = (
            f"the ledger {ledger.place} is in no file; back it up with its database's "
            "own tools"
        )
        raise ConfigurationError(msg)
    target = target.absolute()
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        if target.exists():
            msg = f"there is a file at {target} already; a backup never overwrites one"
            raise ConfigurationError(msg)
        with _removed(part):
            with _filled(part) as copy, storage.read() as reading:
                reading.copy_to(copy)
            report = _verified(part, ledger.id)
            os.link(part, target)
            sync_path(target.parent)
    except OSError as error:
        msg = f"cannot write the backup {target}: {error.strerror or error}"
        raise LedgerUnavailable(msg, ledger=ledger.place) from error
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

    The file that was there is kept beside it. No process may use the ledger meanwhile;
    those that do are refused.

    Args:
        source: A backup.
        path: The ledger's file.
        ledger_id: The id that the project pins.
        witness: Makes the witness; None if it is waived.
        policies: To open accounts again that the backup lacks.
        reason: Why, for the journal.
        accept_loss: Go on where the witness is waived and no file can be read that
            tells what was charged after the backup.
        conditions: Who restores it, for the journal.

    Raises:
        LedgerCorrupt: If the backup is damaged or another ledger's.
        LedgerUnwitnessed: If nothing tells what was charged since.
        LedgerUnavailable: If the ledger is in use, or cannot be written.
    """
    path = path.absolute()
    part, copy = (path.with_name(f"{path.name}.{end}") for end in ("new", "old"))

    def charged_again(place: Path, witness: WitnessAt | None) -> Comparison:
        with closing(_opened(place, witness, conditions)) as ledger:
            others = () if replaced is None else replaced.lines
            return reconcile(ledger, policies, reason=reason, others=others)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _held(path), _removed(part, copy):
            _copy_file(source, part)
            _verified(part, ledger_id)
            replaced = _replaced(path, copy, ledger_id)
            if witness is not None:
                witness(ledger_id).all_lines()
            elif replaced is None and not accept_loss:
                msg = (
                    f"the witness is waived and there is no readable ledger at {path}: "
                    "nothing tells what was charged after the backup, and a restore "
                    "would forget it. Bring the witness or the file back, or say "
                    "--accept-loss."
                )
                raise LedgerUnwitnessed(msg, ledger=str(path))
            else:
                found = charged_again(part, None)
                _fold(part)
            aside = _put_in_place(part, path)
    except OSError as error:
        msg = f"cannot restore {source} to {path}: {error.strerror or error}"
        raise LedgerUnavailable(msg, ledger=str(path)) from error
    if witness is not None:
        # It refuses every step until this is done.
        found = charged_again(path, witness)
    lost = _lost_releases(path, found, replaced)
    told = replaced is not None or (witness is not None and found.tells_all)
    return Restored(aside=aside, charged_again=found, lost=lost, all_lost_told=told)


@contextmanager
def _filled(target: Path) -> Iterator[sqlite3.Connection]:
    """Make a file for its owner's eyes only, to be filled through SQLite."""
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(target)) as copy:
        yield copy


def _copy_file(source: Path, target: Path, *, mode: str = "ro") -> None:
    """Copy a backup; through SQLite, so that a log beside it is not lost.

    Opened for writing, its log is folded in where nobody else has it open.
    """
    if not source.is_file():
        msg = f"there is no backup at {source}"
        raise ConfigurationError(msg)
    uri = f"{source.absolute().as_uri()}?mode={mode}"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as opened, _filled(target) as copy:
            opened.backup(copy)
    except sqlite3.Error as error:
        msg = f"{source} is no backup of a ledger: {error}"
        raise LedgerCorrupt(msg, ledger=str(source)) from error


def _verified(path: Path, ledger_id: str) -> Verification:
    """Verify a copy and fold its log in."""
    try:
        with closing(sqlite3.connect(path)) as copy:
            (answer,) = copy.execute("PRAGMA integrity_check").fetchone()
    except sqlite3.Error as error:
        answer = str(error)
    if answer != "ok":
        msg = f"the copy is damaged: {answer}"
        raise LedgerCorrupt(msg, ledger=str(path))
    with closing(_opened(path, None)) as ledger:
        if ledger.id != ledger_id:
            msg = f"{path} holds ledger {ledger.id}, not {ledger_id}"
            raise LedgerCorrupt(msg, ledger=str(path))
        report = verify(ledger)
    if report.bad:
        msg = f"the copy does not verify. {report.bad[0]}"
        raise LedgerCorrupt(msg, ledger=str(path))
    _fold(path)
    return report


def _fold(path: Path) -> None:
    """Make a copy one durable file, without a log."""
    with closing(sqlite3.connect(path)) as copy:
        (mode,) = copy.execute("PRAGMA journal_mode = DELETE").fetchone()
    if mode != "delete":
        msg = f"the log of {path} cannot be folded in; it is in use"
        raise LedgerUnavailable(msg, ledger=str(path))
    sync_path(path)


@contextmanager
def _removed(*copies: Path) -> Iterator[None]:
    """Leave nothing of some copies, nor what an earlier process that died left."""

    def remove() -> None:
        for copy in copies:
            for end in (*_PARTS, "-journal", ".lock"):
                Path(f"{copy}{end}").unlink(missing_ok=True)

    remove()
    try:
        yield
    finally:
        remove()


def _replaced(path: Path, copy: Path, ledger_id: str) -> _Replaced | None:
    """Return what the file that is to be replaced knows, read from a copy of it.

    None if it is not there or damaged; then the witness alone is asked.
    """
    if not path.exists():
        return None
    with suppress(LedgerError):
        check_left(path)
        _copy_file(path, copy, mode="rw")
        _verified(copy, ledger_id)
        with closing(_opened(copy, None)) as ledger, ledger.storage.read() as reading:
            return _Replaced(
                lines=tuple(beginning(reading)),
                releases=kept_releases(reading),
                reservations=frozenset(
                    key.removeprefix("charge/") for key in reading.names("charge/")
                ),
            )
    return None


def _lost_releases(
    path: Path, found: Comparison, replaced: _Replaced | None
) -> tuple[LostRelease, ...]:
    """Return what the replaced file kept, or may have kept, and the ledger does not."""
    if replaced is None:
        return found.releases
    with closing(_opened(path, None)) as ledger, ledger.storage.read() as reading:
        kept = {(each.id, each.digest) for each in kept_releases(reading)}
    lost = (e for e in replaced.releases if (e.id, e.digest) not in kept)
    unknown = (e for e in found.releases if e.reservation not in replaced.reservations)
    return (*lost, *unknown)


def _opened(
    path: Path, witness: WitnessAt | None, conditions: Conditions | None = None
) -> Ledger:
    owners = Owners(path.with_name(f"{path.name}.owners"))
    return Ledger(SqliteStorage(path), owners, witness, conditions=conditions)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the ledger's lock, as every transaction does."""
    lock = FileLock(real_path(path, ".lock"))
    try:
        if lock.take(time.monotonic() + _LOCK_SECONDS) is None:
            raise busy(str(path), "process", _LOCK_SECONDS)
        yield
    finally:
        lock.close()


def _put_in_place(part: Path, path: Path) -> Path | None:
    """Put a file in the ledger's place and keep the old one beside it.

    At every moment there is the old ledger, the new one or none, which refuses every
    step. A log would be played into the new file, so none is there any more by then.
    """
    number, aside = 0, path
    while any(Path(f"{aside}{end}").exists() for end in _PARTS):
        number += 1
        aside = Path(f"{path}.before-restore-{number}")
    was_there = path.exists()
    logs = [end for end in _PARTS[1:] if Path(f"{path}{end}").exists()]
    if was_there:
        path.rename(aside) if logs else os.link(path, aside)
    for end in logs:
        Path(f"{path}{end}").rename(f"{aside}{end}")
    if logs:
        sync_path(path.parent)
    part.replace(path)
    sync_path(path.parent)
    return aside if was_there else None
