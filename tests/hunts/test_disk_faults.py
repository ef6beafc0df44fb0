"""The n-th write or sync of the disk fails under SQLite, once or for ever."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.ledger import Ledger
from tests.hunts.machinery.crash_vfs import (
    ApswStorage,
    Disk,
    NotingVFS,
)
from tests.hunts.machinery.memory import Hook, Nth, empty_ledger
from tests.hunts.machinery.support import (
    SimulatedOwners,
    audited,
    figure,
)
from tests.hunts.machinery.trials import (
    CAP,
    Trial,
    attempt,
    check,
    reserve,
    reserve_many,
)
from tests.hunts.test_power_cut import POLICY, broken_promise
from tests.ledger.support import request
from tests.sizes import SCALE

KINDS = [apsw.IOError, apsw.FullError][: 2 if SCALE > 1 else 1]


def use_failing_disk(folder: Path, fail: Hook, storage: type[ApswStorage]) -> None:
    """Use a ledger until the disk has failed, let it recover, and look."""
    path = folder / "ledger.db"
    for old in folder.iterdir():
        old.unlink()
    path.write_bytes(empty_ledger())
    vfs = NotingVFS(f"failing-{uuid.uuid4().hex}")
    base = storage(path, vfs, pages=10)
    trial = Trial.on(base)
    vfs.fault = fail
    aims: dict[str, str] = {}
    for action in (reserve, reserve_many):
        do, wanted = action(trial)
        aims.update(wanted)
        if attempt(do) is None:
            trial.sure.update(wanted)
    for name in [name for name, state in trial.sure.items() if state == "open"]:
        aims[name] = "settled"
        if attempt(lambda name=name: trial.ledger.settle(name)) is None:
            trial.sure[name] = "settled"
    vfs.fault = lambda _: None
    base.close()
    vfs.unregister()
    check(trial, audited(path, CAP), aims)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("once", [True, False])
def test_every_write_and_sync_fails(
    folder: Path, kind: type[apsw.Error], once: bool
) -> None:
    """What was acknowledged is in the file when the disk works again."""
    total = failures_of_disk(folder, kind, once, ApswStorage)
    assert total > 30
    how = "once" if once else "for ever"
    figure(f"n-th write or sync, {kind.__name__} {how}", violations=0, failures=total)


def failures_of_disk(
    folder: Path, kind: type[apsw.Error], once: bool, storage: type[ApswStorage]
) -> int:
    """Fail at each write in turn; return how many there are."""
    for number in count():
        hook = Nth(number, kind("the disk failed"), once=once)
        use_failing_disk(folder, hook, storage)
        if not hook.came:
            return number
    raise AssertionError


def lost_to_syncs(folder: Path, number: int, failures: int, *, anew: bool) -> str:
    """Fail some syncs, then the power; say what the disk lacks of what was granted.

    Args:
        folder: Where.
        number: The first sync that fails.
        failures: How many fail one after another.
        anew: Whether a new connection syncs what it finds in the log.
    """
    for old in folder.iterdir():
        old.unlink()
    path, syncs = folder / "ledger.db", count(1)
    path.write_bytes(empty_ledger())
    vfs = NotingVFS(f"unsynced-{uuid.uuid4().hex}")
    storage = ApswStorage(path, vfs, anew=anew)
    ledger, told = Ledger(storage, SimulatedOwners(set())), dict[str, str]()

    def fail(what: str) -> None:
        if what == "sync" and number <= next(syncs) < number + failures:
            raise apsw.IOError

    vfs.fault = fail
    for step in range(5):
        made = request(ledger, "0.01", policies=[POLICY], reservation=f"r{step}")
        with suppress(LedgerUnavailable):
            ledger.reserve(made)
            told[made.reservation] = "granted"
    disk = Disk()
    disk.safe["ledger.db"] = empty_ledger()
    for note in vfs.notes:
        disk.follow(note)
    vfs.fault = lambda _: None
    storage.close()
    vfs.unregister()
    return broken_promise(folder, disk.safe, told)


@pytest.mark.parametrize("failures", [1, 2, 3, 100])
def test_a_charge_whose_sync_failed_counts_once_it_was_synced_anew(
    folder: Path, failures: int
) -> None:
    """What is read from a log after a failed sync may not be on the disk."""
    for number in range(1, 12):
        assert lost_to_syncs(folder, number, failures, anew=True) == ""


def test_a_log_that_is_not_synced_anew_loses_charges(folder: Path) -> None:
    """The disk of this test knows the difference (negative control)."""
    assert any(lost_to_syncs(folder, number, 2, anew=False) for number in range(1, 12))


class Careless(ApswStorage):
    """A storage that takes a failed commit for a good one."""

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block; whatever happens at its end is fine."""
        inner = super().write()
        yield inner.__enter__()
        with suppress(LedgerUnavailable):
            inner.__exit__(None, None, None)


def test_a_careless_storage_is_found(folder: Path) -> None:
    """A write that failed and nobody noticed."""
    with pytest.raises(AssertionError):
        failures_of_disk(folder, apsw.IOError, True, Careless)
