"""Owners of reservations, and whether their processes live.

A process that reserves holds a lock on a file of its own beside the ledger. The
operating system drops the lock when the process ends, however it ends, so a dead owner
needs no clocks, leases or heartbeats. A dead owner never gives budget back: it only
marks a charge as forfeited, and frees a release key for the next run.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from contextlib import suppress
from pathlib import Path

from dpflow.exceptions import LedgerUnavailable
from dpflow.locks import TurnQueue

#: How long a thread waits for the others of its process.
THREAD_SECONDS = 60.0
_NAME = re.compile(r"[0-9a-f]{32}")


class Liveness:
    """Owner of charges in a ledger: one name for each object, until it is closed.

    As it is, for a ledger in memory; the others let processes see each other's names.
    """

    #: Record locks belong to a process: while one object takes or gives up a name, no
    #: other may open its file.
    _lock = TurnQueue()

    def __init__(self) -> None:
        self._name = ""

    def mine(self) -> str:
        """Return this process's owner name, taking its lock at the first call.

        Raises:
            OSError: If the lock cannot be taken; the caller may not reserve then.
            LedgerUnavailable: If the server does not answer.
        """
        return self._lock.run(self._mine, THREAD_SECONDS)

    def _mine(self) -> str:
        # In a forked child, the name of this object is its parent's.
        if self._name not in names_here:
            self._name = self._take()
            names_here[self._name] = self
        return self._name

    def alive(self, owner: str) -> bool:
        """Say whether the process behind an owner name still runs.

        Raises:
            LedgerUnavailable: If the system or the server gives no answer.
        """
        if owner in names_here or not _NAME.fullmatch(owner):
            return owner in names_here
        return self._is_held(owner)

    def close(self) -> None:
        """Give up this process's name; its open reservations become forfeited."""
        self._lock.run(self._give_up, THREAD_SECONDS)

    def _take(self) -> str:
        """Return a new name, which others see as alive from now on."""
        return uuid.uuid4().hex

    def _is_held(self, owner: str) -> bool:  # noqa: ARG002 (no other process has names)
        """Say whether another process holds a name."""
        return False

    def _give_up(self) -> None:
        names_here.pop(self._name, None)


#: The names that this process holds; a forked child has none of its parent's. They keep
#: the objects: a name lives until it is given up, even if its ledger is dropped.
names_here: dict[str, Liveness] = {}
os.register_at_fork(after_in_child=names_here.clear)


class Owners(Liveness):
    """The owner files of one ledger.

    Args:
        folder: Where the files lie; made when the first reservation is.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = Path(folder).absolute()
        self._descriptor = -1

    def _take(self) -> str:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._sweep()
        name = super()._take()
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        born = self._folder / f"{name}.new"
        self._descriptor = os.open(born, flags, 0o600)
        try:
            # A record lock (not flock): children of a fork do not inherit it.
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
            # Under its name the file never lacks its lock, as if its owner were dead.
            born.rename(self._folder / name)
        except OSError:
            os.close(self._descriptor)
            born.unlink(missing_ok=True)
            raise
        return name

    def _is_held(self, owner: str) -> bool:
        try:
            # The right to read is enough.
            descriptor = os.open(self._folder / owner, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError:
            # Not ours to open: assume the safe answer, which keeps a claim alive.
            return True
        try:
            # Shared, so that two processes that ask about a dead owner both see it.
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # Systems differ in how they say that another process holds it.
            return True
        except OSError as error:
            msg = (
                "cannot tell whether the process that holds a charge lives: a lock in "
                f"{self._folder} was answered by {error.strerror!r}. The step did not "
                "run; try again when that file system gives locks."
            )
            raise LedgerUnavailable(msg, ledger=str(self._folder)) from error
        finally:
            os.close(descriptor)
        return False

    def _sweep(self) -> None:
        """Remove the files that killed processes leave.

        No answer changes: a name is never used again, and one without a file is as dead
        as one whose file has no lock. Their charges stay held.
        """
        with suppress(OSError, LedgerUnavailable), os.scandir(self._folder) as files:
            for file in files:
                if _NAME.fullmatch(file.name) and not self.alive(file.name):
                    (self._folder / file.name).unlink(missing_ok=True)

    def _give_up(self) -> None:
        if self._name in names_here:
            super()._give_up()
            os.close(self._descriptor)
            (self._folder / self._name).unlink(missing_ok=True)
