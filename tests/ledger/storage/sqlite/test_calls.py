"""What the surroundings do to calls: locks, cut commits, clock jumps, versions."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpflow.exceptions import BudgetRefused, LedgerUnavailable
from dpflow.ledger import Ledger, open_ledger, views
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.office import apply_policy
from dpflow.ledger.records import Replayed
from dpflow.ledger.storage.sqlite import SqliteStorage
from tests.ledger.faults import FaultySqlite
from tests.ledger.support import (
    BASIC,
    audit,
    edit,
    granted,
    kinds,
    ledger_on,
    make_policy,
    request,
    sums,
    url,
    waiting,
)
from tests.signing import key_of

SHORT = 0.4
TENTH = Fraction(1, 10)


# Locks


def test_a_thread_that_holds_the_lock_is_named(path: Path) -> None:
    """By the name that the program gave it."""
    database = waiting(SqliteStorage(path), SHORT)
    ledger = ledger_on(database)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold, name="the slow one")
    thread.start()
    inside.wait()
    try:
        with pytest.raises(LedgerUnavailable, match="of this process, the slow one"):
            granted(ledger)
    finally:
        leave.set()
        thread.join()
    granted(ledger)
    ledger.close()


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


# Clocks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give a way to set the ledger's clock to a year."""

    def set_year(year: int) -> None:
        then = SimpleNamespace(now=lambda _: datetime(year, 6, 1, tzinfo=UTC))
        monkeypatch.setattr("dpflow.ledger.ledger.datetime", then)

    return set_year


YEARS = (2026, 1970, 2999, 2026, 1970, 1970, 2999, 2026)


def test_clock_jumps_hide_nothing(
    ledger: Ledger, path: Path, clock: Callable[[int], None]
) -> None:
    """An account's journal is in the order of its making, however it is cut."""
    made: dict[str, list[str]] = {"a": [], "b": []}
    for number, year in enumerate((*YEARS, *YEARS)):
        clock(year)
        name = "ab"[number // 2 % 2]
        policy = make_policy(name)
        made[name].append(granted(ledger, "0.05", policies=[policy]))
    everything = views.history(ledger)
    assert {entry.at[:4] for entry in everything} == {"2026", "1970", "2999"}
    for name, reservations in made.items():
        mine = views.history(ledger, name)
        assert [entry.seq for entry in mine] == sorted(e.seq for e in mine)[::-1]
        told = [entry.reservation for entry in mine if entry.kind == "reserve"]
        assert told == reservations[::-1]
        assert mine == [e for e in everything if e.account == f"{name}#1"]
        for limit in range(1, len(mine) + 1):
            assert views.history(ledger, name, limit=limit) == mine[:limit]
            # Beside others' entries fewer fit, but none is left out between two.
            cut = views.history(ledger, limit=limit)
            shown = [entry for entry in cut if entry.account == f"{name}#1"]
            assert shown == mine[: len(shown)]
            assert len(cut) == limit
    # No lease runs out in 2999, and nothing is forgotten in 1970.
    for year in (1970, 2999):
        clock(year)
        with pytest.raises(BudgetRefused):
            granted(ledger, "0.61")
    assert sums(path) == sums(path, "b#1") == (0, Fraction(4, 10))
    for reservation in made["a"] + made["b"]:
        clock(1970)
        ledger.settle(reservation)
    assert sums(path) == (Fraction(4, 10), 0)
    audit(path)


# Versions


def test_another_version_is_refused_inside_each_write(
    ledger: Ledger, path: Path
) -> None:
    """A ledger may be migrated while this process has it open."""
    reservation, asked = granted(ledger), request(ledger)
    edit(path, "UPDATE ledger SET version = 99")
    calls: tuple[Callable[[], object], ...] = (
        lambda: ledger.reserve(asked),
        lambda: ledger.settle(reservation),
        lambda: open_ledger(url(path)),
        lambda: apply_policy(ledger, BASIC),
        lambda: verify(ledger, key=key_of("k"), sign=True),
        lambda: reconcile(ledger, {}, reason="test"),
    )
    before = kinds(path), sums(path)
    for call in calls:
        with pytest.raises(LedgerUnavailable, match="another version of dpflow"):
            call()
    assert (kinds(path), sums(path)) == before
    edit(path, "UPDATE ledger SET version = 1")
    ledger.settle(reservation)
    audit(path)
