"""A ledger file that this process may read and not write.

SQLite reads a write-ahead log with the -shm file beside it, and makes that file where
it may. Opened as `immutable`, it leaves the log out, and with it the newest charges. So
a file with its log and -shm is read in its place, one without a log as it is if nothing
changes it meanwhile, and a log without its -shm is refused.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.storage.sqlite_files import (
    check_left,
    has_content,
    look_at,
    real_path,
)

#: A file that was changed so many seconds ago may change again with no later time.
_UNSURE = 1.0
_EFFECTIVE = os.access in os.supports_effective_ids


def not_writable(path: Path) -> LedgerUnavailable | None:
    """Return why this process may not write a ledger file or its folder.

    None if it may, or there is no file: that is another error.
    """
    real = real_path(path)
    if not _may(real, os.F_OK) or all(_may(e, os.W_OK) for e in (real, real.parent)):
        return None
    passive = os.statvfs(path).f_flag & os.ST_RDONLY
    why = "its file system is read-only" if passive else "this user may not"
    msg = (
        f"the ledger {path} may be read here and not written: {why}. A release that it "
        "keeps is replayed; the step did not run. Run it where the file and its folder "
        f"{real.parent} can be written."
    )
    return LedgerUnavailable(msg, ledger=str(path))


@contextmanager
def opened_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a ledger file that this process may not write.

    Raises:
        LedgerMissing: If there is none.
        LedgerCorrupt: If its log was taken away.
        LedgerUnavailable: If its log cannot be read here, or it is busy.
        OSError: If something of it may not be read.
        sqlite3.Error: If SQLite cannot open it.
    """
    look_at(path)
    check_left(path)
    log, index = real_path(path, "-wal"), real_path(path, "-shm")
    for file in (path, log, index):
        if file.exists() and not _may(file, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    alive, before = index.exists(), _stamps(path, log)
    if not alive and has_content(log):
        msg = (
            f"the ledger {path} cannot be read here: its newest charges are in {log}, "
            "which SQLite reads with a -shm file only, and this user may not make one. "
            f"Copy {path.name}* to a folder that can be written and read the copy, or "
            "make one with `dpflow ledger backup`."
        )
        raise LedgerUnavailable(msg, ledger=str(path))
    if not alive and time.time() - path.stat().st_mtime <= _UNSURE:
        time.sleep(_UNSURE)
    uri = f"{path.as_uri()}?mode=ro{'' if alive else '&immutable=1'}"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection
    if not alive and before != _stamps(path, log):
        msg = (
            f"the ledger {path} was written while it was read, by something that does "
            "not hold its lock. Read it again."
        )
        raise LedgerUnavailable(msg, ledger=str(path))


def _may(path: Path, right: int) -> bool:
    return os.access(path, right, effective_ids=_EFFECTIVE)


def _stamps(*files: Path) -> list[tuple[int, ...]]:
    """Return device, inode, size and time of the last change of some files."""
    stamps = [file.stat() for file in files if file.exists()]
    return [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stamps]
