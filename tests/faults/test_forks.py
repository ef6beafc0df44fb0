"""Forks of a process that uses a ledger file: no connection crosses them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction

from dpflow.exceptions import LedgerUnavailable
from dpflow.ledger.opening import open_ledger
from tests.ledger.processes import Child, Gate, answer_of_child, die
from tests.ledger.support import (
    audit,
    granted,
    impatient,
    make_ledger,
    read,
    refusal,
    request,
    sums,
    url,
    write_a_row,
)

TENTH = Fraction(1, 10)


# Forks


def test_a_forked_child_opens_a_connection_of_its_own(place):
    """Both go on; the child's end closes nothing of its parent's."""
    ledger = make_ledger(place)
    first, owner = granted(ledger), ledger.owners.mine()

    def work(say: Callable[[str], None]) -> None:
        assert ledger.owners.alive(owner)
        say(ledger.owners.mine())
        ledger.settle(granted(ledger, "0.2"))
        ledger.close()

    code, (name,) = Child(work).end()
    assert (code, name == owner) == (0, False)
    if isinstance(place, str):
        ended = "SELECT sessions_abandoned, sessions_fatal FROM pg_stat_database"
        assert read(place, f"{ended} WHERE datname = current_database()") == [(0, 0)]
    ledger.settle(first)
    with closing(open_ledger(url(place))) as other:
        assert other.owners.alive(owner)
        assert not other.owners.alive(name)
    assert sums(place) == (3 * TENTH, 0)
    audit(place)
    ledger.close()


def test_a_childs_commits_survive_its_parents_close(ledger, path):
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
    ledger.database.close()
    gate.open()
    code, lines = child.end()
    assert (code, len(lines)) == (-9, 3)
    kept = {name for (name,) in read(path, "SELECT id FROM charge")}
    assert {first, *lines} <= kept
    assert sums(path) == (0, Fraction(5, 100))
    audit(path)


def test_a_child_forked_inside_a_long_transaction_is_refused(ledger, path, monkeypatch):
    """The child cannot know its locks and is refused; the parent goes on."""
    monkeypatch.setattr("dpflow.ledger.tables.sqlite_connection._CLOSE_SECONDS", 0.1)
    step = request(ledger)
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with ledger.database.transaction():
            inside.set()
            leave.wait()

    def attempt(say: Callable[[str], None]) -> None:
        for opened in (lambda: ledger, lambda: open_ledger(url(path))):
            try:
                opened().reserve(step)
            except LedgerUnavailable as error:
                say(str("its parent was using it" in error.message))

    thread = threading.Thread(target=write)
    thread.start()
    inside.wait()
    child = Child(attempt)
    leave.set()
    thread.join()
    assert child.end() == (0, ["True", "True"])
    ledger.reserve(step)
    assert sums(path) == (0, TENTH)


def test_a_fork_inside_a_transaction_leaves_it_whole(path):
    """The parent commits what it began; the child is refused."""
    ledger = impatient(path)
    step = request(ledger)
    with ledger.database.transaction() as session:
        write_a_row(session)
        text = answer_of_child(lambda: refusal(lambda: ledger.reserve(step)))
    assert text == "LedgerUnavailable"
    assert read(path, "SELECT name FROM dataset") == [("x",)]
    granted(ledger)
    ledger.close()


def test_a_fork_that_python_does_not_know_of_is_noticed(ledger, path):
    """A server written in C may fork without Python: the child is refused."""
    granted(ledger)
    step = request(ledger)
    reading, writing = os.pipe()
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        try:
            os.write(writing, refusal(lambda: ledger.reserve(step)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "LedgerUnavailable"
    os.waitpid(pid, 0)
    ledger.reserve(step)
    assert sums(path) == (0, 2 * TENTH)
