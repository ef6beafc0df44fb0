"""Processes that a test forks, holds up and kills."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from tests.ledger.support import Place, granted, read, url


class Child:
    """A forked process that runs a function and reports by a pipe.

    Args:
        target: Function of the child; gets `say`, which sends a line immediately.
    """

    def __init__(self, target: Callable[[Callable[[str], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            status = 1
            try:
                target(lambda line: _write(writing, line))
                status = 0
            except BaseException:
                _write(writing, traceback.format_exc())
            finally:
                os._exit(status)
        os.close(writing)
        self._lines = os.fdopen(reading)

    def line(self) -> str:
        """Wait for the next line; empty at the end."""
        return self._lines.readline().rstrip("\n")

    def speaks(self, seconds: float) -> bool:
        """Say whether the process says something, or ends, within so long."""
        return bool(select.select([self._lines], [], [], seconds)[0])

    def kill(self) -> None:
        """Kill the process as the kernel would, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> tuple[int, list[str]]:
        """Wait for the end; return the exit code, negative for a signal, and lines."""
        with self._lines:
            lines = self._lines.read().splitlines()
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), lines


def _write(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def die() -> None:
    """End this process as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying(number: int) -> Callable[[object], None]:
    """Return a hook that kills this process at the call after a number of calls."""
    left = iter(range(number))

    def hook(_: object) -> None:
        if next(left, None) is None:
            die()

    return hook


def answer_of_child(target: Callable[[], Any]) -> str:
    """Run a function in a forked process and return what it says."""
    code, lines = Child(lambda say: say(str(target()))).end()
    assert code == 0, lines
    return "\n".join(lines)


class Gate:
    """A door that holds forked processes until it is opened."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def wait(self) -> None:
        """Wait, in the child, until the parent opens or dies."""
        os.close(self._writing)
        os.read(self._reading, 1)

    def open(self) -> None:
        """Let all children through."""
        os.close(self._writing)
        os.close(self._reading)


@contextmanager
def holding(path: Place) -> Iterator[None]:
    """Let another process hold the ledger inside a transaction."""
    gate = Gate()

    def hold(say: Callable[[str], None]) -> None:
        with open_ledger(url(path)).database.transaction() as transaction:
            transaction.begin(["a"], lock=True)
            say("held")
            gate.wait()

    child = Child(hold)
    assert child.line() == "held"
    try:
        yield
    finally:
        gate.open()
        assert child.end() == (0, [])


def await_end(owners: Any, name: str) -> None:
    """Wait until an owner is dead: a server hears of it a moment after the system."""
    until = time.monotonic() + 10
    while owners.alive(name):
        assert time.monotonic() < until
        time.sleep(0.005)


def await_death(ledger: Ledger, charge: str) -> None:
    """Wait until a ledger sees that the owner of a charge has died."""
    ((owner,),) = read(ledger, "SELECT owner FROM charge WHERE id = ?", charge)
    await_end(ledger.owners, owner)


def killed(path: Place, cost: str = "0.1") -> str:
    """Reserve in a process that then dies."""

    def work(say: Callable[[str], None]) -> None:
        say(granted(open_ledger(url(path)), cost))
        die()

    child = Child(work)
    reservation = child.line()
    child.end()
    with closing(open_ledger(url(path))) as ledger:
        await_death(ledger, reservation)
    return reservation
