"""A ledger file: durable, exclusive, never replaced unseen; its locks and versions."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpflow import PureDP, guarded
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.guard.project import current_project
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.requests import Granted
from dpflow.ledger.tables import sqlite_connection, sqlite_files
from dpflow.ledger.tables.owners import Owners
from dpflow.ledger.tables.sqlite import SqliteDatabase
from dpflow.ledger.tables.transaction import VERSION, Transaction
from tests.faults.drivers import FaultySqlite
from tests.ledger.processes import Child, answer_of_child, die, holding
from tests.ledger.support import (
    BASIC,
    audit,
    edit,
    granted,
    impatient,
    kinds,
    ledger_on,
    owners_of,
    read,
    refusal,
    request,
    state_of,
    sums,
    url,
    write_a_row,
)
from tests.projects import POLICY, held, make_project, spent

TENTH = Fraction(1, 10)


def pragmas(ledger: Ledger) -> dict[str, object]:
    """Read settings back on the live connection."""
    database = ledger.database
    assert isinstance(database, SqliteDatabase)
    connection = database._connection
    assert connection is not None
    names = ("journal_mode", "synchronous", "fullfsync")
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}


def files_in(folder: Path) -> list[str]:
    """Return the names of what lies in a folder."""
    return sorted(item.name for item in folder.iterdir())


# Durability


DURABLE = {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1}


@pytest.mark.promise("power-failure")
def test_the_live_connection_is_durable(ledger):
    """WAL and synchronous=FULL hold on the connection that writes, and on the next."""
    granted(ledger)
    assert pragmas(ledger) == DURABLE
    with pytest.raises(ZeroDivisionError), ledger.database.transaction():
        _ = 1 / 0
    granted(ledger)
    assert pragmas(ledger) == DURABLE


class Forgetful(sqlite3.Connection):
    """A driver that says yes to FULL and stays at NORMAL."""

    def execute(self, sql: str) -> sqlite3.Cursor:  # type: ignore[override]
        """Run a statement, a weaker one if it asks for durability."""
        return super().execute(sql.replace("synchronous = FULL", "synchronous = 1"))


@pytest.mark.promise("power-failure")
def test_a_connection_that_is_not_durable_is_refused(path, monkeypatch):
    """The settings are read back: what cannot be made durable is not used."""
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Forgetful)
    )
    with pytest.raises(LedgerUnavailable, match="synchronous=1"):
        open_ledger(url(path))


@pytest.mark.promise("failed-call")
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (ValueError, ValueError),
        (KeyboardInterrupt, KeyboardInterrupt),
        (OSError, OSError),
        (TimeoutError, TimeoutError),
        (OSError(errno.EIO, "x"), LedgerUnavailable),
        (sqlite3.OperationalError, LedgerUnavailable),
        (sqlite3.DatabaseError, LedgerCorrupt),
    ],
)
def test_an_error_in_a_block_leaves_nothing(ledger, path, error, seen):
    """A transaction that does not end well did not happen, whatever the error."""

    def write_and_fail() -> None:
        with ledger.database.transaction() as session:
            write_a_row(session)
            raise error

    with pytest.raises(seen):
        write_and_fail()
    assert read(path, "SELECT count(*) FROM dataset") == [(0,)]
    granted(ledger)


# Never made, never replaced


@pytest.mark.promise("missing-file")
@pytest.mark.parametrize("folder", ["", "missing/"])
def test_a_missing_ledger_is_an_error(tmp_path, folder):
    """Opening makes no file, not even a lock: a new ledger forgets what was spent."""
    with pytest.raises(LedgerMissing, match="dpflow ledger init"):
        open_ledger(url(tmp_path / f"{folder}ledger.db"))
    assert files_in(tmp_path) == []


@pytest.mark.promise("missing-file")
@pytest.mark.parametrize(
    "content", [b"", b"no database at all" * 300, b"SQLite format 3\0" + b"\xff" * 8000]
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path, content):
    """An empty or foreign file is damage, not an invitation."""
    place = tmp_path / "ledger.db"
    place.write_bytes(content)
    with pytest.raises(LedgerCorrupt):
        open_ledger(url(place))
    with pytest.raises(ConfigurationError):
        create_ledger(url(place))
    assert read_tables(place) == []


def read_tables(path: Path) -> list[tuple[Any, ...]]:
    """Return the tables of a database; another file has no tables."""
    try:
        return read(path, "SELECT name FROM sqlite_master")
    except sqlite3.DatabaseError:
        return []


@pytest.mark.promise("missing-file")
def test_another_database_is_no_ledger(tmp_path):
    """Nothing is added to a database that belongs to someone else."""
    place = tmp_path / "ledger.db"
    edit(place, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)")
    with pytest.raises(LedgerCorrupt, match="No such table"):
        open_ledger(url(place))
    assert read_tables(place) == [("theirs",)]


@pytest.mark.promise("other-version")
def test_a_ledger_of_another_version_is_refused_and_kept(path):
    """Its tables may be others; it stays as it is."""
    edit(path, "UPDATE ledger SET version = 6", "DROP TABLE run", locked=True)
    before = path.read_bytes()
    with pytest.raises(LedgerUnavailable, match=r"version 6.*Use a newer dpflow"):
        open_ledger(url(path))
    assert path.read_bytes() == before


@pytest.mark.promise("removed-file")
def test_a_removed_ledger_is_noticed(ledger, path):
    """A grant in a removed file would be lost, so the ledger refuses."""
    granted(ledger)
    for item in path.parent.glob("ledger.db*"):
        if item.is_file():
            item.unlink()
    for _ in range(2):
        with pytest.raises(LedgerMissing, match="removed"):
            ledger.reserve(request(ledger))


@pytest.mark.promise("removed-file")
@pytest.mark.parametrize(
    ("same_id", "is_open", "words"),
    [(True, True, "replaced"), (False, True, "replaced"), (False, False, "another")],
)
def test_a_replaced_ledger_is_refused_for_good(ledger, path, same_id, is_open, words):
    """Not only once: the next call does not take the new file for the old one."""
    copy = path.with_name("copy.db")
    ledger.database.close()
    if same_id:
        shutil.copy(path, copy)
    else:
        create_ledger(url(copy)).close()
    step = request(ledger, "0.9")
    if is_open:
        granted(ledger, "0.9")
        ledger.database._drop()  # type: ignore[attr-defined]
    copy.replace(path)
    for call in [lambda: ledger.reserve(step)] * 3 + [lambda: ledger.settle("any")]:
        with pytest.raises(LedgerCorrupt, match=words):
            call()
    assert kinds(path) == []


def test_a_relative_ledger_stays_where_it_was(path, monkeypatch):
    """A program that changes its working directory keeps its ledger and its name."""
    monkeypatch.chdir(path.parent)
    ledger = open_ledger("sqlite:///ledger.db")
    reservation = granted(ledger)
    owner = ledger.owners.mine()
    monkeypatch.chdir("/")
    granted(ledger)
    assert sums(path) == (0, 2 * TENTH)
    assert answer_of_child(lambda: owners_of(path).alive(owner)) == "True"
    assert ledger.owners.alive(owner)
    ledger.settle(reservation)
    assert sums(path) == (TENTH, TENTH)
    ledger.close()


# Read-only, full


def test_a_wal_that_is_removed_during_a_transaction_is_noticed(ledger, path):
    """What went into a file that is not there any more is not acknowledged."""

    def write() -> None:
        with ledger.database.transaction() as session:
            write_a_row(session)
            (path.parent / "ledger.db-wal").unlink()

    with pytest.raises(LedgerUnavailable, match="-wal"):
        write()
    with pytest.raises(LedgerUnavailable, match="-wal"):
        ledger.reserve(request(ledger))


# Moved


@pytest.mark.promise("removed-file")
def test_a_renamed_ledger_is_noticed_until_it_is_back(ledger, path):
    """Also between BEGIN and COMMIT: what is not at its place is not acknowledged."""
    granted(ledger)
    away = path.with_name("away.db")
    step = request(ledger)

    def move() -> None:
        with ledger.database.transaction():
            path.rename(away)

    with pytest.raises(LedgerMissing, match="removed while in use"):
        move()
    with pytest.raises(LedgerMissing):
        ledger.reserve(step)
    assert not path.exists()
    away.rename(path)
    ledger.reserve(step)
    assert sums(path) == (0, 2 * TENTH)
    audit(path)


def crashed(path: Path) -> str:
    """Let a process be granted a step and die; its charge is in the -wal only."""

    def work(say: Callable[[str], None]) -> None:
        say(granted(open_ledger(url(path))))
        die()

    code, lines = Child(work).end()
    assert code == -signal.SIGKILL
    return lines[0]


@pytest.mark.promise("deleted-log")
def test_a_log_deleted_after_a_crash_is_noticed(path):
    """SQLite would open the ledger without its newest charges, and find it sound."""
    reservation = crashed(path)
    wal, kept = path.with_name("ledger.db-wal"), path.with_name("kept")
    wal.rename(kept)
    shutil.copy(path, path.with_name("alone.db"))
    assert sums(path.with_name("alone.db")) == (0, 0)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="newest charges"):
            open_ledger(url(path))
        assert not wal.exists()
    kept.rename(wal)
    open_ledger(url(path)).close()
    assert state_of(path, reservation) == "open"
    audit(path)


def test_a_log_without_its_ledger_is_not_deleted(path):
    """SQLite deletes a log without its ledger, and it may be the only copy."""
    crashed(path)
    wal, away = path.with_name("ledger.db-wal"), path.with_name("away.db")
    before = wal.read_bytes()
    path.rename(away)
    with pytest.raises(ConfigurationError, match="-wal is there"):
        create_ledger(url(path))
    with pytest.raises(LedgerMissing):
        open_ledger(url(path))
    path.touch()
    with pytest.raises(LedgerCorrupt, match="is empty"):
        open_ledger(url(path))
    assert wal.read_bytes() == before
    away.replace(path)
    open_ledger(url(path)).close()
    assert sums(path) == (0, TENTH)


OTHERS = """
import os, sys
from dpflow.ledger.opening import open_ledger
from tests.ledger.processes import die
from tests.ledger.support import granted
ledger = open_ledger(sys.argv[1])
print(granted(ledger, "0.01"), flush=True)
ledger.close() if sys.argv[2] == "close" else die()
"""


def test_reading_the_file_by_hand_loses_nothing(path):
    """A process that opens and closes the file drops SQLite's locks on it.

    Then the next process to close the ledger deletes the -wal that is in use: a grant
    into the deleted one would be lost, and closing it would delete the next one.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def other(end: str) -> str:
        command = [sys.executable, "-c", OTHERS, url(path), end]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, check=False
        )
        return done.stdout.strip()

    def work(say: Callable[[str], None]) -> None:
        with closing(open_ledger(url(path))) as ledger:
            say(granted(ledger, "0.01"))
            path.read_bytes()
            say(other("close"))
            say(other("die"))
            say(refusal(lambda: say(granted(ledger, "0.01"))))
            say(refusal(lambda: say(granted(ledger, "0.01"))))
        gc.collect()
        say("end")

    code, lines = Child(work).end()
    assert (code, lines[3:]) == (0, ["LedgerUnavailable"] * 2 + ["end"])
    assert [state_of(path, name) for name in lines[:3]] == ["open"] * 3
    assert sums(path) == (0, Fraction(3, 100))
    audit(path)


SHORT = 0.4


# The lock


def test_closing_waits_for_the_lock(path):
    """For the same reason, up to the deadline."""
    ledger, other = impatient(path), SqliteDatabase(path)
    granted(ledger)
    with other.transaction():
        since = time.monotonic()
        ledger.database.close()
        assert time.monotonic() - since >= SHORT
    granted(ledger)
    ledger.close()
    other.close()


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
    ledger, reader = impatient(path), SqliteDatabase(path)
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
    ledger.close()
    reader.close()


def test_a_long_log_is_begun_anew(path, monkeypatch):
    """Unless a reader is in the way; then it may double, up to a limit."""
    ledger, reader = impatient(path), SqliteDatabase(path)
    log, database = path.with_name("ledger.db-wal"), ledger.database
    assert isinstance(database, SqliteDatabase)
    granted(ledger)
    assert log.stat().st_size > 0
    monkeypatch.setattr(sqlite_connection, "LOG_BYTES", 1)
    database._log_limit = 1
    with reader.snapshot() as reading:
        number_in(reading)
        granted(ledger)
        assert database._log_limit == 2 * log.stat().st_size > 2
        monkeypatch.setattr(sqlite_connection, "MOST_LOG_BYTES", log.stat().st_size + 1)
        database._log_limit = 1
        granted(ledger)
        assert database._log_limit == sqlite_connection.MOST_LOG_BYTES
    database._log_limit = 1
    granted(ledger)
    assert (log.stat().st_size, database._log_limit) == (0, 1)
    granted(ledger)
    ledger.close()
    reader.close()


# Versions


@pytest.mark.promise("other-version")
def test_another_version_is_refused_inside_each_write(ledger, path):
    """A ledger may be migrated while this process has it open."""
    reservation, step = granted(ledger), request(ledger)
    edit(path, "UPDATE ledger SET version = 99")
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
        with pytest.raises(LedgerUnavailable, match="version 99"):
            call()
    assert (kinds(path), sums(path)) == before
    edit(path, f"UPDATE ledger SET version = {VERSION}")
    ledger.settle(reservation)
    audit(path)


@pytest.mark.promise("failed-call")
def test_a_charge_that_is_found_counts_once_its_log_was_synced(path, monkeypatch):
    """The log is written once more; while it cannot be, the step does not run."""
    database = FaultySqlite(path)
    ledger = ledger_on(database)
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

    database.after = fail
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


def test_another_program_may_remove_the_log_meanwhile(tmp_path, monkeypatch):
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


# Locks that the system does not give


def failing_at(number: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Let the n-th call of `flock`, unlocking included, fail; return all calls."""
    real, calls = fcntl.flock, list[int]()

    def flock(descriptor: int, what: int) -> None:
        calls.append(what)
        if len(calls) == number:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        real(descriptor, what)

    patch.setattr(fcntl, "flock", flock)
    return calls


def ledger_errors(call: Callable[[], object]) -> list[LedgerUnavailable]:
    """Return what a call says of the ledger, if it says anything."""
    try:
        call()
    except LedgerUnavailable as error:
        return [error]
    return []


@pytest.mark.promise("no-locks")
def test_every_lock_of_a_step_may_fail(tmp_path, monkeypatch):
    """What comes out is an error of dpflow, or the step with its charge."""
    make_project(tmp_path, monkeypatch, POLICY)
    ran: list[int] = []
    step = guarded(dataset="shop", cost=PureDP(epsilon="0.01"), name="n")(ran.append)
    step(0)
    errors: list[LedgerUnavailable] = []
    for number in range(1, 100):
        with monkeypatch.context() as patch:
            calls = failing_at(number, patch)
            errors += ledger_errors(lambda number=number: step(number))
        if len(calls) < number:
            break
    assert number > 6
    assert errors
    for error in errors:
        assert "No locks available" in error.message
        assert "try again" in error.message
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
    ledger = ledger_on(database)
    granted(ledger)
    step, begun = request(ledger), list[str]()

    def hold(say: Callable[[str], None]) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        say("held")
        time.sleep(60)

    child = Child(hold)
    assert child.line() == "held"
    database.before = begun.append
    with pytest.raises(LedgerUnavailable, match=r"try again .*fuser") as error:
        ledger.reserve(step)
    assert begun.count("BEGIN IMMEDIATE") == 1
    assert error.value.details["waited"] >= 0.8
    child.kill()
    assert isinstance(ledger.reserve(step), Granted)
    ledger.close()


def without_record_locks(patch: pytest.MonkeyPatch) -> None:
    """Let no file's record lock be given."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    patch.setattr(fcntl, "lockf", refuse)


@pytest.mark.promise("no-locks")
def test_an_owner_that_the_system_does_not_show_is_not_waited_for(path, monkeypatch):
    """A dead owner that was taken for a living one would keep its key for an hour."""

    def claim(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        granted(ledger, key="x")
        say("claimed")
        die()

    with closing(open_ledger(url(path))) as ledger:
        step = request(ledger, key="x")
        child = Child(claim)
        assert child.line() == "claimed"
        child.end()
        with monkeypatch.context() as patch:
            without_record_locks(patch)
            with pytest.raises(
                LedgerUnavailable, match=r"No locks available.*try again"
            ):
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
