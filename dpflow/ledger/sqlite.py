"""The ledger in one SQLite file, durable and safe between processes.

SQLite's defaults lose acknowledged commits on power loss, and versions before 3.51.3
can lose them when two connections checkpoint at once. Hence WAL with synchronous=FULL,
both read back, and one file lock around every transaction.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger.database import Row, migrations, statements

_LOCK_SECONDS = 30.0
_SPACE_BYTES = 16 * 2**20
_SLEEP_SECONDS = (0.0005, 0.02)


class SqliteSession:
    """One open transaction on a SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Run a named statement and return its rows."""
        return self._connection.execute(statements()[statement], values).fetchall()

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        return self._connection.execute(statements()[statement], values).rowcount


class SqliteDatabase:
    """A ledger file.

    One connection per object, used by one thread at a time and never across a fork.

    Args:
        path: The file. It must exist; `create` makes one.
        lock_seconds: How long to wait for other writers.
    """

    def __init__(self, path: Path, *, lock_seconds: float = _LOCK_SECONDS) -> None:
        self.path = Path(path)
        self.place = str(path)
        self._lock_seconds = lock_seconds
        self._thread_lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._lock_file: int | None = None
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()

    @classmethod
    def create(cls, path: Path) -> SqliteDatabase:
        """Make a new, empty ledger file and its tables.

        Raises:
            ConfigurationError: If something is at this place already.
            LedgerUnavailable: If the file cannot be written.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            msg = f"there is a file at {path} already; a ledger is never overwritten"
            raise ConfigurationError(msg) from None
        except OSError as error:
            raise cls._unavailable(path, error) from error
        database = cls(path)
        with database.write() as session:
            for migration in migrations():
                # executescript would commit first; the file is ours alone here.
                for statement in _split(migration):
                    session._connection.execute(statement)  # noqa: SLF001
        return database

    @contextmanager
    def write(self) -> Iterator[SqliteSession]:
        """Run a block in one immediate transaction under the ledger's lock."""
        with self._transaction("BEGIN IMMEDIATE") as session:
            yield session

    @contextmanager
    def read(self) -> Iterator[SqliteSession]:
        """Run a block that reads one consistent state."""
        with self._transaction("BEGIN") as session:
            yield session

    def close(self) -> None:
        """Close the connection and the lock; a later call opens them again."""
        with self._thread_lock:
            self._drop()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[SqliteSession]:
        if self._pid != os.getpid():
            self._forget()
        with self._thread_lock:
            try:
                connection = self._open()
                connection.execute(begin)
                yield SqliteSession(connection)
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._drop()
                raise self._translated(error) from error
            except OSError as error:
                self._drop()
                raise self._unavailable(self.path, error) from error
            except BaseException:
                # After any error the connection may still be inside a transaction.
                self._drop()
                raise
            finally:
                self._unlock()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._check_present()
        self._lock()
        if self._connection is None:
            self._connection = self._connect()
        self._check_same_file()
        return self._connection

    def _check_present(self) -> None:
        if not self.path.is_file():
            msg = (
                f"there is no ledger at {self.path}. For a new project, make one with "
                "`dpflow ledger init`; if there was one, restore it: a new, empty "
                "ledger would forget what has been spent."
            )
            raise LedgerMissing(msg, ledger=self.place)

    def _connect(self) -> sqlite3.Connection:
        if shutil.disk_usage(self.path.parent).free < _SPACE_BYTES:
            msg = f"less than 16 MiB are free beside the ledger {self.path}; free some"
            raise LedgerUnavailable(msg, ledger=self.place)
        connection = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode=rw",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=5,
        )
        connection.row_factory = sqlite3.Row
        try:
            _set_durable(connection, self.path)
        except BaseException:
            connection.close()
            raise
        status = self.path.stat()
        self._identity = (status.st_dev, status.st_ino)
        return connection

    def _check_same_file(self) -> None:
        """Refuse to write into a file that is no longer at its path."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            msg = f"the ledger {self.path} was removed while in use; restore it"
            raise LedgerMissing(msg, ledger=self.place) from None
        if self._identity != (status.st_dev, status.st_ino):
            msg = f"the ledger {self.path} was replaced while in use; restart the run"
            raise LedgerCorrupt(msg, ledger=self.place)

    def _lock(self) -> None:
        if self._lock_file is None:
            self._lock_file = os.open(
                f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        deadline = time.monotonic() + self._lock_seconds
        sleep = _SLEEP_SECONDS[0]
        while True:
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    msg = (
                        f"another process holds the lock of the ledger {self.path}; "
                        f"waited {self._lock_seconds:g} s. The step did not run; try "
                        f"again, or find the holder with `fuser {self.path}.lock`."
                    )
                    raise LedgerUnavailable(msg, ledger=self.place) from None
                time.sleep(sleep)
                sleep = min(2 * sleep, _SLEEP_SECONDS[1])
            else:
                return

    def _unlock(self) -> None:
        if self._lock_file is not None:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _drop(self) -> None:
        # Closing may checkpoint, so it happens while the lock is still held.
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
        lock_file, self._lock_file = self._lock_file, None
        if lock_file is not None:
            os.close(lock_file)
        self._identity = None

    def _forget(self) -> None:
        """Leave a forked parent's connection alone; even closing it would harm."""
        _abandoned.append(self._connection)
        lock_file, self._lock_file = self._lock_file, None
        if lock_file is not None:
            os.close(lock_file)
        self._connection, self._identity = None, None
        # Another thread may have held the lock in the parent, for ever in this child.
        self._thread_lock = threading.RLock()
        self._pid = os.getpid()

    def _translated(self, error: sqlite3.Error) -> DpflowError:
        text = str(error)
        if isinstance(error, sqlite3.OperationalError) or "readonly" in text:
            msg = (
                f"the ledger {self.path} cannot be used: {text}. The step did not run "
                "and nothing was charged unless `dpflow history` shows it."
            )
            return LedgerUnavailable(msg, ledger=self.place)
        msg = f"the ledger {self.path} is damaged or inconsistent: {text}"
        return LedgerCorrupt(msg, ledger=self.place)

    @staticmethod
    def _unavailable(path: Path, error: OSError) -> LedgerUnavailable:
        msg = f"the ledger {path} cannot be used: {error.strerror or error}"
        return LedgerUnavailable(msg, ledger=str(path))


#: Connections inherited over a fork: kept so that no destructor ever closes them.
_abandoned: list[sqlite3.Connection | None] = []


def _set_durable(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    if (mode, level) != ("wal", 2):
        msg = (
            f"the ledger {path} cannot be made durable here (journal_mode={mode}, "
            f"synchronous={level}); put it on a local file system"
        )
        raise LedgerUnavailable(msg, ledger=str(path))


def _split(script: str) -> list[str]:
    """Split a migration into statements; triggers hold semicolons of their own."""
    found, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
