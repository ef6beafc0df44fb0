"""The n-th SQL call fails, for every n, once or for ever: no loss, no overspending.

The driver is made to fail under dpflow's own storage. Whatever happens, what was
acknowledged is there, what was not is there wholly or not at all, no connection is used
after an error, and the next call finds its way.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dpflow.exceptions import ReservationConflict
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.hunts.machinery.memory import IDENTITY, SECRET, Nth, nothing
from tests.hunts.machinery.support import audited, figure
from tests.hunts.machinery.trials import ACTIONS, CAP, Action, Trial, attempt, check
from tests.ledger.faults import FaultyConnection, FaultySqlite
from tests.sizes import SCALE

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


class Failures(FaultyConnection):
    """A connection that fails when it is told to, and must not be used after that."""

    _failed = False

    def execute(self, sql: str | bytes, *values: Any) -> Any:
        """Run a statement between two chances to fail."""
        if self._failed:
            raise UsedAfterError(sql)
        try:
            return super().execute(sql, *values)
        except sqlite3.Error:
            self._failed = True
            raise


class FailingStorage(FaultySqlite):
    """dpflow's own storage on a driver that fails."""

    wire: type[Failures] = Failures

    def _connect(self) -> Any:
        return self.wire(SqliteStorage._connect(self), self)


def try_all(
    folder: Path,
    code: str,
    kind: type[FailingStorage] = FailingStorage,
) -> Counter[str]:
    """Let each call of each operation fail in turn, in four ways."""
    error, text = FAILURES[code]
    counts: Counter[str] = Counter()
    for action, when, once in product(ACTIONS, ("before", "after"), (True, False)):
        place = folder / f"{action.__name__}-{when}-{once}" / "ledger.db"
        FailingStorage.create(place, IDENTITY, SECRET).close()
        storage = kind(place)
        trial = Trial.on(storage)
        for number in range(MOST):
            hook = Nth(number, error(text), once=once)
            try_one(trial, action(trial), when, hook, counts)
            if not hook.came:
                break
        else:
            raise AssertionError("more calls than expected")
        storage.close()
    return counts


def try_one(
    trial: Trial,
    action: Action,
    when: str,
    hook: Nth,
    counts: Counter[str],
) -> None:
    """Do one thing that fails somewhere."""
    do, aims = action
    storage: Any = trial.ledger.storage
    setattr(storage, when, hook)
    told = attempt(do)
    storage.before = storage.after = nothing
    if told is None:
        trial.sure.update(aims)
    facts = audited(storage.path, CAP)
    check(trial, facts, aims)
    done = all(facts.states.get(name) == aim for name, aim in aims.items())
    # The same again, in peace: it ends where it should have.
    again = attempt(do)
    assert again is None or (done and isinstance(again, ReservationConflict)), again
    trial.sure.update(aims)
    check(trial, audited(storage.path, CAP), aims)
    counts["failures"] += hook.came
    counts["acknowledged" if told is None else "refused"] += 1


@pytest.mark.parametrize("code", FAILURES if SCALE > 1 else ("IOERR", "CORRUPT"))
def test_every_call_fails_once_and_for_ever(folder: Path, code: str) -> None:
    """Of every operation, before the statement ran and after it."""
    counts = try_all(folder, code)
    assert counts["failures"] > 150
    assert counts["acknowledged"] > 20
    assert counts["refused"] > 60
    figure(f"n-th call fails, {code}", violations=0, **counts)


# Controls


class Swallowing(FailingStorage):
    """A storage that takes a failed COMMIT for a success."""

    class wire(Failures):  # noqa: N801
        """A connection whose COMMIT never complains."""

        def execute(self, sql: str | bytes, *values: Any) -> Any:
            """Run a statement."""
            try:
                return super().execute(sql, *values)
            except sqlite3.Error:
                if sql != "COMMIT":
                    raise
                self._connection.rollback()
                self._failed = False
                return None


class Reusing(FailingStorage):
    """A storage that keeps its connection after an error."""

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
