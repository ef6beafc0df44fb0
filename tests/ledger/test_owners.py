"""Who lives is known by a lock that the operating system drops, and by nothing else."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpflow.ledger.tables.owners import Owners
from tests.ledger.processes import Child, Gate, answer_of_child


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    """Give the owners of a ledger in a folder."""
    result = Owners(tmp_path / "owners")
    yield result
    result.close()


def seen_from_outside(owners: Owners, name: str) -> bool:
    """Ask another process whether an owner lives."""
    return answer_of_child(lambda: Owners(owners._path).alive(name)) == "True"


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
        """Let the process end normally."""
        self._gate.open()
        self.child.end()


def test_threads_get_one_name(owners):
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


def test_a_worker_lives_until_it_is_killed(owners):
    """SIGKILL runs no handler; the system frees the lock all the same."""
    worker = Worker(owners)
    assert owners.alive(worker.name)
    worker.child.kill()
    assert not owners.alive(worker.name)


def test_a_forked_child_is_another_owner(owners):
    """Its parent's charges are not its own; both see the other as what it is."""
    mine = owners.mine()
    worker = Worker(owners)
    assert worker.name != mine
    assert owners.alive(worker.name)
    assert answer_of_child(lambda: owners.alive(mine)) == "True"
    worker.finish()
    assert not owners.alive(worker.name)
    # The name that a child inherited is not its own to give up.
    answer_of_child(owners.close)
    assert mine == owners.mine()
    assert seen_from_outside(owners, mine)


def test_a_parent_does_not_outlive_itself_in_its_child(owners):
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


def test_closing_gives_the_name_up(owners):
    """Its open reservations then have no owner, and the next name is a new one."""
    first = owners.mine()
    owners.close()
    assert not owners.alive(first)
    assert not seen_from_outside(owners, first)
    assert first != owners.mine()
    owners.close()
    owners.close()


def test_a_name_that_cannot_be_checked_lives(owners, monkeypatch):
    """Another user's file, say: the answer that frees nothing."""
    answer_of_child(owners.mine)
    assert not owners.alive("f" * 32)

    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refused)
    assert owners.alive("f" * 32)


def test_names_in_one_file_keep_their_locks(owners):
    """Other objects of this process may read, take and give up names there."""
    dead, other = Worker(owners), Owners(owners._path)
    dead.child.kill()
    name, second = owners.mine(), other.mine()
    for asking in (owners, other, Owners(owners._path)):
        assert not asking.alive(dead.name)
        assert not asking.alive("f" * 32)
    assert seen_from_outside(owners, second)
    other.close()
    assert seen_from_outside(owners, name)
    assert not seen_from_outside(owners, second)
