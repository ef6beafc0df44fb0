"""The ledger file: durable, exclusive, never made or replaced behind one's back."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from dpflow.ledger.storage import sqlite

from dpflow import PureDP, guarded
from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.guard.project import current_project
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.requests import Granted
from dpflow.ledger.tables.owners import Owners
from dpflow.ledger.tables.sqlite_connection import SqliteStorage
from tests.ledger.faults import FaultySqlite
from tests.ledger.processes import Child, answer_of_child, die
from tests.ledger.support import (
    edit,
    granted,
    kinds,
    ledger_on,
    owners_of,
    read,
    request,
    sums,
    url,
    write_a_row,
)
from tests.projects import POLICY, held, make_project, spent

TENTH = Fraction(1, 10)


def pragmas(ledger: Ledger) -> dict[str, object]:
    """Read settings back on the live connection."""
    database = ledger.storage
    assert isinstance(database, SqliteStorage)
    connection = database._connection
    assert connection is not None
    names = ("journal_mode", "synchronous", "fullfsync")
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}


def files_in(folder: Path) -> list[str]:
    """Return the names of what lies in a folder."""
    return sorted(item.name for item in folder.iterdir())


# Durability


DURABLE = {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1}


def test_the_live_connection_is_durable(ledger: Ledger) -> None:
    """WAL and synchronous=FULL hold on the connection that writes, and on the next."""
    granted(ledger)
    assert pragmas(ledger) == DURABLE
    with pytest.raises(ZeroDivisionError), ledger.storage.write():
        _ = 1 / 0
    granted(ledger)
    assert pragmas(ledger) == DURABLE


class Forgetful(sqlite3.Connection):
    """A driver that says yes to FULL and stays at NORMAL."""

    def execute(self, sql: str) -> sqlite3.Cursor:  # type: ignore[override]
        """Run a statement, a weaker one if it asks for durability."""
        return super().execute(sql.replace("synchronous = FULL", "synchronous = 1"))


def test_a_connection_that_is_not_durable_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are read back: what cannot be made durable is not used."""
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Forgetful)
    )
    with pytest.raises(LedgerUnavailable, match="synchronous=1"):
        open_ledger(url(path))


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
def test_an_error_in_a_block_leaves_nothing(
    ledger: Ledger,
    path: Path,
    error: type[BaseException] | BaseException,
    seen: type[BaseException],
) -> None:
    """A transaction that does not end well did not happen, whatever the error."""

    def write_and_fail() -> None:
        with ledger.storage.write() as session:
            write_a_row(session)
            raise error

    with pytest.raises(seen):
        write_and_fail()
    assert read(path, "SELECT count(*) FROM claim") == [(0,)]
    granted(ledger)


# Never made, never replaced


@pytest.mark.parametrize("folder", ["", "missing/"])
def test_a_missing_ledger_is_an_error(tmp_path: Path, folder: str) -> None:
    """Opening makes no file, not even a lock: a new ledger forgets what was spent."""
    with pytest.raises(LedgerMissing, match="dpflow ledger init"):
        open_ledger(url(tmp_path / f"{folder}ledger.db"))
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    "content", [b"", b"no database at all" * 300, b"SQLite format 3\0" + b"\xff" * 8000]
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path, content: bytes) -> None:
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


def test_another_database_is_no_ledger(tmp_path: Path) -> None:
    """Nothing is added to a database that belongs to someone else."""
    place = tmp_path / "ledger.db"
    edit(place, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)")
    with pytest.raises(LedgerCorrupt, match="No such table"):
        open_ledger(url(place))
    assert read_tables(place) == [("theirs",)]


def test_a_ledger_of_another_version_is_refused_and_kept(path: Path) -> None:
    """Its tables may be others; it stays as it is."""
    edit(
        path, "UPDATE ledger SET version = version + 1", "DROP TABLE kept", locked=True
    )
    before = path.read_bytes()
    with pytest.raises(LedgerUnavailable, match="another version") as caught:
        open_ledger(url(path))
    for word in ("dpflow ledger init", "prior spending"):
        assert word in caught.value.message
    assert path.read_bytes() == before


def test_a_removed_ledger_is_noticed(ledger: Ledger, path: Path) -> None:
    """A grant in a removed file would be lost, so the ledger refuses."""
    granted(ledger)
    for item in path.parent.glob("ledger.db*"):
        if item.is_file():
            item.unlink()
    for _ in range(2):
        with pytest.raises(LedgerMissing, match="removed"):
            ledger.reserve(request(ledger))


@pytest.mark.parametrize("same_id", [True, False])
def test_a_replaced_ledger_is_refused_for_good(
    ledger: Ledger, path: Path, tmp_path: Path, same_id: bool
) -> None:
    """Not only once: the next call does not take the new file for the old one."""
    copy = tmp_path / "copy.db"
    if same_id:
        ledger.storage.close()
        shutil.copy(path, copy)
    else:
        create_ledger(url(copy)).close()
    granted(ledger, "0.9")
    ledger.storage._drop()  # type: ignore[attr-defined]
    copy.replace(path)
    for _ in range(3):
        with pytest.raises(LedgerCorrupt, match="replaced"):
            ledger.reserve(request(ledger, "0.9"))
    assert kinds(path) == []


def test_a_reopened_ledger_is_still_the_one_that_was_opened(
    ledger: Ledger, path: Path, tmp_path: Path
) -> None:
    """Its id was checked when it was opened, and so it is in each transaction."""
    ledger.storage.close()
    create_ledger(url(tmp_path / "copy.db")).close()
    (tmp_path / "copy.db").replace(path)
    calls: tuple[Callable[[], object], ...] = (
        lambda: ledger.reserve(request(ledger)),
        lambda: ledger.settle("any"),
    )
    for call in calls:
        with pytest.raises(LedgerCorrupt, match="another ledger"):
            call()
    assert kinds(path) == []


def test_a_relative_ledger_stays_where_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_wal_that_is_removed_during_a_transaction_is_noticed(
    ledger: Ledger, path: Path
) -> None:
    """What went into a file that is not there any more is not acknowledged."""

    def write() -> None:
        with ledger.storage.write() as session:
            write_a_row(session)
            (path.parent / "ledger.db-wal").unlink()

    with pytest.raises(LedgerUnavailable, match="-wal"):
        write()
    with pytest.raises(LedgerUnavailable, match="-wal"):
        ledger.reserve(request(ledger))


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


def test_every_lock_of_a_step_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_lock_that_sqlite_does_not_get_is_waited_for_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To send it again would wait as long again, and others wait behind it.

    SQLite says of a lock that the system does not give what it says of one that a
    program which is not dpflow holds.
    """
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 1)
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


def test_an_owner_that_the_system_does_not_show_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead owner that was taken for a living one would keep its key for an hour."""

    def claim(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        granted(ledger, key="x")
        say("claimed")
        die()

    ledger = open_ledger(url(path))
    step = request(ledger, key="x")
    child = Child(claim)
    assert child.line() == "claimed"
    child.end()
    with monkeypatch.context() as patch:
        without_record_locks(patch)
        with pytest.raises(LedgerUnavailable, match=r"No locks available.*try again"):
            ledger.reserve(step)
    assert isinstance(ledger.reserve(step), Granted)
    ledger.close()


def opened(path: Path) -> int:
    """Return how often this process has a file open."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        # The folder that is being listed is closed again.
        with suppress(FileNotFoundError):
            count += each.readlink() == path
    return count


def test_a_process_that_cannot_lock_its_name_reserves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
