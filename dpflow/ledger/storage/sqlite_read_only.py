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
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from dpflow.exceptions import LedgerMissing, LedgerUnavailable
from dpflow.ledger.storage.sqlite_files import (
    check_left,
    check_one_name,
    holder_of,
    real_path,
)
from dpflow.locks import FileLock

#: Device, inode, size and time of the last change.
_Stamp = tuple[int, int, int, int]
#: A file that was changed so many seconds ago may change again with no later time.
_UNSURE = 1.0


class _Files(NamedTuple):
    """The file of a ledger and its log, as they were at one time."""

    main: _Stamp | None
    wal: _Stamp | None

    @property
    def logged(self) -> bool:
        """Whether something is in the log."""
        return self.wal is not None and self.wal[2] > 0


def may_write(path: Path) -> bool:
    """Say whether this process may write a ledger file: SQLite needs its folder, too.

    True if there is no file: that is another error.
    """
    if not os.path.exists(path):  # noqa: PTH110 (Path raises where it may not look)
        return True
    effective = os.access in os.supports_effective_ids
    real = real_path(path)
    return all(
        os.access(each, os.W_OK, effective_ids=effective)
        for each in (real, real.parent)
    )


def not_writable(path: Path, place: str) -> LedgerUnavailable:
    """Make the error for a step that would be charged where nothing can be."""
    passive = os.statvfs(path).f_flag & os.ST_RDONLY
    why = "its file system is read-only" if passive else "this user may not"
    msg = (
        f"the ledger {path} may be read here and not written: {why}. So a release that "
        "it keeps is replayed, and nothing is charged. The step did not run. Run it "
        f"where the file and its folder {real_path(path).parent} can be written, as a "
        "user who may."
    )
    return LedgerUnavailable(msg, ledger=place)


class SqliteReader:
    """Opens a ledger file that this process may not write.

    Args:
        path: The file.
        place: The ledger, for messages.
        lock_seconds: How long to wait for who writes.
    """

    def __init__(self, path: Path, place: str, lock_seconds: float) -> None:
        self._path = path
        self._place = place
        self._lock_seconds = lock_seconds

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file in a transaction that reads one consistent state.

        Raises:
            LedgerMissing: If there is none.
            LedgerCorrupt: If its log was taken away.
            LedgerUnavailable: If something of it may not be read, or it is busy.
            sqlite3.Error: If SQLite cannot open it.
        """
        with self._locked():
            check_left(self._path, self._place)
            before = self._files()
            if before.main is None:
                msg = f"there is no ledger at {self._path}"
                raise LedgerMissing(msg, ledger=self._place)
            check_one_name(self._path.stat(), self._path, self._place)
            self._check_readable()
            alive = real_path(self._path, "-shm").exists()
            if not alive:
                before = self._settled(before)
            with self._connected(alive=alive) as connection:
                connection.execute("BEGIN")
                yield connection
            if not alive and before != self._files():
                raise self._changed()

    def _settled(self, files: _Files) -> _Files:
        """Return what the files are, once their last change is surely seen as one."""
        if files.logged:
            log = real_path(self._path, "-wal")
            msg = (
                f"the ledger {self._path} cannot be read here: its newest charges are "
                f"in {log}, which SQLite reads with a -shm file only, and this user "
                f"may not make one. Copy {self._path.name}* to a folder that can be "
                "written and read the copy, or make one with `dpflow ledger backup`."
            )
            raise LedgerUnavailable(msg, ledger=self._place)
        if files.main is not None and time.time() - files.main[3] / 1e9 <= _UNSURE:
            time.sleep(_UNSURE)
            if files != self._files():
                raise self._changed()
        return files

    def _changed(self) -> LedgerUnavailable:
        msg = (
            f"the ledger {self._path} was written while it was read, by something that "
            "does not hold its lock. Read it again."
        )
        return LedgerUnavailable(msg, ledger=self._place)

    @contextmanager
    def _connected(self, *, alive: bool) -> Iterator[sqlite3.Connection]:
        end = "" if alive else "&immutable=1"
        uri = f"{self._path.as_uri()}?mode=ro{end}"
        with closing(
            sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5
            )
        ) as connection:
            try:
                yield connection
            finally:
                with suppress(sqlite3.Error):
                    connection.rollback()

    def _files(self) -> _Files:
        return _Files(*(_stamp(real_path(self._path, end)) for end in ("", "-wal")))

    def _check_readable(self) -> None:
        effective = os.access in os.supports_effective_ids
        for end in ("", "-wal", "-shm"):
            file = real_path(self._path, end)
            if file.exists() and not os.access(file, os.R_OK, effective_ids=effective):
                raise self._unreadable(file)

    def _unreadable(self, file: Path) -> LedgerUnavailable:
        msg = (
            f"the ledger {self._path} cannot be read: this user may not read {file}. "
            f"Ask who owns it for the right to read {self._path.name} and all that "
            f"lies beside it ({self._path.name}*)."
        )
        return LedgerUnavailable(msg, ledger=self._place)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep away who writes, by the lock that each of their transactions takes.

        Where there is no lock file nobody has written yet; a copy has none.
        """
        lock = FileLock(real_path(self._path, ".lock"), os.O_RDONLY, shared=True)
        try:
            if lock.take(time.monotonic() + self._lock_seconds) is None:
                raise self._busy(lock.path)
        except FileNotFoundError:
            yield
            return
        except PermissionError:
            raise self._unreadable(lock.path) from None
        with closing(lock):
            yield

    def _busy(self, lock: Path) -> LedgerUnavailable:
        name, waited = holder_of(lock), self._lock_seconds
        msg = (
            f"another process{', ' + name + ',' if name else ''} holds the "
            f"lock of the ledger {self._path}; waited {waited:g} s. Try again."
        )
        return LedgerUnavailable(msg, ledger=self._place, waited=waited, holder=name)


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
