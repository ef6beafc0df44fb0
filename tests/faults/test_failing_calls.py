"""The n-th SQL call fails, for every n, once or always: no loss, no overspending.

The driver is made to fail under dpflow's own database. Whatever happens, what was
acknowledged is there, what was not is there wholly or not at all, no connection is used
after an error, and the next call finds its way.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import suppress
from itertools import count, product
from pathlib import Path
from typing import Any

import apsw
import pytest

from dpflow.exceptions import LedgerUnavailable, ReservationConflict
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.owners import Liveness
from tests.faults.auditor import audited
from tests.faults.drivers import FaultyConnection, FaultySqlite
from tests.faults.power import Disk, noted_database
from tests.faults.support import (
    IDENTITY,
    SECRET,
    Nth,
    empty_ledger,
    figure,
    nothing,
)
from tests.faults.test_power_cuts import POLICY, broken_promise
from tests.faults.trials import ACTIONS, CAP, Action, Trial, attempt, check, reserve
from tests.ledger.support import granted
from tests.sizes import SCALE, spread

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
    """A connection that fails on command, and must not be used after that."""

    _failed = False

    def execute(self, sql: str, *values: Any) -> Any:
        """Run a statement between two chances to fail."""
        if self._failed:
            raise UsedAfterError(sql)
        try:
            return super().execute(sql, *values)
        except sqlite3.Error:
            self._failed = True
            raise


class FailingDatabase(FaultySqlite):
    """dpflow's own database on a driver that fails."""

    wire = Failures


def try_all(
    folder: Path, code: str, kind: type[FailingDatabase] = FailingDatabase
) -> Counter[str]:
    """Let each call of each operation fail in turn, in four ways."""
    error, text = FAILURES[code]
    counts: Counter[str] = Counter()
    # After damage nothing is sent again, so that once is nearly as good as always.
    often = spread((False, True), 2 if error is sqlite3.OperationalError else 1)
    for action, when, once in product(ACTIONS, ("before", "after"), often):
        place = folder / f"{action.__name__}-{when}-{once}" / "ledger.db"
        FailingDatabase.create(place, IDENTITY, SECRET).close()
        database = kind(place)
        trial = Trial.on(database)
        for number in range(MOST):
            hook = Nth(number, error(text), once=once)
            try_one(trial, action(trial), when, hook, counts)
            if not hook.came:
                break
        else:
            raise AssertionError("more calls than expected")
        check(trial, audited(place, CAP), {})
        database.close()
    return counts


def try_one(
    trial: Trial, action: Action, when: str, hook: Nth, counts: Counter[str]
) -> None:
    """Do one thing that fails somewhere, and look; then do it in peace.

    Where that ended is seen at the next look.
    """
    do, aims = action
    database: Any = trial.ledger.database
    setattr(database, when, hook)
    ending = attempt(do)
    database.before = database.after = nothing
    if ending is None:
        trial.sure.update(aims)
    states = audited(database.path, CAP)
    check(trial, states, aims)
    done = all(states.get(name) == aim for name, aim in aims.items())
    again = attempt(do)
    assert again is None or (done and isinstance(again, ReservationConflict)), again
    trial.sure.update(aims)
    counts["failures"] += hook.came
    counts["acknowledged" if ending is None else "refused"] += 1


@pytest.mark.promise("lost-answer", "failed-call")
@pytest.mark.parametrize("code", FAILURES if SCALE > 1 else ("IOERR", "CORRUPT"))
def test_every_call_fails_once_and_always(tmp_path, code):
    """Of every operation, before the statement ran and after it."""
    counts = try_all(tmp_path, code)
    assert counts["failures"] > 100
    assert counts["acknowledged"] >= 10
    assert counts["refused"] > 60
    figure(f"n-th call fails, {code}", violations=0, **counts)


# Controls


class Swallowing(FailingDatabase):
    """A database that takes a failed COMMIT for a success."""

    class wire(Failures):  # noqa: N801
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


@pytest.mark.parametrize(
    ("kind", "code", "error", "words"),
    [
        (Swallowing, "IOERR", AssertionError, "acknowledgement is lost"),
        (Reusing, "BUSY", UsedAfterError, "BEGIN"),
    ],
)
def test_a_wrong_database_is_noticed(tmp_path, kind, code, error, words):
    """An acknowledgement without a commit; a connection within its transaction."""
    with pytest.raises(error, match=words):
        try_all(tmp_path, code, kind)


KINDS = [apsw.IOError, apsw.FullError][: 2 if SCALE > 1 else 1]


def use_failing_disk(folder: Path, fail: Nth) -> None:
    """Use a ledger until the disk has failed, let it recover, and look."""
    aims: dict[str, str] = {}
    with noted_database(folder, pages=10) as database:
        trial = Trial.on(database)
        database.vfs.fault = fail
        for _ in range(2):
            do, wanted = reserve(trial)
            aims.update(wanted)
            if attempt(do) is None:
                trial.sure.update(wanted)
        for name in [name for name, state in trial.sure.items() if state == "open"]:
            aims[name] = "settled"
            if attempt(lambda name=name: trial.ledger.settle(name)) is None:
                trial.sure[name] = "settled"
    check(trial, audited(database.path, CAP), aims)


@pytest.mark.promise("failed-call")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("once", [True, False])
def test_every_write_and_sync_fails(tmp_path, kind, once):
    """What was acknowledged is in the file when the disk works again."""
    never = Nth(10**6, kind(), once=once)
    use_failing_disk(tmp_path, never)
    total = 10**6 - never.left
    assert total > 30
    numbers = spread(range(total), 40)
    for number in numbers:
        hook = Nth(number, kind("the disk failed"), once=once)
        use_failing_disk(tmp_path, hook)
        assert hook.came
    how = "once" if once else "for ever"
    name = f"n-th write or sync, {kind.__name__} {how}"
    figure(name, violations=0, failures=len(numbers))


def lost_to_syncs(folder: Path, number: int, failures: int, *, anew: bool) -> str:
    """Fail some syncs, then the power; say what the disk lacks of what was granted.

    Args:
        folder: Where.
        number: The first sync that fails.
        failures: How many fail one after another.
        anew: Whether a new connection syncs what it finds in the log.
    """
    syncs, acknowledged, disk = count(1), dict[str, str](), Disk()
    disk.safe["ledger.db"] = empty_ledger()

    def fail(what: str) -> None:
        if what == "sync" and number <= next(syncs) < number + failures:
            raise apsw.IOError

    with noted_database(folder, anew=anew) as database:
        ledger, database.vfs.fault = Ledger(database, Liveness()), fail
        for step in range(5):
            with suppress(LedgerUnavailable):
                granted(ledger, "0.01", policies=[POLICY], reservation=f"r{step}")
                acknowledged[f"r{step}"] = "granted"
        for note in database.vfs.notes:
            disk.follow(note)
    return broken_promise(folder, disk.safe, acknowledged)


@pytest.mark.promise("failed-call")
@pytest.mark.parametrize(
    ("failures", "anew"), [(1, True), (2, True), (3, True), (100, True), (2, False)]
)
def test_a_charge_whose_sync_failed_counts_once_it_was_synced_anew(
    tmp_path, failures, anew
):
    """What is read from a log after a failed sync may not be on the disk.

    A log that is not synced anew loses charges (negative control).
    """
    numbers = range(1, 12)
    lost = [lost_to_syncs(tmp_path, n, failures, anew=anew) for n in numbers]
    assert any(lost) is not anew
