"""The files of a SQLite ledger: which they are, and whether SQLite may open them."""

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
from dpflow.ledger.storage.file_systems import check_place

_SPACE_BYTES = 16 * 2**20
#: After so long, SQLite waited for a lock in vain.
_LOCK_SECONDS = 0.8
_LOCKS, _PROCESSES = Path("/proc/locks"), Path("/proc")

#: Device and inode.
FileId = tuple[int, int]


def file_id(path: Path) -> FileId | None:
    """Say which file is at a path; None if there is none."""
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


def look_at(path: Path, place: str, opened: FileId | None = None) -> os.stat_result:
    """Say what a ledger's file is now.

    Args:
        path: Name of the file.
        place: The ledger, for messages.
        opened: The file that is in use.

    Raises:
        LedgerMissing: If there is none, or none any more.
        LedgerCorrupt: If it is not the one in use.
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
        raise LedgerMissing(msg, ledger=place)
    if opened not in (None, (status.st_dev, status.st_ino)):
        msg = f"the ledger {path} was replaced while in use; restart the run"
        raise LedgerCorrupt(msg, ledger=place)
    return status


def check_one_name(path: Path, place: str, opened: FileId | None = None) -> None:
    """Refuse a ledger's file that is not there or has a second name (a hard link).

    SQLite keeps a log for each name, and dpflow a lock: charges under one name are
    missing under the other.

    Raises:
        LedgerMissing, LedgerCorrupt: As for `look_at`.
        LedgerUnavailable: If the file has more names than one.
        OSError: If the folder cannot be read.
    """
    status = look_at(path, place, opened)
    if status.st_nlink <= 1:
        return
    own, file = real_path(path), (status.st_dev, status.st_ino)
    names = [n for n in sorted(own.parent.iterdir()) if n != own and file_id(n) == file]
    second = names[0] if names else f"`find / -xdev -samefile {own}` lists it"
    msg = (
        f"the ledger {path} has a second name (a hard link): {second}. Each name has a "
        "log of its own, and misses what is charged under the other; nothing was "
        "charged. End all runs, remove it, and run `dpflow ledger verify`."
    )
    raise LedgerUnavailable(msg, ledger=place)


def check_before_making(path: Path) -> None:
    """Check a place where a new ledger is to be made.

    Raises:
        ConfigurationError: If a ledger's log lies there: SQLite would delete it.
        LedgerUnavailable: If no ledger may lie there, or too little space is left.
        OSError: If there is no such folder.
    """
    for end in ("-wal", "-shm"):
        left = real_path(path, end)
        if left.exists():
            msg = (
                f"there is no {path}, but {left} is there and may hold its newest "
                "charges. Bring the ledger back; for a new one take another place."
            )
            raise ConfigurationError(msg)
    check_place(real_path(path), str(path))
    check_space(path, str(path))


def check_left(path: Path, place: str) -> None:
    """Check what SQLite would not: it takes what it finds, and deletes what is left.

    Args:
        path: The ledger's file.
        place: The ledger, for messages.

    Raises:
        LedgerCorrupt: If the file or its log was taken away.
        LedgerUnavailable: If no ledger may lie there.
        OSError: If the file cannot be looked at.
    """
    check_place(real_path(path), place)
    wal, shm = real_path(path, "-wal"), real_path(path, "-shm")
    # SQLite makes -wal before -shm and deletes it after, so that -shm is never alone;
    # the second look at -wal is for programs that do so just now, without our lock.
    if not wal.exists() and shm.exists() and not wal.exists():
        msg = (
            f"{wal} was removed; it held the newest charges of the ledger {path}. "
            "Restore it. If it is lost for good, so are these charges: the ledger "
            f"opens without them once {shm.name} is removed as well."
        )
        raise LedgerCorrupt(msg, ledger=place)
    # The second look is for a log that was emptied into the file just now.
    if _is_cut_off(path) and not _has_content(wal) and _is_cut_off(path):
        msg = (
            f"the ledger {path} is shorter than it was: its end was cut off. Restore a "
            "backup with `dpflow ledger restore`."
        )
        raise LedgerCorrupt(msg, ledger=place)
    if wal.exists() and path.stat().st_size == 0:
        msg = (
            f"the ledger {path} is empty, but {wal.name} is there and may hold its "
            "newest charges. Restore the ledger's file."
        )
        raise LedgerCorrupt(msg, ledger=place)


def _is_cut_off(path: Path) -> bool:
    """Say whether a file has fewer pages than it says; SQLite would not miss them.

    While there is a log, its pages may be there.
    """
    try:
        with path.open("rb") as file:
            header = file.read(32)
    except OSError:
        # It is gone, or not ours to read: who opens it says so.
        return False
    if not header.startswith(b"SQLite format 3\0"):
        return False
    size = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    # The format writes the largest size, 65,536, as 1.
    return path.stat().st_size < pages * (65536 if size == 1 else size)


def _has_content(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


def check_space(path: Path, place: str) -> None:
    """Refuse a ledger beside which too little space is left.

    Raises:
        LedgerUnavailable: If less than 16 MiB are free.
    """
    if shutil.disk_usage(real_path(path).parent).free < _SPACE_BYTES:
        msg = f"less than 16 MiB are free beside the ledger {path}; free some"
        raise LedgerUnavailable(msg, ledger=place)


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
    system writes such pages no more. What a new connection finds in the log counts only
    once it was written and synced anew.

    Raises:
        OSError: If the disk still fails.
    """
    log = real_path(path, "-wal")
    if not _has_content(log):
        return
    # Another program may empty it into the file and remove it just now.
    with suppress(FileNotFoundError):
        with log.open("r+b") as file:
            content = file.read()
            file.seek(0)
            file.write(content)
        sync_path(log)


def _holder_of(lock: Path) -> str:
    """Name the process that holds a lock file now, or return "" if nobody says."""
    try:
        status = lock.stat()
        device, inode = status.st_dev, status.st_ino
        file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
        for line in _LOCKS.read_text("utf-8").splitlines():
            # 1: FLOCK  ADVISORY  WRITE 4711 fe:01:131075 0 EOF
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == file and int(fields[4]) > 0:
                name = (_PROCESSES / fields[4] / "comm").read_text("utf-8", "replace")
                return f"{fields[4]} ({name.strip()})"
    except (OSError, ValueError, IndexError):
        # Another system, or the process has just ended.
        return ""
    return ""


def held_by_process(
    lock: Path, path: Path, place: str, waited: float
) -> LedgerUnavailable:
    """Return the error for a lock that another process holds for too long."""
    name = _holder_of(lock)
    who = f", {name}," if name else ""
    msg = (
        f"another process{who} holds the lock of the ledger {path}; waited "
        f"{waited:g} s. Nothing was done; try again (`fuser {lock}` says which)."
    )
    return LedgerUnavailable(msg, ledger=place, waited=waited, holder=name)


# What SQLite and the system say, in dpflow's words


def translated(error: Exception, path: Path, place: str, waited: float) -> LedgerError:
    """Return the error that a failed transaction of a ledger file ends with.

    Args:
        error: Of the driver.
        path: The file.
        place: The ledger, for messages.
        waited: Seconds since the transaction was asked for.
    """
    text = str(error)
    operational = isinstance(error, sqlite3.OperationalError)
    if waited > _LOCK_SECONDS and operational and "lock" in text:
        # This process has dpflow's lock, and SQLite does not get its own.
        msg = (
            f"the ledger {path} cannot be used: {text}; waited {waited:.0f} s. "
            "Another program has locked it, or the system gives no locks (ENOLCK). The "
            f"step did not run; end that program (`fuser {path}` names it) or put the "
            "ledger on a local file system, and try again."
        )
        return LedgerUnavailable(msg, ledger=place, waited=waited)
    unusable = operational or "readonly" in text
    if unusable and not text.startswith(("no such table", "malformed JSON")):
        msg = (
            f"the ledger {path} cannot be used: {text}. The step did not run "
            "and nothing was charged unless `dpflow history` shows it."
        )
        return LedgerUnavailable(msg, ledger=place)
    msg = (
        f"the ledger {path} is damaged or inconsistent: {text.rstrip('.')}. "
        "Put a good backup back: `dpflow ledger restore`."
    )
    return LedgerCorrupt(msg, ledger=place)


def unavailable(path: Path, error: OSError) -> LedgerUnavailable:
    """Return the error for a file that the system does not let be used."""
    todo = "See to its file system (space, rights, locks), and try again."
    if isinstance(error, PermissionError):
        todo = (
            "Ask who owns it for the right to read it and what lies beside it, or "
            "to write that and its folder if steps are to be charged."
        )
    msg = f"the ledger {path} cannot be used: {error.strerror or error}. {todo}"
    return LedgerUnavailable(msg, ledger=str(path))
