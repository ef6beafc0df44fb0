"""The locks of a ledger file, its readers, and other versions of it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow import PureDP, guarded
from dpflow.exceptions import LedgerUnavailable
from dpflow.guard.project import current_project
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Granted
from dpflow.ledger.tables import sqlite_connection, sqlite_files
from dpflow.ledger.tables.owners import Owners
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.transaction import VERSION, Transaction
from tests.faults.drivers import FaultySqlite
from tests.faults.support import Nth
from tests.ledger.processes import answer_of_child, holding
from tests.ledger.support import (
    BASIC,
    audit,
    edit,
    granted,
    impatient,
    kinds,
    ledger_on,
    request,
    sums,
    url,
    write_a_row,
)
from tests.projects import POLICY, held, make_project, spent

SHORT = 0.4


# The lock


def test_closing_waits_for_the_lock(path):
    """For the same reason, up to the deadline."""
    with closing(impatient(path)) as ledger, closing(SqliteDatabase(path)) as other:
        granted(ledger)
        with other.transaction():
            since = time.monotonic()
            ledger.database.close()
            assert time.monotonic() - since >= SHORT
        granted(ledger)


def test_a_link_to_the_ledger_shares_its_lock(ledger, path):
    """SQLite follows links, so a process with a link must wait as well."""
    granted(ledger)
    link = path.with_name("link.db")
    link.symlink_to(path)
    with holding(path), pytest.raises(LedgerUnavailable, match="another process"):
        impatient(link)


def test_a_kept_error_keeps_no_transaction(path):
    """Its traceback may refer to a cursor, and closing then rolls nothing back."""
    first, kept = SqliteDatabase(path), list[BaseException]()
    try:
        with first.transaction() as session:
            reading = session.connection.execute("VALUES (1), (2), (3)")
            reading.fetchone()
            raise RuntimeError
    except RuntimeError as error:
        kept.append(error)
    with SqliteDatabase(path).transaction() as session:
        write_a_row(session)
    assert (len(kept), reading is None) == (1, False)


# Reading


def number_in(transaction: Transaction) -> int:
    """Return the number of the newest entry of a dataset."""
    transaction.begin(["a"], lock=False)
    return transaction.datasets["a"].number


@pytest.mark.promise("long-read")
def test_a_reader_holds_up_no_writer(path):
    """It sees the state that it began with; another writer is waited for (control)."""
    with closing(impatient(path)) as ledger, closing(SqliteDatabase(path)) as reader:
        granted(ledger)
        with reader.snapshot() as reading:
            before = number_in(reading)
            granted(ledger)
            assert number_in(reading) == before
        with reader.snapshot() as reading:
            assert number_in(reading) == before + 1
        with reader.transaction(), pytest.raises(LedgerUnavailable) as caught:
            granted(ledger)
        assert caught.value.waited == SHORT


def test_a_long_log_is_begun_anew(path, monkeypatch):
    """Unless a reader is in the way; then it may double, up to a limit."""
    with closing(impatient(path)) as ledger, closing(SqliteDatabase(path)) as reader:
        log, database = path.with_name("ledger.db-wal"), ledger.database
        granted(ledger)
        assert log.stat().st_size > 0
        monkeypatch.setattr(sqlite_connection, "LOG_BYTES", 1)
        database._log_limit = 1
        with reader.snapshot() as reading:
            number_in(reading)
            granted(ledger)
            most = log.stat().st_size + 1
            assert database._log_limit == 2 * (most - 1) > 2
            monkeypatch.setattr(sqlite_connection, "MOST_LOG_BYTES", most)
            database._log_limit = 1
            granted(ledger)
            assert database._log_limit == most
        database._log_limit = 1
        granted(ledger)
        assert (log.stat().st_size, database._log_limit) == (0, 1)
        granted(ledger)


# Versions


@pytest.mark.promise("other-version")
def test_another_version_is_refused_inside_each_write(ledger, path):
    """A ledger may be migrated while this process has it open; it stays as it is."""
    reservation, step = granted(ledger), request(ledger)
    newer = "UPDATE ledger SET version = 99", "ALTER TABLE run RENAME TO other"
    edit(path, *newer, locked=True)
    calls: tuple[Callable[[], object], ...] = (
        lambda: ledger.reserve(step),
        lambda: ledger.settle(reservation),
        lambda: open_ledger(url(path)),
        lambda: ledger.apply(BASIC),
        lambda: verify(ledger),
        lambda: reconcile(ledger, reason="test"),
    )
    before = kinds(path), sums(path)
    for call in calls:
        with pytest.raises(LedgerUnavailable, match=r"version 99.*Use a newer dpflow"):
            call()
    assert (kinds(path), sums(path)) == before
    older = f"UPDATE ledger SET version = {VERSION}", "ALTER TABLE other RENAME TO run"
    edit(path, *older, locked=True)
    ledger.settle(reservation)
    audit(path)


@pytest.mark.promise("failed-call")
def test_a_charge_that_is_found_counts_once_its_log_was_synced(path, monkeypatch):
    """The log is written once more; while it cannot be, the step does not run."""
    database, sync = FaultySqlite(path), sqlite_files.sync_path
    synced: list[str] = []

    def noted(place: Path) -> None:
        synced.append(place.name)
        sync(place)

    def failed(place: Path) -> None:
        raise OSError(errno.EIO, "the disk failed", str(place))

    def grant_after_failure(sync_path: Callable[[Path], None]) -> None:
        failure = Nth(0, sqlite3.OperationalError("disk I/O error"), once=True)
        database.after = lambda sql: failure(sql) if sql == "COMMIT" else None
        monkeypatch.setattr(sqlite_files, "sync_path", sync_path)
        granted(ledger)

    # As long as another program reads the file, closing it keeps the log.
    with closing(ledger_on(database)) as ledger:
        granted(ledger)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("SELECT count(*) FROM ledger").fetchone()
            grant_after_failure(noted)
            assert synced == ["ledger.db-wal"]
            with pytest.raises(LedgerUnavailable):
                grant_after_failure(failed)
        monkeypatch.setattr(sqlite_files, "sync_path", sync)
        granted(ledger)


def test_another_program_may_remove_the_log_meanwhile(tmp_path, monkeypatch):
    """Who closes the file last empties the log into it; SQLite then makes a new one."""
    log, look = tmp_path / "ledger.db-wal", Path.stat
    log.write_bytes(b"x")

    def remove(place: Path) -> object:
        found = look(place)
        log.unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", remove)
        sqlite_files.sync_log(tmp_path / "ledger.db")
    assert not log.exists()


# Locks that the system does not give


@pytest.mark.promise("no-locks")
def test_every_lock_of_a_step_may_fail(tmp_path, monkeypatch):
    """What comes out is an error of dpflow, or the step with its charge."""
    make_project(tmp_path, monkeypatch, POLICY)
    ran: list[int] = []
    step = guarded(dataset="shop", cost=PureDP(epsilon="0.01"), name="n")(ran.append)
    step(0)
    errors, flock = list[LedgerUnavailable](), fcntl.flock
    for number in range(100):
        fail = Nth(number, OSError(errno.ENOLCK, "No locks available"), once=True)
        # Unlocking is one of the calls.
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", lambda *call, at=fail: at("") or flock(*call))
            try:
                step(number)
            except LedgerUnavailable as error:
                errors.append(error)
        if not fail.came:
            break
    assert number > 6
    assert errors
    for error in errors:
        assert re.search("No locks available.*try again", error.message)
    charged = Fraction(spent()) + Fraction(held())
    assert charged * 100 >= len(ran) > number // 2
    assert verify(current_project().ledger).bad == []


@pytest.mark.promise("no-locks")
def test_a_lock_that_sqlite_does_not_get_is_waited_for_once(path, monkeypatch):
    """To send it again would wait as long again, and others wait behind it.

    SQLite says of a lock that the system does not give what it says of one that a
    program which is not dpflow holds.
    """
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS", 1)
    database = FaultySqlite(path)
    with closing(ledger_on(database)) as ledger:
        granted(ledger)
        step, statements = request(ledger), list[str]()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            database.before = statements.append
            with pytest.raises(LedgerUnavailable, match=r"try again .*fuser") as error:
                ledger.reserve(step)
        assert statements.count("BEGIN IMMEDIATE") == 1
        assert error.value.details["waited"] >= 0.8
        assert isinstance(ledger.reserve(step), Granted)


def without_record_locks(patch: pytest.MonkeyPatch) -> None:
    """Let no file's record lock be given."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    patch.setattr(fcntl, "lockf", refuse)


@pytest.mark.promise("no-locks")
def test_an_owner_that_the_system_does_not_show_is_not_waited_for(path, monkeypatch):
    """A dead owner that was taken for a living one would keep its key for an hour."""
    answer_of_child(lambda: granted(open_ledger(url(path)), key="x"))
    with closing(open_ledger(url(path))) as ledger:
        step = request(ledger, key="x")
        with monkeypatch.context() as patch:
            without_record_locks(patch)
            words = r"No locks available.*try again"
            with pytest.raises(LedgerUnavailable, match=words):
                ledger.reserve(step)
        assert isinstance(ledger.reserve(step), Granted)


def opened(path: Path) -> int:
    """Return how often this process has a file open."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        # The folder that is being listed is closed again.
        with suppress(FileNotFoundError):
            count += each.readlink() == path
    return count


def test_a_process_that_cannot_lock_its_name_reserves_nothing(path, monkeypatch):
    """Nor does it leave an open descriptor for each time it tried."""
    file = path.with_name("owners")
    owners, other = Owners(file), Owners(file)
    with monkeypatch.context() as patch:
        without_record_locks(patch)
        for _ in range(3):
            with pytest.raises(LedgerUnavailable, match="No locks"):
                owners.mine()
        assert opened(file) == 0
    assert owners.alive(owners.mine())
    assert other.mine() != owners.mine()
    assert opened(file) == 1
    for each in (owners, other):
        each.close()
    assert opened(file) == 0
