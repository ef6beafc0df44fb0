"""Files of a ledger in SQLite: which they are, where they may lie, how they are opened.

SQLite's write-ahead log needs shared memory and locks that work between all processes
that use the file. Network file systems only seem to have them: two hosts then overwrite
each other's acknowledged charges. So a ledger there is refused.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

from dpflow.durable import sync_path
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerError,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.interrupts import contextmanager, suppress, without_interrupts
from dpflow.ledger.tables.errors import busy, refuse_damaged, unavailable, unusable
from dpflow.locks import reason_of

logger = logging.getLogger("dpflow")

#: Other hosts, or the host of this virtual machine, may write there unseen. Any driver
#: in user space may be a network's, but for the overlay of a container.
_NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|drvfs|fakeowner|fhgfs|gfs2?|glusterfs|"
    r"gpfs|lustre|ncpfs|nfs[34]?|ocfs2|orangefs|osxfs|panfs|prl_fs|pvfs2|smb[23]|smbfs|"
    r"vboxsf|virtiofs|vmhgfs|wekafs|fuse(?!\.fuse-overlayfs$)(\..*)?"
)
#: Lost with the container or at the next boot, or hidden by a sandbox.
_PASSING = re.compile(r"aufs|fuse\.fuse-overlayfs|overlay|ramfs|rootfs|tmpfs|unknown")
_MOUNTINFO = Path("/proc/self/mountinfo")
_FDINFO = Path("/proc/self/fdinfo")


def mount_of(path: Path) -> tuple[str, str]:
    """Return the number and the type of the mount that holds a file or folder.

    Raises:
        OSError: If there is nothing at the path.
    """
    # O_PATH: opening and closing the file itself would drop SQLite's locks on it.
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        descriptor_info = (_FDINFO / str(descriptor)).read_text("utf-8")
        mounts = _MOUNTINFO.read_text("utf-8", "surrogateescape")
        number = re.findall(r"^mnt_id:\s*(\d+)$", descriptor_info, re.MULTILINE)[0]
        # proc_pid_mountinfo(5): number, parent, device, root, point, ... - type, ...
        kind = re.findall(rf"^{number} .*? - (\S+) ", mounts, re.MULTILINE)[0]
    except without_interrupts(OSError, IndexError):
        return "", "unknown"
    finally:
        os.close(descriptor)
    return number, kind


def check_place(path: Path) -> None:
    """Refuse a ledger where SQLite's locks mean nothing; warn where it cannot last.

    Args:
        path: The ledger's file, without links; it need not exist yet, its folder must.

    Raises:
        LedgerUnavailable: On a network file system, or if the file is mounted alone: a
            container that mounts only the file has the log in a layer of its
            own, and loses it when it ends.
        OSError: If there is no such folder.
    """
    if not sys.platform.startswith("linux"):
        return  # other systems do not show it
    number, kind = mount_of(path.parent)
    if path.exists() and mount_of(path)[0] != number:
        what = (
            "is mounted as a single file, so the log with the newest charges lies "
            "elsewhere and would be lost. Mount the folder that holds the "
            "ledger instead."
        )
        raise unavailable(str(path), what)
    if _NETWORK.fullmatch(kind):
        what = (
            f"is on {kind}. Locks do not hold there between machines, so that charges "
            "could be lost. Put the ledger on a local disk and set DPFLOW_LEDGER_URL."
        )
        raise unavailable(str(path), what)
    if _PASSING.fullmatch(kind):
        _warn_once(path, kind)


@cache
def _warn_once(path: Path, kind: str) -> None:
    """Warn once per process and place, in one line for a terminal."""
    logger.warning(
        "the ledger %s is on a file system of type %s, lost with the container or at "
        "the next boot, and its charges with it: put it on a disk that lasts",
        path,
        kind,
    )


_SPACE_BYTES = 16 * 2**20
#: After so long, SQLite waited for a lock in vain.
_LOCK_SECONDS = 0.8
#: Within these seconds of its last change a file may change again at the same time.
_UNSURE = 1.0
_EFFECTIVE = os.access in os.supports_effective_ids

#: Device and inode.
FileId = tuple[int, int]


def real_path(path: Path, end: str = "") -> Path:
    """Return where a ledger's file really lies, or one of SQLite's companions of it.

    SQLite follows links, so that all names of a file share its log and its lock.
    """
    return Path(f"{os.path.realpath(path)}{end}")


def look_at(path: Path, opened: FileId | None = None) -> FileId:
    """Return which file a ledger is now.

    Args:
        path: Name of the file.
        opened: The file that is in use.

    Raises:
        LedgerMissing: If there is no file, or no longer.
        LedgerCorrupt: If it is not the one in use.
        LedgerUnavailable: If it has a second name.
        OSError: If this user may not look there.
    """
    try:
        # Path.is_file is false, too, where this user may not look.
        status = os.stat(path)  # noqa: PTH116 (at each step)
    except without_interrupts(FileNotFoundError):
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
        what = (
            "has a second name (a hard link). Each name has a log of its own, and "
            "misses what is charged under the other; nothing was charged. End all "
            f"runs, remove it (`find / -xdev -samefile {path}` lists both), and run "
            "`dpflow ledger verify`."
        )
        raise unavailable(str(path), what)
    return file


def check_before_making(path: Path) -> None:
    """Check the place of a new ledger.

    Raises:
        ConfigurationError: If a ledger or its log lies there.
        LedgerUnavailable: If no ledger may lie there, or too little space is free.
        OSError: If there is no such folder.
    """
    for file in (path, real_path(path, "-wal"), real_path(path, "-shm")):
        if file.exists():
            msg = (
                f"{file} is there already, and a ledger is never overwritten. A log "
                "may hold the newest charges: bring its ledger back; for a new one "
                "take another place."
            )
            raise ConfigurationError(msg)
    check_place(real_path(path))
    if (problem := lack_of_space(path)) is not None:
        raise problem


def check_left(path: Path, *, is_open_here: bool = False) -> None:
    """Check what SQLite would not: it takes what is there, and deletes the rest.

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
    # The second look is for a log that was emptied into the file just now. Where a
    # connection of this process is open, reading the file would end its locks.
    elif not is_open_here and _is_cut_off(path, wal):
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


def _is_cut_off(path: Path, wal: Path) -> bool:
    return _lacks_pages(path) and not _has_content(wal) and _lacks_pages(path)


def _lacks_pages(path: Path) -> bool:
    """Return True if a file has fewer pages than it says; SQLite would not miss them.

    While there is a log, its pages may be there.
    """
    try:
        with path.open("rb") as file:
            header = file.read(32)
    except without_interrupts(OSError):
        # It was removed, or is not ours to read: the next to open it says so.
        return False
    size, pages = (int.from_bytes(header[at], "big") for at in _PAGES)
    # The format writes the largest size, 65,536, as 1.
    header_bytes = pages * (65536 if size == 1 else size)
    return (
        header.startswith(b"SQLite format 3\0") and path.stat().st_size < header_bytes
    )


#: Where a file's header has the size of a page, and the number of pages.
_PAGES = slice(16, 18), slice(28, 32)


def _has_content(path: Path) -> bool:
    """Return True if a file is there and not empty."""
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


def lack_of_space(path: Path) -> LedgerUnavailable | None:
    """Return why nothing is charged on a ledger's disk; None if there is space."""
    folder, free = real_path(path).parent, _SPACE_BYTES
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
    if free >= _SPACE_BYTES:
        return None
    what = (
        f"has less than 16 MiB free on its disk: {free:,} bytes of {_SPACE_BYTES:,} in "
        f"{folder}. Nothing was charged. What is in it can be read, and a release that "
        "it keeps is replayed. Free some space."
    )
    return unavailable(str(path), what)


def is_space_low(path: Path) -> bool:
    """Return True if less than ten times the needed space is free next to a ledger."""
    with suppress(OSError):
        return shutil.disk_usage(real_path(path).parent).free < 10 * _SPACE_BYTES
    return False


def sync_log(path: Path) -> None:
    """Write a ledger's log once more, byte for byte, and sync it.

    After a sync that failed, the log can be read and is perhaps not on the disk: the
    system writes such pages no more. What a new connection reads in the log counts only
    once it was written and synced anew.

    Raises:
        OSError: If the disk still fails.
    """
    log = real_path(path, "-wal")
    if _has_content(log):
        # Another program may empty it into the file and remove it just now.
        with suppress(FileNotFoundError):
            with log.open("r+b") as file:
                content = file.read()
                file.seek(0)
                file.write(content)
            sync_path(log)


def check_tables(path: Path) -> None:
    """Refuse the database of another program before anything of it is changed.

    Its file is read without its log: no lock is taken, and no log is written anew.

    Raises:
        LedgerCorrupt: If it has tables, and none of those that a ledger always has.
    """
    uri = f"{path.as_uri()}?mode=ro&immutable=1"
    names = list[str]()
    # What cannot be read so has its error where it is opened.
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = sorted(str(name) for (name,) in rows)
    if names and not {"ledger", "journal"} & set(names):
        msg = (
            f"{path} is no ledger but the database of another program: its tables are "
            f"{', '.join(names):.80}. Nothing of it was changed. Name the ledger's own "
            "file, for example in DPFLOW_LEDGER_URL."
        )
        raise LedgerCorrupt(msg, ledger=str(path))


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
        what = (
            f"cannot be durable here (journal_mode={mode}, synchronous={level}); "
            "put it on a local file system"
        )
        raise unavailable(str(path), what)


def translate_error(error: Exception, path: Path, waited: float) -> LedgerError:
    """Return the error that a failed transaction of a ledger file ends with.

    Args:
        error: Of the driver or the system.
        path: The file.
        waited: Seconds since the transaction was requested.
    """
    text, operational = str(error), isinstance(error, sqlite3.OperationalError)
    if isinstance(error, OSError):
        what = (
            f"cannot be used: {reason_of(error)}. See to its file system (space, "
            "locks) and try again; or ask its owner for the right to read "
            f"{path.name}*, and to write that and its folder."
        )
        return unavailable(str(path), what)
    if waited > _LOCK_SECONDS and operational and "lock" in text:
        # This process has dpflow's lock, and SQLite does not get its own.
        advice = f" (`fuser {path}` names it; or the system gives no locks: {text})"
        return busy(str(path), "program", waited, advice)
    damages = ("no such table", "malformed JSON")
    if (operational or "readonly" in text) and not text.startswith(damages):
        return unusable(text, str(path))
    return refuse_damaged(text.rstrip("."), str(path))


# A file that this process may read and not write. SQLite reads a write-ahead log with
# the -shm file next to it, and creates that file where it may. Opened as `immutable`,
# it leaves the log out, and with it the newest charges. So a file with its log and -shm
# is read in its place, one without a log as it is if nothing changes it meanwhile, and
# a log without its -shm is refused.


def not_writable(path: Path) -> LedgerUnavailable | None:
    """Return why this process may not write a ledger file or its folder.

    None if it may, or there is no file: that is another error.
    """
    real = real_path(path)
    if not _may(real, os.F_OK) or all(_may(e, os.W_OK) for e in (real, real.parent)):
        return None
    passive = os.statvfs(path).f_flag & os.ST_RDONLY
    why = "its file system is read-only" if passive else "this user may not"
    what = (
        f"may be read here and not written: {why}. A release that it keeps is "
        "replayed; the step did not run. Run it where the file and its folder "
        f"{real.parent} can be written."
    )
    return unavailable(str(path), what)


def is_only_read(path: Path, *, is_at_rest: bool) -> bool:
    """Return True if a reader changes no file: it may not, or there is no space.

    Args:
        path: The ledger's file.
        is_at_rest: Whether the reader leaves it as it is, if it can be read so.
    """
    if not_writable(path) is not None:
        return True
    has_index = real_path(path, "-shm").exists()
    can_be_read = has_index or not _has_content(real_path(path, "-wal"))
    return can_be_read and (is_at_rest or lack_of_space(path) is not None)


@contextmanager
def open_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger file that this process may not write.

    Raises:
        LedgerMissing: If there is no ledger.
        LedgerCorrupt: If its log was taken away, or it is no ledger.
        LedgerUnavailable: If its log cannot be read here, or it is busy.
        OSError: If something of it may not be read.
        sqlite3.Error: If SQLite cannot open it.
    """
    look_at(path)
    check_left(path)
    check_tables(path)
    log, index = real_path(path, "-wal"), real_path(path, "-shm")
    for file in (path, log, index):
        if file.exists() and not _may(file, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    alive, before = index.exists(), _stamps(path, log)
    if not alive and _has_content(log):
        what = (
            f"cannot be read here: its newest charges are in {log}, which SQLite reads "
            f"with a -shm file only, and this user may not make one. Copy {path.name}* "
            "to a folder that can be written and read the copy, or make one with "
            "`dpflow ledger backup`."
        )
        raise unavailable(str(path), what)
    if not alive and time.time() - path.stat().st_mtime <= _UNSURE:
        time.sleep(_UNSURE)
    uri = f"{path.as_uri()}?mode=ro{'' if alive else '&immutable=1'}"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection
    if not alive and before != _stamps(path, log):
        what = (
            "was written while it was read, by something that does not hold its lock. "
            "Read it again."
        )
        raise unavailable(str(path), what)


def _may(path: Path, right: int) -> bool:
    return os.access(path, right, effective_ids=_EFFECTIVE)


def _stamps(*files: Path) -> list[tuple[int, ...]]:
    """Return device, inode, size and time of the last change of some files."""
    stamps = [file.stat() for file in files if file.exists()]
    return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stamps]
