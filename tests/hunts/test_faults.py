"""The n-th SQL call fails, for every n, once or for ever: no loss, no overspending.

The driver is made to fail under dpflow's own database. Whatever happens, what was
acknowledged is there, what was not is there wholly or not at all, no connection is used
after an error, and the next call finds its way.
"""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import LedgerUnavailable, ReservationConflict
from dpflow.ledger import Ledger
from dpflow.ledger.sqlite import SqliteDatabase
from tests.hunts.support import (
    audited,
    figure,
    memory_folder,
    nth,
)
from tests.hunts.trials import ACTIONS, CAP, Action, Trial, attempt, check
from tests.ledger.support import new_ledger

#: More calls than any operation makes.
MOST = 80

FAILURES: dict[str, tuple[type[sqlite3.Error], str]] = {
    "BUSY": (sqlite3.OperationalError, "database is locked"),
    "FULL": (sqlite3.OperationalError, "database or disk is full"),
    "IOERR": (sqlite3.OperationalError, "disk I/O error"),
    "CORRUPT": (sqlite3.DatabaseError, "database disk image is malformed"),
}


class UsedAfterError(BaseException):
    """A connection was used after it failed."""


class Wire:
    """A connection that fails when it is told to, and must not be used after that."""

    def __init__(self, connection: sqlite3.Connection, database: FailingDatabase):
        self._connection, self._database, self._failed = connection, database, False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run a statement between two chances to fail."""
        if self._failed:
            raise UsedAfterError(sql)
        try:
            self._database.before(sql)
            cursor = self._connection.execute(sql, *values)
            try:
                self._database.after(sql)
            except BaseException:
                cursor.close()
                raise
        except sqlite3.Error:
            self._failed = True
            raise
        return cursor

    def rollback(self) -> None:
        """End the transaction, as may be done after a failure."""
        self._connection.rollback()

    def close(self) -> None:
        """Close the real connection."""
        self._connection.close()


class FailingDatabase(SqliteDatabase):
    """dpflow's own database on a driver that fails."""

    wire: type[Wire] = Wire

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.quiet()

    def quiet(self) -> None:
        """Let the driver work."""
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None

    def _connect(self) -> Any:
        return self.wire(super()._connect(), self)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory."""
    place = memory_folder()
    yield place
    shutil.rmtree(place)


def try_all(
    folder: Path,
    code: str,
    kind: type[FailingDatabase] = FailingDatabase,
) -> Counter[str]:
    """Let each call of each operation fail in turn, in six ways."""
    error, text = FAILURES[code]
    counts: Counter[str] = Counter()
    # After a question has failed, nothing differs from before it.
    ways = (("before", True), ("after", True), ("before", False))
    for action, (when, remembers), once in product(ACTIONS, ways, (True, False)):
        place = folder / f"{action.__name__}-{when}-{once}-{remembers}"
        new_ledger(place).close()
        database = kind(place / "ledger.db")
        trial = Trial.on(database)
        for number in range(MOST):
            fault = when, nth(number, error(text), once=once)
            if not remembers:
                # Then it asks for all that it decides by, and each question may fail.
                database._recall.clear()
            if not try_one(trial, database, action(trial), fault, counts):
                break
        else:
            raise AssertionError("more calls than expected")
        database.close()
    return counts


def try_one(
    trial: Trial,
    database: FailingDatabase,
    action: Action,
    fault: tuple[str, Callable[[str], None]],
    counts: Counter[str],
) -> bool:
    """Do one thing that fails somewhere; say whether a failure came."""
    do, aims = action
    reader = SqliteDatabase(database.path)
    came = False

    def hook(sql: str) -> None:
        nonlocal came
        try:
            fault[1](sql)
        except sqlite3.Error:
            came = True
            raise

    setattr(database, fault[0], hook)
    told = attempt(do)
    database.quiet()
    if told is None:
        trial.sure.update(aims)
    facts = audited(reader, CAP)
    check(trial, facts, aims)
    done = all(facts.states.get(name) == aim for name, aim in aims.items())
    # The same again, in peace: it ends where it should have.
    again = attempt(do)
    assert again is None or (done and isinstance(again, ReservationConflict)), again
    trial.sure.update(aims)
    check(trial, audited(reader, CAP), aims)
    reader.close()
    counts["failures"] += came
    counts["acknowledged"] += told is None
    counts["refused"] += told is not None
    return came


@pytest.mark.parametrize("code", FAILURES)
def test_every_call_fails_once_and_for_ever(folder: Path, code: str) -> None:
    """Of every operation, before the statement ran and after it."""
    counts = try_all(folder, code)
    assert counts["failures"] > 250
    assert counts["acknowledged"] > 20
    assert counts["refused"] > 100
    figure(f"n-th call fails, {code}", violations=0, **counts)


# Controls


class Swallowing(FailingDatabase):
    """A database that takes a failed COMMIT for a success."""

    class wire(Wire):  # noqa: N801
        """A connection whose COMMIT never complains."""

        def execute(self, sql: str, *values: Any) -> Any:
            """Run a statement."""
            try:
                return super().execute(sql, *values)
            except sqlite3.Error:
                if sql != "COMMIT":
                    raise
                self._connection.rollback()
                self._failed = False
                return None


class Reusing(FailingDatabase):
    """A database that keeps its connection after an error."""

    def _drop(self) -> None:
        """Keep it."""


def test_a_swallowed_error_is_found(folder: Path) -> None:
    """An acknowledgement without a commit."""
    with pytest.raises(AssertionError, match="acknowledgement is lost"):
        try_all(folder, "IOERR", Swallowing)


def test_a_reused_connection_is_found(folder: Path) -> None:
    """A connection that failed may still be inside a transaction."""
    with pytest.raises(UsedAfterError):
        try_all(folder, "BUSY", Reusing)


def test_a_new_id_for_a_second_try_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking again under another name is charged twice."""
    reserve_many = Ledger.reserve_many

    def twice(self: Ledger, requests: Any) -> Any:
        try:
            return self._reserve_once(requests)[0]
        except LedgerUnavailable:
            others = [replace(r, reservation=uuid.uuid4().hex) for r in requests]
            return reserve_many(self, others)

    monkeypatch.setattr(Ledger, "reserve_many", twice)
    with pytest.raises(AssertionError, match="nobody asked"):
        try_all(folder, "IOERR")
