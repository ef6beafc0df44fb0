"""Who lives is known by a lock that the operating system drops, and by nothing else."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpflow.ledger.storage.owners import Owners
from tests.ledger.processes import Child, Gate, told_by_child


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    """Give the owners of a ledger in a folder."""
    found = Owners(tmp_path / "owners")
    yield found
    found.close()


def seen_from_outside(owners: Owners, name: str) -> bool:
    """Ask another process whether an owner lives."""
    return told_by_child(lambda: Owners(owners._folder).alive(name)) == "True"


class Worker:
    """Another process that owns something."""

    def __init__(self, owners: Owners) -> None:
        self._gate = Gate()

        def work(say: Callable[[str], None]) -> None:
            say(owners.mine())
            self._gate.wait()

        self.child = Child(work)
        self.name = self.child.line()

    def finish(self) -> None:
        """Let the process end by itself."""
        self._gate.open()
        self.child.end()


def test_threads_get_one_name(owners: Owners) -> None:
    """However many ask for it first at the same time."""
    names: list[str] = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        names.append(owners.mine())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == [owners.mine()] * 8


def test_this_process_is_alive_to_all(owners: Owners) -> None:
    """Closing a file drops all locks of a process on it: its own is never opened."""
    name = owners.mine()
    assert owners.alive(name)
    assert Owners(owners._folder).alive(name)
    assert seen_from_outside(owners, name)


def test_a_worker_lives_until_it_is_killed(owners: Owners) -> None:
    """SIGKILL runs no handler; the lock is gone all the same."""
    worker = Worker(owners)
    assert owners.alive(worker.name)
    worker.child.kill()
    assert not owners.alive(worker.name)


def test_a_forked_child_is_another_owner(owners: Owners) -> None:
    """Its parent's charges are not its own; both see the other as what it is."""
    mine = owners.mine()
    worker = Worker(owners)
    assert worker.name != mine
    assert owners.alive(worker.name)
    assert told_by_child(lambda: owners.alive(mine)) == "True"
    worker.finish()
    assert not owners.alive(worker.name)
    assert mine == owners.mine()
    assert seen_from_outside(owners, mine)


def test_a_parent_does_not_outlive_itself_in_its_child(owners: Owners) -> None:
    """A child inherits the open file, and must not keep its parent alive by it."""
    gate = Gate()

    def parent(say: Callable[[str], None]) -> None:
        say(owners.mine())
        if os.fork() == 0:
            gate.wait()
            os._exit(0)

    child = Child(parent)
    name = child.line()
    os.waitpid(child.pid, 0)
    assert not owners.alive(name)
    gate.open()


def test_closing_gives_the_name_up(owners: Owners) -> None:
    """Its open reservations are then nobody's, and the next name is a new one."""
    first = owners.mine()
    owners.close()
    assert not owners.alive(first)
    assert not seen_from_outside(owners, first)
    assert list(owners._folder.iterdir()) == []
    assert first != owners.mine()
    owners.close()
    owners.close()


def test_a_child_that_closes_leaves_its_parent(owners: Owners) -> None:
    """The name that it inherited is not its own to give up."""
    name = owners.mine()
    told_by_child(owners.close)
    assert owners.alive(name)
    assert seen_from_outside(owners, name)


def test_a_name_that_cannot_be_asked_about_lives(owners: Owners) -> None:
    """Another user's file, say: the answer that frees nothing."""
    owners.mine()
    name = "f" * 32
    loop = owners._folder / name
    loop.symlink_to(loop)
    assert owners.alive(name)


def names_in(owners: Owners) -> set[str]:
    """Return the names of all owner files."""
    return {item.name for item in owners._folder.iterdir()}


def test_the_files_of_the_dead_are_swept(owners: Owners) -> None:
    """By the next process that takes a name; nobody's life changes by it."""
    dead, living = Worker(owners), Worker(owners)
    dead.child.kill()
    other = Owners(owners._folder)
    mine = other.mine()
    assert names_in(owners) == {living.name, mine}
    # Sweeping opens files, and must not drop this process's own locks.
    another = owners.mine()
    assert names_in(owners) == {living.name, mine, another}
    for name in (living.name, mine, another):
        assert owners.alive(name)
        assert seen_from_outside(owners, name)
    assert not owners.alive(dead.name)
    assert not seen_from_outside(owners, dead.name)
    other.close()
    living.finish()


def test_a_name_is_never_seen_without_its_lock(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a sweep at that moment would take the newborn for dead."""
    lock, seen = fcntl.lockf, list[set[str]]()

    def watched(descriptor: int, operation: int) -> None:
        seen.append({name for name in names_in(owners) if len(name) == 32})
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "lockf", watched)
    name = owners.mine()
    assert seen == [set()]
    assert names_in(owners) == {name}
