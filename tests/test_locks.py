"""What keeps threads and processes apart: a file that stays open, a line of threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpflow.locks import FileLock
from tests.ledger.processes import Child, answer_of_child

pytestmark = pytest.mark.quick

#: A time that is over: the lock is asked for once.
ONCE = 0.0


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[FileLock]:
    """Give a lock whose file is open."""
    made = FileLock(tmp_path / "x.lock")
    made.run(lambda _: None, 1)
    yield made
    made.close()


def is_free(path: Path) -> bool:
    """Say whether another process may take the lock."""
    return answer_of_child(lambda: FileLock(path).take(ONCE)) != "None"


@pytest.mark.parametrize("gone", ["removed", "replaced"])
def test_a_file_that_is_not_at_its_path_any_more_locks_nothing(lock, gone):
    """Other processes lock the new one, and so does this."""
    lock.path.unlink()
    if gone == "replaced":
        lock.path.touch()
    assert lock.run(lambda _: is_free(lock.path), 1) is False


def test_a_forked_child_shares_no_lock_with_its_parent(lock):
    """Its copy of the descriptor is closed: what it did with it would be for both."""

    def within(_: int) -> None:
        assert answer_of_child(lambda: (lock.take(ONCE), lock.free())) == "(None, None)"
        assert not is_free(lock.path)

    lock.run(within, 1)
    assert is_free(lock.path)


def test_a_childs_copy_does_not_hold_what_its_parent_held(tmp_path):
    """A process that dies within its turn leaves no lock, even with a living child."""
    path = tmp_path / "x.lock"

    def parent(say: Callable[[str], None]) -> None:
        lock = FileLock(path)
        lock.take(ONCE)
        grandchild = Child(lambda _: signal.pause())
        say(str(grandchild.pid))
        signal.pause()

    child = Child(parent)
    grandchild = int(child.line())
    assert not is_free(path)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    assert is_free(path)
    os.kill(grandchild, signal.SIGKILL)
