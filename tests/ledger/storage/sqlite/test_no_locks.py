"""A system that gives no locks: told in time, in dpflow's words, and never run past."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow import PureDP, guarded
from dpflow.exceptions import LedgerUnavailable
from dpflow.guard.project import current_project
from dpflow.ledger import open_ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.records import Granted
from dpflow.ledger.storage import sqlite
from dpflow.ledger.storage.owners import Owners
from tests.ledger.faults import FaultySqlite
from tests.ledger.processes import Child, die
from tests.ledger.support import granted, ledger_on, request, url
from tests.projects import POLICY, held, make_project, spent


def failing_at(number: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Let the n-th call of `flock`, unlocking included, fail; return what was asked."""
    real, asked = fcntl.flock, list[int]()

    def flock(descriptor: int, what: int) -> None:
        asked.append(what)
        if len(asked) == number:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        real(descriptor, what)

    patch.setattr(fcntl, "flock", flock)
    return asked


def told(call: Callable[[], object]) -> list[LedgerUnavailable]:
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
            asked = failing_at(number, patch)
            errors += told(lambda number=number: step(number))
        if len(asked) < number:
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
    asked, begun = request(ledger), list[str]()

    def hold(say: Callable[[str], None]) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        say("held")
        time.sleep(60)

    child = Child(hold)
    assert child.line() == "held"
    database.before = begun.append
    with pytest.raises(LedgerUnavailable, match=r"try again .*fuser") as error:
        ledger.reserve(asked)
    assert begun.count("BEGIN IMMEDIATE") == 1
    assert error.value.details["waited"] >= 0.8
    child.kill()
    assert isinstance(ledger.reserve(asked), Granted)
    ledger.close()


def without_record_locks(patch: pytest.MonkeyPatch) -> None:
    """Let no file's record lock be given."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    patch.setattr(fcntl, "lockf", refuse)


def test_an_owner_that_the_system_does_not_tell_of_is_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead owner that was taken for a living one would keep its key for an hour."""

    def claim(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        granted(ledger, key="x")
        say("claimed")
        die()

    ledger = open_ledger(url(path))
    asked = request(ledger, key="x")
    child = Child(claim)
    assert child.line() == "claimed"
    child.end()
    with monkeypatch.context() as patch:
        without_record_locks(patch)
        with pytest.raises(LedgerUnavailable, match=r"No locks available.*try again"):
            ledger.reserve(asked)
    assert isinstance(ledger.reserve(asked), Granted)
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
            with pytest.raises(OSError, match="No locks"):
                owners.mine()
        assert opened(file) == 0
    assert owners.alive(owners.mine())
    assert other.mine() != owners.mine()
    assert opened(file) == 1
    for each in (owners, other):
        each.close()
    assert opened(file) == 0
