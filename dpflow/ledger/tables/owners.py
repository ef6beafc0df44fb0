"""Owners of reservations, and whether their processes live.

A process that reserves locks a byte of a file in the ledger's folder; its name says
which byte. The operating system drops the lock when the process ends, however it ends,
so a
dead owner needs no clocks, leases or heartbeats. A dead owner never gives budget back:
it only marks a charge as forfeited, and frees a release key for the next run.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dpflow.exceptions import LedgerUnavailable
from dpflow.interrupts import without_interrupts
from dpflow.locks import TurnQueue, open_private, reason_of

T = TypeVar("T")

#: How long a thread waits for the others of its process.
THREAD_SECONDS = 60.0
_NAME = re.compile(r"[0-9a-f]{32}")


class Liveness:
    """Owner of charges in a ledger: one name for each object, until it is closed.

    As it is, for a ledger in memory; the others let processes see each other's names.
    """

    #: Record locks belong to a process, which loses all that it has on a file when it
    #: closes the file once: one object at a time opens or closes one.
    _lock = TurnQueue()

    def __init__(self) -> None:
        self._name = ""

    def mine(self) -> str:
        """Return this process's owner name, taking its lock at the first call.

        Raises:
            LedgerUnavailable: If the lock cannot be taken, or the server does not
                answer; the caller may not reserve then.
        """
        return self._run(self._mine)

    def _mine(self) -> str:
        # In a forked child, the name of this object is its parent's.
        if self._name not in names_here:
            self._name = self._take()
            names_here[self._name] = self
        return self._name

    def alive(self, owner: str) -> bool:
        """Return True if the process behind an owner name still runs.

        Raises:
            LedgerUnavailable: If the system or the server gives no answer.
        """
        if owner in names_here or not _NAME.fullmatch(owner):
            return owner in names_here
        return self._run(lambda: self._is_held(owner))

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""
        self._run(self._give_up)

    def _run(self, work: Callable[[], T]) -> T:
        """Do some work while no other thread does."""
        try:
            return self._lock.run(work, THREAD_SECONDS)
        except without_interrupts(OSError) as error:
            msg = (
                "this process cannot say in the ledger that it lives: "
                f"{reason_of(error)}. The step did not run. Give this user the right "
                "to write that file and its folder, or try again."
            )
            raise LedgerUnavailable(msg) from error

    def _take(self) -> str:
        """Return a new name, which others see as alive from now on."""
        return uuid.uuid4().hex

    def _is_held(self, owner: str) -> bool:  # noqa: ARG002 (no other process has names)
        """Return True if another process holds a name."""
        return False

    def _give_up(self) -> None:
        names_here.pop(self._name, None)


#: The names that this process holds; a forked child has none of its parent's. They keep
#: the objects: a name lives until it is given up, even if its ledger is dropped.
names_here: dict[str, Liveness] = {}
os.register_at_fork(after_in_child=names_here.clear)


#: By path, the files in which this process has names, each opened once.
_files: dict[Path, int] = {}


class Owners(Liveness):
    """The owners of one ledger.

    Args:
        path: The file that they lock; the first reservation creates it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = Path(path).absolute()

    def mine(self) -> str:
        """Return this process's owner name; raises as the first call does."""
        return self._name if self._name in names_here else super().mine()

    def _take(self) -> str:
        name, flags = super()._take(), os.O_CREAT | os.O_RDWR
        if self._path not in _files:
            _files[self._path] = open_private(self._path, flags)
        try:
            # A record lock (not flock): children of a fork do not inherit it.
            flags = fcntl.LOCK_EX | fcntl.LOCK_NB
            fcntl.lockf(_files[self._path], flags, *_byte(name))
        except without_interrupts(OSError):
            self._close_unused()
            raise
        return name

    def _is_held(self, owner: str) -> bool:
        descriptor = _files.get(self._path)
        try:
            if descriptor is None:
                # The right to read is enough.
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            # Shared, so that two processes that ask about a dead owner both see it.
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, *_byte(owner))
            fcntl.lockf(descriptor, fcntl.LOCK_UN, *_byte(owner))
        except without_interrupts(FileNotFoundError):
            return False
        except without_interrupts(BlockingIOError, PermissionError):
            # Another process holds it. Or the file is not ours to open: the safe
            # answer keeps a claim alive.
            return True
        except without_interrupts(OSError) as error:
            msg = (
                "cannot tell whether the process that holds a charge lives: a lock on "
                f"{self._path} was answered by {error.strerror!r}. The step did not "
                "run; try again when that file system gives locks."
            )
            raise LedgerUnavailable(msg, ledger=str(self._path)) from error
        finally:
            # A signal's handler may have taken a name meanwhile.
            if descriptor is not None and self._path not in _files:
                os.close(descriptor)
        return False

    def _give_up(self) -> None:
        if self._name in names_here:
            super()._give_up()
            fcntl.lockf(_files[self._path], fcntl.LOCK_UN, *_byte(self._name))
            self._close_unused()

    def _close_unused(self) -> None:
        """Close the file, unless this process has a name in it."""
        if all(getattr(o, "_path", None) != self._path for o in names_here.values()):
            os.close(_files.pop(self._path))


def _byte(owner: str) -> tuple[int, int]:
    """Return length and place of what an owner locks."""
    return 1, int(owner[:15], 16)
