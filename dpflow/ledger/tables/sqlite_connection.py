"""The connection to a ledger in one SQLite file: durable, safe between processes.

SQLite's defaults lose acknowledged commits on power loss, and versions before 3.51.3
can lose them when two connections checkpoint concurrently. Hence WAL with
synchronous=FULL, both read back, and one file lock around every transaction.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import time
from functools import partial
from pathlib import Path
from weakref import WeakSet

from dpflow.exceptions import LedgerError, LedgerUnavailable
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import busy, refuse_version_4, unavailable
from dpflow.ledger.tables.owners import Owners
from dpflow.ledger.tables.sqlite_files import (
    FileId,
    check_left,
    check_tables,
    is_space_low,
    lack_of_space,
    look_at,
    not_writable,
    real_path,
    set_durable,
    sync_log,
    translate_error,
)
from dpflow.locks import FileLock, Turn, TurnQueue

#: How long to wait for the lock of a connection that has to be closed now.
_CLOSE_SECONDS = 5.0
#: So long SQLite itself waits for programs that are not dpflow.
BUSY_SECONDS = 5.0
#: A longer log is begun anew, if no reader is in the way during these seconds.
LOG_BYTES = 32 * 2**20
MOST_LOG_BYTES = 256 * 2**20
_TRUNCATE_SECONDS = 0.25


class SqliteConnection(Database):
    """A ledger file, its connection and its locks.

    One connection per object, used by one thread at a time and never across a fork.

    Args:
        path: The file, which must exist.
        read_only: Refuse every write, whatever this process may do.
    """

    #: Whether no program writes the file, such as a backup, and it stays as it is.
    is_at_rest = False
    # The driver cannot decode messages that quote damaged text.
    _errors = (sqlite3.Error, OSError, UnicodeDecodeError)

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        # The working directory may change while the ledger is in use.
        self.path = Path(path).absolute()
        super().__init__(str(path), read_only=read_only)
        self._wal_path = real_path(self.path, "-wal")
        self._file_lock = FileLock(real_path(self.path, ".lock"))
        self._connection: sqlite3.Connection | None = None
        #: The turn whose transaction was committed last.
        self._committed: Turn | None = None
        #: The file and the log that were opened.
        self._file: FileId | None = None
        self._wal: FileId | None = None
        self._log_limit = LOG_BYTES
        self._forking: dict[int, Turn] = {}
        _databases.add(self)

    @property
    def unwritable(self) -> LedgerUnavailable | None:
        """Why this process may only read the file; None if it may write it."""
        if self._connection is not None and not self._read_only:
            return None
        return super().unwritable or not_writable(self.path) or lack_of_space(self.path)

    @property
    def is_space_low(self) -> bool:
        """True if the disk of the ledger is nearly full."""
        return is_space_low(self.path)

    def owners(self) -> Owners:
        """Return an owner of charges; all names of the file share its folder."""
        return Owners(real_path(self.path, ".owners"))

    def close(self) -> None:
        """Close the connection; a later call opens it again.

        Raises:
            LedgerUnavailable: If another thread was in a transaction for too long.
        """
        with self._alone():
            self._close_connection(self.lock_seconds)
            self._file_lock.close()
        self._file = None

    def _connect_without_lock(self, until: float) -> sqlite3.Connection:
        """Return the connection without the writers' lock."""
        look_at(self.path, self._file)
        connection = self._connection
        if connection is None or not self._has_its_log():
            # To open or to close it may write to its files.
            connection = self._lock_connection(until)
            self._file_lock.free()
        connection.rollback()
        return connection

    def _shorten_log(self, connection: sqlite3.Connection) -> None:
        """Begin a long log anew, unless readers are in the way."""
        wait = "PRAGMA busy_timeout = {:.0f}"
        connection.execute(wait.format(1000 * _TRUNCATE_SECONDS))
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        connection.execute(wait.format(1000 * BUSY_SECONDS))
        # After a try in vain the log may grow before the next one, up to a limit.
        size = self._wal_path.stat().st_size
        self._log_limit = min(max(LOG_BYTES, 2 * size), MOST_LOG_BYTES)

    def _translate_error(self, error: Exception, waited: float) -> LedgerError:
        if str(error).startswith("no such column: id"):
            return refuse_version_4(self.address)
        return translate_error(error, self.path, waited)

    # The connection and its lock

    def _lock_connection(self, until: float) -> sqlite3.Connection:
        """Keep other processes away and return the connection."""
        if self._file_lock.is_held:
            # An interrupt prevented the end of the turn before.
            self._drop()
            self._file_lock.free()
        # Also so that no lock is made where a ledger was.
        look_at(self.path, self._file)
        if self._file_lock.take(until) is None:
            advice = f" (`fuser {self._file_lock.path}` names it)"
            raise busy(self.address, "process", self.lock_seconds, advice)
        self._check_same_files()
        if self._connection is None:
            self._connection = self._connect()
            self._wal, _ = self._log()
        self._connection.rollback()
        return self._connection

    def _leave(self, line: TurnQueue, turn: Turn) -> None:
        """Let go of all that a turn holds.

        After anything but a commit the connection may still be inside a transaction.
        """
        if turn.is_done:
            return
        if line.is_first(turn):
            if self._file_lock.is_held and turn is not self._committed:
                self._drop()
            self._file_lock.free()
        line.leave(turn)

    def _connect(self) -> sqlite3.Connection:
        others = (other for other in [*_databases] if other is not self)
        is_open = any(o._connection and o._file == self._file for o in others)  # noqa: SLF001
        check_left(self.path, is_open_here=is_open)
        check_tables(self.path)
        if not self._read_only:
            sync_log(self.path)
        self._wal = None
        # Assigned before it is used, so that whatever happens now closes it.
        self._connection = connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=BUSY_SECONDS,
        )
        set_durable(connection, self.path)
        if self._read_only:
            connection.execute("PRAGMA query_only = ON")
        return connection

    def _check_same_files(self) -> int:
        """Refuse to write into files that are no longer at their paths.

        Returns:
            The size of the log, in bytes.
        """
        self._file, (log, size) = look_at(self.path, self._file), self._log()
        if self._connection is not None and self._wal != log:
            self._drop()
        if self._file in _unusable:
            why = _unusable[self._file]
            what = f"cannot be used by this process: {why}. The step did not run; "
            raise unavailable(self.address, f"{what}start it again.")
        return size

    def _log(self) -> tuple[FileId | None, int]:
        """Return which -wal file is there, and its size in bytes."""
        try:
            status = os.stat(self._wal_path)  # noqa: PTH116 (at each step)
        except without_interrupts(FileNotFoundError):
            return None, 0
        return (status.st_dev, status.st_ino), status.st_size

    def _has_its_log(self) -> bool:
        """Return True if the -wal file is the one that was opened, if one was noted."""
        with suppress(OSError):
            return self._wal in (None, self._log()[0])
        return False

    def _drop(self) -> None:
        """Close the connection, while the lock is held: closing may checkpoint."""
        connection = self._connection
        if connection is None:
            return
        with suppress(sqlite3.Error):
            # Closing does not, as long as an error's traceback refers to a cursor.
            connection.rollback()
        if not self._has_its_log():
            # A process that reads the file without SQLite, say to copy it, loses the
            # locks of SQLite on it; the next to close it takes the -wal file away.
            self._abandon(
                "its -wal file was removed while in use, by hand or because this "
                "process opened and closed the ledger's file without SQLite"
            )
            return
        with suppress(sqlite3.Error):
            connection.close()
        self._connection = None

    def _close_connection(self, seconds: float | None = None) -> None:
        """Close the connection under the lock, or without it after some seconds."""
        if self._connection is not None:
            with suppress(OSError):
                self._file_lock.take(time.monotonic() + (seconds or _CLOSE_SECONDS))
            self._drop()

    def _abandon(self, reason: str) -> None:
        """Give up the file in this process, and the connection without closing it.

        Closing, even by the destructor at exit, would delete other processes' -wal.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
        self._connection = None
        if self._file is not None:
            _unusable[self._file] = reason

    # SQLite remembers per process which locks it holds on a file. A forked child
    # inherits that memory but not the locks: with a connection of its own it would
    # write to a file that others think is not in use, and its commits would be lost.
    # So no connection is open while this process forks.

    def _before_fork(self) -> None:
        if self._line.is_of_this_thread():
            # It forks inside a transaction.
            return
        turn = self._forking[threading.get_ident()] = Turn()
        if self._line.take(turn, _CLOSE_SECONDS):
            self._close_connection()
            self._file_lock.free()

    def _after_fork_in_parent(self) -> None:
        turn = self._forking.get(threading.get_ident())
        if turn is not None:
            self._leave(self._line, turn)
            self._forking.pop(threading.get_ident(), None)

    def _after_fork_in_child(self) -> None:
        if self._connection is not None:
            # A thread of the parent was inside a transaction for long.
            self._abandon("its parent was using it when it forked; try `spawn`")
        # An inherited descriptor keeps the lock held after the parent's death.
        self._file_lock.leave_to_parent()
        # A fork of this child must not take an inherited turn for its own.
        self._line = TurnQueue()
        super()._after_fork_in_child()
        self._forking.clear()


#: All that may be open when this process forks.
_databases: WeakSet[SqliteConnection] = WeakSet()
#: Files whose locks SQLite wrongly believes to hold in this process, and why.
_unusable: dict[FileId, str] = {}


def _call(method: str) -> None:
    for database in list(_databases):
        getattr(database, method)()


os.register_at_fork(
    before=partial(_call, "_before_fork"),
    after_in_parent=partial(_call, "_after_fork_in_parent"),
    after_in_child=partial(_call, "_after_fork_in_child"),
)
