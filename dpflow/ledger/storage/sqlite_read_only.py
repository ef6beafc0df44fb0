"""A ledger file that this process may read and not write.

SQLite reads a write-ahead log with the -shm file beside it, and makes that file where
it may. Opened as `immutable`, it leaves the log out, and with it the newest charges. So
a file with its log and -shm is read in its place, one without a log as it is if nothing
changes it meanwhile, and a log without its -shm is refused.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.storage.sqlite_files import check_left, check_one_name, real_path

#: Device, inode, size and time of the last change; None where there is no file.
_Stamp = tuple[int, int, int, int] | None
#: A file that was changed so many seconds ago may change again with no later time.
_UNSURE = 1.0
_EFFECTIVE = os.access in os.supports_effective_ids


def not_writable(path: Path, place: str) -> LedgerUnavailable | None:
    """Say why this process may not write a ledger file: SQLite needs its folder, too.

    None if it may, or there is no file: that is another error.
    """
    real = real_path(path)
    if not _may(real, os.F_OK) or all(_may(e, os.W_OK) for e in (real, real.parent)):
        return None
    passive = os.statvfs(path).f_flag & os.ST_RDONLY
    why = "its file system is read-only" if passive else "this user may not"
    msg = (
        f"the ledger {path} may be read here and not written: {why}. So a release that "
        "it keeps is replayed, and nothing is charged. The step did not run. Run it "
        f"where the file and its folder {real.parent} can be written, as a "
        "user who may."
    )
    return LedgerUnavailable(msg, ledger=place)


@contextmanager
def opened_for_reading(path: Path, place: str) -> Iterator[sqlite3.Connection]:
    """Open a ledger file that this process may not write.

    Args:
        path: The file.
        place: The ledger, for messages.

    Raises:
        LedgerMissing: If there is none.
        LedgerCorrupt: If its log was taken away.
        LedgerUnavailable: If something of it may not be read, or it is busy.
        sqlite3.Error: If SQLite cannot open it.
    """
    check_one_name(path, place)
    check_left(path, place)
    for end in ("", "-wal", "-shm"):
        file = real_path(path, end)
        if file.exists() and not _may(file, os.R_OK):
            msg = (
                f"the ledger {path} cannot be read: this user may not read {file}. Ask "
                f"who owns it for the right to read all that lies there ({path.name}*)."
            )
            raise LedgerUnavailable(msg, ledger=place)
    alive = real_path(path, "-shm").exists()
    before = None if alive else _settled(path, place)
    uri = f"{path.as_uri()}?mode=ro{'' if alive else '&immutable=1'}"
    with closing(
        sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5
        )
    ) as connection:
        yield connection
    if not alive and before != _stamps(path):
        msg = (
            f"the ledger {path} was written while it was read, by something that does "
            "not hold its lock. Read it again."
        )
        raise LedgerUnavailable(msg, ledger=place)


def _settled(path: Path, place: str) -> tuple[_Stamp, _Stamp]:
    """Return what file and log are, once a change would surely be seen as one."""
    files = main, log = _stamps(path)
    if log is not None and log[2] > 0:
        msg = (
            f"the ledger {path} cannot be read here: its newest charges are in "
            f"{real_path(path, '-wal')}, which SQLite reads with a -shm file only, and "
            f"this user may not make one. Copy {path.name}* to a folder that can be "
            "written and read the copy, or make one with `dpflow ledger backup`."
        )
        raise LedgerUnavailable(msg, ledger=place)
    if main is not None and time.time() - main[3] / 1e9 <= _UNSURE:
        time.sleep(_UNSURE)
    return files


def _may(path: Path, right: int) -> bool:
    return os.access(path, right, effective_ids=_EFFECTIVE)


def _stamps(path: Path) -> tuple[_Stamp, _Stamp]:
    """Return what a ledger's file and its log are now."""
    return _stamp(path), _stamp(real_path(path, "-wal"))


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
