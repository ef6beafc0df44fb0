"""The n-th write or sync of the disk fails under SQLite, once or for ever."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from dpflow.exceptions import LedgerUnavailable
from tests.hunts.machinery.crash_vfs import ApswStorage, NotingVFS, plain_connection
from tests.hunts.machinery.hooks import Hook, nth
from tests.hunts.machinery.memory import empty_ledger
from tests.hunts.machinery.support import asked, figure, memory_folder
from tests.hunts.machinery.trials import (
    CAP,
    Trial,
    attempt,
    check,
    reserve,
    reserve_many,
)
from tests.ledger.auditor import audit
from tests.ledger.columns import show_columns
from tests.sizes import SCALE

KINDS = (apsw.IOError, apsw.FullError)
DISK = [
    (kind, once) for kind in KINDS[: 2 if SCALE > 1 else 1] for once in (True, False)
]


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
    connection = plain_connection(path)
    facts = audit(asked(show_columns(connection)), CAP)
    connection.close()
    check(trial, facts, aims)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory."""
    place = memory_folder()
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize(("kind", "once"), DISK)
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
        hook, came = nth(number, kind("the disk failed"), once=once), Counter[str]()

        def fail(what: str, hook: Hook = hook, came: Counter[str] = came) -> None:
            try:
                hook(what)
            except apsw.Error:
                came[what] += 1
                raise

        use_failing_disk(folder, fail, storage)
        if not came:
            return number
    raise AssertionError


class Careless(ApswStorage):
    """A storage that takes a failed transaction for a good one."""

    def write(self) -> Any:
        """Run a block; whatever happens is fine."""
        return _Careless(super().write())


class _Careless:
    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __enter__(self) -> Any:
        return self._manager.__enter__()

    def __exit__(self, *error: object) -> bool:
        try:
            self._manager.__exit__(*error)
        except LedgerUnavailable:
            return True
        return False


def test_a_careless_storage_is_found(folder: Path) -> None:
    """A write that failed and nobody noticed."""
    with pytest.raises(AssertionError):
        failures_of_disk(folder, apsw.IOError, True, Careless)
