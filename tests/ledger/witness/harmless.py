"""What only looks like an accident: nothing that was told is lost."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpflow.exceptions import BudgetRefused
from tests.ledger.processes import Child, die
from tests.ledger.support import granted, read
from tests.ledger.witness.accidents import POLICY, Host
from tests.ledger.witness.witness_contract import keep

# What only looks like an accident


def died_before_telling(host: Host) -> None:
    """A process commits and dies before it tells the witness."""

    def crash(say: Callable[[str], None]) -> None:
        ledger = host.open()
        ledger.watch.record = lambda _: die()  # type: ignore[method-assign,misc]
        granted(ledger, "0.25", policies=[POLICY])

    assert Child(crash).end()[0] < 0


def died_while_telling(host: Host) -> None:
    """Part of a line is written; its step never started."""
    (file,) = Path(host.witness).iterdir()
    with file.open("ab") as opened:
        opened.write(file.read_bytes().splitlines()[-1][: host.chance.randint(1, 90)])


def died_with_a_log(host: Host) -> None:
    """A process dies; its -wal file stays where it is."""

    def crash(say: Callable[[str], None]) -> None:
        host.work(host.open())
        die()

    assert Child(crash).end()[0] < 0


def copied_and_gone_on(host: Host) -> None:
    """A backup is made; nobody restores it."""
    host.copy()
    host.work()


def moved_whole(host: Host) -> None:
    """The newest ledger moves to another place."""
    copy = host.copy()
    host.path = host.folder / "elsewhere.db"
    shutil.copyfile(copy, host.path)


def vacuumed(host: Host) -> None:
    """Every page of the file is another."""
    with closing(sqlite3.connect(host.path)) as connection:
        connection.execute("VACUUM")


def only_ended(host: Host) -> None:
    """What was open is settled, closed and refused after the last charge."""
    ledger = host.open()
    for (name,) in read(host.path, "SELECT id FROM charge WHERE state = 'open'"):
        if host.chance.random() < 0.5:
            ledger.settle(name)
    with pytest.raises(BudgetRefused):
        granted(ledger, "1000", policies=[POLICY])
    ledger.close()


def used_by_two_processes(host: Host) -> None:
    """Their commits and their lines are in different orders."""
    first, second = host.open(), host.open()
    for _ in range(4):
        host.work(host.chance.choice([first, second]))
    first.close()
    second.close()


def compacted(host: Host) -> None:
    """The witness drops most of its lines."""
    ledger = host.open()
    with pytest.MonkeyPatch.context() as patch:
        keep(1, patch)
        for _ in range(3):
            host.work(ledger)
    ledger.close()


def witness_moved(host: Host) -> None:
    """The witness goes to another folder, and the setting with it."""
    Path(host.witness).rename(host.folder / "other")
    host.witness = str(host.folder / "other")


HARMLESS = [
    died_before_telling,
    died_while_telling,
    died_with_a_log,
    copied_and_gone_on,
    moved_whole,
    vacuumed,
    only_ended,
    used_by_two_processes,
    compacted,
    witness_moved,
]


#: What happens to files only.
OF_FILES = (died_while_telling, compacted, witness_moved)
