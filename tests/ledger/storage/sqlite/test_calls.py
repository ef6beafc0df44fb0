"""What the surroundings do to calls: locks, cut commits, clock jumps, versions."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from dpflow.ledger.office import apply_policy
from dpflow.ledger.storage import sqlite, sqlite_files

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger import Ledger, open_ledger
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.requests import Replayed
from dpflow.ledger.tables.sqlite_connection import SqliteStorage
from dpflow.ledger.tables.transaction import VERSION
from tests.ledger.faults import FaultySqlite
from tests.ledger.processes import holding
from tests.ledger.support import (
    BASIC,
    audit,
    edit,
    granted,
    impatient,
    kinds,
    ledger_on,
    make_ledger,
    new_ledger,
    request,
    sums,
    url,
)

SHORT = 0.4


# The lock


def test_another_process_that_holds_the_lock_is_waited_for_not_long(
    path: Path,
) -> None:
    """The deadline is one deadline: nothing was sent, so nothing is sent again."""
    ledger = impatient(path)
    step = request(ledger)
    with (
        holding(path),
        pytest.raises(LedgerUnavailable, match="another process") as caught,
    ):
        ledger.reserve(step)
    assert caught.value.waited == SHORT
    ledger.reserve(step)
    assert kinds(path) == ["open", "reserve"]
    ledger.close()


def test_closing_waits_for_the_lock(path: Path) -> None:
    """For the same reason, up to the deadline."""
    ledger, other = impatient(path), SqliteStorage(path)
    granted(ledger)
    with other.write():
        since = time.monotonic()
        ledger.storage.close()
        assert time.monotonic() - since >= SHORT
    granted(ledger)
    ledger.close()
    other.close()


def test_a_link_to_the_ledger_shares_its_lock(path: Path, tmp_path: Path) -> None:
    """SQLite follows links, so a process with a link must wait as well."""
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with (
        holding(path),
        pytest.raises(LedgerUnavailable, match="another process"),
    ):
        impatient(link)


def test_a_removed_lock_file_is_no_lock(path: Path) -> None:
    """Who deletes a stale lock file splits it: the old handle is not trusted."""
    ledger = impatient(path)
    granted(ledger)
    (path.parent / "ledger.db.lock").unlink()
    with holding(path), pytest.raises(LedgerUnavailable, match="another process"):
        ledger.reserve(request(ledger))
    granted(ledger)
    ledger.close()


def test_a_kept_error_keeps_no_transaction(tmp_path: Path) -> None:
    """Its traceback may refer to a cursor, and closing then rolls nothing back."""
    new_ledger(tmp_path).close()
    first = SqliteStorage(tmp_path / "ledger.db")
    kept: list[BaseException] = []
    try:
        with first.write() as session:
            reading = session.connection.execute("VALUES (1), (2), (3)")
            reading.fetchone()
            raise RuntimeError
    except RuntimeError as error:
        kept.append(error)
    with SqliteStorage(tmp_path / "ledger.db").write() as session:
        assert session.books() == []
    assert kept
    assert reading is not None


# Reading


def test_a_reader_holds_up_no_writer(path: Path) -> None:
    """It sees the state that it began with; another writer is waited for (control)."""
    ledger, reader = impatient(path), SqliteStorage(path)
    granted(ledger)
    with reader.read() as reading:
        before = reading.head()
        granted(ledger)
        assert reading.page(before[0]) == []
    with reader.read() as reading:
        assert reading.head()[0] == before[0] + 1
    with reader.write(), pytest.raises(LedgerUnavailable) as caught:
        granted(ledger)
    assert caught.value.waited == SHORT
    ledger.close()
    reader.close()


def test_a_long_log_is_begun_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a reader is in the way; then it may double, up to a limit."""
    ledger, reader = impatient(path), SqliteStorage(path)
    log = path.with_name("ledger.db-wal")
    granted(ledger)
    assert log.stat().st_size > 0
    storage: Any = ledger.storage
    monkeypatch.setattr(sqlite, "LOG_BYTES", 1)
    storage._log_limit = 1
    with reader.read() as reading:
        reading.head()
        granted(ledger)
        assert storage._log_limit == 2 * log.stat().st_size > 2
        monkeypatch.setattr(sqlite, "MOST_LOG_BYTES", log.stat().st_size + 1)
        storage._log_limit = 1
        granted(ledger)
        assert storage._log_limit == sqlite.MOST_LOG_BYTES
    storage._log_limit = 1
    granted(ledger)
    assert log.stat().st_size == 0
    assert storage._log_limit == 1
    granted(ledger)
    ledger.close()
    reader.close()


TENTH = Fraction(1, 10)


# An unknown COMMIT


@pytest.mark.parametrize("after", [True, False], ids=["applied", "lost"])
def test_a_settlement_whose_commit_was_cut_is_looked_up(
    path: Path, after: bool
) -> None:
    """It is found settled, or settled then: once, with its release."""
    database = FaultySqlite(path)
    ledger = ledger_on(database)
    reservation = granted(ledger, key="week/1")
    cuts = iter([True])

    def cut(sql: str) -> None:
        if sql == "COMMIT" and next(cuts, False):
            raise sqlite3.OperationalError("disk I/O error")

    setattr(database, "after" if after else "before", cut)
    ledger.settle(reservation, value='"the value"')
    assert list(cuts) == []
    assert kinds(path) == ["open", "reserve", "settle"]
    assert sums(path) == (TENTH, 0)
    answer = ledger.reserve(request(ledger, key="week/1"))
    assert isinstance(answer, Replayed)
    assert answer.value == '"the value"'
    audit(path)
    ledger.close()


# Versions


def test_another_version_is_refused_inside_each_write(
    ledger: Ledger, path: Path
) -> None:
    """A ledger may be migrated while this process has it open."""
    reservation, step = granted(ledger), request(ledger)
    edit(path, "UPDATE ledger SET version = 99")
    calls: tuple[Callable[[], object], ...] = (
        lambda: ledger.reserve(step),
        lambda: ledger.settle(reservation),
        lambda: open_ledger(url(path)),
        lambda: apply_policy(ledger, BASIC),
        lambda: verify(ledger),
        lambda: reconcile(ledger, {}, reason="test"),
    )
    before = kinds(path), sums(path)
    for call in calls:
        with pytest.raises(LedgerUnavailable, match="another version of dpflow"):
            call()
    assert (kinds(path), sums(path)) == before
    edit(path, f"UPDATE ledger SET version = {VERSION}")
    ledger.settle(reservation)
    audit(path)


def test_a_charge_that_is_found_counts_once_its_log_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is written once more; while it cannot be, the step does not run."""
    path = tmp_path / "ledger.db"
    make_ledger(path).close()
    storage = FaultySqlite(path)
    ledger = ledger_on(storage)
    granted(ledger)
    # As long as another program reads the file, closing it keeps the log.
    reader = sqlite3.connect(path)
    reader.execute("SELECT count(*) FROM ledger").fetchone()
    commits: list[str] = []
    synced: list[str] = []
    sync = sqlite_files.sync_path

    def fail(sql: str) -> None:
        if sql == "COMMIT" and not commits:
            commits.append(sql)
            message = "disk I/O error"
            raise sqlite3.OperationalError(message)

    def noted(place: Path) -> None:
        synced.append(place.name)
        sync(place)

    def failed(place: Path) -> None:
        raise OSError(errno.EIO, "the disk failed", str(place))

    storage.after = fail
    monkeypatch.setattr(sqlite_files, "sync_path", noted)
    granted(ledger)
    assert synced == ["ledger.db-wal"]
    commits.clear()
    monkeypatch.setattr(sqlite_files, "sync_path", failed)
    with pytest.raises(LedgerUnavailable):
        granted(ledger)
    reader.close()
    monkeypatch.setattr(sqlite_files, "sync_path", sync)
    granted(ledger)
    ledger.close()


def test_another_program_may_remove_the_log_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who closes the file last empties the log into it; SQLite then makes a new one."""
    log, look = tmp_path / "ledger.db-wal", Path.stat
    log.write_bytes(b"x")

    def removed(place: Path, **options: bool) -> object:
        result = look(place, **options)
        log.unlink()
        return result

    monkeypatch.setattr(Path, "stat", removed)
    sqlite_files.sync_log(tmp_path / "ledger.db")
    assert not os.path.exists(log)  # noqa: PTH110 (Path.stat is replaced)
