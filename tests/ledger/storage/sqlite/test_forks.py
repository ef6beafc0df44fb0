"""Forks and exits of processes that have a ledger file open lose no commit."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger import Ledger, open_ledger
from tests.ledger.processes import Child, Gate, die, told_by_child
from tests.ledger.support import (
    audit,
    granted,
    impatient,
    read,
    refusal,
    request,
    state_of,
    sums,
    url,
    write_a_row,
)

TENTH = Fraction(1, 10)


# Forks


def test_a_forked_child_opens_a_connection_of_its_own(
    ledger: Ledger, path: Path
) -> None:
    """Both go on; each charge is there."""
    granted(ledger)
    reservation = told_by_child(lambda: granted(ledger))
    mine = granted(ledger)
    ledger.settle(mine)
    ledger.settle(reservation)
    assert sums(path) == (2 * TENTH, TENTH)
    audit(path)


def test_a_childs_commits_survive_its_parents_close(ledger: Ledger, path: Path) -> None:
    """SQLite's memory of locks is inherited, the locks are not.

    The parent would take the file for its own and delete the child's -wal.
    """
    granted(ledger, "0.01")
    gate = Gate()

    def work(say: Callable[[str], None]) -> None:
        say(granted(ledger, "0.01"))
        gate.wait()
        for _ in range(3):
            say(granted(ledger, "0.01"))
        die()

    child = Child(work)
    first = child.line()
    ledger.storage.close()
    gate.open()
    code, lines = child.end()
    assert (code, len(lines)) == (-9, 3)
    kept = {name for (name,) in read(path, "SELECT id FROM charge")}
    assert {first, *lines} <= kept
    assert sums(path) == (0, Fraction(5, 100))
    audit(path)


def test_a_child_forked_inside_a_long_transaction_is_refused(
    ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot know which locks it holds: refused at once, and the parent is fine."""
    monkeypatch.setattr("dpflow.ledger.storage.sqlite._CLOSE_SECONDS", 0.1)
    asked = request(ledger)
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with ledger.storage.write():
            inside.set()
            leave.wait()

    def attempt(say: Callable[[str], None]) -> None:
        for opened in (lambda: ledger, lambda: open_ledger(url(path))):
            try:
                opened().reserve(asked)
            except LedgerUnavailable as error:
                say(str("its parent was using it" in error.message))

    thread = threading.Thread(target=write)
    thread.start()
    inside.wait()
    child = Child(attempt)
    leave.set()
    thread.join()
    assert child.end() == (0, ["True", "True"])
    ledger.reserve(asked)
    assert sums(path) == (0, TENTH)


def test_a_fork_inside_a_transaction_leaves_it_whole(path: Path) -> None:
    """The parent commits what it began; the child is refused."""
    ledger = impatient(path)
    asked = request(ledger)
    with ledger.storage.write() as session:
        write_a_row(session)
        told = told_by_child(lambda: refusal(lambda: ledger.reserve(asked)))
    assert told == "LedgerUnavailable"
    assert read(path, "SELECT key FROM kept") == [("x",)]
    granted(ledger)
    ledger.close()


def test_a_fork_that_python_does_not_know_of_is_noticed(
    ledger: Ledger, path: Path
) -> None:
    """A server written in C may fork by itself: the child is refused."""
    granted(ledger)
    asked = request(ledger)
    reading, writing = os.pipe()
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        try:
            os.write(writing, refusal(lambda: ledger.reserve(asked)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "LedgerUnavailable"
    os.waitpid(pid, 0)
    ledger.reserve(asked)
    assert sums(path) == (0, 2 * TENTH)


def test_a_child_does_not_keep_its_dead_parents_lock(path: Path) -> None:
    """A lock belongs to the open file, which a fork inherits: it is closed at once."""
    gate = Gate()

    def parent(say: Callable[[str], None]) -> None:
        with open_ledger(url(path)).storage.write():
            pid = os.fork()
            if pid == 0:
                gate.wait()
                os._exit(0)
            say("forked")
            die()

    child = Child(parent)
    assert child.line() == "forked"
    os.waitpid(child.pid, 0)
    ledger = impatient(path)
    granted(ledger)
    ledger.close()
    gate.open()


OTHERS = """
import os, sys
from dpflow.ledger.opening import open_ledger
from tests.ledger.processes import die
from tests.ledger.support import granted
ledger = open_ledger(sys.argv[1])
print(granted(ledger, "0.01"), flush=True)
ledger.close() if sys.argv[2] == "close" else die()
"""


def test_reading_the_file_by_hand_loses_nothing(path: Path) -> None:
    """A process that opens and closes the file drops SQLite's locks on it.

    Then the next process to close the ledger deletes the -wal that is in use: a grant
    into the deleted one would be lost, and closing it would delete the next one.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def other(end: str) -> str:
        command = [sys.executable, "-c", OTHERS, url(path), end]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, check=False
        )
        return done.stdout.strip()

    def work(say: Callable[[str], None]) -> None:
        ledger = open_ledger(url(path))
        say(granted(ledger, "0.01"))
        path.read_bytes()
        say(other("close"))
        say(other("die"))
        say(refusal(lambda: say(granted(ledger, "0.01"))))
        say(refusal(lambda: say(granted(ledger, "0.01"))))
        ledger.close()
        gc.collect()
        say("end")

    code, lines = Child(work).end()
    assert (code, lines[3:]) == (0, ["LedgerUnavailable"] * 2 + ["end"])
    assert [state_of(path, name) for name in lines[:3]] == ["open"] * 3
    assert sums(path) == (0, Fraction(3, 100))
    audit(path)
