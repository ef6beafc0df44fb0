"""Hosts, and accidents after which their ledgers have forgotten charges."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dpflow.exceptions import BudgetRefused, LedgerError
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.tables.columns import TABLES
from tests.ledger.processes import Child, die
from tests.ledger.support import (
    edit,
    granted,
    make_policy,
    put_back,
    read,
    request,
    url,
)

POLICY = make_policy(budget="{epsilon: 100}")
OTHER = make_policy("b", budget="{epsilon: 100}")


def copy_database(source: Path, target: Path) -> None:
    """Copy a database as SQLite does, into the same file if there is one."""
    with (
        closing(sqlite3.connect(source)) as old,
        closing(sqlite3.connect(target)) as to,
    ):
        old.backup(to)


@dataclass
class Host:
    """A machine with a ledger, and perhaps a witness."""

    folder: Path
    witness: str
    chance: random.Random
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.folder / "ledger.db"
        create_ledger(url(self.path), witness=self.witness).close()

    def open(self) -> Ledger:
        """Open the ledger as a new process would."""
        return open_ledger(url(self.path), witness=self.witness)

    def work(self, ledger: Ledger | None = None, least: int = 1) -> None:
        """Make some charges; some are settled, some voided, the others left open."""
        with nullcontext(ledger) if ledger else closing(self.open()) as opened:
            for _ in range(self.chance.randint(least, 6)):
                policy = self.chance.choice([POLICY, POLICY, OTHER])
                name = granted(opened, "0.25", policies=[policy])
                end = self.chance.choice(["settle", "settle", "void", "leave"])
                if end == "settle":
                    opened.settle(name)
                elif end == "void":
                    opened.void(name, reason="test")
            # The last thing that happened is a charge.
            granted(opened, "0.25", policies=[POLICY])

    def copy(self) -> Path:
        """Copy the ledger as a good backup tool does."""
        target = self.folder / "copy"
        copy_database(self.path, target)
        return target


def crash(work: Callable[[], object]) -> None:
    """Do something in a process that is killed then."""

    def work_and_die(_: object) -> None:
        work()
        die()

    code, lines = Child(work_and_die).end()
    assert code < 0, lines


def remove_log(path: Path) -> None:
    """Remove the companions of a ledger's file."""
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink(missing_ok=True)


def backup_restored(host: Host) -> None:
    """A backup takes the ledger's place."""
    copy = host.copy()
    host.work()
    put_back(host.path, copy)


def died_with_a_log(host: Host) -> None:
    """A process dies; its -wal file stays where it is."""
    crash(lambda: host.work(host.open()))


def log_deleted(host: Host) -> None:
    """A process dies, and someone tidies its -wal file away."""
    died_with_a_log(host)
    remove_log(host.path)


def created_anew(host: Host) -> None:
    """An image brings the ledger as it was when the image was made: empty."""
    edit(host.path, *(f"DELETE FROM {table}" for table in TABLES))


def cloned_to_another_host(host: Host) -> None:
    """Two hosts go on from one copy; the first was faster."""
    copy = host.copy()
    host.work()
    host.path = host.folder / "second.db"
    shutil.copyfile(copy, host.path)


def snapshot_of_the_disk(host: Host) -> None:
    """Every file of the ledger is as it was a while ago."""
    kept = host.folder / "disk"
    kept.mkdir()
    died_with_a_log(host)
    for name in filter(Path.is_file, host.folder.glob("ledger.db*")):
        shutil.copy(name, kept)
    host.work()
    remove_log(host.path)
    for name in kept.iterdir():
        shutil.copy(name, host.folder)


def restored_into_the_open_file(host: Host) -> None:
    """`sqlite3 ledger.db ".restore copy"`: the file stays the same one."""
    copy = host.copy()
    host.work()
    copy_database(copy, host.path)


def went_another_way(host: Host) -> None:
    """A backup is used on a machine without the witness, and then brought here."""
    copy = host.copy()
    host.work()
    put_back(host.path, copy)
    with closing(open_ledger(url(host.path), witness="none")) as elsewhere:
        for _ in range(host.chance.randint(1, 12)):
            elsewhere.settle(granted(elsewhere, "0.25", policies=[POLICY]))


ACCIDENTS = [
    backup_restored,
    log_deleted,
    created_anew,
    cloned_to_another_host,
    snapshot_of_the_disk,
    restored_into_the_open_file,
    went_another_way,
]


def next_step(host: Host) -> object:
    """Ask for the next step and return the answer or the error."""
    with closing(host.open()) as ledger:
        try:
            return ledger.reserve(request(ledger, "0.25", policies=[POLICY]))
        except LedgerError as error:
            return error


def after(
    accident: Callable[[Host], None], folder: Path, seed: int, witness: str | None
) -> Host:
    """Return a host to which an accident has happened.

    Its witness is a file in its folder where no other is named.
    """
    folder.mkdir()
    host = Host(folder, witness or str(folder / "state"), random.Random(seed))
    host.work()
    accident(host)
    return host


# What only looks like an accident


def died_before_writing(host: Host) -> None:
    """A process commits and dies before it writes to the witness."""

    def work() -> None:
        ledger = host.open()
        ledger.watch.record = lambda *_: die()  # type: ignore[method-assign,misc]
        granted(ledger, "0.25", policies=[POLICY])

    crash(work)


def died_while_writing(host: Host) -> None:
    """Part of a line is written; its step never started."""
    (file,) = Path(host.witness).iterdir()
    with file.open("ab") as opened:
        opened.write(file.read_bytes().splitlines()[-1][: host.chance.randint(1, 90)])


def only_ended(host: Host) -> None:
    """What was open is settled, closed and refused after the last charge."""
    with closing(host.open()) as ledger:
        for (name,) in read(host.path, "SELECT id FROM charge WHERE state = 'open'"):
            if host.chance.random() < 0.5:
                ledger.settle(name)
        with pytest.raises(BudgetRefused):
            granted(ledger, "1000", policies=[POLICY])


def witness_moved(host: Host) -> None:
    """The witness goes to another folder, and the setting with it."""
    Path(host.witness).rename(host.folder / "other")
    host.witness = str(host.folder / "other")


HARMLESS = [
    died_before_writing,
    died_while_writing,
    died_with_a_log,
    only_ended,
    witness_moved,
]
#: What happens to files only.
OF_FILES = (died_while_writing, witness_moved)
