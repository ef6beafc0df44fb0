"""Files of a ledger in SQLite: which they are, and whether SQLite may open them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path

from dpflow.durable import sync_path
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerError,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger.damage import damaged
from dpflow.ledger.storage.base import busy, unusable
from dpflow.ledger.storage.file_systems import check_place

_SPACE_BYTES = 16 * 2**20
#: After so long, SQLite waited for a lock in vain.
_LOCK_SECONDS = 0.8

#: Device and inode.
FileId = tuple[int, int]


def file_id(path: Path) -> FileId | None:
    """Return which file is at a path; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def real_path(path: Path, end: str = "") -> Path:
    """Return where a ledger's file really lies, or one that SQLite keeps beside it.

    SQLite follows links, so that all names of a file share its log and its lock.
    """
    return Path(f"{os.path.realpath(path)}{end}")


def look_at(path: Path, opened: FileId | None = None) -> FileId:
    """Return which file a ledger is now.

    Args:
        path: Name of the file.
        opened: The file that is in use.

    Raises:
        LedgerMissing: If there is none, or none any more.
        LedgerCorrupt: If it is not the one in use.
        LedgerUnavailable: If it has a second name.
        OSError: If this user may not look there.
    """
    try:
        # Path.is_file is false, too, where this user may not look.
        status = os.stat(path)  # noqa: PTH116 (asked at each step)
    except FileNotFoundError:
        status = None
    if status is None or not stat.S_ISREG(status.st_mode):
        msg = (
            f"there is no ledger at {path}. Work in the project's folder; for a new "
            "project, make it with `dpflow init`, or with `dpflow ledger init` where "
            "its policies are. If there was a ledger, restore it: a new, empty one "
            "would forget what has been spent."
        )
        if opened is not None:
            msg = f"the ledger {path} was removed while in use; restore it"
        raise LedgerMissing(msg, ledger=str(path))
    file = status.st_dev, status.st_ino
    if opened not in (None, file):
        msg = f"the ledger {path} was replaced while in use; restart the run"
        raise LedgerCorrupt(msg, ledger=str(path))
    if status.st_nlink > 1:
        msg = (
            f"the ledger {path} has a second name (a hard link). Each name has a log "
            "of its own, and misses what is charged under the other; nothing was "
            f"charged. End all runs, remove it (`find / -xdev -samefile {path}` lists "
            "both), and run `dpflow ledger verify`."
        )
        raise LedgerUnavailable(msg, ledger=str(path))
    return file


def check_before_making(path: Path) -> None:
    """Check a place where a new ledger is to be made.

    Raises:
        ConfigurationError: If a ledger's log lies there: SQLite would delete it.
        LedgerUnavailable: If no ledger may lie there, or too little space is left.
        OSError: If there is no such folder.
    """
    for log in (real_path(path, "-wal"), real_path(path, "-shm")):
        if log.exists():
            msg = (
                f"there is no {path}, but {log} is there and may hold its newest "
                "charges. Bring the ledger back; for a new one take another place."
            )
            raise ConfigurationError(msg)
    check_place(real_path(path))
    check_space(path)


def check_left(path: Path) -> None:
    """Check what SQLite would not: it takes what is there, and deletes what is left.

    Raises:
        LedgerCorrupt: If the file or its log was taken away.
        LedgerUnavailable: If no ledger may lie there.
        OSError: If the file cannot be looked at.
    """
    check_place(real_path(path))
    wal, shm = real_path(path, "-wal"), real_path(path, "-shm")
    # SQLite makes -wal before -shm and deletes it after, so that -shm is never alone;
    # the second look at -wal is for programs that do so just now, without our lock.
    if not wal.exists() and shm.exists() and not wal.exists():
        what = f"{wal.name} was removed, and its newest charges with it"
    # The second look is for a log that was emptied into the file just now.
    elif _is_cut_off(path) and not has_content(wal) and _is_cut_off(path):
        what = "its end was cut off"
    elif wal.exists() and path.stat().st_size == 0:
        what = f"it is empty, but {wal.name} may hold its newest charges"
    else:
        return
    msg = (
        f"the ledger {path} is not whole: {what}. Bring that file back, or restore a "
        "backup with `dpflow ledger restore`. If a log is lost, so are its charges: "
        f"without {shm.name} the ledger opens without them."
    )
    raise LedgerCorrupt(msg, ledger=str(path))


def _is_cut_off(path: Path) -> bool:
    """Say whether a file has fewer pages than it says; SQLite would not miss them.

    While there is a log, its pages may be there.
    """
    try:
        with path.open("rb") as file:
            header = file.read(32)
    except OSError:
        # It is gone, or not ours to read: the next to open it says so.
        return False
    if not header.startswith(b"SQLite format 3\0"):
        return False
    size = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    # The format writes the largest size, 65,536, as 1.
    return path.stat().st_size < pages * (65536 if size == 1 else size)


def has_content(path: Path) -> bool:
    """Say whether a file is there and not empty."""
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


def check_space(path: Path) -> None:
    """Refuse a ledger beside which too little space is left.

    Raises:
        LedgerUnavailable: If less than 16 MiB are free.
    """
    if shutil.disk_usage(real_path(path).parent).free < _SPACE_BYTES:
        msg = f"less than 16 MiB are free beside the ledger {path}; free some"
        raise LedgerUnavailable(msg, ledger=str(path))


def set_durable(connection: sqlite3.Connection, path: Path) -> None:
    """Make a connection's commits last, and read back that they do.

    Raises:
        LedgerUnavailable: If they would not.
    """
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens -wal
    if (mode, level) != ("wal", 2):
        msg = (
            f"the ledger {path} cannot be made durable here (journal_mode={mode}, "
            f"synchronous={level}); put it on a local file system"
        )
        raise LedgerUnavailable(msg, ledger=str(path))


def sync_log(path: Path) -> None:
    """Write a ledger's log once more, byte for byte, and sync it.

    After a sync that failed, the log can be read and is perhaps not on the disk: the
    system writes such pages no more. What a new connection reads in the log counts only
    once it was written and synced anew.

    Raises:
        OSError: If the disk still fails.
    """
    log = real_path(path, "-wal")
    if not has_content(log):
        return
    # Another program may empty it into the file and remove it just now.
    with suppress(FileNotFoundError):
        with log.open("r+b") as file:
            content = file.read()
            file.seek(0)
            file.write(content)
        sync_path(log)


def translated(error: Exception, path: Path, waited: float) -> LedgerError:
    """Return the error that a failed transaction of a ledger file ends with.

    Args:
        error: Of the driver or the system.
        path: The file.
        waited: Seconds since the transaction was asked for.
    """
    text, operational = str(error), isinstance(error, sqlite3.OperationalError)
    if isinstance(error, OSError):
        msg = (
            f"the ledger {path} cannot be used: {error.strerror or text}. See to its "
            "file system (space, locks) and try again; or ask its owner for the "
            f"right to read {path.name}*, and to write that and its folder."
        )
        return LedgerUnavailable(msg, ledger=str(path))
    if waited > _LOCK_SECONDS and operational and "lock" in text:
        # This process has dpflow's lock, and SQLite does not get its own.
        advice = f" (`fuser {path}` names it; or the system gives no locks: {text})"
        return busy(str(path), "program", waited, advice)
    damages = ("no such table", "malformed JSON")
    if (operational or "readonly" in text) and not text.startswith(damages):
        return unusable(text, str(path))
    return damaged(text.rstrip("."), str(path))
