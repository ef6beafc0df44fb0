"""A ledger file: durable, never made nor replaced unseen, and moved only whole."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpflow.exceptions import (
    ConfigurationError,
    LedgerCorrupt,
    LedgerMissing,
    LedgerUnavailable,
)
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.tables.sqlite_files import open_for_reading
from tests.ledger.processes import Child, Gate, answer_of_child, die
from tests.ledger.support import (
    audit,
    charged,
    granted,
    kinds,
    owners_of,
    read,
    refusal,
    request,
    state_of,
    sums,
    url,
    write_a_row,
)

TENTH = Fraction(1, 10)


# Durability


DURABLE = {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1}


@pytest.mark.promise("power-failure")
def test_the_live_connection_is_durable(ledger):
    """WAL and synchronous=FULL hold on the connection that writes, and on the next."""
    for _ in range(2):
        granted(ledger)
        for name, value in DURABLE.items():
            ask = ledger.database._connection.execute
            assert ask(f"PRAGMA {name}").fetchall() == [(value,)]
        with pytest.raises(ZeroDivisionError), ledger.database.transaction():
            _ = 1 / 0


class Forgetful(sqlite3.Connection):
    """A driver that says yes to FULL and stays at NORMAL."""

    def execute(self, sql: str) -> sqlite3.Cursor:  # type: ignore[override]
        """Run a statement, a weaker one if it asks for durability."""
        return super().execute(sql.replace("synchronous = FULL", "synchronous = 1"))


@pytest.mark.promise("power-failure")
def test_a_connection_that_is_not_durable_is_refused(path, monkeypatch):
    """The settings are read back: what cannot be made durable is not used."""
    connect = partial(sqlite3.connect, factory=Forgetful)
    monkeypatch.setattr(sqlite3, "connect", connect)
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
    assert [*tmp_path.iterdir()] == []


def their_database() -> bytes:
    """Return a database that belongs to someone else."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        return connection.serialize()


@pytest.mark.promise("missing-file")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "No such table"),
        (b"no database at all" * 300, "not a database"),
        (b"SQLite format 3\0" + b"\xff" * 8000, "its end was cut off"),
        (their_database(), r"another program: its tables are theirs\. Nothing"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused(tmp_path, content, words):
    """An empty or foreign file is damage, not an invitation; nothing is added to it.

    Another program's database is as it was, its kind of log included.
    """
    place = tmp_path / "ledger.db"
    place.write_bytes(content)
    with pytest.raises(LedgerCorrupt, match=words):
        open_ledger(url(place))
    with pytest.raises(ConfigurationError):
        create_ledger(url(place))
    tables = "SELECT name FROM sqlite_master"
    assert place.read_bytes() == content or read(place, tables) == []


def test_the_log_of_another_program_is_left_alone(tmp_path):
    """That program may be writing it; a ledger's own log is written and synced anew."""
    place, log = tmp_path / "theirs.db", tmp_path / "theirs.db-wal"
    with closing(sqlite3.connect(place)) as theirs:
        theirs.execute("CREATE TABLE theirs (x)")
        theirs.execute("PRAGMA journal_mode = WAL")
        theirs.execute("CREATE TABLE more (x)")
        files = [(f.read_bytes(), f.stat().st_mtime_ns) for f in (place, log)]
        with pytest.raises(LedgerCorrupt, match="another program"):
            open_ledger(url(place))
        assert files == [(f.read_bytes(), f.stat().st_mtime_ns) for f in (place, log)]


def test_a_file_that_was_just_written_is_read_later(ledger, path, monkeypatch):
    """A second write within the precision of its time would look like none."""
    ledger.database.close()
    now, pauses = 1_800_000_000.0, list[float]()
    clock = SimpleNamespace(time=lambda: now, sleep=pauses.append)
    monkeypatch.setattr("dpflow.ledger.tables.sqlite_files.time", clock)
    for age in (60, 0):
        os.utime(path, times=(now - age,) * 2)
        with open_for_reading(path):
            assert bool(pauses) == (age == 0)


@pytest.mark.promise("removed-file")
@pytest.mark.parametrize(
    ("same_id", "is_open", "words"),
    [(True, True, "replaced"), (False, True, "replaced"), (False, False, "another")],
)
def test_a_replaced_ledger_is_refused_for_good(ledger, path, same_id, is_open, words):
    """Not only once: the next call does not take the new file for the old one."""
    copy = path.with_name("copy.db")
    ledger.database.close()
    create_ledger(url(copy)).close()
    if same_id:
        shutil.copy(path, copy)
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
    with closing(open_ledger("sqlite:///ledger.db")) as ledger:
        reservation, owner = granted(ledger), ledger.owners.mine()
        monkeypatch.chdir("/")
        granted(ledger)
        assert answer_of_child(lambda: owners_of(path).alive(owner)) == "True"
        assert ledger.owners.alive(owner)
        ledger.settle(reservation)
        assert sums(path) == (TENTH, TENTH)


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
    removed = pytest.raises(LedgerMissing, match="removed while in use")
    with removed, ledger.database.transaction():
        path.rename(away)
    with pytest.raises(LedgerMissing):
        ledger.reserve(step)
    assert not path.exists()
    away.rename(path)
    ledger.reserve(step)
    assert sums(path) == (0, 2 * TENTH)
    audit(path)


@pytest.mark.promise("deleted-log")
def test_a_log_and_its_ledger_are_used_together_only(path):
    """SQLite would open the ledger without its newest charges, and find it sound.

    It deletes a log without its ledger, and that may be the only copy.
    """

    def crash(say: Callable[[str], None]) -> None:
        say(granted(open_ledger(url(path))))
        die()

    (reservation,) = Child(crash).end()[1]
    wal, away = path.with_name("ledger.db-wal"), path.with_name("away")
    log = wal.read_bytes()
    wal.rename(away)
    alone = shutil.copy(path, path.with_name("alone.db"))
    assert sums(alone) == (0, 0)
    for _ in range(2):
        with pytest.raises(LedgerCorrupt, match="newest charges"):
            open_ledger(url(path))
        assert not wal.exists()
    away.rename(wal)
    path.rename(away)
    with pytest.raises(ConfigurationError, match="-wal is there"):
        create_ledger(url(path))
    with pytest.raises(LedgerMissing):
        open_ledger(url(path))
    path.touch()
    with pytest.raises(LedgerCorrupt, match="is empty"):
        open_ledger(url(path))
    assert wal.read_bytes() == log
    away.replace(path)
    open_ledger(url(path)).close()
    assert state_of(path, reservation) == "open"
    audit(path)


def others(path: Path, *ends: Callable[[Ledger], object]) -> Callable[[], list[str]]:
    """Fork a process that has never opened the file, whose children will charge it.

    Args:
        path: The file.
        ends: How each of the children ends, after its charge.

    Returns:
        A call that lets them run one after the other, and returns their charges.
    """
    gate = Gate()

    def charge(
        end: Callable[[Ledger], object],
    ) -> Callable[[Callable[..., None]], None]:
        def work(say: Callable[[str], None]) -> None:
            ledger = open_ledger(url(path))
            say(granted(ledger, "0.01"))
            end(ledger)

        return work

    def run(say: Callable[[str], None]) -> None:
        gate.wait()
        for end in ends:
            say(*Child(charge(end)).end()[1])

    child = Child(run)

    def go() -> list[str]:
        gate.open()
        return child.end()[1]

    return go


def test_reading_the_file_by_hand_loses_nothing(path):
    """A process that opens and closes the file drops SQLite's locks on it.

    Then the next process to close the ledger deletes the -wal that is in use: a grant
    into the deleted one would be lost, and closing it would delete the next one.
    """

    def work(say: Callable[[str], None]) -> None:
        go = others(path, Ledger.close, lambda _: die())
        with closing(open_ledger(url(path))) as ledger:
            say(granted(ledger, "0.01"))
            path.read_bytes()
            for name in go():
                say(name)
            say(refusal(lambda: say(granted(ledger, "0.01"))))
            say(refusal(lambda: say(granted(ledger, "0.01"))))
        gc.collect()
        say("end")

    code, lines = Child(work).end()
    assert (code, lines[3:]) == (0, ["LedgerUnavailable"] * 2 + ["end"])
    assert [state_of(path, name) for name in lines[:3]] == ["open"] * 3
    assert sums(path) == (0, Fraction(3, 100))
    audit(path)


def test_a_second_look_at_a_ledger_ends_no_lock_of_the_first(path):
    """`dpflow.status()` in a flow, then another process that ends: steps go on."""
    go = others(path, Ledger.close)
    with closing(open_ledger(url(path))) as ledger:
        charged(ledger, "0.01")
        with closing(open_ledger(url(path))) as second:
            assert second.id == ledger.id
        look = open_ledger(url(path))
        assert look.id == ledger.id
        assert len(go()) == 1
        charged(ledger, "0.01")
        assert verify(ledger).fine
