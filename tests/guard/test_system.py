"""Steps on a disk that is full or read-only, and steps of root: reasons and rights."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpflow import guarded
from dpflow.exceptions import LedgerUnavailable
from dpflow.guard.late_settlements import Unsettled
from dpflow.guard.project import current_project, forget_projects
from dpflow.ledger.witness.lines import Witnessed
from dpflow.people import store
from tests.cli.support import run
from tests.projects import TENTH, ledger_file, make_project

#: Commands that only look.
LOOKING = ("status", "history", "ledger verify", "ledger reservations", "why shop")


@guarded(dataset="shop", cost=TENTH, release_key="total/{week}")
def total(week: int) -> int:
    """Return a number of a week."""
    return 100 + week


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a project whose first release is stored, and no ledger is open."""
    make_project(tmp_path, monkeypatch)
    total(1)
    forget_projects()
    yield tmp_path
    forget_projects()


@pytest.mark.parametrize("has_log", [False, True])
def test_what_only_looks_needs_no_space(
    shop: Path, monkeypatch: pytest.MonkeyPatch, has_log: bool
) -> None:
    """Views and replays answer; a new step says how much is free, needed, and where."""
    other = sqlite3.connect(ledger_file(shop))
    if has_log:
        other.execute("SELECT * FROM ledger").fetchall()
    space = SimpleNamespace(free=12 * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: space)
    for command in LOOKING:
        result = run(*command.split())
        assert (result.exit_code, result.stderr) == (0, ""), command
    assert total(1) == 101
    with pytest.raises(LedgerUnavailable) as error:
        total(2)
    for text in ("12,582,912 bytes", "16,777,216", str(shop / ".dpflow")):
        assert text in str(error.value)
    space.free = 2**30
    assert total(2) == 102
    other.close()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_file_that_cannot_be_opened_is_named_with_its_owner(
    shop: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The step is refused in words, and no thread prints a traceback."""
    opened, seen = os.open, list[Any]()
    monkeypatch.setattr(threading, "excepthook", seen.append)
    monkeypatch.setattr("dpflow.guard.late_settlements._PAUSE_SECONDS", (0.01, 0.01))

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".owners"):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *rest, **more)

    # A step's settlement is owed while the file cannot be opened.
    unsettled: Unsettled = current_project().unsettled
    monkeypatch.setattr(os, "open", refuse)
    unsettled.add("0" * 32, outcome="failed", body={})
    thread = unsettled._thread
    with pytest.raises(LedgerUnavailable) as error:
        total(2)
    path = f"{ledger_file(shop)}.owners"
    assert f"{os.strerror(number)}: {path}, which belongs to " in str(error.value)
    unsettled.forget()
    assert thread is not None
    thread.join()
    assert seen == []


def test_files_that_root_makes_belong_to_the_owner_of_the_ledger(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's first step leaves no file that the user's next step cannot open."""
    given, opened = dict[str, tuple[int, int]](), {}
    real_open = os.open

    def note_open(path: Any, *rest: Any, **more: Any) -> int:
        opened[descriptor := real_open(path, *rest, **more)] = str(path)
        return descriptor

    def note_owner(descriptor: int, user: int, group: int) -> None:
        given[Path(opened[descriptor]).name] = (user, group)

    for end in ("owners", "lock"):
        ledger_file(shop).with_name(f"ledger.db.{end}").unlink()
    witness = current_project().ledger.watch.witness
    assert witness is not None
    forget_projects()
    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", note_owner)
    total(2)
    witness.begin(Witnessed(), anew=True)
    (shop / "people").mkdir()
    store.FileLock(shop / "people" / "shop.lock").run(lambda _: None, 1)
    owner = ledger_file(shop).stat()
    assert {"ledger.db.owners", "ledger.db.lock", "shop.lock"} < given.keys()
    assert any(name.endswith(".new") for name in given)
    assert {*given.values()} == {(owner.st_uid, owner.st_gid)}
